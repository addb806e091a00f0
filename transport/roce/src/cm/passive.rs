//! The passive side, which receives the REQ, sends the REP and receives the RTU.

use super::active::{check_private, is_usable, sane_ack_timeout};
use super::config::closing_ns;
use super::connection::{Addresses, Connection, ConnectionState, Refusals, RemoteKey};
use super::event::ConnectRequest;
use super::other_kinds::OtherKind;
use super::{
    Accept, CmDrop, CmError, CmMachine, ConnectionId, Event, ListenerId, MadSource, Peer, Transport, message,
};
use crate::wire::cm::{
    ADDRESS_HEADER_BYTES, AddressHeader, Answered, Ids, Path, REP_PRIVATE_BYTES, RTU_PRIVATE_BYTES, Req,
};
use std::net::SocketAddr;
use trunkline_verbs::{
    Gid, Mtu, OneFlow, PKEY_DEFAULT, PeerHost, PortSpace, QpNumber, RejectReason, UdpPorts,
};

/// A refusal of a request by the machine itself.
struct Refusal {
    reason: RejectReason,
    /// `Some` if the only fault is that the listener accepts the other kind of connection.
    other_kind: Option<OtherKind>,
}

impl From<RejectReason> for Refusal {
    fn from(reason: RejectReason) -> Self {
        Self { reason, other_kind: None }
    }
}

impl CmMachine {
    /// Answers a request. The QP is in RTS. `Established`, `Rejected`, `Disconnected` or `Unreachable`
    /// follows.
    ///
    /// # Errors
    /// [`CmError::Unknown`], [`CmError::WrongState`], [`CmError::PrivateDataTooLong`].
    pub fn accept(&mut self, now: u64, id: ConnectionId, accept: &Accept<'_>) -> Result<(), CmError> {
        check_private(accept.private, REP_PRIVATE_BYTES)?;
        let connection = self.own(id)?;
        if !matches!(connection.state, ConnectionState::ReqReceived(_)) {
            return Err(CmError::WrongState);
        }
        // The peer would refuse READs beyond its limit.
        let initiator_depth = accept.initiator_depth.min(connection.peer.initiator_depth);
        let accept = Accept { initiator_depth, ..*accept };
        let rep = message::rep(&self.config, connection, &accept);
        if let Some(connection) = self.table.get_mut(id) {
            connection.local_qpn = accept.qpn;
        }
        self.enter(id, ConnectionState::RepSent);
        self.send_until_answered(now, id, rep);
        Ok(())
    }

    /// Refuses a request whose path MTU is larger than `mtu`, the maximum of the local interface. A software device repeats
    /// the request with `mtu`. The machine reports no event.
    ///
    /// # Errors
    /// [`CmError::Unknown`], [`CmError::WrongState`].
    pub fn refuse_mtu(&mut self, id: ConnectionId, mtu: Mtu) -> Result<(), CmError> {
        let connection = self.own(id)?;
        if !matches!(connection.state, ConnectionState::ReqReceived(_)) {
            return Err(CmError::WrongState);
        }
        let rej = message::rej_mtu((id.0, connection.remote_id), mtu);
        self.send(id, &rej);
        self.counters.refuse(RejectReason::INVALID_PATH_MTU);
        self.remove(id);
        Ok(())
    }

    /// Records that the request was delivered to the program. As in the kernel, it then no longer counts against the
    /// listener's backlog, even before it is answered.
    pub fn request_delivered(&mut self, id: ConnectionId) {
        self.table.stop_counting(&mut self.listeners, id);
        self.questions.stop_counting(&mut self.listeners, id);
    }

    /// Handles a packet at a QP in RTR or RTS. If its connection still awaits the RTU, the packet counts as the
    /// RTU (contract rocev2 12.4).
    pub fn communication_established(&mut self, qpn: QpNumber) {
        if let Some(id) = self.table.awaiting_rtu(qpn) {
            self.enter(id, ConnectionState::Established);
            self.report(Event::Established(id, vec![0; RTU_PRIVATE_BYTES]));
        }
    }

