//! Where connection endpoints are: making, binding, resolving, options.
//!
//! Owns the choice of addresses and ports; what endpoints do with them is in `connect`.

use super::Card;
use super::connect::{Endpoint, PendingCmEvent, PendingCmEventKind, Role};
use crate::device::signal::Signal;
use crate::host::ServiceClaim;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use trunkline_roce::wire::cm::ServiceId;
use trunkline_verbs::{
    CmIdNumber, CmOption, EndpointRequest, EndpointSide, PortSpace, Psn, QpType, VerbsError,
};

/// Loopback addresses tried for a client whose natural one is served by another process.
const OTHER_LOOPBACKS: usize = 16;
/// Ports tried for an endpoint that is bound to any.
pub(super) const PORTS_TRIED: usize = 64;

impl Card {
    /// Makes an endpoint: bound when passive; resolved, its address opened, when active.
    pub(in crate::device) fn create_endpoint(
        &mut self,
        request: &EndpointRequest,
        channel: Arc<Signal<PendingCmEvent>>,
    ) -> Result<CmIdNumber, VerbsError> {
        self.present()?;
        let mut endpoint = self.new_endpoint(channel, request.port_space, request.qp_type);
        match request.side {
            EndpointSide::Passive { local } => {
                if !local.ip().is_unspecified() {
                    self.gid_of(local.ip())?;
                }
                endpoint.local = local;
                endpoint.is_bound = true;
            }
            EndpointSide::Active { remote, source } => {
                let routed = self.way(remote)?;
                let source = match source {
                    Some(source) => {
                        self.gid_of(source)?;
                        self.open_address(source)?;
                        source
                    }
                    None => self.choose_source(remote, routed)?,
                };
                endpoint.local = SocketAddr::new(source, self.client_port());
                endpoint.role = Role::Active { remote };
                endpoint.peer = Some(remote);
                endpoint.has_route = true;
            }
        }
        Ok(self.insert_endpoint(endpoint))
    }

    /// Makes an endpoint that is nowhere yet.
    pub(in crate::device) fn create_id(
        &mut self,
        port_space: PortSpace,
        qp_type: QpType,
        channel: Arc<Signal<PendingCmEvent>>,
    ) -> Result<CmIdNumber, VerbsError> {
        self.present()?;
        let endpoint = self.new_endpoint(channel, port_space, qp_type);
        Ok(self.insert_endpoint(endpoint))
    }

    pub(super) fn new_endpoint(
        &mut self,
        channel: Arc<Signal<PendingCmEvent>>,
        port_space: PortSpace,
        qp_type: QpType,
    ) -> Endpoint {
        let announced = Psn::new(self.random.next_u32());
        Endpoint::new(channel, port_space, qp_type, announced)
    }

    fn insert_endpoint(&mut self, endpoint: Endpoint) -> CmIdNumber {
        let number = self.cm.new_number();
        self.cm.endpoints.insert(number, endpoint);
        number
    }

    /// The port that a peer is told of a side that listens nowhere.
    fn client_port(&mut self) -> u16 {
        u16::try_from(0xc000 | (self.random.next_u32() & 0x3fff)).unwrap_or(0xc000)
    }

    /// Binds an endpoint, for all devices that share the addresses. One that others may bind to
    /// as well is theirs until somebody listens.
    pub(in crate::device) fn bind(&mut self, id: CmIdNumber, local: SocketAddr) -> Result<(), VerbsError> {
        let endpoint = self.endpoint(id)?;
        let (port_space, only) = (endpoint.port_space, endpoint.is_family_only);
        let claims = !endpoint.reuses_address;
        for _ in 0..PORTS_TRIED {
            let bound = self.choose_port(id, local)?;
            let claimed = if claims { self.claim_port(port_space, bound, only) } else { Ok(Vec::new()) };
            match claimed {
                Ok(claims) => {
                    let endpoint = self.endpoint(id)?;
                    endpoint.claims = claims;
                    endpoint.local = bound;
                    endpoint.is_bound = true;
                    return Ok(());
                }
                Err(VerbsError::AddressInUse(_)) if local.port() == 0 => {}
                Err(error) => return Err(error),
            }
        }
        Err(VerbsError::AddressNotAvailable("no port is free"))
    }

