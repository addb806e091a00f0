//! Requesting, accepting and ending connections.
//!
//! Stateless. Endpoints of port space UDP exchange SIDR requests and responses, and are never connected; the
//! functions for them are at the end.

use super::Control;
use super::endpoint::{PendingCmEventKind, Role, refusal, transport};
use crate::device::MAX_RD_ATOMIC;
use crate::device::shards::reach::Reach;
use trunkline_roce::cm::{Accept, Answer, Ask, Connect};
use trunkline_verbs::{
    CmIdNumber, ConnectParameters, OneFlow, QpNumber, QpType, RejectReason, Time, UdpPorts, VerbsError,
};

impl Control {
    /// Sends the connection request of an active endpoint.
    pub(in crate::device) fn connect(
        &mut self,
        shards: &mut Reach<'_>,
        id: CmIdNumber,
        parameters: &ConnectParameters,
        now: Time,
    ) -> Result<(), VerbsError> {
        if self.connections.is_service(id) {
            return self.ask(shards, id, parameters, now);
        }
        let endpoint = self.connections.endpoint(id)?;
        let Role::Active { remote } = endpoint.role else {
            return Err(VerbsError::Invalid(
                "an endpoint without a peer, or a passive one, does not connect",
            ));
        };
        if endpoint.qp_type == QpType::XrcTgt {
            return Err(VerbsError::Invalid("a TGT's endpoint does not connect"));
        }
        if !endpoint.has_route {
            return Err(VerbsError::Invalid("the way to the peer is not resolved"));
        }
        if endpoint.has_asked {
            return Err(VerbsError::Invalid("the endpoint has asked its peer already; make another"));
        }
        let none = VerbsError::Invalid("attach a QP before connecting, or name one");
        let qpn = endpoint.qp.or(parameters.qp_number).ok_or(none)?;
        endpoint.named_qp = parameters.qp_number.filter(|_| endpoint.qp.is_none());
        let starting_psn = endpoint.announced;
        let traffic_class = endpoint.traffic_class;
        let (port_space, qp_type, local) = (endpoint.port_space, endpoint.qp_type, endpoint.local);
        let ack_timeout = endpoint.ack_timeout.unwrap_or(parameters.ack_timeout);
        let link = shards.first().link();
        let carried = link.mtu_of(local.ip());
        let mtu = endpoint.path_mtu.map_or(carried, |most| most.min(carried));
        let (one_flow, retry_refused) = (endpoint.one_flow, endpoint.retry_refused);
        let mut ports = endpoint.ports.unwrap_or_else(|| UdpPorts::new(link.port()));
        // A request for a single-flow connection names the connection's source port.
        let leaves_from = || (one_flow != OneFlow::No).then(|| link.source(local.ip()).port());
        let own = ports.own.or_else(leaves_from);
        if one_flow == OneFlow::Yes {
            ports.own = own;
        }
        endpoint.ports = Some(ports);
        let connect = Connect {
            local,
            remote,
            port_space,
            transport: transport(qp_type),
            qpn,
            starting_psn,
            mtu,
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth,
            retry_count: parameters.retry_count.min(7),
            rnr_retry: parameters.rnr_retry_count.min(7),
            ack_timeout: ack_timeout.clamp(1, 31),
            flow_control: parameters.flow_control,
            traffic_class,
            srq: parameters.srq,
            ports: UdpPorts { own, ..ports },
            one_flow,
            retry_refused,
            private: &parameters.private_data,
        };
        let connection = self.connections.machine().connect(now.0, &connect).map_err(refusal)?;
        self.connections.asks(id, connection);
        self.finish(shards, now);
        Ok(())
    }

