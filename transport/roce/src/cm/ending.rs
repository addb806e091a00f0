//! The end of connections through REJ, DREQ and DREP, timewait, and release by the program.

use super::active::check_private;
use super::config::{DOUBT_EVERY_NS, wire_time_ns};
use super::connection::{Addresses, Connection, ConnectionState, RemoteKey};
use super::passive::refusal_ports;
use super::{CmDrop, CmError, CmMachine, ConnectionId, Event, Transport, UnreachableReport, message};
use crate::wire::cm::{Answered, CmMessage, DREQ_PRIVATE_BYTES, Dreq, Ids, REJ_PRIVATE_BYTES, Rej};
use std::cmp::Ordering;
use trunkline_verbs::{OneFlow, QpNumber, RejectReason};

/// Returns the report with canonical addresses, and the addresses as connections store them.
fn canonical(report: &UnreachableReport) -> (Addresses, UnreachableReport) {
    let addresses = Addresses { local: report.from.to_canonical(), remote: report.to.to_canonical() };
    (addresses, UnreachableReport { from: addresses.local, to: addresses.remote, ..*report })
}

impl CmMachine {
    /// Refuses a request, or a reply that this side cannot use. Only `TimewaitExit` may follow, and only after a refused
    /// reply.
    ///
    /// # Errors
    /// [`CmError::Unknown`], [`CmError::WrongState`], [`CmError::PrivateDataTooLong`].
    pub fn reject(
        &mut self,
        now: u64,
        id: ConnectionId,
        reason: RejectReason,
        private: &[u8],
    ) -> Result<(), CmError> {
        check_private(private, REJ_PRIVATE_BYTES)?;
        let connection = self.own(id)?;
        match connection.state {
            ConnectionState::ReqReceived(_) => {
                let rej = message::rej((id.0, connection.remote_id), Answered::REQ, reason, private);
                let (addresses, transaction) = (connection.addresses, connection.transaction);
                let ports = refusal_ports(connection.peer.ports, connection.one_flow == OneFlow::Try);
                self.queue_to(addresses, ports, transaction, &rej);
                self.remove(id);
            }
            ConnectionState::RepReceived => {
                let rej = message::rej((id.0, connection.remote_id), Answered::REP, reason, private);
                self.send(id, &rej);
                self.mark_released(id);
                self.enter_timewait(now, id);
            }
            _ => return Err(CmError::WrongState),
        }
        Ok(())
    }

    /// Ends a connection; `Disconnected` follows. Has no effect if it is already ending.
    ///
    /// The DREQ is repeated for as long as the kernel repeats a DREQ. That is 98.3 s on the active side, and at most the
    /// time that the REQ requested on the passive side. [`Self::release`] ends the wait.
    ///
    /// # Errors
    /// [`CmError::Unknown`]; [`CmError::PrivateDataTooLong`]; [`CmError::WrongState`] before the connection is accepted. In
    /// that case, call `release` or `reject`.
    pub fn disconnect(&mut self, now: u64, id: ConnectionId, private: &[u8]) -> Result<(), CmError> {
        check_private(private, DREQ_PRIVATE_BYTES)?;
        match self.own(id)?.state {
            ConnectionState::RepSent | ConnectionState::Established => {
                self.start_dreq(now, id, private);
                self.wait_for_answer(now, id);
                Ok(())
            }
            ConnectionState::Idle | ConnectionState::DreqSent | ConnectionState::Timewait => Ok(()),
            ConnectionState::ReqSent | ConnectionState::RepReceived | ConnectionState::ReqReceived(_) => {
                Err(CmError::WrongState)
            }
        }
    }

    /// Releases a connection in any state, because the program has dropped its endpoint. Sends the peer the
    /// message that the state requires. Only the event `TimewaitExit` may follow.
    pub fn release(&mut self, now: u64, id: ConnectionId) {
        if self.release_question(now, id) {
            return;
        }
        let Ok(connection) = self.own(id) else { return };
        let is_target = connection.transport == Transport::Xrc && !connection.is_active;
        match connection.state {
            ConnectionState::ReqSent => {
                let rej = message::rej_timeout(&self.config, id);
                self.send(id, &rej);
                self.remove(id);
            }
            ConnectionState::ReqReceived(_) | ConnectionState::RepReceived => {
                // `own` has shown that the connection exists and can be rejected.
                let _ = self.reject(now, id, RejectReason::CONSUMER, &[]);
            }
            // Other processes may use the TGT (contract J9).
            ConnectionState::Established if is_target => {
                self.mark_released(id);
                self.enter(id, ConnectionState::Idle);
                self.table.set_timer(id, Some(now.saturating_add(self.config.decision_ns)));
            }
            ConnectionState::RepSent | ConnectionState::Established => {
                self.mark_released(id);
                self.start_dreq(now, id, &[]);
            }
            ConnectionState::DreqSent => {
                self.mark_released(id);
                self.stop_waiting_for_answer(now, id);
            }
            ConnectionState::Idle | ConnectionState::Timewait => self.mark_released(id),
        }
    }

