//! Timers for retransmission, giving up and expiry, and the MRA, with which a peer requests more time.

use super::config::{CLOSING_RETRY_NS, wire_time_ns};
use super::connection::{Addresses, ConnectionState};
use super::{CmDrop, CmMachine, ConnectionId, Event, message};
use crate::wire::cm::{Answered, CmMessage, Mra};
use trunkline_verbs::{OneFlow, RejectReason, UnreachableCause};

/// Number of transmissions, in 525 ms, after which an unauthenticated report ends an unanswered request. Therefore a forged
/// report does not end a request to a slow peer, or a request after two lost packets.
const SENT_BEFORE_DOUBT: u32 = 3;

impl CmMachine {
    /// Returns the time of the next call of [`Self::handle_timeout`].
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        let timers = [self.table.next_timer(), self.questions.next_timer()];
        timers.into_iter().flatten().map(|(at, _)| at).min()
    }

    /// Handles all expired timers.
    pub fn handle_timeout(&mut self, now: u64) {
        while let Some((_, id)) = self.questions.next_timer().filter(|(at, _)| *at <= now) {
            self.question_due(now, id);
        }
        while let Some((_, id)) = self.table.next_timer().filter(|(at, _)| *at <= now) {
            // The code below sets the timer again if it needs one.
            self.table.set_timer(id, None);
            let Some(connection) = self.table.get(id) else { continue };
            match connection.state {
                ConnectionState::ReqSent | ConnectionState::RepSent | ConnectionState::DreqSent => {
                    let unanswered = connection.unanswered.as_ref();
                    let is_unreachable = unanswered.is_some_and(|unanswered| {
                        unanswered.unreachable.is_some() && unanswered.sent >= SENT_BEFORE_DOUBT
                    });
                    if is_unreachable || !self.send_again(now, id) {
                        self.give_up(now, id);
                    }
                }
                ConnectionState::ReqReceived(_) | ConnectionState::RepReceived => self.expire(now, id),
                ConnectionState::Timewait => {
                    let qpn = connection.local_qpn;
                    self.report(Event::TimewaitExit(id, qpn));
                    self.remove(id);
                }
                ConnectionState::Idle => self.remove(id),
                ConnectionState::Established => {}
            }
        }
    }

    /// Repeats the unanswered message. Returns false if the maximum number of transmissions is reached.
    fn send_again(&mut self, now: u64, id: ConnectionId) -> bool {
        let Self { config, table, .. } = self;
        let Some(connection) = table.get_mut(id) else { return false };
        let alternates = connection.one_flow == OneFlow::Try;
        let Some(unanswered) = connection.unanswered.as_mut() else { return false };
        let factor = 1_u64 << unanswered.sent.min(32);
        let wait_ns = config.first_retry_ns.saturating_mul(factor);
        let next = match unanswered.until {
            Some(until) if now < until => now.saturating_add(wait_ns.min(CLOSING_RETRY_NS)).min(until),
            None if unanswered.sent < config.transmissions => {
                now.saturating_add(wait_ns.min(config.longest_retry_ns))
            }
            _ => return false,
        };
        if let CmMessage::Req(req) = &mut unanswered.message
            && alternates
        {
            *req = message::in_form(config, *req, &connection.peer.ports, !req.is_one_flow());
        }
        unanswered.sent = unanswered.sent.saturating_add(1);
        let message = unanswered.message;
        table.set_timer(id, Some(next));
        self.counters.retransmitted += 1;
        self.send(id, &message);
        true
    }

    pub(super) fn give_up(&mut self, now: u64, id: ConnectionId) {
        let Some(connection) = self.table.get(id) else { return };
        match connection.state {
            ConnectionState::ReqSent => {
                let unreachable =
                    connection.unanswered.as_ref().and_then(|unanswered| unanswered.unreachable);
                // The peer may have the REQ and be about to accept it, unless its port is closed.
                if unreachable != Some(UnreachableCause::Port) {
                    let rej = message::rej_timeout(&self.config, id);
                    self.send(id, &rej);
                }
                self.report(Event::Unreachable(id, unreachable.unwrap_or(UnreachableCause::NoAnswer)));
                self.remove(id);
            }
            ConnectionState::RepSent => {
                // The peer may be connected if only the RTU was lost, so send a DREQ as for any other
                // connection.
                self.report(Event::Unreachable(id, UnreachableCause::NoAnswer));
                self.mark_released(id);
                self.start_dreq(now, id, &[]);
            }
            ConnectionState::DreqSent => self.finish(now, id, false),
            _ => {}
        }
    }

    /// Ends a request that the local program did not decide in time.
    fn expire(&mut self, now: u64, id: ConnectionId) {
        let reason = RejectReason::TIMEOUT;
        if self.table.get(id).is_some_and(|connection| !connection.is_released) {
            self.report(Event::Unreachable(id, UnreachableCause::NoAnswer));
            // `reject` accepts all states in which a request expires.
            let _ = self.reject(now, id, reason, &[]);
        }
    }

    pub(super) fn handle_mra(&mut self, now: u64, addresses: Addresses, mra: &Mra) {
        let id = ConnectionId(mra.remote_id);
        let Some(connection) = self.table.get(id) else {
            self.counters.count(CmDrop::UnknownConnection);
            return;
        };
        // Before the REP, the peer's id is unknown.
        let is_same = connection.remote_id == mra.local_id || connection.state == ConnectionState::ReqSent;
        if connection.addresses != addresses || !is_same {
            self.counters.count(CmDrop::WrongPeer);
            return;
        }
        let fits = match connection.state {
            ConnectionState::ReqSent => mra.answered == Answered::REQ,
            ConnectionState::RepSent => mra.answered == Answered::REP,
            _ => false,
        };
        let first_retry_ns = self.config.first_retry_ns;
        let unanswered = self.table.get_mut(id).and_then(|connection| connection.unanswered.as_mut());
        let Some(unanswered) = unanswered.filter(|unanswered| fits && now < unanswered.patience_until) else {
            self.counters.count(CmDrop::WrongState);
            return;
        };
        // The peer is alive. Wait for the requested time, then retransmit the full number of times.
        (unanswered.sent, unanswered.unreachable) = (0, None);
        let asked = wire_time_ns(mra.service_timeout).saturating_add(first_retry_ns);
        let until = now.saturating_add(asked).min(unanswered.patience_until);
        self.table.set_timer(id, Some(until));
    }
}