    /// Brings up the attached QP, if any, and accepts a request.
    pub(in crate::device) fn accept(
        &mut self,
        shards: &mut Reach<'_>,
        id: CmIdNumber,
        parameters: &ConnectParameters,
        now: Time,
    ) -> Result<(), VerbsError> {
        if self.connections.is_service(id) {
            return self.answer(shards, id, parameters, now);
        }
        let endpoint = self.connections.endpoint(id)?;
        let not_asked = VerbsError::Invalid("the endpoint has no request to answer");
        let connection = endpoint.connection.ok_or(not_asked)?;
        let peer = endpoint.offered.ok_or(not_asked)?;
        if endpoint.role != Role::Passive {
            return Err(not_asked);
        }
        let none = VerbsError::Invalid("attach a QP before accepting, or name one");
        let attached = endpoint.qp;
        let qpn = attached.or(parameters.qp_number).ok_or(none)?;
        endpoint.named_qp = parameters.qp_number.filter(|_| attached.is_none());
        let starting_psn = endpoint.announced;
        let resources = parameters.responder_resources.min(MAX_RD_ATOMIC);
        let depth = parameters.initiator_depth.min(peer.initiator_depth);
        if attached.is_some() {
            self.bring_up(shards, id, qpn, resources, depth)?;
        }
        let accept = Accept {
            qpn,
            starting_psn,
            responder_resources: resources,
            initiator_depth: depth,
            rnr_retry: parameters.rnr_retry_count.min(7),
            flow_control: parameters.flow_control,
            srq: parameters.srq,
            private: &parameters.private_data,
        };
        self.set_awaits_rtu(shards, id, true);
        if let Err(error) = self.connections.machine().accept(now.0, connection, &accept) {
            self.fail_attached(shards, id);
            return Err(refusal(error));
        }
        self.finish(shards, now);
        Ok(())
    }

    /// Refuses a request.
    pub(in crate::device) fn reject(
        &mut self,
        shards: &mut Reach<'_>,
        id: CmIdNumber,
        reason: RejectReason,
        private: &[u8],
        now: Time,
    ) -> Result<(), VerbsError> {
        if self.connections.is_service(id) {
            return self.decline(shards, id, private, now);
        }
        let none = VerbsError::Invalid("the endpoint has no request to answer");
        let connection = self.connections.endpoint(id)?.connection.ok_or(none)?;
        self.connections.machine().reject(now.0, connection, reason, private).map_err(refusal)?;
        self.finish(shards, now);
        Ok(())
    }

    /// Completes a connection for which the program has brought up the QP after the peer's REP.
    pub(in crate::device) fn establish(
        &mut self,
        shards: &mut Reach<'_>,
        id: CmIdNumber,
        now: Time,
    ) -> Result<(), VerbsError> {
        let none = VerbsError::Invalid("no peer has answered this endpoint");
        let connection = self.connections.endpoint(id)?.connection.ok_or(none)?;
        self.connections.machine().confirm(connection).map_err(refusal)?;
        self.finish(shards, now);
        Ok(())
    }

    /// Handles the program's report that a packet arrived at the QP of an accepted endpoint.
    pub(in crate::device) fn communication_established(
        &mut self,
        shards: &mut Reach<'_>,
        id: CmIdNumber,
        now: Time,
    ) {
        if let Some(qp) = self.connections.carrier(id) {
            self.connections.machine().communication_established(qp);
            self.finish(shards, now);
        }
    }

    /// Ends a connection.
    pub(in crate::device) fn disconnect(
        &mut self,
        shards: &mut Reach<'_>,
        id: CmIdNumber,
        private: &[u8],
        now: Time,
    ) -> Result<(), VerbsError> {
        let none = VerbsError::Invalid("the endpoint has no connection");
        let connection = self.connections.endpoint(id)?.connection.ok_or(none)?;
        self.connections.machine().disconnect(now.0, connection, private).map_err(refusal)?;
        self.fail_attached(shards, id);
        self.finish(shards, now);
        Ok(())
    }

