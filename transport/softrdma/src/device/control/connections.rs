//! Endpoints of a device, and their connection machine.
//!
//! Owns the endpoints, and the maps from connections and listeners to them. Does not depend on QPs or address tables.

use super::endpoint::{Endpoint, PendingCmEvent, PendingCmEventKind, Role};
use super::peer_processes::PeerProcesses;
use crate::device::tables::random::Random;
use crate::device::threads::signal::Signal;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use trunkline_roce::cm::{CmConfig, CmDrop, CmMachine, CommIds, ConnectionId, ListenerId};
use trunkline_verbs::{
    CmEventKind, CmIdNumber, CmOption, Counter, Mtu, PortSpace, Psn, QpNumber, QpType, Time, UdpPorts,
    VerbsError, WILDCARD_TAKEN,
};

/// Maximum number of ports tried for an endpoint that is bound to port 0.
pub(super) const PORTS_TRIED: usize = 64;

/// Endpoints of a device, and their connection machine.
#[derive(Debug)]
pub(in crate::device) struct Connections {
    machine: CmMachine,
    endpoints: BTreeMap<CmIdNumber, Endpoint>,
    by_connection: BTreeMap<ConnectionId, CmIdNumber>,
    by_listener: BTreeMap<ListenerId, CmIdNumber>,
    processes: PeerProcesses,
    next_number: u64,
    /// PSN of the next management datagram.
    psn: Psn,
    /// Source of random ports and PSNs for endpoints.
    random: Random,
}

impl Connections {
    /// Creates an empty set of endpoints. If other devices share the addresses, `comm_ids` is this device's share of
    /// the communication ids.
    pub(super) fn new(guid: u64, udp_port: u16, mut random: Random, comm_ids: Option<CommIds>) -> Self {
        let comm_ids = comm_ids.unwrap_or_else(|| CommIds::new(random.keys()));
        let config = CmConfig { comm_ids, udp_port, ..CmConfig::new(guid, random.next()) };
        Self {
            machine: CmMachine::new(config),
            endpoints: BTreeMap::new(),
            by_connection: BTreeMap::new(),
            by_listener: BTreeMap::new(),
            processes: PeerProcesses::default(),
            next_number: 1,
            psn: Psn::new(random.next_u32()),
            random,
        }
    }

    pub(super) fn machine(&mut self) -> &mut CmMachine {
        &mut self.machine
    }

