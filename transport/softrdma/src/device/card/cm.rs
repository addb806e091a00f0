//! The connection manager of the card: management datagrams in and out, and what its events do.
//!
//! Owns the CM machine and the endpoints of programs. What programs ask of an endpoint is in
//! `connect`.

use super::Card;
use super::connect::{Endpoint, PendingCmEvent, PendingCmEventKind, Role};
use super::service::named;
use crate::device::limits::MAX_RD_ATOMIC;
use crate::device::random::Random;
use crate::link::ROCE_PORT;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use trunkline_roce::cm::{
    CmConfig, CmDrop, CmMachine, ConnectionId, Event, ListenerId, OtherKind, Peer, Transport,
};
use trunkline_roce::wire::cm::CmMessage;
use trunkline_roce::wire::{IpUdp, Mad, Packet, icrc, mad_packet};
use trunkline_verbs::{
    CmIdNumber, ConnectParameters, Counter, Psn, QpModify, QpNumber, QpState, QpType, RejectReason, Time,
};

/// What a peer asks of a listener.
#[derive(Debug)]
struct Requested {
    listener: ListenerId,
    local: SocketAddr,
    remote: SocketAddr,
    /// Of a request for a connection.
    offered: Option<Peer>,
    private: Vec<u8>,
}

/// The connection manager.
#[derive(Debug)]
pub(super) struct CmSide {
    pub(super) machine: CmMachine,
    pub(super) endpoints: BTreeMap<CmIdNumber, Endpoint>,
    pub(super) by_connection: BTreeMap<ConnectionId, CmIdNumber>,
    pub(super) by_listener: BTreeMap<ListenerId, CmIdNumber>,
    next_number: u64,
    /// PSN of the next datagram.
    psn: Psn,
    bad_mads: u64,
}

impl CmSide {
    /// `slot` is the device's place among those that share its addresses.
    pub(super) fn new(guid: u64, random: &mut Random, slot: Option<u16>) -> Self {
        let config = CmConfig { comm_id_slot: slot, ..CmConfig::new(guid, random.next()) };
        Self {
            machine: CmMachine::new(config),
            endpoints: BTreeMap::new(),
            by_connection: BTreeMap::new(),
            by_listener: BTreeMap::new(),
            next_number: 1,
            psn: Psn::new(random.next_u32()),
            bad_mads: 0,
        }
    }

    /// A name for a new endpoint.
    pub(super) fn new_number(&mut self) -> CmIdNumber {
        let number = CmIdNumber(self.next_number);
        self.next_number += 1;
        number
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.machine.next_timeout().map(Time)
    }

    pub(super) fn counters(&self, into: &mut Vec<Counter>) {
        let counts = self.machine.counters();
        into.extend([
            Counter { name: "cm_received", value: counts.received },
            Counter { name: "cm_sent", value: counts.sent },
            Counter { name: "cm_retransmitted", value: counts.retransmitted },
            Counter { name: "drop_bad_mad", value: self.bad_mads },
        ]);
        into.extend(counts.refused().map(|(name, value)| Counter { name, value }));
        let drops = CmDrop::ALL.into_iter();
        into.extend(drops.map(|(cause, name)| Counter { name, value: counts.dropped(cause) }));
    }

    /// Queues an event of an endpoint for the program. Returns whether there was room.
    pub(super) fn push_event(&self, id: CmIdNumber, kind: PendingCmEventKind, private_data: Vec<u8>) -> bool {
        let Some(endpoint) = self.endpoints.get(&id) else { return false };
        let pushed = endpoint.channel.push(PendingCmEvent { id, kind, private_data });
        if pushed.is_err() {
            tracing::warn!(?id, "a connection channel is full, an event is lost");
        }
        pushed.is_ok()
    }
}

impl Card {
    /// Takes a packet for QP 1.
    pub(super) fn handle_mad(&mut self, packet: &Packet<'_>, from: SocketAddr, to: SocketAddr, now: Time) {
        match Mad::from_packet(packet) {
            Some(mad) => {
                match CmMessage::parse(&mad) {
                    CmMessage::Req(req) => self.peers.saw_guid(from.ip(), req.ca_guid),
                    CmMessage::Rep(rep) => self.peers.saw_guid(from.ip(), rep.ca_guid),
                    _ => {}
                }
                self.cm.machine.handle_mad(now.0, from.ip(), to.ip(), &mad);
            }
            None => self.cm.bad_mads += 1,
        }
    }

    /// Timers, events and messages of the CM.
    pub(in crate::device) fn serve_cm(&mut self, now: Time) {
        if self.cm.next_timeout().is_some_and(|when| when <= now) {
            self.cm.machine.handle_timeout(now.0);
        }
        while let Some(event) = self.cm.machine.poll_event() {
            self.handle_cm_event(event, now);
        }
        while let Some(OtherKind { peer, asked, listening }) = self.cm.machine.poll_other_kind() {
            tracing::warn!(
                %peer,
                ?asked,
                ?listening,
                "a peer is refused: it asks for another kind of connection than what listens here takes; both \
                 sides need the same"
            );
        }
        self.gather_cm();
    }

