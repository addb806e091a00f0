//! Management datagrams, and events of the connection machine.
//!
//! Applies events to endpoints and their QPs, and reports the events to programs. Stateless.

use super::Control;
use super::connect::named;
use super::connections::Connections;
use super::endpoint::{PendingCmEvent, PendingCmEventKind, Role};
use crate::device::shards::reach::Reach;
use std::net::SocketAddr;
use std::sync::Arc;
use trunkline_roce::cm::{
    ConnectionId, Event, ListenerId, OtherKind, Peer, Transmit, Transport, UnreachableReport, is_request,
};
use trunkline_verbs::{CmEventKind, CmIdNumber, ConnectParameters, RejectReason, Time, UnreachableCause};

/// A connection or service request from a peer to a listener.
#[derive(Debug)]
struct Requested {
    listener: ListenerId,
    local: SocketAddr,
    remote: SocketAddr,
    /// The peer's parameters in a connection request; `None` for a service request.
    offered: Option<Peer>,
    private: Vec<u8>,
}

impl Control {
    /// Handles management datagrams, and the timers, events and messages of the connection machine.
    pub(super) fn serve_cm(&mut self, shards: &mut Reach<'_>, now: Time) {
        self.take_control_events(shards, now);
        if self.connections.next_timeout().is_some_and(|when| when <= now) {
            self.connections.machine().handle_timeout(now.0);
        }
        loop {
            while let Some(event) = self.connections.machine().poll_event() {
                self.handle_cm_event(shards, event, now);
            }
            if !self.gather_cm(shards, now) {
                break;
            }
        }
        while let Some(OtherKind { peer, asked, listening }) = self.connections.machine().poll_other_kind() {
            tracing::warn!(
                %peer,
                ?asked,
                ?listening,
                remedy = "use the same kind of connection on both sides",
                "connection request of another QP type refused"
            );
        }
    }

    /// Passes the machine's messages to the shard for sending. A new or repeated request to an address of this host
    /// fails instead if nothing receives there. Returns true if a request has failed.
    pub(super) fn gather_cm(&mut self, shards: &mut Reach<'_>, now: Time) -> bool {
        let mut refused = false;
        while let Some(transmit) = self.connections.machine().poll_transmit() {
            if is_request(&transmit.mad)
                && self.is_abandoned(shards, &transmit, now)
                && self.connections.machine().handle_unreachable(now.0, &not_sent(&transmit))
            {
                tracing::debug!(
                    peer = %transmit.to,
                    cause = "no process of this host receives at the address",
                    "connection request not sent"
                );
                refused = true;
                continue;
            }
            let psn = self.connections.take_psn();
            shards.first().push_mad(transmit.from, transmit.to, transmit.ports, psn, &transmit.mad);
        }
        refused
    }

    fn is_abandoned(&mut self, shards: &mut Reach<'_>, request: &Transmit, now: Time) -> bool {
        let link = shards.first().link();
        let own = link.source(request.from);
        // The registry and the list of sockets cover only the device's own port.
        request.ports.peer == link.port() && self.qps.addresses().is_abandoned(request.to, own, now)
    }

    fn handle_cm_event(&mut self, shards: &mut Reach<'_>, event: Event, now: Time) {
        let connection = event.connection();
        let requested = match event {
            Event::ConnectRequest(_, request) => {
                // The path MTU of a connection is the smaller of the two interfaces' MTUs.
                let mtu = shards.first().link().mtu_of(request.local.ip());
                if mtu < request.peer.mtu {
                    tracing::debug!(
                        peer = %request.remote,
                        asked = ?request.peer.mtu,
                        ?mtu,
                        "smaller path MTU proposed"
                    );
                    // `refuse_mtu` cannot fail here, since the request has not been answered yet.
                    let _refused = self.connections.machine().refuse_mtu(connection, mtu);
                    return;
                }
                let (listener, local, remote) = (request.listener, request.local, request.remote);
                Requested { listener, local, remote, offered: Some(request.peer), private: request.private }
            }
            Event::ServiceRequest(_, request) => {
                let (listener, local, remote) = (request.listener, request.local, request.remote);
                Requested { listener, local, remote, offered: None, private: request.private }
            }
            event => return self.connection_event(shards, connection, event, now),
        };
        self.connections.requested(connection, requested, now);
        if let Some(id) = self.connections.of_connection(connection) {
            self.note_peer_process(id, now);
        }
    }