    /// Claims a service among the devices that share the addresses; nothing to claim without any.
    /// The unspecified address stands for all of the host, but for those of the table alone when
    /// the user named them: others may name others.
    pub(super) fn claim_port(
        &self,
        port_space: PortSpace,
        at: SocketAddr,
        is_family_only: bool,
    ) -> Result<Vec<ServiceClaim>, VerbsError> {
        let Some(host) = &self.host else { return Ok(Vec::new()) };
        let service = ServiceId::new(port_space, at.port());
        let addresses = if at.ip().is_unspecified() && self.gids.is_named() {
            self.covered(at.ip(), is_family_only)
        } else {
            vec![at.ip()]
        };
        let claims =
            addresses.into_iter().map(|address| host.claim_service(service.0, address, is_family_only));
        claims.collect::<Result<_, _>>().map_err(VerbsError::from)
    }

    /// Where an endpoint of this device may be bound to.
    fn choose_port(&mut self, id: CmIdNumber, local: SocketAddr) -> Result<SocketAddr, VerbsError> {
        let endpoint = self.endpoint(id)?;
        if endpoint.is_bound || endpoint.role != Role::Undecided {
            return Err(VerbsError::Invalid("the endpoint is bound or resolved already"));
        }
        let (port_space, reuse) = (endpoint.port_space, endpoint.reuses_address);
        if !local.ip().is_unspecified() {
            self.gid_of(local.ip())?;
        }
        let port = match local.port() {
            0 => self.some_free_port(port_space, local.ip())?,
            port if self.is_port_free(port_space, SocketAddr::new(local.ip(), port), reuse) => port,
            _ => return Err(VerbsError::AddressInUse("another endpoint is bound to this address and port")),
        };
        Ok(SocketAddr::new(local.ip(), port))
    }

    fn some_free_port(&mut self, port_space: PortSpace, address: IpAddr) -> Result<u16, VerbsError> {
        for _ in 0..PORTS_TRIED {
            let port = u16::try_from(0x8000 | (self.random.next_u32() & 0x3fff)).unwrap_or(0x8000);
            if self.is_port_free(port_space, SocketAddr::new(address, port), false) {
                return Ok(port);
            }
        }
        Err(VerbsError::AddressNotAvailable("no port is free"))
    }

    fn is_port_free(&self, port_space: PortSpace, at: SocketAddr, reuse: bool) -> bool {
        let taken = |other: &Endpoint| {
            let meets =
                other.local.ip() == at.ip() || other.local.ip().is_unspecified() || at.ip().is_unspecified();
            let shares = reuse && other.reuses_address && other.listener.is_none();
            other.is_bound
                && other.port_space == port_space
                && other.local.port() == at.port()
                && meets
                && other.local.is_ipv4() == at.is_ipv4()
                && !shares
        };
        !self.cm.endpoints.values().any(taken)
    }