    pub(super) fn handle_req(
        &mut self,
        now: u64,
        addresses: Addresses,
        host: PeerHost,
        from: &MadSource,
        transaction: u64,
        req: &Req,
    ) {
        if req.local_id == 0 {
            self.counters.count(CmDrop::Malformed);
            return;
        }
        if self.is_repeated(addresses, req) {
            return;
        }
        let ports = match req.is_one_flow() {
            true => UdpPorts { own: Some(from.ports.0), peer: from.ports.1, view: from.view },
            false => UdpPorts::new(req.udp_port()),
        };
        let mut request = match self.check_req(addresses, ports, req) {
            Ok(request) => request,
            Err(Refusal { reason, other_kind }) => {
                match other_kind {
                    Some(other) => {
                        self.counters.refuse_other_kind();
                        self.other_kinds.refused(host, other);
                    }
                    None => self.counters.refuse(reason),
                }
                let rej = message::rej((0, req.local_id), Answered::REQ, reason, &[]);
                self.queue_to(addresses, refusal_ports(ports, req.tries()), transaction, &rej);
                if reason == RejectReason::STALE_CONNECTION {
                    // Any sender can claim a peer's numbers, so a REQ does not end a connection. The peer is queried first.
                    let doubted = self.colliding(addresses, req.ca_guid, req.local_id, req.qpn);
                    doubted.into_iter().for_each(|id| self.doubt(now, id));
                }
                return;
            }
        };
        if let Err(cause) = self.check_room(host, request.listener) {
            // Drop the request, as a full queue does. The peer retransmits it.
            self.counters.count(cause);
            return;
        }
        request.peer.local_port = from.local_port;
        let id = self.new_id();
        self.insert(Connection {
            id,
            remote_id: req.local_id,
            addresses,
            host: Some(host),
            transport: request.peer.transport,
            is_active: false,
            local_qpn: QpNumber::new(0),
            peer: request.peer,
            transaction,
            state: ConnectionState::ReqReceived(Some(request.listener)),
            unanswered: None,
            has_alternate: req.alternate != Path::default(),
            reply_private: Vec::new(),
            one_flow: if req.tries() { OneFlow::Try } else { OneFlow::No },
            refusals: Refusals::new(&self.config, false),
            is_released: false,
            closing_ns: closing_ns(req.local_timeout, req.max_cm_retries),
            timer: None,
        });
        self.table.set_timer(id, Some(now.saturating_add(self.config.decision_ns)));
        self.report(Event::ConnectRequest(id, Box::new(request)));
    }

    /// Answers a repeated REQ (contract rocev2 12.4). Returns true if the REQ was received before.
    fn is_repeated(&mut self, addresses: Addresses, req: &Req) -> bool {
        let key = RemoteKey { address: addresses.remote, ca_guid: req.ca_guid, number: req.local_id };
        let Some(connection) = self.table.with_remote_id(&key) else { return false };
        let is_same = !connection.is_active
            && connection.addresses == addresses
            && connection.peer.qpn == req.qpn
            && Transport::from_wire(req.transport) == Some(connection.transport);
        if !is_same {
            // A new incarnation or a forger has reused the id; `check_req` distinguishes the two.
            return false;
        }
        let (id, ids) = (connection.id, (connection.id.0, connection.remote_id));
        let answer = match connection.state {
            // The program has not decided yet.
            ConnectionState::ReqReceived(_) => Some(message::mra(connection, Answered::REQ)),
            ConnectionState::DreqSent | ConnectionState::Timewait => {
                Some(message::rej(ids, Answered::REQ, RejectReason::STALE_CONNECTION, &[]))
            }
            // The timer retransmits the REP.
            _ => None,
        };
        self.counters.count(CmDrop::Duplicate);
        if let Some(answer) = answer {
            self.send(id, &answer);
        }
        true
    }

    /// Checks that the REQ is valid and has a listener.
    fn check_req(&self, at: Addresses, ports: UdpPorts, req: &Req) -> Result<ConnectRequest, Refusal> {
        if !is_usable(req.qpn) {
            return Err(RejectReason::NO_QP.into());
        }
        let transport = Transport::from_wire(req.transport).ok_or(RejectReason::INVALID_TRANSPORT_TYPE)?;
        let mtu = Mtu::from_code(req.mtu).ok_or(RejectReason::INVALID_PATH_MTU)?;
        if (req.pkey ^ PKEY_DEFAULT) & 0x7fff != 0 {
            return Err(RejectReason::UNSUPPORTED.into());
        }
        // In one flow, a peer behind an address translator may name other addresses than its packets carry. They are used
        // only in ICRCs. Without one flow, the QPs could not reach each other.
        let (local, remote) = match ports.view {
            Some(view) => (view.own.ip(), view.peer.ip()),
            None => (at.local, at.remote),
        };
        if (req.primary.local_gid, req.primary.remote_gid) != (Gid::from(remote), Gid::from(local)) {
            return Err(RejectReason::INVALID_PRIMARY_GID.into());
        }
        let header = AddressHeader::parse(&req.private);
        let (source, destination) = header.addresses().ok_or(RejectReason::CONSUMER)?;
        if (source.ip().to_canonical(), destination.to_canonical()) != (remote, local) {
            return Err(RejectReason::INVALID_SERVICE_ID.into());
        }
        if !self.colliding(at, req.ca_guid, req.local_id, req.qpn).is_empty() {
            return Err(RejectReason::STALE_CONNECTION.into());
        }
        let is_service = |(space, _)| space != PortSpace::Udp;
        let listener = self
            .listeners
            .find(req.service_id, at.local)
            .filter(|_| req.service_id.space_and_port().is_some_and(is_service))
            .ok_or(RejectReason::INVALID_SERVICE_ID)?;
        if let Some(listening) = listener.transport.filter(|wanted| *wanted != transport) {
            // contract J7
            let other_kind = Some(OtherKind { peer: at.remote, asked: transport, listening });
            return Err(Refusal { reason: RejectReason::CONSUMER, other_kind });
        }
        let port = req.service_id.space_and_port().map_or(0, |(_, port)| port);
        Ok(ConnectRequest {
            listener: listener.id,
            local: SocketAddr::new(at.local, port),
            remote: SocketAddr::new(at.remote, source.port()),
            peer: asking(transport, mtu, ports, req),
            private: req.private[ADDRESS_HEADER_BYTES..].to_vec(),
        })
    }

