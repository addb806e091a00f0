//! Endpoints of port space UDP: they request a QP, or answer with one, and are never connected.
//!
//! Owns nothing. Everything else about endpoints is the same as in the other port spaces.

use super::Control;
use super::endpoint::{Role, refusal};
use crate::device::shards::reach::Reach;
use trunkline_roce::cm::{Answer, Ask};
use trunkline_verbs::{CmIdNumber, ConnectParameters, QpNumber, Time, VerbsError};

impl Control {
    /// Sends a request to the peer of a resolved endpoint.
    pub(super) fn ask(
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
        let ask = Ask { local: endpoint.local, remote, private: &parameters.private_data };
        let question = self.connections.machine().ask(now.0, &ask).map_err(refusal)?;
        self.connections.asks(id, question);
        self.finish(shards, now);
        Ok(())
    }

    /// Answers the request of an endpoint.
    pub(super) fn answer(
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

    /// Refuses the request of an endpoint.
    pub(super) fn decline(
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

/// Returns the parameters of a request or an answer, as the program sees them; there is no connection.
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