    /// Ends each connection with one message to its peer, for a process that exits without disconnecting, as the kernel does
    /// when it closes a process's files. The program may still use its connections.
    pub fn disconnect_all(&mut self, now: u64) {
        for id in self.table.ids() {
            let Ok(connection) = self.own(id) else { continue };
            let is_target = connection.transport == Transport::Xrc && !connection.is_active;
            match connection.state {
                // Other processes may use the TGT (contract J9).
                ConnectionState::Established if is_target => {}
                ConnectionState::RepSent | ConnectionState::Established => self.start_dreq(now, id, &[]),
                ConnectionState::ReqReceived(_) | ConnectionState::RepReceived => {
                    // `own` has shown that the connection exists and can be rejected.
                    let _ = self.reject(now, id, RejectReason::CONSUMER, &[]);
                }
                ConnectionState::ReqSent => {
                    let rej = message::rej_timeout(&self.config, id);
                    self.send(id, &rej);
                }
                ConnectionState::Idle | ConnectionState::DreqSent | ConnectionState::Timewait => {}
            }
        }
    }

    /// Ends a connection after the device has found that the peer's process died without a message. The effect is the same
    /// as if a kernel had sent a message in place of the process. The message is a REJ if this side has not answered yet,
    /// and a DREQ otherwise. Has no effect before the peer's first message, or on an ended connection.
    pub fn peer_died(&mut self, now: u64, id: ConnectionId) {
        let Some(connection) = self.table.get(id) else { return };
        match connection.state {
            ConnectionState::ReqReceived(_) => {
                self.report(Event::Rejected(id, RejectReason::TIMEOUT, vec![0; REJ_PRIVATE_BYTES]));
                self.remove(id);
            }
            ConnectionState::RepReceived
            | ConnectionState::RepSent
            | ConnectionState::Established
            | ConnectionState::Idle
            | ConnectionState::DreqSent => {
                self.finish(now, id, true);
            }
            ConnectionState::ReqSent | ConnectionState::Timewait => {}
        }
    }

    /// Ends requests of this node that were not delivered according to a report. A request whose transaction the report
    /// quotes ends immediately. If refused requests are retried, it ends at a report that arrives at least 525 ms after the
    /// first one. A report without a transaction may be forged, so requests to its address end only if they are still
    /// unanswered when they would be repeated for the third time. Connections are not affected. Returns true if there was
    /// such a request.
    pub fn handle_unreachable(&mut self, now: u64, report: &UnreachableReport) -> bool {
        let (addresses, report) = canonical(report);
        let mut is_ours = self.question_unreachable(now, &report);
        for id in self.table.asking(addresses) {
            let Some(connection) = self.table.get_mut(id) else { continue };
            if report.transaction.is_some_and(|quoted| quoted != connection.transaction) {
                continue;
            }
            is_ours = true;
            let is_proven = report.transaction.is_some();
            if is_proven && !connection.refusals.ends(now) {
                continue;
            }
            if let Some(unanswered) = &mut connection.unanswered {
                unanswered.unreachable = Some(report.cause);
            }
            if is_proven {
                self.give_up(now, id);
            }
        }
        is_ours
    }

    /// Returns true if a report may be about a request of this node. Other reports can be caused by anyone, in any number.
    #[must_use]
    pub fn expects_unreachable(&self, report: &UnreachableReport) -> bool {
        let (addresses, report) = canonical(report);
        !self.table.asking(addresses).is_empty() || self.question_of(&report).is_some()
    }

