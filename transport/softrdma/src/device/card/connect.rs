//! What programs ask of connection endpoints.
//!
//! Owns an endpoint's own facts: channel, addresses, attached QP, what was agreed.

use super::Card;
use crate::cm::{Accept, CmError, Connect, ConnectionId, Listen, ListenerId, Peer, Transport};
use crate::device::gid_table::GidTable;
use crate::device::signal::Signal;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;
use trunkline_verbs::{
    Access, AddressVector, CmIdNumber, ConnectParameters, EndpointRequest, EndpointSide, Gid, Psn, QpModify,
    QpNumber, QpState, QpType, RejectReason, VerbsError,
};

/// Loopback addresses tried for a client whose natural one is served by another process.
const OTHER_LOOPBACKS: usize = 16;

/// An event on its way to a channel, without the objects that the program gets.
#[derive(Debug)]
pub(in crate::device) struct Happening {
    pub(in crate::device) id: CmIdNumber,
    pub(in crate::device) kind: HappeningKind,
    pub(in crate::device) private_data: Vec<u8>,
}

/// `CmEventKind` without objects.
#[derive(Debug)]
pub(in crate::device) enum HappeningKind {
    ConnectRequest { new: CmIdNumber, parameters: ConnectParameters },
    ConnectResponse,
    Established,
    ConnectError,
    Unreachable,
    Rejected(RejectReason),
    Disconnected,
    TimewaitExit,
}

/// An endpoint.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) channel: Arc<Signal<Happening>>,
    pub(super) request: EndpointRequest,
    pub(super) local: SocketAddr,
    pub(super) peer: Option<SocketAddr>,
    pub(super) connection: Option<ConnectionId>,
    listener: Option<ListenerId>,
    pub(super) qp: Option<QpNumber>,
    /// What the peer said.
    pub(super) offered: Option<Peer>,
    /// Where the peer starts to send.
    announced: Psn,
}

impl Endpoint {
    pub(super) fn new(channel: Arc<Signal<Happening>>, request: EndpointRequest) -> Self {
        Self {
            channel,
            request,
            local: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            peer: None,
            connection: None,
            listener: None,
            qp: None,
            offered: None,
            announced: Psn::default(),
        }
    }

    /// The changes that bring the QP from INIT to RTS (contract rocev2 12.7).
    pub(super) fn transitions(
        &self,
        gids: &mut GidTable,
        peer: &Peer,
        max_dest_rd_atomic: u8,
        max_rd_atomic: u8,
    ) -> Result<(QpModify, QpModify), VerbsError> {
        let remote = self.peer.ok_or(VerbsError::Gone)?.ip();
        let source_gid_index = gids.index_of(self.local.ip()).ok_or(VerbsError::AddressNotAvailable(
            "the connection's own address is in no GID table entry",
        ))?;
        let rtr = QpModify {
            state: Some(QpState::ReadyToReceive),
            access: Some(granted(max_dest_rd_atomic)),
            address_vector: Some(AddressVector {
                source_gid_index,
                destination: Gid::from(remote),
                port: 1,
                flow_label: 0,
                hop_limit: 64,
                traffic_class: 0,
            }),
            path_mtu: Some(peer.mtu),
            destination_qp: Some(peer.qpn),
            rq_psn: Some(self.announced),
            max_dest_rd_atomic: Some(max_dest_rd_atomic),
            min_rnr_timer: Some(0),
            ..QpModify::default()
        };
        let rts = QpModify {
            state: Some(QpState::ReadyToSend),
            timeout: Some(peer.ack_timeout),
            retry_count: Some(peer.retry_count.min(7)),
            rnr_retry: Some(peer.rnr_retry.min(7)),
            sq_psn: Some(peer.send_psn),
            max_rd_atomic: Some(max_rd_atomic),
            ..QpModify::default()
        };
        Ok((rtr, rts))
    }
}

fn granted(responder_resources: u8) -> Access {
    match responder_resources {
        0 => Access::REMOTE_WRITE,
        _ => Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
    }
}

