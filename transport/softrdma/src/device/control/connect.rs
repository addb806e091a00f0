//! Connecting to a peer.

use super::Control;
use super::endpoint::{Role, refusal, transport};
use crate::device::shards::reach::Reach;
use trunkline_roce::cm::Connect;
use trunkline_verbs::{CmIdNumber, ConnectParameters, QpType, Time, VerbsError};

impl Control {
    /// Sends the request of an active endpoint.
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
        let mtu = shards.first().link().mtu_of(local.ip());
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
            private: &parameters.private_data,
        };
        let connection = self.connections.machine().connect(now.0, &connect).map_err(refusal)?;
        self.connections.asks(id, connection);
        self.finish(shards, now);
        Ok(())
    }
}