    /// The process ends. The program gets no event, and no lock but the card's is taken: the program
    /// may have been interrupted anywhere.
    pub(in crate::device) fn disconnect_all(&mut self, now: Time) {
        self.cm.machine.disconnect_all(now.0);
        self.gather_cm();
        self.send(now);
    }

    /// Messages of the CM, on their way out.
    fn gather_cm(&mut self) {
        while let Some(transmit) = self.cm.machine.poll_transmit() {
            let source = self.link.source(transmit.from);
            let destination = SocketAddr::new(transmit.to, ROCE_PORT);
            let psn = self.cm.psn;
            self.cm.psn = psn.plus(1);
            let headers = IpUdp::new(source, destination);
            self.outgoing.push_with(source, destination, |out| {
                let start = out.len();
                mad_packet(psn, &transmit.mad.to_bytes()).emit(out);
                let crc = icrc::icrc(&headers, &out[start..]);
                out.extend_from_slice(&crc.to_le_bytes());
            });
        }
    }

    fn handle_cm_event(&mut self, event: Event, now: Time) {
        let connection = event.connection();
        let requested = match event {
            Event::ConnectRequest(_, request) => {
                let (listener, local, remote) = (request.listener, request.local, request.remote);
                Requested { listener, local, remote, offered: Some(request.peer), private: request.private }
            }
            Event::ServiceRequest(_, request) => {
                let (listener, local, remote) = (request.listener, request.local, request.remote);
                Requested { listener, local, remote, offered: None, private: request.private }
            }
            event => return self.connection_event(connection, event, now),
        };
        self.requested(connection, requested, now);
    }

    fn connection_event(&mut self, connection: ConnectionId, event: Event, now: Time) {
        let Some(id) = self.cm.by_connection.get(&connection).copied() else { return };
        match event {
            Event::ConnectRequest(..) | Event::ServiceRequest(..) => {}
            Event::ServiceReply { qpn, qkey, private, .. } => {
                self.service_reply(id, connection, qpn, qkey, private);
            }
            Event::ServiceRefused(_, status, private) => {
                self.spend(id, connection);
                self.cm.push_event(id, PendingCmEventKind::ServiceRefused(status), private);
            }
            Event::Unreachable(_) if self.is_service(id) => {
                self.spend(id, connection);
                self.cm.push_event(id, PendingCmEventKind::Unreachable, Vec::new());
            }
            Event::Reply(_, peer) => self.connect_reply(id, connection, peer, now),
            Event::Established(_, private) => {
                self.set_awaits_rtu(id, false);
                let knows = self.cm.endpoints.get(&id).is_some_and(|endpoint| {
                    matches!(endpoint.role, Role::Active { .. }) && endpoint.qp.is_none()
                });
                // Who brings the QP up itself has established the connection by that.
                if !knows {
                    self.cm.push_event(id, PendingCmEventKind::Established, private);
                }
            }
            Event::Rejected(_, reason, private) => {
                self.end_connection(id, connection);
                self.cm.push_event(id, PendingCmEventKind::Rejected(reason), private);
            }
            Event::Unreachable(_) => {
                self.end_connection(id, connection);
                self.cm.push_event(id, PendingCmEventKind::Unreachable, Vec::new());
            }
            Event::Disconnected { is_answered, .. } => {
                self.fail_attached(id);
                self.cm.push_event(id, PendingCmEventKind::Disconnected { is_answered }, Vec::new());
            }
            Event::TimewaitExit(..) => {
                self.cm.by_connection.remove(&connection);
                if let Some(endpoint) = self.cm.endpoints.get_mut(&id) {
                    endpoint.connection = None;
                }
                self.cm.push_event(id, PendingCmEventKind::TimewaitExit, Vec::new());
            }
        }
    }

    /// Somebody asks a listener: a new endpoint is made, whose object the channel makes when the
    /// program takes the event.
    fn requested(&mut self, connection: ConnectionId, request: Requested, now: Time) {
        let listener = self.cm.by_listener.get(&request.listener).and_then(|id| self.cm.endpoints.get(id));
        let Some(listener) = listener else {
            self.cm.machine.release(now.0, connection);
            return;
        };
        let id = CmIdNumber(self.cm.next_number);
        let (channel, port_space, qp_type) =
            (Arc::clone(&listener.channel), listener.port_space, listener.qp_type);
        let traffic_class = listener.traffic_class;
        let mut endpoint = self.new_endpoint(Arc::clone(&channel), port_space, qp_type);
        endpoint.role = Role::Passive;
        endpoint.traffic_class = traffic_class;
        endpoint.local = request.local;
        endpoint.peer = Some(request.remote);
        endpoint.connection = Some(connection);
        endpoint.offered = request.offered;
        let private_data = request.private.clone();
        let parameters = match &request.offered {
            Some(peer) => offer(peer, private_data),
            None => named(None, 0, private_data),
        };
        let kind = PendingCmEventKind::ConnectRequest { new: id, parameters };
        let event = PendingCmEvent {
            id: self.cm.by_listener[&request.listener],
            kind,
            private_data: request.private,
        };
        if channel.push(event).is_err() {
            // The peer asks again.
            self.cm.machine.release(now.0, connection);
            return;
        }
        self.cm.next_number += 1;
        self.cm.endpoints.insert(id, endpoint);
        self.cm.by_connection.insert(connection, id);
    }

