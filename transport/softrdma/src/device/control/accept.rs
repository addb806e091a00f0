//! Accepting connection requests, and completing connections that a peer has accepted.

use super::Control;
use super::endpoint::{Role, refusal};
use crate::device::MAX_RD_ATOMIC;
use crate::device::shards::reach::Reach;
use trunkline_roce::cm::Accept;
use trunkline_verbs::{CmIdNumber, ConnectParameters, RejectReason, Time, VerbsError};

impl Control {
    /// Brings the QP up and answers a request.
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

    /// Completes a connection whose QP the program has brought up after the peer's answer.
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

    /// Handles the program's report of a packet at the QP of an accepted endpoint.
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
}
