//! The device's own addresses, and the choice of an endpoint's address.
//!
//! Owns the GID table, and claims services among the devices that share the addresses. The shards open addresses, since
//! they own the links.

use crate::device::shard::Route;
use crate::device::shards::reach::Reach;
use crate::device::tables::gid_table::GidTable;
use crate::device::tables::random::Random;
use crate::host::{Host, PortHolder, ServiceClaim};
use crate::link::{PortOwner, UdpSockets};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use trunkline_roce::wire::ROCE_PORT;
use trunkline_roce::wire::cm::ServiceId;
use trunkline_verbs::descriptors::above_stdio;
use trunkline_verbs::{AddressOwner, PortSpace, QpAttributes, QpNumber, Time, VerbsError};

/// Number of further loopback addresses tried for a client if another process uses the first choice.
const OTHER_LOOPBACKS: usize = 16;
/// Lifetime of a cached answer about an address, and maximum number of cached answers.
const KEPT_FOR: Duration = Duration::from_secs(1);
const KEPT: usize = 1024;

/// Cache of the answers to [`is_of_this_host`]. Each request from an unknown peer, even a repeated one, needs an
/// answer, and computing it takes system calls.
#[derive(Debug, Default)]
struct HostAddresses(BTreeMap<IpAddr, (Time, bool)>);

impl HostAddresses {
    /// Returns true if a user of this host may send from the address.
    fn has(&mut self, address: IpAddr, now: Time) -> bool {
        if let Some((until, is_here)) = self.0.get(&address)
            && now < *until
        {
            return *is_here;
        }
        if self.0.len() >= KEPT {
            self.0.clear();
        }
        let is_here = is_of_this_host(address);
        self.0.insert(address, (now + KEPT_FOR, is_here));
        is_here
    }
}

/// Addresses of a device.
#[derive(Debug)]
pub(super) struct Addresses {
    gids: GidTable,
    /// Registry of the devices of this user that share the addresses.
    host: Option<Arc<Host>>,
    /// True if the host's routing may be queried for routes to peers; false in a simulation.
    asks_host: bool,
    random: Random,
    /// Addresses that could not be opened for a wildcard listener. A warning was logged for each.
    unopened: BTreeSet<IpAddr>,
    /// Addresses that listeners named explicitly. They stay open even if the host loses them.
    named_by_listeners: BTreeSet<IpAddr>,
    /// Loopback address used in place of addresses at which another program holds the device's port.
    other_loopback: Option<IpAddr>,
    sockets: UdpSockets,
    of_this_host: HostAddresses,
}

/// Result of opening the addresses that a wildcard covers.
#[derive(Debug)]
pub(super) struct Opened {
    is_any: bool,
    /// True if all covered addresses are open.
    pub(super) is_complete: bool,
    first_error: Option<VerbsError>,
}

impl Addresses {
    pub(super) fn new(gids: GidTable, host: Option<Arc<Host>>, asks_host: bool, random: Random) -> Self {
        let (unopened, named_by_listeners, sockets) = Default::default();
        Self {
            gids,
            host,
            asks_host,
            random,
            unopened,
            named_by_listeners,
            other_loopback: None,
            sockets,
            of_this_host: HostAddresses::default(),
        }
    }

    pub(super) fn gids(&self) -> &GidTable {
        &self.gids
    }

    /// Returns the GID table. IPv4 loopback addresses are added to it when they are first used.
    pub(super) fn gids_mut(&mut self) -> &mut GidTable {
        &mut self.gids
    }

    /// Fails unless `address` is an address of the device.
    pub(super) fn check(&mut self, address: IpAddr) -> Result<(), VerbsError> {
        VerbsError::check_scope(address)?;
        if self.gids.index_of(address).is_none() {
            // The address may be new.
            self.refresh()?;
        }
        let known = self.gids.index_of(address).map(drop);
        known.ok_or_else(|| VerbsError::AddressNotAvailable(self.gids.reason_without(address)))
    }

    /// Returns the device's addresses that an unspecified address covers.
    fn covered(&self, address: IpAddr, is_family_only: bool) -> Vec<IpAddr> {
        let wanted =
            |own: &IpAddr| own.is_ipv4() == address.is_ipv4() || (address.is_ipv6() && !is_family_only);
        self.gids.present().into_iter().filter(wanted).collect()
    }