    pub(super) fn handle_rej(&mut self, now: u64, addresses: Addresses, rej: &Rej) {
        let Some(connection) = self.rejected(addresses, rej) else {
            self.counters.count(CmDrop::UnknownConnection);
            return;
        };
        let is_same = connection.addresses == addresses
            && (connection.remote_id == rej.local_id || connection.state == ConnectionState::ReqSent);
        if !is_same {
            self.counters.count(CmDrop::WrongPeer);
            return;
        }
        let id = connection.id;
        if let Some(mtu) = message::mtu_of_rej(rej).filter(|_| connection.state == ConnectionState::ReqSent) {
            match mtu.cmp(&connection.peer.mtu) {
                Ordering::Less => return self.ask_with_mtu(now, id, mtu),
                // This reply answers a REQ that was retransmitted before the smaller MTU arrived.
                Ordering::Equal => return self.counters.count(CmDrop::Duplicate),
                Ordering::Greater => {}
            }
        }
        let rejected = Event::Rejected(id, rej.reason, rej.private.to_vec());
        match connection.state {
            ConnectionState::ReqSent | ConnectionState::ReqReceived(_) => {
                let qpn = Some(connection.local_qpn).filter(|_| connection.is_active);
                self.report(rejected);
                self.remove(id);
                if let (Some(qpn), RejectReason::STALE_CONNECTION) = (qpn, rej.reason) {
                    self.end_of_same_qp(now, qpn);
                }
            }
            ConnectionState::RepReceived | ConnectionState::RepSent => {
                self.report(rejected);
                self.mark_released(id);
                self.enter_timewait(now, id);
            }
            // The connection no longer exists at the peer, or never existed there.
            ConnectionState::Established | ConnectionState::Idle | ConnectionState::DreqSent => {
                self.finish(now, id, true)
            }
            ConnectionState::Timewait => self.counters.count(CmDrop::Duplicate),
        }
    }

    /// Returns the connection that a REJ refers to, by this side's id. If the peer withdraws a REQ before it has that id,
    /// the connection is found by the peer's id.
    pub(super) fn rejected(&self, addresses: Addresses, rej: &Rej) -> Option<&Connection> {
        if rej.remote_id != 0 {
            return self.table.get(ConnectionId(rej.remote_id));
        }
        let ca_guid = message::guid_of_rej(rej)?;
        let key = RemoteKey { address: addresses.remote, ca_guid, number: rej.local_id };
        // The peer has not received this side's id, so the connection cannot be established yet.
        self.table.with_remote_id(&key).filter(|connection| connection.state.is_half_open())
    }

    pub(super) fn handle_dreq(&mut self, now: u64, addresses: Addresses, transaction: u64, dreq: &Dreq) {
        let id = ConnectionId(dreq.remote_id);
        let connection = self.table.get(id);
        if connection.is_some_and(|connection| connection.addresses != addresses) {
            self.counters.count(CmDrop::WrongPeer);
            return;
        }
        let Some(connection) = connection.filter(|connection| connection.remote_id == dreq.local_id) else {
            // Answer with a DREP, so that the peer stops retransmitting (contract rocev2 12.6).
            self.counters.count(CmDrop::UnknownConnection);
            self.queue(addresses, transaction, &message::drep(dreq));
            return;
        };
        if connection.local_qpn != dreq.qpn {
            self.counters.count(CmDrop::WrongQp);
            return;
        }
        let ports = connection.peer.ports;
        match connection.state {
            ConnectionState::RepReceived
            | ConnectionState::RepSent
            | ConnectionState::Established
            | ConnectionState::Idle
            | ConnectionState::DreqSent => {
                self.queue_to(addresses, ports, transaction, &message::drep(dreq));
                self.report(Event::Disconnected { id, is_answered: true, private: dreq.private.to_vec() });
                self.enter_timewait(now, id);
            }
            ConnectionState::Timewait => {
                self.counters.count(CmDrop::Duplicate);
                self.queue_to(addresses, ports, transaction, &message::drep(dreq));
            }
            ConnectionState::ReqSent | ConnectionState::ReqReceived(_) => {
                self.counters.count(CmDrop::WrongState)
            }
        }
    }

    pub(super) fn handle_drep(&mut self, now: u64, addresses: Addresses, drep: &Ids) {
        let id = ConnectionId(drep.remote_id);
        let Some(connection) = self.table.get(id) else {
            self.counters.count(CmDrop::UnknownConnection);
            return;
        };
        if connection.addresses != addresses || connection.remote_id != drep.local_id {
            self.counters.count(CmDrop::WrongPeer);
        } else if connection.state == ConnectionState::DreqSent {
            self.finish(now, id, true);
        } else {
            self.counters.count(CmDrop::Duplicate);
        }
    }

    /// Ends the connection of a local QP, because a peer reports that the QP of this node's REQ belongs to another
    /// connection. If the report is right, this node owns the other connection too, but a QP can have only one connection at
    /// a time (contract J11). The peer cannot verify the sender of the REQ, so this side ends the connection.
    fn end_of_same_qp(&mut self, now: u64, qpn: QpNumber) {
        for id in self.table.with_local_qpn(qpn) {
            self.end_left_over(now, id);
        }
    }