    /// Checks the limits on undecided requests and on connections.
    pub(super) fn check_room(&self, host: PeerHost, listener: ListenerId) -> Result<(), CmDrop> {
        if self.listeners.is_full(listener) {
            return Err(CmDrop::Backlog);
        }
        let total = self.table.half_open_total() + self.questions.undecided_total();
        let of_host = self.table.half_open_of(host) + self.questions.undecided_of(host);
        let has_room = self.connections() < self.config.connections
            && total < self.config.half_open
            && of_host < self.config.half_open_per_host;
        if has_room { Ok(()) } else { Err(CmDrop::Limit) }
    }

    /// Returns this side's connections to the peer's QP, or with the peer's comm id. If the message comes from the peer,
    /// this side has missed the end of these connections (contract rocev2 12.5).
    pub(super) fn colliding(
        &self,
        addresses: Addresses,
        ca_guid: u64,
        remote_id: u32,
        qpn: QpNumber,
    ) -> Vec<ConnectionId> {
        let address = addresses.remote;
        let by_qpn = self.table.with_remote_qpn(&RemoteKey { address, ca_guid, number: qpn });
        let by_id = self.table.with_remote_id(&RemoteKey { address, ca_guid, number: remote_id });
        [by_qpn, by_id].into_iter().flatten().map(|connection| connection.id).collect()
    }

    pub(super) fn handle_rtu(&mut self, addresses: Addresses, transaction: u64, rtu: &Ids) {
        let id = ConnectionId(rtu.remote_id);
        let Some(connection) = self.table.get(id) else {
            // The connection is established at the peer, but this side has given up.
            self.counters.count(CmDrop::UnknownConnection);
            let ids = (rtu.remote_id, rtu.local_id);
            let rej = message::rej(ids, Answered::OTHER, RejectReason::INVALID_COMM_ID, &[]);
            self.queue(addresses, transaction, &rej);
            return;
        };
        if connection.addresses != addresses || connection.remote_id != rtu.local_id {
            self.counters.count(CmDrop::WrongPeer);
            return;
        }
        match connection.state {
            ConnectionState::RepSent => {
                self.enter(id, ConnectionState::Established);
                self.report(Event::Established(id, rtu.private.to_vec()));
            }
            ConnectionState::Established
            | ConnectionState::Idle
            | ConnectionState::DreqSent
            | ConnectionState::Timewait => {
                self.counters.count(CmDrop::Duplicate);
            }
            _ => self.counters.count(CmDrop::WrongState),
        }
    }
}

/// Returns the UDP ports of a refusal.
pub(super) fn refusal_ports(ports: UdpPorts, tries: bool) -> UdpPorts {
    if tries && ports.own.is_none() { UdpPorts { own: Some(UdpPorts::OTHER), ..ports } } else { ports }
}

/// Returns the values of a REQ from this side's point of view (contract rocev2 10.5).
fn asking(transport: Transport, mtu: Mtu, ports: UdpPorts, req: &Req) -> Peer {
    Peer {
        transport,
        qpn: req.qpn,
        send_psn: req.starting_psn,
        mtu,
        responder_resources: req.initiator_depth,
        initiator_depth: req.responder_resources,
        retry_count: req.retry_count,
        rnr_retry: req.rnr_retry,
        ack_timeout: sane_ack_timeout(req.primary.ack_timeout),
        flow_control: req.flow_control,
        traffic_class: req.primary.traffic_class,
        ca_guid: req.ca_guid,
        local_port: None,
        ports,
    }
}