    /// Records that the process is about to exit with its sockets open.
    pub(super) fn ports_end(&self) {
        if let Some(host) = &self.host {
            host.ports_end();
        }
    }

    /// Claims a service, so that other devices with the same addresses cannot claim it. An unspecified address covers
    /// all addresses of the host. If the user named addresses, it covers only these, since another device may use the
    /// others.
    pub(super) fn claim_port(
        &self,
        port_space: PortSpace,
        at: SocketAddr,
        is_family_only: bool,
    ) -> Result<Vec<ServiceClaim>, VerbsError> {
        let Some(host) = &self.host else { return Ok(Vec::new()) };
        let service = ServiceId::new(port_space, at.port());
        let claims: Result<_, _> = if at.ip().is_unspecified() && self.gids.is_named() {
            let parts = self.covered(at.ip(), is_family_only).into_iter();
            parts.map(|address| host.claim_part(service.0, address)).collect()
        } else {
            host.claim_service(service.0, at.ip(), is_family_only).map(|claim| vec![claim])
        };
        Ok(claims?)
    }

    /// Opens the address, or all free addresses that a wildcard covers. Like `cma_listen_on_all` of Linux
    /// (drivers/infiniband/core/cma.c), succeeds even if a wildcard does not cover any address; the listener then
    /// receives requests once an address appears.
    pub(super) fn open_for_listener(
        &mut self,
        shards: &mut Reach<'_>,
        address: IpAddr,
        is_family_only: bool,
    ) -> Result<(), VerbsError> {
        if !address.is_unspecified() {
            shards.first().link_mut().open(address)?;
            self.named_by_listeners.insert(address);
            return Ok(());
        }
        let opened = self.open_covered(shards, address, is_family_only);
        match opened.first_error {
            Some(error) if !opened.is_any => Err(error),
            _ => Ok(()),
        }
    }

    /// Opens all addresses that a wildcard covers. Logs a warning once for each address that cannot be opened.
    pub(super) fn open_covered(
        &mut self,
        shards: &mut Reach<'_>,
        address: IpAddr,
        is_family_only: bool,
    ) -> Opened {
        self.close_replaced(shards);
        let mut result = Opened { is_any: false, is_complete: true, first_error: None };
        for own in self.covered(address, is_family_only) {
            let Err(error) = shards.first().link_mut().open(own) else {
                result.is_any = true;
                self.unopened.remove(&own);
                continue;
            };
            result.is_complete = false;
            result.first_error.get_or_insert(error);
            if self.unopened.insert(own) {
                self.warn_unopened(own, error);
            }
        }
        result
    }

    /// Closes addresses whose entries in the GID table were reused. Without this, a process on a host whose addresses
    /// change often, such as a container host, would run out of descriptors, and the registry would run out of port
    /// records.
    fn close_replaced(&mut self, shards: &mut Reach<'_>) {
        for address in self.gids.take_replaced() {
            self.unopened.remove(&address);
            if !self.named_by_listeners.contains(&address) {
                shards.each(|shard| shard.link_mut().close(address));
            }
        }
    }

    fn warn_unopened(&self, own: IpAddr, error: VerbsError) {
        let is_taken = self.asks_host && matches!(error, VerbsError::AddressInUse(_));
        let at = SocketAddr::new(own, self.host.as_ref().map_or(ROCE_PORT, |host| host.udp_port()));
        match is_taken.then(|| PortOwner::find(at)).flatten() {
            Some(owner) => {
                tracing::warn!(
                    address = %own,
                    port = at.port(),
                    cause = "another program holds the UDP port at this address",
                    %owner,
                    remedy = owner.remedy(false),
                    "listener address not served"
                )
            }
            None => tracing::warn!(address = %own, %error, "listener address not opened"),
        }
    }

    /// Returns true if the device uses the addresses of the host, which may change, rather than addresses that the user
    /// named.
    pub(super) fn follows_host(&self) -> bool {
        self.asks_host && self.host.is_some() && !self.gids.is_named()
    }

    /// Reads the host's addresses again.
    pub(super) fn refresh(&mut self) -> io::Result<()> {
        if self.follows_host() { self.gids.refresh() } else { Ok(()) }
    }