impl Card {
    /// Makes an endpoint: bound when passive; resolved, its address opened, when active.
    pub(in crate::device) fn create_endpoint(
        &mut self,
        request: &EndpointRequest,
        channel: Arc<Signal<Happening>>,
    ) -> Result<CmIdNumber, VerbsError> {
        let mut endpoint = Endpoint::new(channel, *request);
        match request.side {
            EndpointSide::Passive { local } => {
                if !local.ip().is_unspecified() {
                    self.gid_of(local.ip())?;
                }
                endpoint.local = local;
            }
            EndpointSide::Active { remote, source } => {
                let source = match source {
                    Some(source) => {
                        self.gid_of(source)?;
                        self.open_address(source)?;
                        source
                    }
                    None => self.choose_source(remote)?,
                };
                let port = 0xc000 | (self.random.next_u32() & 0x3fff);
                endpoint.local = SocketAddr::new(source, u16::try_from(port).unwrap_or(0xc000));
                endpoint.peer = Some(remote);
            }
        }
        let number = self.cm.new_number();
        self.cm.endpoints.insert(number, endpoint);
        Ok(number)
    }

    fn gid_of(&mut self, address: IpAddr) -> Result<u16, VerbsError> {
        self.gids
            .index_of(address)
            .ok_or(VerbsError::AddressNotAvailable("no port of the device has it; see its GID table"))
    }

    /// The own address for packets to `remote`: the route's, when the table has it, else the
    /// first of the family. It is open afterwards.
    fn choose_source(&mut self, remote: SocketAddr) -> Result<IpAddr, VerbsError> {
        let routed = route_source(remote);
        let table = self.gids.addresses();
        let same_family = |address: &&IpAddr| address.is_ipv4() == remote.is_ipv4();
        let chosen = table
            .iter()
            .find(|address| Some(**address) == routed)
            .or_else(|| {
                let mut family = table.iter().filter(same_family);
                family
                    .clone()
                    .find(|address| address.is_loopback() == remote.ip().is_loopback())
                    .or(family.next())
            })
            .copied()
            .ok_or(VerbsError::AddressNotAvailable("the device has no address of the peer's family"))?;
        match self.open_address(chosen) {
            Ok(()) => Ok(chosen),
            Err(VerbsError::AddressInUse(why)) if self.may_be_replaced(chosen, remote) => {
                self.open_some_loopback().ok_or(VerbsError::AddressInUse(why))
            }
            Err(error) => Err(error),
        }
    }

    /// On one host any loopback address reaches any other: a client there need not share the
    /// server's, unless the user named addresses.
    fn may_be_replaced(&self, chosen: IpAddr, remote: SocketAddr) -> bool {
        let on_this_host = remote.ip().is_loopback() || remote.ip() == chosen;
        !self.gids.is_named() && remote.is_ipv4() && on_this_host
    }

    fn open_some_loopback(&mut self) -> Option<IpAddr> {
        for _ in 0..OTHER_LOOPBACKS {
            let [_, b, c, d] = self.random.next_u32().to_be_bytes();
            let address = IpAddr::from([127, b.max(1), c, d.clamp(1, 254)]);
            if self.open_address(address).is_ok() && self.gids.index_of(address).is_some() {
                return Some(address);
            }
        }
        None
    }

    /// Own and peer's address.
    pub(in crate::device) fn endpoint_addresses(
        &self,
        id: CmIdNumber,
    ) -> Option<(SocketAddr, Option<SocketAddr>)> {
        self.cm.endpoints.get(&id).map(|endpoint| (endpoint.local, endpoint.peer))
    }

    fn endpoint(&mut self, id: CmIdNumber) -> Result<&mut Endpoint, VerbsError> {
        self.cm.endpoints.get_mut(&id).ok_or(VerbsError::Gone)
    }

    /// Gives an endpoint its QP, and moves that to INIT.
    pub(in crate::device) fn attach(&mut self, id: CmIdNumber, qp: QpNumber) -> Result<(), VerbsError> {
        let qp_type = self.type_of(qp).ok_or(VerbsError::Gone)?;
        let endpoint = self.endpoint(id)?;
        if endpoint.qp.is_some() {
            return Err(VerbsError::Invalid("the endpoint has a QP"));
        }
        if endpoint.request.qp_type != qp_type {
            return Err(VerbsError::Invalid("the QP's type is not the endpoint's"));
        }
        endpoint.qp = Some(qp);
        if self.query_qp(qp)?.state == QpState::Reset {
            let init = QpModify {
                state: Some(QpState::Init),
                pkey_index: Some(0),
                port: Some(1),
                access: Some(granted(1)),
                ..QpModify::default()
            };
            self.modify_qp(qp, &init)?;
        }
        Ok(())
    }