    /// The peer accepted: the QP goes to RTS, then the peer is told.
    fn connect_reply(&mut self, id: CmIdNumber, connection: ConnectionId, peer: Peer, now: Time) {
        let Some(endpoint) = self.cm.endpoints.get_mut(&id) else { return };
        endpoint.offered = Some(peer);
        let Some(qp) = endpoint.qp else {
            let private = self.cm.machine.reply_private(connection);
            let parameters = offer(&peer, private.clone());
            self.cm.push_event(id, PendingCmEventKind::ConnectResponse { parameters }, private);
            return;
        };
        let ready = self.bring_up(id, qp, peer.responder_resources, peer.initiator_depth);
        if let Err(error) = ready {
            tracing::warn!(?id, %error, "the QP of a connection cannot be brought up");
            let _ended = self.cm.machine.reject(now.0, connection, RejectReason::NO_RESOURCES, &[]);
            self.fail_attached(id);
            self.cm.push_event(id, PendingCmEventKind::ConnectError, Vec::new());
        } else if self.cm.machine.confirm(connection).is_err() {
            self.cm.push_event(id, PendingCmEventKind::ConnectError, Vec::new());
        }
    }

    /// Moves the QP of an endpoint to RTR and RTS with what both sides agreed on.
    pub(super) fn bring_up(
        &mut self,
        id: CmIdNumber,
        qp: QpNumber,
        max_dest_rd_atomic: u8,
        max_rd_atomic: u8,
    ) -> Result<(), trunkline_verbs::VerbsError> {
        let gone = trunkline_verbs::VerbsError::Gone;
        let endpoint = self.cm.endpoints.get(&id).ok_or(gone)?;
        let peer = endpoint.offered.ok_or(gone)?;
        let (rtr, rts) = endpoint.transitions(
            &mut self.gids,
            &peer,
            max_dest_rd_atomic.min(MAX_RD_ATOMIC),
            max_rd_atomic.min(MAX_RD_ATOMIC),
        )?;
        self.modify_qp(qp, &rtr)?;
        self.modify_qp(qp, &rts)
    }

    /// A connection that never came to be, or is over at once.
    fn end_connection(&mut self, id: CmIdNumber, connection: ConnectionId) {
        self.cm.by_connection.remove(&connection);
        if let Some(endpoint) = self.cm.endpoints.get_mut(&id) {
            endpoint.connection = None;
        }
        self.fail_attached(id);
    }

    /// The attached QP goes to ERR (contract rocev2 12.6).
    pub(super) fn fail_attached(&mut self, id: CmIdNumber) {
        self.set_awaits_rtu(id, false);
        let Some(qp) = self.cm.endpoints.get(&id).and_then(|endpoint| endpoint.qp) else { return };
        let in_reset = self.query_qp(qp).is_ok_and(|attributes| attributes.state == QpState::Reset);
        if !in_reset {
            let error = QpModify { state: Some(QpState::Error), ..QpModify::default() };
            let _gone = self.modify_qp(qp, &error);
        }
    }

    /// Whether the first packet at the endpoint's QP stands for the RTU.
    pub(super) fn set_awaits_rtu(&mut self, id: CmIdNumber, awaits: bool) {
        let qp = self.cm.endpoints.get(&id).and_then(|endpoint| endpoint.qp.or(endpoint.named_qp));
        if let Some(qp) = qp.and_then(|number| self.qps.get_mut(number.get())) {
            qp.awaits_rtu = awaits;
        }
    }

    /// The type of a QP, for endpoints that check it.
    pub(super) fn type_of(&self, qp: QpNumber) -> Option<QpType> {
        self.qps.get(qp.get()).map(|qp| qp.attributes.qp_type)
    }
}

/// What a peer asks or answers, for the program.
fn offer(peer: &Peer, private_data: Vec<u8>) -> ConnectParameters {
    ConnectParameters {
        private_data,
        responder_resources: peer.responder_resources,
        initiator_depth: peer.initiator_depth,
        retry_count: peer.retry_count,
        rnr_retry_count: peer.rnr_retry,
        ack_timeout: peer.ack_timeout,
        qp_number: Some(peer.qpn),
        srq: peer.transport == Transport::Xrc,
        q_key: 0,
    }
}