    /// Opens the local address in a QP's address vector, and returns the route for the QP's packets.
    pub(super) fn open_route(
        &self,
        shards: &mut Reach<'_>,
        number: QpNumber,
        attributes: &QpAttributes,
    ) -> Result<Route, VerbsError> {
        let vector = attributes.address_vector.ok_or(VerbsError::Invalid("no address vector"))?;
        let source = self.gids.at(vector.source_gid_index);
        let source = source.ok_or(VerbsError::Invalid("no such index in the GID table"))?;
        let destination = vector.destination.ip();
        VerbsError::check_scope(destination)?;
        // The first shard must have the address open, since it receives all packets to the device's port.
        shards.first().link_mut().open(source)?;
        let route = shards.of_qp(number.get(), |shard| shard.open_route(source, destination));
        route.ok_or(VerbsError::Gone)?
    }

    /// Returns the local and remote addresses for a connection with a peer. `bound` is the address to which the
    /// endpoint is bound, if any. As with sockets, an unspecified peer address means this host.
    pub(super) fn resolve(
        &mut self,
        shards: &mut Reach<'_>,
        bound: Option<IpAddr>,
        remote: SocketAddr,
        routed: Option<IpAddr>,
    ) -> Result<(IpAddr, SocketAddr), VerbsError> {
        let chosen = bound.filter(|own| !own.is_unspecified());
        let is_here = remote.ip().is_unspecified();
        let own = match chosen {
            Some(own) => {
                shards.first().link_mut().open(own)?;
                own
            }
            None if is_here => {
                let here = SocketAddr::new(loopback(remote.ip()), remote.port());
                self.choose_source(shards, here, routed)?
            }
            None => self.choose_source(shards, remote, routed)?,
        };
        let remote = if is_here { SocketAddr::new(own, remote.port()) } else { remote };
        Ok((own, remote))
    }

    /// Returns the owner of an address.
    pub(super) fn owner_of(&mut self, address: IpAddr, now: Time) -> AddressOwner {
        let Self { host, asks_host, of_this_host, .. } = self;
        let is_here = |address| of_this_host.has(address, now);
        host.as_ref().map_or(AddressOwner::OtherHost, |host| owner_of(host, *asks_host, address, is_here))
    }

    /// Returns true if a live member holds a port at the address. That member takes over the device's port there when
    /// the holder dies.
    pub(super) fn has_member(&self, address: IpAddr) -> bool {
        self.host.as_ref().is_some_and(|host| host.is_address_of_the_living(address))
    }

    /// Returns true if the address belongs to this host, live members do not hold a port there, and the device's port
    /// there is free. `own` is the source socket of packets to the address.
    pub(super) fn is_abandoned(&mut self, address: IpAddr, own: SocketAddr, now: Time) -> bool {
        let Some(host) = &self.host else { return false };
        let holder = host.port_holder(address);
        if matches!(holder, PortHolder::Alive(_)) || host.is_address_of_the_living(address) {
            return false;
        }
        if !self.asks_host {
            return holder == PortHolder::Dead;
        }
        // A program of another user or with another runtime directory may hold the port.
        let at = SocketAddr::new(address, host.udp_port());
        self.of_this_host.has(address, now) && self.sockets.is_free(at, own, now)
    }

    /// Returns the source address that the host's routing chooses for a peer. Returns `None` if the host may not be
    /// queried, or if its routing does not choose an address. Fails for a link-local peer, for a peer without a route,
    /// and for a peer that cannot be reached from the loopback address `from`.
    pub(super) fn route_to(
        &self,
        remote: SocketAddr,
        from: Option<IpAddr>,
    ) -> Result<Option<IpAddr>, VerbsError> {
        VerbsError::check_scope(remote.ip())?;
        if !self.asks_host {
            return Ok(None);
        }
        let may_refuse = self.host.is_some() && !remote.ip().is_unspecified();
        let routed = match route_source(remote, None) {
            Err(error) if may_refuse && is_nowhere(&error) => return Err(error.into()),
            // The error of a blackhole route, EINVAL, also has other meanings for callers.
            Err(error) if may_refuse && error.kind() == io::ErrorKind::InvalidInput => {
                return Err(VerbsError::Os(libc::EHOSTUNREACH));
            }
            routed => routed.ok(),
        };
        let leaves_loopback = |from: &IpAddr| from.is_loopback() && !remote.ip().is_loopback();
        match from.filter(|from| may_refuse && leaves_loopback(from)) {
            Some(from) if route_source(remote, Some(from)).is_err_and(|error| is_confined(&error)) => {
                let why = "packets from a loopback address reach this host only; use an address that others reach, \
                           with `NodeBuilder::listen` and `allow_unauthenticated(true)`";
                Err(VerbsError::AddressNotAvailable(why))
            }
            _ => Ok(routed),
        }
    }

