//! Endpoints of port space UDP: they ask for a QP, or answer with one, and are never connected.
//!
//! Owns what programs ask of them and what becomes of it; everything else about endpoints is the
//! same as in the other port spaces.

use super::Card;
use super::connect::{PendingCmEventKind, Role, refusal};
use trunkline_roce::cm::{Answer, Ask, ConnectionId};
use trunkline_verbs::{CmIdNumber, ConnectParameters, PortSpace, QpNumber, Time, VerbsError};

impl Card {
    /// Whether an endpoint asks and answers instead of connecting.
    pub(super) fn is_service(&self, id: CmIdNumber) -> bool {
        self.cm.endpoints.get(&id).is_some_and(|endpoint| endpoint.port_space == PortSpace::Udp)
    }

    /// Asks the peer of a resolved endpoint.
    pub(super) fn ask(
        &mut self,
        id: CmIdNumber,
        parameters: &ConnectParameters,
        now: Time,
    ) -> Result<(), VerbsError> {
        let endpoint = self.endpoint(id)?;
        let Role::Active { remote } = endpoint.role else {
            return Err(VerbsError::Invalid("an endpoint without a peer, or a passive one, does not ask"));
        };
        if !endpoint.has_route || endpoint.has_asked {
            return Err(VerbsError::Invalid("an endpoint asks once, when the way to the peer is resolved"));
        }
        let ask = Ask { local: endpoint.local, remote, private: &parameters.private_data };
        let question = self.cm.machine.ask(now.0, &ask).map_err(refusal)?;
        self.under_way(id, question, now)
    }

    /// Answers the question of an endpoint.
    pub(super) fn answer(
        &mut self,
        id: CmIdNumber,
        parameters: &ConnectParameters,
        now: Time,
    ) -> Result<(), VerbsError> {
        let qpn = parameters.qp_number.ok_or(VerbsError::Invalid("an answer names a QP"))?;
        let question = self.question(id)?;
        let answer = Answer { qpn, qkey: parameters.q_key, private: &parameters.private_data };
        self.cm.machine.answer(now.0, question, &answer).map_err(refusal)?;
        self.spend(id, question);
        self.finish(now);
        Ok(())
    }

    /// Refuses the question of an endpoint.
    pub(super) fn decline(&mut self, id: CmIdNumber, private: &[u8], now: Time) -> Result<(), VerbsError> {
        let question = self.question(id)?;
        self.cm.machine.decline(now.0, question, private).map_err(refusal)?;
        self.spend(id, question);
        self.finish(now);
        Ok(())
    }

    fn question(&mut self, id: CmIdNumber) -> Result<ConnectionId, VerbsError> {
        let endpoint = self.endpoint(id)?;
        let question = endpoint.connection.filter(|_| endpoint.role == Role::Passive);
        question.ok_or(VerbsError::Invalid("the endpoint has no question to answer"))
    }

    /// The question of an endpoint is settled; nothing more comes of it.
    pub(super) fn spend(&mut self, id: CmIdNumber, question: ConnectionId) {
        self.cm.by_connection.remove(&question);
        if let Some(endpoint) = self.cm.endpoints.get_mut(&id) {
            endpoint.connection = None;
        }
    }

    /// The peer has answered.
    pub(super) fn service_reply(
        &mut self,
        id: CmIdNumber,
        question: ConnectionId,
        qpn: QpNumber,
        q_key: u32,
        private: Vec<u8>,
    ) {
        self.spend(id, question);
        let parameters = named(Some(qpn), q_key, private.clone());
        self.cm.push_event(id, PendingCmEventKind::ServiceResolved { parameters }, private);
    }
}

/// What a question or an answer says, for the program: nothing of a connection.
pub(super) fn named(qp_number: Option<QpNumber>, q_key: u32, private_data: Vec<u8>) -> ConnectParameters {
    ConnectParameters {
        private_data,
        responder_resources: 0,
        initiator_depth: 0,
        retry_count: 0,
        rnr_retry_count: 0,
        ack_timeout: 0,
        qp_number,
        srq: false,
        q_key,
    }
}