    /// Finds the own address for a peer.
    pub(in crate::device) fn resolve_address(
        &mut self,
        id: CmIdNumber,
        source: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<(), VerbsError> {
        let endpoint = self.endpoint(id)?;
        if endpoint.role != Role::Undecided {
            return Err(VerbsError::Invalid("the endpoint listens or is resolved already"));
        }
        if let Some(source) = source.filter(|_| !endpoint.is_bound) {
            // Nobody asks for a port that is bound to connect from, so it is not claimed.
            let local = self.choose_port(id, source)?;
            let endpoint = self.endpoint(id)?;
            endpoint.local = local;
            endpoint.is_bound = true;
        }
        let endpoint = self.endpoint(id)?;
        let bound = endpoint.is_bound.then_some(endpoint.local);
        if bound.is_some_and(|bound| bound.is_ipv4() != remote.is_ipv4()) {
            return Err(VerbsError::Invalid("source and destination are of different address families"));
        }
        let routed = self.way(remote)?;
        match self.resolve(bound, remote, routed) {
            Ok((local, remote)) => {
                let endpoint = self.endpoint(id)?;
                endpoint.local = local;
                endpoint.peer = Some(remote);
                endpoint.role = Role::Active { remote };
                endpoint.has_route = false;
                self.cm.push_event(id, PendingCmEventKind::AddressResolved, Vec::new());
            }
            // The program may try another peer with the same endpoint.
            Err(error) => drop(self.cm.push_event(id, PendingCmEventKind::AddressError(error), Vec::new())),
        }
        Ok(())
    }

    /// Both ends of a way. A peer at an unspecified address is this host, as for sockets.
    fn resolve(
        &mut self,
        bound: Option<SocketAddr>,
        remote: SocketAddr,
        routed: Option<IpAddr>,
    ) -> Result<(SocketAddr, SocketAddr), VerbsError> {
        let port = match bound {
            Some(bound) => bound.port(),
            None => self.client_port(),
        };
        let chosen = bound.map(|bound| bound.ip()).filter(|own| !own.is_unspecified());
        let is_here = remote.ip().is_unspecified();
        let own = match chosen {
            Some(own) => {
                self.open_address(own)?;
                own
            }
            None if is_here => {
                self.choose_source(SocketAddr::new(loopback(remote.ip()), remote.port()), routed)?
            }
            None => self.choose_source(remote, routed)?,
        };
        let remote = if is_here { SocketAddr::new(own, remote.port()) } else { remote };
        Ok((SocketAddr::new(own, port), remote))
    }

    /// Finds the way to the peer: the host's routing knows it, so there is nothing to ask for.
    pub(in crate::device) fn resolve_route(&mut self, id: CmIdNumber) -> Result<(), VerbsError> {
        let endpoint = self.endpoint(id)?;
        if !matches!(endpoint.role, Role::Active { .. }) || endpoint.has_route {
            return Err(VerbsError::Invalid("the address is not resolved, or the route is"));
        }
        endpoint.has_route = true;
        self.cm.push_event(id, PendingCmEventKind::RouteResolved, Vec::new());
        Ok(())
    }

    /// Sets an option of an endpoint.
    pub(in crate::device) fn set_cm_option(
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
            _ => return Err(VerbsError::NotSupported("this option")),
        }
        Ok(())
    }

    fn gid_of(&mut self, address: IpAddr) -> Result<u16, VerbsError> {
        self.gids
            .index_of(address)
            .ok_or(VerbsError::AddressNotAvailable("no port of the device has it; see its GID table"))
    }

    /// The address that the host's routing would send from, if it names one. Refuses what it knows no
    /// way to; a network in process has no routing of its own.
    fn way(&self, remote: SocketAddr) -> Result<Option<IpAddr>, VerbsError> {
        if !self.asks_host {
            return Ok(None);
        }
        let may_refuse = self.host.is_some() && !remote.ip().is_unspecified();
        match route_source(remote) {
            Err(error) if may_refuse && is_nowhere(&error) => Err(error.into()),
            routed => Ok(routed.ok()),
        }
    }

    /// The own address for packets to `remote`: the route's, when the table has it, else the
    /// first of the family. It is open afterwards.
    fn choose_source(&mut self, remote: SocketAddr, routed: Option<IpAddr>) -> Result<IpAddr, VerbsError> {
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
}

fn loopback(family: IpAddr) -> IpAddr {
    if family.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() }
}

/// The address that the host's routing would send from.
fn route_source(remote: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr =
        if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = std::net::UdpSocket::bind((any, 0))?;
    // Connecting a UDP socket asks for the route and sends nothing.
    socket.connect(remote)?;
    socket.local_addr().map(|address| address.ip())
}

/// Whether the host's routing says that no packet gets there.
fn is_nowhere(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable)
}