    /// Returns the time of the machine's next timeout.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.machine.next_timeout().map(Time)
    }

    /// Returns the connections whose peers are processes of this host.
    pub(super) fn processes(&mut self) -> &mut PeerProcesses {
        &mut self.processes
    }

    /// Returns the next time at which to watch peer processes, or to end connections with dead ones.
    pub(super) fn next_look_at_processes(&self) -> Option<Time> {
        self.processes.next_timeout()
    }

    /// Takes the PSN of the next management datagram.
    pub(super) fn take_psn(&mut self) -> Psn {
        let psn = self.psn;
        self.psn = psn.plus(1);
        psn
    }

    pub(super) fn counters(&self, bad_mads: u64, into: &mut Vec<Counter>) {
        let counts = self.machine.counters();
        into.extend([
            Counter { name: "cm_received", value: counts.received },
            Counter { name: "cm_sent", value: counts.sent },
            Counter { name: "cm_retransmitted", value: counts.retransmitted },
            Counter { name: "drop_bad_mad", value: bad_mads },
        ]);
        into.extend(counts.refused().map(|(name, value)| Counter { name, value }));
        let drops = CmDrop::ALL.into_iter();
        into.extend(drops.map(|(cause, name)| Counter { name, value: counts.dropped(cause) }));
    }

    /// Creates an endpoint without adding it to the table.
    pub(super) fn new_endpoint(
        &mut self,
        channel: Arc<Signal<PendingCmEvent>>,
        port_space: PortSpace,
        qp_type: QpType,
    ) -> Endpoint {
        let announced = Psn::new(self.random.next_u32());
        Endpoint::new(channel, port_space, qp_type, announced)
    }

    /// Creates an endpoint without an address. Returns its number.
    pub(in crate::device) fn create(
        &mut self,
        port_space: PortSpace,
        qp_type: QpType,
        channel: Arc<Signal<PendingCmEvent>>,
    ) -> CmIdNumber {
        let endpoint = self.new_endpoint(channel, port_space, qp_type);
        self.insert(endpoint)
    }

    /// Returns the number that the next added endpoint will have.
    pub(super) fn next_number(&self) -> CmIdNumber {
        CmIdNumber(self.next_number)
    }

    /// Adds an endpoint. Returns its number.
    pub(super) fn insert(&mut self, endpoint: Endpoint) -> CmIdNumber {
        let number = self.next_number();
        self.next_number += 1;
        if let Some(connection) = endpoint.connection {
            self.by_connection.insert(connection, number);
        }
        self.endpoints.insert(number, endpoint);
        number
    }

    /// Removes an endpoint, and its entries in the maps of connections and listeners.
    pub(super) fn remove(&mut self, id: CmIdNumber) -> Option<Endpoint> {
        let endpoint = self.endpoints.remove(&id)?;
        self.processes.remove(id);
        if let Some(listener) = endpoint.listener {
            self.by_listener.remove(&listener);
        }
        if let Some(connection) = endpoint.connection {
            self.by_connection.remove(&connection);
        }
        Some(endpoint)
    }

    /// Returns all endpoints, listeners first, so that requests not yet delivered to the program are dropped
    /// silently with their listener.
    pub(super) fn listeners_first(&self) -> Vec<CmIdNumber> {
        let mut ids = self.endpoints.keys().copied().collect::<Vec<_>>();
        ids.sort_unstable_by_key(|id| (self.endpoints[id].listener.is_none(), *id));
        ids
    }

    pub(super) fn get(&self, id: CmIdNumber) -> Option<&Endpoint> {
        self.endpoints.get(&id)
    }

    /// Returns an endpoint by number.
    ///
    /// # Errors
    /// [`VerbsError::Gone`] if the endpoint does not exist.
    pub(super) fn endpoint(&mut self, id: CmIdNumber) -> Result<&mut Endpoint, VerbsError> {
        self.endpoints.get_mut(&id).ok_or(VerbsError::Gone)
    }

    /// Returns the endpoint of a connection.
    pub(super) fn of_connection(&self, connection: ConnectionId) -> Option<CmIdNumber> {
        self.by_connection.get(&connection).copied()
    }

    /// Returns the endpoint of a listener.
    pub(super) fn of_listener(&self, listener: ListenerId) -> Option<CmIdNumber> {
        self.by_listener.get(&listener).copied()
    }

    /// Records that an endpoint listens.
    pub(super) fn listens(&mut self, id: CmIdNumber, listener: ListenerId) {
        self.by_listener.insert(listener, id);
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.listener = Some(listener);
        }
    }

    /// Records that an endpoint has sent a request to its peer.
    pub(super) fn asks(&mut self, id: CmIdNumber, connection: ConnectionId) {
        self.by_connection.insert(connection, id);
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.connection = Some(connection);
            endpoint.has_asked = true;
        }
    }

    /// Removes an endpoint's connection or request, so that later events of the connection are not reported.
    pub(super) fn end(&mut self, id: CmIdNumber, connection: ConnectionId) {
        self.by_connection.remove(&connection);
        self.processes.remove(id);
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.connection = None;
        }
    }

    /// Returns the request that a passive endpoint has to answer.
    pub(super) fn question(&mut self, id: CmIdNumber) -> Result<ConnectionId, VerbsError> {
        let endpoint = self.endpoint(id)?;
        let question = endpoint.connection.filter(|_| endpoint.role == Role::Passive);
        question.ok_or(VerbsError::Invalid("the endpoint has no question to answer"))
    }

    /// Returns the unspecified addresses on which endpoints listen. The flag is true if the address covers
    /// only its own family.
    pub(super) fn wildcards(&self) -> Vec<(IpAddr, bool)> {
        let listening = self.by_listener.values().filter_map(|id| self.endpoints.get(id));
        let places = listening.map(|endpoint| (endpoint.local.ip(), endpoint.is_family_only));
        let mut wildcards = places.filter(|(address, _)| address.is_unspecified()).collect::<Vec<_>>();
        wildcards.sort_unstable();
        wildcards.dedup();
        wildcards
    }

    /// Returns the QP of an endpoint's connection. The QP is either attached to the endpoint or named by the program.
    pub(super) fn carrier(&self, id: CmIdNumber) -> Option<QpNumber> {
        self.get(id).and_then(|endpoint| endpoint.qp.or(endpoint.named_qp))
    }

    /// Returns true for an endpoint of port space UDP, which exchanges SIDR requests and responses instead of
    /// connecting.
    pub(super) fn is_service(&self, id: CmIdNumber) -> bool {
        self.get(id).is_some_and(|endpoint| endpoint.port_space == PortSpace::Udp)
    }

    /// Queues an endpoint's event for the program.
    pub(super) fn push_event(&self, id: CmIdNumber, kind: CmEventKind, private_data: Vec<u8>) {
        let Some(endpoint) = self.get(id) else { return };
        let kind = PendingCmEventKind::Other(kind);
        if endpoint.channel.push(PendingCmEvent { id, kind, private_data }).is_err() {
            tracing::warn!(
                ?id,
                cause = "its event channel is full",
                remedy = "take events from the channel sooner",
                "connection event lost"
            );
        }
    }

    /// Records that the request that created this endpoint was delivered to the program.
    pub(in crate::device) fn request_heard(&mut self, id: CmIdNumber) {
        if let Some(connection) = self.get(id).and_then(|endpoint| endpoint.connection) {
            self.machine.request_delivered(connection);
        }
    }

    /// Returns the local address, and the peer's address if it is set.
    pub(in crate::device) fn addresses(&self, id: CmIdNumber) -> Option<(SocketAddr, Option<SocketAddr>)> {
        self.get(id).map(|endpoint| (endpoint.local, endpoint.peer))
    }

    /// Returns the UDP ports of an endpoint's connection.
    pub(in crate::device) fn udp_ports(&self, id: CmIdNumber) -> Option<UdpPorts> {
        self.get(id).and_then(|endpoint| endpoint.ports)
    }

    /// Returns the path MTU that a peer has requested.
    pub(in crate::device) fn asked_mtu(&self, id: CmIdNumber) -> Option<Mtu> {
        self.get(id)?.offered.map(|peer| peer.mtu)
    }

    /// Completes the resolution of the route to a peer. The route comes from the host's routing, so nothing
    /// is sent.
    pub(in crate::device) fn resolve_route(&mut self, id: CmIdNumber) -> Result<(), VerbsError> {
        let endpoint = self.endpoint(id)?;
        if !matches!(endpoint.role, Role::Active { .. }) || endpoint.has_route {
            return Err(VerbsError::Invalid("the address is not resolved, or the route is"));
        }
        endpoint.has_route = true;
        self.push_event(id, CmEventKind::RouteResolved, Vec::new());
        Ok(())
    }

    /// Sets an option of an endpoint.
    pub(in crate::device) fn set_option(
        &mut self,
        id: CmIdNumber,
        option: CmOption,
    ) -> Result<(), VerbsError> {
        let endpoint = self.endpoint(id)?;
        match option {
            CmOption::TypeOfService(class) => endpoint.traffic_class = class,
            CmOption::ReuseAddress(reuses) => endpoint.reuses_address = reuses,
            CmOption::AddressFamilyOnly(only) => {
                if endpoint.is_bound {
                    return Err(VerbsError::Invalid("the endpoint is bound already"));
                }
                endpoint.is_family_only = only;
            }
            CmOption::AckTimeout(code) if code > 31 => {
                return Err(VerbsError::Invalid("the ACK timeout is a code from 0 to 31"));
            }
            CmOption::AckTimeout(code) => endpoint.ack_timeout = Some(code),
            CmOption::UdpPorts(ports) => endpoint.ports = Some(ports),
            CmOption::OneFlow(one_flow) => endpoint.one_flow = one_flow,
            CmOption::RetryRefused(retries) => endpoint.retry_refused = retries,
            CmOption::PathMtu(mtu) => endpoint.path_mtu = Some(mtu),
            _ => return Err(VerbsError::NotSupported("this option")),
        }
        Ok(())
    }

    /// Moves an endpoint to another channel.
    pub(in crate::device) fn migrate(
        &mut self,
        id: CmIdNumber,
        channel: &Arc<Signal<PendingCmEvent>>,
    ) -> Result<(), VerbsError> {
        let endpoint = self.endpoint(id)?;
        if Arc::ptr_eq(&endpoint.channel, channel) {
            return Ok(());
        }
        let old = std::mem::replace(&mut endpoint.channel, Arc::clone(channel));
        for event in old.extract(|event| event.id == id) {
            if channel.push(event).is_err() {
                return Err(VerbsError::OutOfResources("the channel holds too many events"));
            }
        }
        Ok(())
    }

    /// Returns a random local port for an active endpoint. The endpoint does not listen on it, so the port need not be
    /// free.
    pub(super) fn client_port(&mut self) -> u16 {
        u16::try_from(0xc000 | (self.random.next_u32() & 0x3fff)).unwrap_or(0xc000)
    }

    /// Returns a port to which an endpoint can be bound.
    pub(super) fn some_free_port(
        &mut self,
        port_space: PortSpace,
        address: IpAddr,
        is_family_only: bool,
    ) -> Result<u16, VerbsError> {
        for _ in 0..PORTS_TRIED {
            let port = u16::try_from(0x8000 | (self.random.next_u32() & 0x3fff)).unwrap_or(0x8000);
            if self.check_port(port_space, SocketAddr::new(address, port), is_family_only, false).is_ok() {
                return Ok(port);
            }
        }
        Err(VerbsError::AddressNotAvailable("no port is free"))
    }

    /// Checks that an endpoint can be bound to an address and port. If `shares` is true, the port may be in use by
    /// endpoints that also reuse addresses and do not listen. Follows `cma_check_port` of Linux, except that a port
    /// bound at `0.0.0.0` is free at a single IPv6 address, since a request cannot match both.
    pub(super) fn check_port(
        &self,
        port_space: PortSpace,
        at: SocketAddr,
        is_family_only: bool,
        shares: bool,
    ) -> Result<(), VerbsError> {
        let taken = |other: &&Endpoint| {
            let both = shares && other.reuses_address && other.listener.is_none();
            other.is_bound
                && other.port_space == port_space
                && other.local.port() == at.port()
                && meets((other.local.ip(), other.is_family_only), (at.ip(), is_family_only))
                && !both
        };
        let Some(other) = self.endpoints.values().find(taken) else { return Ok(()) };
        Err(VerbsError::AddressInUse(if at.ip().is_unspecified() || other.local.ip().is_unspecified() {
            WILDCARD_TAKEN
        } else {
            "another endpoint is bound to this address and port"
        }))
    }
}

/// Returns true if a request can match both addresses. `::` covers all addresses unless the flag restricts it
/// to its family.
fn meets(one: (IpAddr, bool), other: (IpAddr, bool)) -> bool {
    let covers = |(wide, is_family_only): (IpAddr, bool), address: IpAddr| {
        let has_family = wide.is_ipv4() == address.is_ipv4() || wide.is_ipv6() && !is_family_only;
        wide == address || wide.is_unspecified() && has_family
    };
    covers(one, other.0) || covers(other, one.0)
}