    /// Chooses and opens the local address for packets to `remote`: the source address of the route if the table
    /// contains it, otherwise an address of the same family. A loopback address is preferred for a loopback peer, and a
    /// non-loopback address for other peers.
    pub(super) fn choose_source(
        &mut self,
        shards: &mut Reach<'_>,
        remote: SocketAddr,
        routed: Option<IpAddr>,
    ) -> Result<IpAddr, VerbsError> {
        if routed.is_some_and(|routed| !self.gids.has(routed)) {
            // The host may have a new address.
            self.refresh()?;
            self.close_replaced(shards);
        }
        let table = self.gids.present();
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
        match shards.first().link_mut().open(chosen) {
            Ok(()) => Ok(chosen),
            Err(VerbsError::AddressInUse(why)) if self.may_be_replaced(chosen, remote) => {
                self.open_some_loopback(shards).ok_or(VerbsError::AddressInUse(why))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns true if another loopback address may replace the chosen one. All loopback addresses of a host reach each
    /// other, so a client can use a different one than the server. Addresses named by the user are not replaced.
    fn may_be_replaced(&self, chosen: IpAddr, remote: SocketAddr) -> bool {
        let on_this_host = remote.ip().is_loopback() || remote.ip() == chosen;
        !self.gids.is_named() && remote.is_ipv4() && on_this_host
    }

    fn open_some_loopback(&mut self, shards: &mut Reach<'_>) -> Option<IpAddr> {
        if self.other_loopback.is_some() {
            return self.other_loopback;
        }
        for _ in 0..OTHER_LOOPBACKS {
            let [_, b, c, d] = self.random.next_u32().to_be_bytes();
            let address = IpAddr::from([127, b.max(1), c, d.clamp(1, 254)]);
            if shards.first().link_mut().open(address).is_err() {
                continue;
            }
            self.other_loopback = self.gids.index_of(address).map(|_index| address);
            if self.other_loopback.is_none() {
                // The table is full.
                shards.first().link_mut().close(address);
            }
            return self.other_loopback;
        }
        None
    }
}

fn loopback(family: IpAddr) -> IpAddr {
    if family.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() }
}

/// Returns the source address that the host's routing chooses for a peer. If `from` is given, the route must start at
/// that address.
fn route_source(remote: SocketAddr, from: Option<IpAddr>) -> io::Result<IpAddr> {
    let any: IpAddr =
        if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = above_stdio(|| std::net::UdpSocket::bind((from.unwrap_or(any), 0)))?;
    // Connecting a UDP socket looks up the route without sending.
    socket.connect(remote)?;
    socket.local_addr().map(|address| address.ip())
}

/// Returns the owner of an address. In a simulation, the host is not queried.
pub(in crate::device) fn owner_of(
    host: &Host,
    asks_host: bool,
    address: IpAddr,
    is_of_this_host: impl FnOnce(IpAddr) -> bool,
) -> AddressOwner {
    if host.is_address_of_the_living(address) {
        AddressOwner::ThisUser
    // Each host of a simulation has one user.
    } else if asks_host && is_of_this_host(address) {
        AddressOwner::ThisHost
    } else {
        AddressOwner::OtherHost
    }
}

/// Returns true if a user of this host may send from the address. The host loops packets to such an address back, with
/// the same address as their source. Routing is queried, since the host does not list all loopback addresses.
pub(in crate::device) fn is_of_this_host(address: IpAddr) -> bool {
    let routed = || route_source(SocketAddr::new(address, ROCE_PORT), None);
    address.is_loopback() || routed().is_ok_and(|source| source == address)
}

/// Returns true if an error means that the host's routing refuses packets from a loopback address to another
/// host.
fn is_confined(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput || is_nowhere(error)
}

/// Returns true if an error means that the host does not have a route to a peer, or that the route prohibits packets.
fn is_nowhere(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkUnreachable, PermissionDenied};
    matches!(error.kind(), NetworkUnreachable | HostUnreachable | PermissionDenied)
}
