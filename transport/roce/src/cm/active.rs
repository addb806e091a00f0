//! The active side, which sends the REQ, receives the REP and sends the RTU.

use super::config::CLOSING_NS;
use super::connection::{Addresses, Connection, ConnectionState, Refusals};
use super::{CmDrop, CmError, CmMachine, Connect, ConnectionId, Event, Peer, message};
use crate::wire::QP1;
use crate::wire::cm::{Answered, CmMessage, REQ_USER_BYTES, Rep, Req};
use trunkline_verbs::{Mtu, QpNumber, RejectReason};

impl CmMachine {
    /// Sends a REQ. `Reply`, `Rejected` or `Unreachable` follows.
    ///
    /// # Errors
    /// [`CmError::PrivateDataTooLong`], [`CmError::AddressFamily`], [`CmError::Full`].
    pub fn connect(&mut self, now: u64, connect: &Connect<'_>) -> Result<ConnectionId, CmError> {
        check_private(connect.private, REQ_USER_BYTES)?;
        let addresses = Addresses {
            local: connect.local.ip().to_canonical(),
            remote: connect.remote.ip().to_canonical(),
        };
        if addresses.local.is_ipv4() != addresses.remote.is_ipv4() {
            return Err(CmError::AddressFamily);
        }
        let limit = self.config.connections;
        if self.connections() >= limit {
            return Err(CmError::Full { limit });
        }
        let canonical = Connect {
            local: (addresses.local, connect.local.port()).into(),
            remote: (addresses.remote, connect.remote.port()).into(),
            ack_timeout: sane_ack_timeout(connect.ack_timeout),
            ..*connect
        };
        let id = self.new_id();
        let transaction = self.agent | u64::from(id.0);
        self.insert(Connection {
            id,
            remote_id: 0,
            addresses,
            host: None,
            transport: connect.transport,
            is_active: true,
            local_qpn: connect.qpn,
            peer: asked(&canonical),
            one_flow: connect.one_flow,
            refusals: Refusals::new(&self.config, connect.retry_refused),
            transaction,
            state: ConnectionState::ReqSent,
            unanswered: None,
            has_alternate: false,
            reply_private: Vec::new(),
            is_released: false,
            closing_ns: CLOSING_NS,
            timer: None,
        });
        let req = message::req(&self.config, id, &canonical);
        self.send_until_answered(now, id, req);
        Ok(id)
    }

    /// Repeats the request with `mtu`, the path MTU of the peer's interface, which is smaller than the path MTU in the REQ.
    /// This can happen once for each smaller MTU.
    pub(super) fn ask_with_mtu(&mut self, now: u64, id: ConnectionId, mtu: Mtu) {
        let Some(connection) = self.table.get_mut(id) else { return };
        let Some(CmMessage::Req(req)) = connection.unanswered.take().map(|unanswered| unanswered.message)
        else {
            return;
        };
        connection.peer.mtu = mtu;
        self.send_until_answered(now, id, CmMessage::Req(Req { mtu: mtu.code(), ..req }));
    }

    /// Sends the RTU after `Reply`, once the QP is in RTS. `Established` follows.
    ///
    /// # Errors
    /// [`CmError::Unknown`], [`CmError::WrongState`].
    pub fn confirm(&mut self, id: ConnectionId) -> Result<(), CmError> {
        let connection = self.own(id)?;
        if connection.state != ConnectionState::RepReceived {
            return Err(CmError::WrongState);
        }
        let rtu = message::rtu(connection);
        self.enter(id, ConnectionState::Established);
        self.send(id, &rtu);
        let private = self.table.get_mut(id).map(|c| std::mem::take(&mut c.reply_private));
        self.report(Event::Established(id, private.unwrap_or_default()));
        Ok(())
    }

    /// Returns the private data of the REP, until the connection is confirmed.
    #[must_use]
    pub fn reply_private(&self, id: ConnectionId) -> Vec<u8> {
        self.table.get(id).map(|connection| connection.reply_private.clone()).unwrap_or_default()
    }

    pub(super) fn handle_rep(
        &mut self,
        now: u64,
        addresses: Addresses,
        local_port: Option<u16>,
        transaction: u64,
        rep: &Rep,
    ) {
        let id = ConnectionId(rep.remote_id);
        let Some(connection) = self.table.get(id) else {
            // The sender waits for an RTU that this side will not send; the REJ ends its wait.
            self.counters.count(CmDrop::UnknownConnection);
            self.refuse_rep(addresses, transaction, rep, RejectReason::INVALID_COMM_ID);
            return;
        };
        if connection.addresses != addresses || !connection.is_active {
            self.counters.count(CmDrop::WrongPeer);
            return;
        }
        let is_same = connection.remote_id == rep.local_id;
        match connection.state {
            ConnectionState::ReqSent => self.take_rep(now, id, local_port, transaction, rep),
            ConnectionState::RepReceived if is_same => {
                let mra = message::mra(connection, Answered::REP);
                self.counters.count(CmDrop::Duplicate);
                self.send(id, &mra);
            }
            ConnectionState::Established if is_same => {
                // The RTU was lost (contract rocev2 12.4).
                let rtu = message::rtu(connection);
                self.counters.count(CmDrop::Duplicate);
                self.send(id, &rtu);
            }
            // This node's DREQ ends the connection at the peer.
            ConnectionState::DreqSent if is_same => self.counters.count(CmDrop::Duplicate),
            // The peer answered this node's REQ twice, once per incarnation, or long ago.
            _ => {
                self.counters.count(CmDrop::WrongState);
                self.refuse_rep(addresses, transaction, rep, RejectReason::STALE_CONNECTION);
            }
        }
    }

