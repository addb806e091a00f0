//! SIDR requests, which look up the QP that serves a port of port space UDP, without a connection (contract rocev2 12.10).
//! The code calls a SIDR request a question.
//!
//! ```text
//! asking:  ask --SIDR_REP--> ServiceReply, ServiceRefused   | repeated, then Unreachable
//! asked:   SIDR_REQ --> ServiceRequest --answer, decline--> SIDR_REP, repeated for each copy of it
//! ```
//!
//! A SIDR_REQ has no MRA, so a dead peer cannot be distinguished from a peer whose program is slow. Both sides wait for as
//! long as a program may take to decide.

use super::active::check_private;
use super::connection::{Addresses, Refusals};
use super::event::ServiceRequest;
use super::parameters::{Answer, Ask};
use super::questions::{Question, QuestionKey, Stage};
use super::{CmDrop, CmError, CmMachine, ConnectionId, Event, UnreachableReport, message};
use crate::wire::cm::{
    ADDRESS_HEADER_BYTES, AddressHeader, SIDR_REP_PRIVATE_BYTES, SIDR_REQ_USER_BYTES, ServiceId, SidrRep,
    SidrReq,
};
use std::net::SocketAddr;
use trunkline_verbs::{
    PKEY_DEFAULT, PeerHost, PortSpace, QpNumber, RejectReason, SidrStatus, UnreachableCause,
};

/// Multiple of the first wait that limits the doubling of the wait between repetitions.
const LONGEST_WAIT: u64 = 16;

impl CmMachine {
    /// Requests the QP that serves a port. `ServiceReply`, `ServiceRefused` or `Unreachable` follows.
    ///
    /// # Errors
    /// [`CmError::PrivateDataTooLong`], [`CmError::AddressFamily`], [`CmError::Full`].
    pub fn ask(&mut self, now: u64, ask: &Ask<'_>) -> Result<ConnectionId, CmError> {
        check_private(ask.private, SIDR_REQ_USER_BYTES)?;
        let addresses =
            Addresses { local: ask.local.ip().to_canonical(), remote: ask.remote.ip().to_canonical() };
        if addresses.local.is_ipv4() != addresses.remote.is_ipv4() {
            return Err(CmError::AddressFamily);
        }
        let limit = self.config.connections;
        if self.connections() >= limit {
            return Err(CmError::Full { limit });
        }
        let id = self.new_id();
        let local = SocketAddr::new(addresses.local, ask.local.port());
        let service_id = ServiceId::new(PortSpace::Udp, ask.remote.port());
        let key = QuestionKey {
            addresses,
            request_id: id.0,
            service_id,
            transaction: self.agent | u64::from(id.0),
        };
        let message = message::sidr_req(&key, local, ask.private);
        self.queue(addresses, key.transaction, &message);
        let until = now.saturating_add(self.config.decision_ns);
        let timer = now.saturating_add(self.config.first_retry_ns);
        let refusals = Refusals::new(&self.config, ask.retry_refused);
        let stage = Stage::Asked { message: Box::new(message), sent: 1, until, refusals };
        self.questions.insert(&mut self.listeners, Question { id, key, stage, timer });
        Ok(id)
    }

    /// Answers a SIDR request with a QP. The id is invalid afterwards.
    ///
    /// # Errors
    /// [`CmError::Unknown`], [`CmError::WrongState`], [`CmError::PrivateDataTooLong`].
    pub fn answer(&mut self, now: u64, id: ConnectionId, answer: &Answer<'_>) -> Result<(), CmError> {
        self.decide(now, id, SidrStatus::SUCCESS, answer)
    }

    /// Refuses a SIDR request. The id is invalid afterwards.
    ///
    /// # Errors
    /// Same as [`Self::answer`].
    pub fn decline(&mut self, now: u64, id: ConnectionId, private: &[u8]) -> Result<(), CmError> {
        let nothing = Answer { qpn: QpNumber::new(0), qkey: 0, private };
        self.decide(now, id, SidrStatus::REJECT, &nothing)
    }