    /// Checks a connection whose peer's numbers appear in another REQ. Either this side has missed the connection's end, or
    /// the REQ is forged. Only the peer can distinguish the two cases, so this side sends an RTU. If the connection exists
    /// at the peer, the RTU has no effect. If not, a software device answers with a REJ, which ends the connection here. A
    /// kernel does not answer; the connection then ends when its QP or the program detects the failure.
    ///
    /// Only one such RTU is sent per [`DOUBT_EVERY_NS`], which limits the traffic that forged REQs cause.
    pub(super) fn doubt(&mut self, now: u64, id: ConnectionId) {
        let Some(connection) = self.table.get(id) else { return };
        match connection.state {
            // The program has released the connection. It is kept for late messages only.
            ConnectionState::Idle => self.remove(id),
            ConnectionState::ReqReceived(_)
            | ConnectionState::RepReceived
            | ConnectionState::RepSent
            | ConnectionState::Established => {
                if now >= self.next_doubt {
                    self.next_doubt = now.saturating_add(DOUBT_EVERY_NS);
                    let rtu = message::rtu(connection);
                    self.send(id, &rtu);
                }
            }
            ConnectionState::ReqSent | ConnectionState::DreqSent | ConnectionState::Timewait => {}
        }
    }

    /// Ends a connection that no longer exists at the peer, according to a message from the peer.
    pub(super) fn end_left_over(&mut self, now: u64, id: ConnectionId) {
        let Some(connection) = self.table.get(id) else { return };
        match connection.state {
            ConnectionState::ReqSent | ConnectionState::ReqReceived(_) => {
                self.report(Event::Rejected(id, RejectReason::STALE_CONNECTION, vec![0; REJ_PRIVATE_BYTES]));
                self.remove(id);
            }
            ConnectionState::RepReceived | ConnectionState::RepSent | ConnectionState::Established => {
                self.start_dreq(now, id, &[]);
                self.wait_for_answer(now, id);
            }
            ConnectionState::Idle => self.remove(id),
            ConnectionState::DreqSent | ConnectionState::Timewait => {}
        }
    }

    pub(super) fn start_dreq(&mut self, now: u64, id: ConnectionId, private: &[u8]) {
        let Some(connection) = self.table.get(id) else { return };
        let dreq: CmMessage = message::dreq(connection, private);
        let agent = self.agent;
        if let Some(connection) = self.table.get_mut(id) {
            connection.transaction = agent | u64::from(id.0);
        }
        self.enter(id, ConnectionState::DreqSent);
        self.send_until_answered(now, id, dreq);
    }

    /// Repeats the DREQ for as long as the kernel does (contract rocev2 12.6), because the program waits for the outcome.
    fn wait_for_answer(&mut self, now: u64, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else { return };
        let until = now.saturating_add(connection.closing_ns);
        if let Some(unanswered) = &mut connection.unanswered {
            unanswered.until = Some(until);
        }
    }

    /// Stops waiting for the outcome. The DREQ is then retransmitted only as often as any other message. If that number is
    /// already reached, the connection ends at once.
    fn stop_waiting_for_answer(&mut self, now: u64, id: ConnectionId) {
        let Some(unanswered) = self.table.get_mut(id).and_then(|c| c.unanswered.as_mut()) else { return };
        unanswered.until = None;
        if unanswered.sent >= self.config.transmissions {
            self.enter_timewait(now, id);
        }
    }

    /// Reports the end, and keeps the connection until its packets have left the network.
    pub(super) fn finish(&mut self, now: u64, id: ConnectionId, is_answered: bool) {
        self.report(Event::Disconnected { id, is_answered, private: Vec::new() });
        self.enter_timewait(now, id);
    }

    pub(super) fn enter_timewait(&mut self, now: u64, id: ConnectionId) {
        let Some(connection) = self.table.get(id) else { return };
        // contract rocev2 12.5
        let wait_ns = wire_time_ns(connection.peer.ack_timeout).max(self.config.timewait_min_ns);
        self.enter(id, ConnectionState::Timewait);
        self.table.set_timer(id, Some(now.saturating_add(wait_ns)));
    }

    pub(super) fn mark_released(&mut self, id: ConnectionId) {
        if let Some(connection) = self.table.get_mut(id) {
            connection.is_released = true;
        }
    }
}