    fn take_rep(&mut self, now: u64, id: ConnectionId, local_port: Option<u16>, transaction: u64, rep: &Rep) {
        let Some(connection) = self.table.get(id) else { return };
        let addresses = connection.addresses;
        let (qpn, send_psn) = message::rep_qp(connection.transport, rep);
        if rep.local_id == 0 || !is_usable(qpn) {
            self.counters.count(CmDrop::Malformed);
            return;
        }
        let asked = connection.peer;
        let peer = Peer {
            qpn,
            send_psn,
            responder_resources: asked.responder_resources.min(rep.initiator_depth),
            initiator_depth: asked.initiator_depth.min(rep.responder_resources),
            rnr_retry: rep.rnr_retry,
            flow_control: rep.flow_control,
            ack_timeout: ack_timeout(rep.ack_delay, asked.ack_timeout),
            ca_guid: rep.ca_guid,
            local_port,
            ..asked
        };
        // The REP contains the comm id of this node's REQ, so it comes from the peer, and these connections have ended
        // there.
        let stale = self.colliding(addresses, rep.ca_guid, rep.local_id, qpn);
        if !stale.is_empty() {
            stale.into_iter().for_each(|id| self.end_left_over(now, id));
            self.counters.refuse(RejectReason::STALE_CONNECTION);
            self.refuse_rep(addresses, transaction, rep, RejectReason::STALE_CONNECTION);
            let private = Vec::new();
            self.report(Event::Rejected(id, RejectReason::STALE_CONNECTION, private));
            self.remove(id);
            return;
        }
        self.table.set_peer(id, |connection| {
            connection.peer = peer;
            connection.remote_id = rep.local_id;
            connection.reply_private = rep.private.to_vec();
        });
        self.enter(id, ConnectionState::RepReceived);
        self.table.set_timer(id, Some(now.saturating_add(self.config.decision_ns)));
        self.report(Event::Reply(id, peer));
    }

    fn refuse_rep(&mut self, addresses: Addresses, transaction: u64, rep: &Rep, reason: RejectReason) {
        let rej = message::rej((rep.remote_id, rep.local_id), Answered::REP, reason, &[]);
        self.queue(addresses, transaction, &rej);
    }
}

/// Returns the requested values, which apply until the REP arrives with the peer's values.
const fn asked(connect: &Connect<'_>) -> Peer {
    Peer {
        transport: connect.transport,
        qpn: QpNumber::new(0),
        send_psn: connect.starting_psn,
        mtu: connect.mtu,
        responder_resources: connect.responder_resources,
        initiator_depth: connect.initiator_depth,
        retry_count: connect.retry_count,
        rnr_retry: connect.rnr_retry,
        ack_timeout: connect.ack_timeout,
        flow_control: connect.flow_control,
        traffic_class: connect.traffic_class,
        ca_guid: 0,
        local_port: None,
        ports: connect.ports,
    }
}

/// Combines the path's share of an ACK timeout with the peer's own delay as the kernel does. Two values that are close give
/// one step more than the greater one (contract rocev2 12.2).
fn ack_timeout(ack_delay: u8, path: u8) -> u8 {
    let joined = if path >= ack_delay {
        path + u8::from(ack_delay + 1 >= path)
    } else {
        ack_delay + u8::from(path + 1 >= ack_delay)
    };
    sane_ack_timeout(joined)
}

/// Bounds the code of a local ACK timeout. With code 0 there would be no timeout, above 8.6 s a dead peer would be detected
/// only after minutes, and below 1 ms a busy peer would count as dead.
pub(super) fn sane_ack_timeout(code: u8) -> u8 {
    const USUAL: u8 = 19;
    const SHORTEST: u8 = 8;
    const LONGEST: u8 = 21;
    if code == 0 { USUAL } else { code.clamp(SHORTEST, LONGEST) }
}

pub(super) const fn check_private(private: &[u8], max: usize) -> Result<(), CmError> {
    if private.len() > max {
        return Err(CmError::PrivateDataTooLong { got: private.len(), max });
    }
    Ok(())
}

/// Returns true unless the QP is a management QP, 0 or 1.
pub(super) const fn is_usable(qpn: QpNumber) -> bool {
    qpn.get() > QP1.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_timeouts_join_as_in_kernel() {
        // rxe: packet life 18 and so 19 on the wire, delay 15 (contract rocev2 12.2).
        assert_eq!(ack_timeout(15, 19), 19);
        assert_eq!(ack_timeout(15, 14), 16);
        assert_eq!(ack_timeout(12, 14), 14);
        assert_eq!([0, 1, 14, 31].map(sane_ack_timeout), [19, 8, 14, 21]);
        assert_eq!(ack_timeout(31, 31), 21);
    }
}