    fn decide(
        &mut self,
        now: u64,
        id: ConnectionId,
        status: SidrStatus,
        answer: &Answer<'_>,
    ) -> Result<(), CmError> {
        check_private(answer.private, SIDR_REP_PRIVATE_BYTES)?;
        let question = self.questions.get(id).ok_or(CmError::Unknown)?;
        let key = question.key;
        match question.stage {
            Stage::Undecided { .. } => {}
            Stage::Asked { .. } => return Err(CmError::WrongState),
            // The request was answered, so its id is no longer valid for the program.
            Stage::Answered(_) => return Err(CmError::Unknown),
        }
        let rep = message::sidr_rep(&key, status, answer);
        self.queue(key.addresses, key.transaction, &rep);
        let until = now.saturating_add(self.config.decision_ns);
        self.questions.answer(&mut self.listeners, id, rep, until, self.config.answers);
        Ok(())
    }

    /// Releases a SIDR request of either side. Returns true if `id` is a SIDR request.
    pub(super) fn release_question(&mut self, now: u64, id: ConnectionId) -> bool {
        let Some(question) = self.questions.get(id) else { return false };
        match question.stage {
            Stage::Asked { .. } => self.questions.remove(&mut self.listeners, id),
            Stage::Undecided { .. } => {
                // The match has shown that the state is valid for this call.
                let _ = self.decline(now, id, &[]);
            }
            Stage::Answered(_) => {}
        }
        true
    }

    /// Returns the SIDR request of this side whose transaction a report quotes.
    pub(super) fn question_of(&self, report: &UnreachableReport) -> Option<ConnectionId> {
        // A transaction id ends with the request id.
        let [.., a, b, c, d] = report.transaction.unwrap_or_default().to_be_bytes();
        let id = ConnectionId(u32::from_be_bytes([a, b, c, d]));
        let addresses = Addresses { local: report.from, remote: report.to };
        let is_asking = self.questions.get(id).is_some_and(|question| {
            let QuestionKey { addresses: of_question, transaction, .. } = question.key;
            let is_asked = matches!(question.stage, Stage::Asked { .. });
            is_asked && of_question == addresses && report.transaction == Some(transaction)
        });
        is_asking.then_some(id)
    }

    /// Ends the SIDR request of this side whose transaction a report quotes, unless the request is retried. Returns true if
    /// there is such a request.
    pub(super) fn question_unreachable(&mut self, now: u64, report: &UnreachableReport) -> bool {
        let asking = self.question_of(report);
        if let Some(id) = asking
            && self.questions.refusals(id).is_some_and(|refusals| refusals.ends(now))
        {
            self.questions.remove(&mut self.listeners, id);
            self.report_question(Event::Unreachable(id, report.cause));
        }
        asking.is_some()
    }

    pub(super) fn handle_sidr_req(
        &mut self,
        now: u64,
        at: Addresses,
        host: PeerHost,
        transaction: u64,
        req: &SidrReq,
    ) {
        if req.request_id == 0 {
            self.counters.count(CmDrop::Malformed);
            return;
        }
        let (request_id, service_id) = (req.request_id, req.service_id);
        let key = QuestionKey { addresses: at, request_id, service_id, transaction };
        if let Some(question) = self.questions.same(&key) {
            self.counters.count(CmDrop::Duplicate);
            if let Stage::Answered(answer) = &question.stage {
                let answer = **answer;
                self.queue(at, transaction, &answer);
            }
            return;
        }
        let request = match self.check_sidr_req(at, req) {
            Ok(request) => request,
            Err(reason) => {
                self.counters.refuse(reason);
                let nothing = Answer { qpn: QpNumber::new(0), qkey: 0, private: &[] };
                let rep = message::sidr_rep(&key, SidrStatus::UNSUPPORTED, &nothing);
                self.queue(at, transaction, &rep);
                return;
            }
        };
        if let Err(cause) = self.check_room(host, request.listener) {
            // Drop the request, as a full queue does. The peer retransmits it.
            self.counters.count(cause);
            return;
        }
        let id = self.new_id();
        let timer = now.saturating_add(self.config.decision_ns);
        let stage = Stage::Undecided { host, waiting: Some(request.listener) };
        self.questions.insert(&mut self.listeners, Question { id, key, stage, timer });
        self.report_question(Event::ServiceRequest(id, Box::new(request)));
    }