    /// Takes the QP away again.
    pub(in crate::device) fn detach(&mut self, id: CmIdNumber) {
        self.set_awaits_rtu(id, false);
        if let Some(endpoint) = self.cm.endpoints.get_mut(&id) {
            endpoint.qp = None;
        }
    }

    /// Starts to listen.
    pub(in crate::device) fn listen(&mut self, id: CmIdNumber, backlog: u32) -> Result<(), VerbsError> {
        let endpoint = self.endpoint(id)?;
        let (local, request) = (endpoint.local, endpoint.request);
        if endpoint.listener.is_some() || !matches!(request.side, EndpointSide::Passive { .. }) {
            return Err(VerbsError::Invalid("the endpoint listens already, or is an active one"));
        }
        self.open_for_listener(local.ip())?;
        let listen = Listen {
            address: local.ip(),
            port_space: request.port_space,
            port: local.port(),
            transport: Some(transport(request.qp_type)),
            backlog: backlog.max(1),
        };
        let (listener, port) = self.cm.machine.listen(&listen).map_err(refusal)?;
        self.cm.by_listener.insert(listener, id);
        let endpoint = self.endpoint(id)?;
        endpoint.listener = Some(listener);
        endpoint.local.set_port(port);
        Ok(())
    }

    /// Opens the address, or all of a wildcard's that are free.
    fn open_for_listener(&mut self, address: IpAddr) -> Result<(), VerbsError> {
        if !address.is_unspecified() {
            return self.open_address(address);
        }
        let all: Vec<IpAddr> =
            self.gids.addresses().iter().copied().filter(|own| address.is_ipv6() || own.is_ipv4()).collect();
        let mut result = Err(VerbsError::AddressNotAvailable("the device has no address of this family"));
        for own in all {
            let opened = self.open_address(own);
            if let Err(error) = opened {
                tracing::warn!(%own, %error, "a wildcard listener goes without an address");
            }
            if result.is_err() {
                result = opened;
            }
        }
        result
    }

    /// Sends the request of an active endpoint.
    pub(in crate::device) fn connect(
        &mut self,
        id: CmIdNumber,
        parameters: &ConnectParameters,
        now: Instant,
    ) -> Result<(), VerbsError> {
        let time = self.time(now);
        let announced = Psn::new(self.random.next_u32());
        let endpoint = self.endpoint(id)?;
        let EndpointSide::Active { remote, .. } = endpoint.request.side else {
            return Err(VerbsError::Invalid("a passive endpoint does not connect"));
        };
        if endpoint.connection.is_some() {
            return Err(VerbsError::Invalid("the endpoint is connecting or connected"));
        }
        let qpn = endpoint.qp.ok_or(VerbsError::Invalid("attach a QP before connecting"))?;
        endpoint.announced = announced;
        let (local, request) = (endpoint.local, endpoint.request);
        let mtu = self.mtu_of(local.ip());
        let connect = Connect {
            local,
            remote,
            port_space: request.port_space,
            transport: transport(request.qp_type),
            qpn,
            starting_psn: announced,
            mtu,
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth,
            retry_count: parameters.retry_count.min(7),
            rnr_retry: parameters.rnr_retry_count.min(7),
            ack_timeout: parameters.ack_timeout.clamp(1, 31),
            srq: false,
            private: &parameters.private_data,
        };
        let connection = self.cm.machine.connect(time.0, &connect).map_err(refusal)?;
        self.cm.by_connection.insert(connection, id);
        self.endpoint(id)?.connection = Some(connection);
        self.finish(now);
        Ok(())
    }

    /// Brings the QP up and answers a request.
    pub(in crate::device) fn accept(
        &mut self,
        id: CmIdNumber,
        parameters: &ConnectParameters,
        now: Instant,
    ) -> Result<(), VerbsError> {
        let time = self.time(now);
        let announced = Psn::new(self.random.next_u32());
        let endpoint = self.endpoint(id)?;
        let not_asked = VerbsError::Invalid("the endpoint has no request to answer");
        let connection = endpoint.connection.ok_or(not_asked)?;
        let peer = endpoint.offered.ok_or(not_asked)?;
        if matches!(endpoint.request.side, EndpointSide::Active { .. }) {
            // The program brought up a QP of its own after ConnectResponse.
            self.cm.machine.confirm(connection).map_err(refusal)?;
            self.finish(now);
            return Ok(());
        }
        let qpn = endpoint.qp.ok_or(VerbsError::Invalid("attach a QP before accepting"))?;
        endpoint.announced = announced;
        let resources = parameters.responder_resources.min(super::MAX_RD_ATOMIC);
        let depth = parameters.initiator_depth.min(peer.initiator_depth);
        self.bring_up(id, qpn, resources, depth)?;
        let accept = Accept {
            qpn,
            starting_psn: announced,
            responder_resources: resources,
            initiator_depth: depth,
            rnr_retry: parameters.rnr_retry_count.min(7),
            srq: false,
            private: &parameters.private_data,
        };
        self.set_awaits_rtu(id, true);
        if let Err(error) = self.cm.machine.accept(time.0, connection, &accept) {
            self.fail_attached(id);
            return Err(refusal(error));
        }
        self.finish(now);
        Ok(())
    }