    fn connection_event(
        &mut self,
        shards: &mut Reach<'_>,
        connection: ConnectionId,
        event: Event,
        now: Time,
    ) {
        let Some(id) = self.connections.of_connection(connection) else { return };
        match event {
            Event::ConnectRequest(..) | Event::ServiceRequest(..) => {}
            Event::ServiceReply { qpn, qkey, private, .. } => {
                self.connections.end(id, connection);
                let parameters = named(Some(qpn), qkey, private.clone());
                self.connections.push_event(id, CmEventKind::ServiceResolved { parameters }, private);
            }
            Event::ServiceRefused(_, status, private) => {
                self.connections.end(id, connection);
                self.connections.push_event(id, CmEventKind::ServiceRefused(status), private);
            }
            Event::Unreachable(_, cause) if self.connections.is_service(id) => {
                self.connections.end(id, connection);
                self.connections.push_event(id, CmEventKind::Unreachable(cause), Vec::new());
            }
            Event::Reply(_, peer) => self.connect_reply(shards, id, connection, peer, now),
            Event::Established(_, private) => {
                self.set_awaits_rtu(shards, id, false);
                let established = self.connections.get(id).is_some_and(|endpoint| {
                    matches!(endpoint.role, Role::Active { .. }) && endpoint.qp.is_none()
                });
                // If the program brought the QP up itself, the connection already counts as established.
                if !established {
                    self.connections.push_event(id, CmEventKind::Established, private);
                }
            }
            Event::Rejected(_, reason, private) => {
                self.end_connection(shards, id, connection);
                self.connections.push_event(id, CmEventKind::Rejected(reason), private);
            }
            Event::Unreachable(_, cause) => {
                self.end_connection(shards, id, connection);
                self.connections.push_event(id, CmEventKind::Unreachable(cause), Vec::new());
            }
            Event::Disconnected { is_answered, private, .. } => {
                self.fail_attached(shards, id);
                self.connections.push_event(id, CmEventKind::Disconnected { is_answered }, private);
            }
            Event::TimewaitExit(..) => {
                self.connections.end(id, connection);
                self.connections.push_event(id, CmEventKind::TimewaitExit, Vec::new());
            }
        }
    }

    /// Handles the peer's REP: moves the QP to RTS, then sends the RTU.
    fn connect_reply(
        &mut self,
        shards: &mut Reach<'_>,
        id: CmIdNumber,
        connection: ConnectionId,
        peer: Peer,
        now: Time,
    ) {
        let Ok(endpoint) = self.connections.endpoint(id) else { return };
        endpoint.offered = Some(peer);
        let qp = endpoint.qp;
        self.note_peer_process(id, now);
        let Some(qp) = qp else {
            let private = self.connections.machine().reply_private(connection);
            let parameters = offer(&peer, private.clone());
            self.connections.push_event(id, CmEventKind::ConnectResponse { parameters }, private);
            return;
        };
        let ready = self.bring_up(shards, id, qp, peer.responder_resources, peer.initiator_depth);
        if let Err(error) = ready {
            tracing::warn!(?id, %error, "QP of a connection not moved to RTS");
            let _ended =
                self.connections.machine().reject(now.0, connection, RejectReason::NO_RESOURCES, &[]);
            self.fail_attached(shards, id);
            self.connections.push_event(id, CmEventKind::ConnectError, Vec::new());
        } else if self.connections.machine().confirm(connection).is_err() {
            self.connections.push_event(id, CmEventKind::ConnectError, Vec::new());
        }
    }

    /// Ends a connection that the peer rejected, or whose peer is unreachable.
    fn end_connection(&mut self, shards: &mut Reach<'_>, id: CmIdNumber, connection: ConnectionId) {
        self.connections.end(id, connection);
        self.fail_attached(shards, id);
    }
}

impl Connections {
    /// Creates an endpoint for a peer's request to a listener. The program gets the endpoint's object when it
    /// takes the event from the channel.
    fn requested(&mut self, connection: ConnectionId, request: Requested, now: Time) {
        let of = self.of_listener(request.listener);
        let Some((listener_id, listener)) = of.and_then(|id| Some((id, self.get(id)?))) else {
            self.machine().release(now.0, connection);
            return;
        };
        let (channel, port_space, qp_type) =
            (Arc::clone(&listener.channel), listener.port_space, listener.qp_type);
        let traffic_class = listener.traffic_class;
        let mut endpoint = self.new_endpoint(Arc::clone(&channel), port_space, qp_type);
        endpoint.role = Role::Passive;
        // As in Linux, both directions use the listener's traffic class if it is set, and the peer's otherwise.
        let of_peer = request.offered.as_ref().map_or(0, |peer| peer.traffic_class);
        endpoint.traffic_class = if traffic_class == 0 { of_peer } else { traffic_class };
        endpoint.local = request.local;
        endpoint.peer = Some(request.remote);
        endpoint.connection = Some(connection);
        endpoint.offered = request.offered;
        endpoint.ports = request.offered.as_ref().map(|peer| peer.ports);
        let private_data = request.private.clone();
        let parameters = match &request.offered {
            Some(peer) => offer(peer, private_data),
            None => named(None, 0, private_data),
        };
        let kind = PendingCmEventKind::ConnectRequest { new: self.next_number(), parameters };
        let event = PendingCmEvent { id: listener_id, kind, private_data: request.private };
        if channel.push(event).is_err() {
            // Drop the request, since the peer retransmits it.
            self.machine().release(now.0, connection);
            return;
        }
        self.insert(endpoint);
    }
}

/// Returns the unreachable report for a request that was not sent because nothing on this host would receive it.
fn not_sent(request: &Transmit) -> UnreachableReport {
    let transaction = Some(request.mad.header.transaction);
    UnreachableReport { from: request.from, to: request.to, transaction, cause: UnreachableCause::Port }
}

/// Converts a peer's REQ or REP to the parameters that the program gets.
fn offer(peer: &Peer, private_data: Vec<u8>) -> ConnectParameters {
    ConnectParameters {
        private_data,
        responder_resources: peer.responder_resources,
        initiator_depth: peer.initiator_depth,
        retry_count: peer.retry_count,
        rnr_retry_count: peer.rnr_retry,
        ack_timeout: peer.ack_timeout,
        qp_number: Some(peer.qpn),
        flow_control: peer.flow_control,
        srq: peer.transport == Transport::Xrc,
        q_key: 0,
    }
}