    /// Checks that the SIDR request is valid and has a listener. The reason is only for the counters, because a SIDR_REP has
    /// fewer codes.
    fn check_sidr_req(&self, at: Addresses, req: &SidrReq) -> Result<ServiceRequest, RejectReason> {
        if (req.pkey ^ PKEY_DEFAULT) & 0x7fff != 0 {
            return Err(RejectReason::UNSUPPORTED);
        }
        let header = AddressHeader::parse(&req.private);
        let (source, destination) = header.addresses().ok_or(RejectReason::CONSUMER)?;
        if (source.ip().to_canonical(), destination.to_canonical()) != (at.remote, at.local) {
            return Err(RejectReason::INVALID_SERVICE_ID);
        }
        let unserved = RejectReason::INVALID_SERVICE_ID;
        // Listeners of the other port spaces wait for connections.
        let Some((PortSpace::Udp, port)) = req.service_id.space_and_port() else { return Err(unserved) };
        let listener = self.listeners.find(req.service_id, at.local).ok_or(unserved)?;
        Ok(ServiceRequest {
            listener: listener.id,
            local: SocketAddr::new(at.local, port),
            remote: SocketAddr::new(at.remote, source.port()),
            private: req.private[ADDRESS_HEADER_BYTES..].to_vec(),
        })
    }

    pub(super) fn handle_sidr_rep(&mut self, addresses: Addresses, rep: &SidrRep) {
        let id = ConnectionId(rep.request_id);
        let asked = self.questions.get(id).filter(|question| matches!(question.stage, Stage::Asked { .. }));
        let Some(question) = asked else {
            self.counters.count(CmDrop::UnknownConnection);
            return;
        };
        if question.key.addresses != addresses {
            self.counters.count(CmDrop::WrongPeer);
            return;
        }
        self.questions.remove(&mut self.listeners, id);
        let private = rep.private.to_vec();
        self.report_question(match rep.status {
            SidrStatus::SUCCESS => Event::ServiceReply { id, qpn: rep.qpn, qkey: rep.qkey, private },
            status => Event::ServiceRefused(id, status, private),
        });
    }

    /// Handles the expired timer of a SIDR request.
    pub(super) fn question_due(&mut self, now: u64, id: ConnectionId) {
        let Some(question) = self.questions.get(id) else { return };
        match question.stage {
            Stage::Asked { sent, until, .. } if now < until => {
                let factor = (1_u64 << sent.min(32)).min(LONGEST_WAIT);
                let wait_ns = self.config.first_retry_ns.saturating_mul(factor);
                let timer = now.saturating_add(wait_ns).min(until);
                self.counters.retransmitted += 1;
                if let Some((key, message)) = self.questions.repeat(id, timer) {
                    self.queue(key.addresses, key.transaction, &message);
                }
            }
            Stage::Asked { .. } => {
                self.questions.remove(&mut self.listeners, id);
                self.report_question(Event::Unreachable(id, UnreachableCause::NoAnswer));
            }
            Stage::Undecided { .. } => {
                // The match has shown that the state is valid for this call.
                let _ = self.decline(now, id, &[]);
                self.report_question(Event::Unreachable(id, UnreachableCause::NoAnswer));
            }
            Stage::Answered(_) => self.questions.remove(&mut self.listeners, id),
        }
    }
}