    /// Disconnects all endpoints when the process exits. Does not report events, since the interrupted program may hold
    /// the lock of a channel.
    pub(in crate::device) fn disconnect_all(&mut self, shards: &mut Reach<'_>, now: Time) {
        self.connections.machine().disconnect_all(now.0);
        self.gather_cm(shards, now);
        shards.first().send(now);
        // If this process holds the device's port, it must forward the DREQs to other processes at its address before
        // it exits, since they are not retransmitted.
        shards.first().link_mut().forward_last();
        self.qps.addresses().ports_end();
    }

    /// Destroys an endpoint that the program has dropped, but not its QP.
    pub(in crate::device) fn drop_endpoint(&mut self, shards: &mut Reach<'_>, id: CmIdNumber, now: Time) {
        let Some(endpoint) = self.connections.remove(id) else { return };
        // Refuse requests that were not delivered to the program, which cannot accept them without the listener.
        for event in endpoint.channel.extract(|event| event.id == id) {
            if let PendingCmEventKind::ConnectRequest { new, .. } = event.kind {
                self.drop_endpoint(shards, new, now);
            }
        }
        if let Some(listener) = endpoint.listener {
            let _gone = self.connections.machine().unlisten(listener);
        }
        if let Some(connection) = endpoint.connection {
            self.connections.machine().release(now.0, connection);
        }
        self.finish(shards, now);
    }

    /// Handles the events caused by an operation, and sends the resulting packets.
    pub(super) fn finish(&mut self, shards: &mut Reach<'_>, now: Time) {
        self.serve_cm(shards, now);
        shards.flush(now);
    }
}

/// Endpoints of port space UDP.
impl Control {
    /// Sends a SIDR request to the peer of a resolved endpoint.
    fn ask(
        &mut self,
        shards: &mut Reach<'_>,
        id: CmIdNumber,
        parameters: &ConnectParameters,
        now: Time,
    ) -> Result<(), VerbsError> {
        let endpoint = self.connections.endpoint(id)?;
        let Role::Active { remote } = endpoint.role else {
            return Err(VerbsError::Invalid("an endpoint without a peer, or a passive one, does not ask"));
        };
        if !endpoint.has_route || endpoint.has_asked {
            return Err(VerbsError::Invalid("an endpoint asks once, when the way to the peer is resolved"));
        }
        let retry_refused = endpoint.retry_refused;
        let ask = Ask { local: endpoint.local, remote, retry_refused, private: &parameters.private_data };
        let question = self.connections.machine().ask(now.0, &ask).map_err(refusal)?;
        self.connections.asks(id, question);
        self.finish(shards, now);
        Ok(())
    }

    /// Accepts the SIDR request for which an endpoint was created.
    fn answer(
        &mut self,
        shards: &mut Reach<'_>,
        id: CmIdNumber,
        parameters: &ConnectParameters,
        now: Time,
    ) -> Result<(), VerbsError> {
        let qpn = parameters.qp_number.ok_or(VerbsError::Invalid("an answer names a QP"))?;
        let question = self.connections.question(id)?;
        let answer = Answer { qpn, qkey: parameters.q_key, private: &parameters.private_data };
        self.connections.machine().answer(now.0, question, &answer).map_err(refusal)?;
        self.connections.end(id, question);
        self.finish(shards, now);
        Ok(())
    }

    /// Refuses the SIDR request for which an endpoint was created.
    fn decline(
        &mut self,
        shards: &mut Reach<'_>,
        id: CmIdNumber,
        private: &[u8],
        now: Time,
    ) -> Result<(), VerbsError> {
        let question = self.connections.question(id)?;
        self.connections.machine().decline(now.0, question, private).map_err(refusal)?;
        self.connections.end(id, question);
        self.finish(shards, now);
        Ok(())
    }
}

/// Converts the contents of a SIDR request or response to the parameters that the program gets.
pub(super) fn named(qp_number: Option<QpNumber>, q_key: u32, private_data: Vec<u8>) -> ConnectParameters {
    ConnectParameters {
        private_data,
        responder_resources: 0,
        initiator_depth: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        ack_timeout: 0,
        qp_number,
        flow_control: false,
        srq: false,
        q_key,
    }
}