    /// Refuses a request.
    pub(in crate::device) fn reject(
        &mut self,
        id: CmIdNumber,
        private: &[u8],
        now: Instant,
    ) -> Result<(), VerbsError> {
        let time = self.time(now);
        let none = VerbsError::Invalid("the endpoint has no request to answer");
        let connection = self.endpoint(id)?.connection.ok_or(none)?;
        self.cm.machine.reject(time.0, connection, RejectReason::CONSUMER, private).map_err(refusal)?;
        self.finish(now);
        Ok(())
    }

    /// Ends a connection.
    pub(in crate::device) fn disconnect(&mut self, id: CmIdNumber, now: Instant) -> Result<(), VerbsError> {
        let time = self.time(now);
        let none = VerbsError::Invalid("the endpoint has no connection");
        let connection = self.endpoint(id)?.connection.ok_or(none)?;
        self.cm.machine.disconnect(time.0, connection).map_err(refusal)?;
        self.fail_attached(id);
        self.finish(now);
        Ok(())
    }

    /// Reports to another channel from now on.
    pub(in crate::device) fn migrate(
        &mut self,
        id: CmIdNumber,
        channel: &Arc<Signal<Happening>>,
    ) -> Result<(), VerbsError> {
        let endpoint = self.endpoint(id)?;
        if Arc::ptr_eq(&endpoint.channel, channel) {
            return Ok(());
        }
        let old = std::mem::replace(&mut endpoint.channel, Arc::clone(channel));
        for happening in old.extract(|happening| happening.id == id) {
            if channel.push(happening).is_err() {
                return Err(VerbsError::OutOfResources("the channel holds too many events"));
            }
        }
        Ok(())
    }

    /// The program has let go of an endpoint. Its QP is left alone.
    pub(in crate::device) fn drop_endpoint(&mut self, id: CmIdNumber, now: Instant) {
        let time = self.time(now);
        let Some(endpoint) = self.cm.endpoints.remove(&id) else { return };
        drop(endpoint.channel.extract(|happening| {
            happening.id == id && !matches!(happening.kind, HappeningKind::ConnectRequest { .. })
        }));
        if let Some(listener) = endpoint.listener {
            self.cm.by_listener.remove(&listener);
            let _gone = self.cm.machine.unlisten(listener);
        }
        if let Some(connection) = endpoint.connection {
            self.cm.by_connection.remove(&connection);
            self.cm.machine.release(time.0, connection);
        }
        self.finish(now);
    }

    fn finish(&mut self, now: Instant) {
        self.serve_cm(now);
        self.flush(now);
    }
}

fn transport(qp_type: QpType) -> Transport {
    match qp_type {
        QpType::Rc => Transport::Rc,
        QpType::XrcIni | QpType::XrcTgt => Transport::Xrc,
    }
}

fn refusal(error: CmError) -> VerbsError {
    match error {
        CmError::AddressInUse => VerbsError::AddressInUse("another listener has this address and port"),
        CmError::Full { .. } => VerbsError::OutOfResources("the device has too many connections"),
        CmError::PrivateDataTooLong { .. } => VerbsError::Invalid("too much private data for this message"),
        CmError::AddressFamily => {
            VerbsError::Invalid("source and destination are of different address families")
        }
        CmError::Unknown => VerbsError::Gone,
        _ => VerbsError::Invalid("the connection is not in a state for this call"),
    }
}

/// The address that the host's routing would send from.
fn route_source(remote: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr =
        if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() };
    let socket = std::net::UdpSocket::bind((any, 0)).ok()?;
    // Connecting a UDP socket asks for the route and sends nothing.
    socket.connect(remote).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}
