//! Routes to the targets of channels. A target can be a name, several addresses or a resolver. Calls wait until the target
//! is resolved and connected.
//!
//! ```text
//! Channel ──► Link ──► Route: where the server is, or why it cannot be reached    (any thread, under a lock)
//!                        │  ▲
//!        calls that wait │  │ rounds: look up, try each address, publish
//!                        ▼  │
//!               Parked (each poller)      Connector (the node's first poller) ──► Lookups: threads, or tasks of a simulation
//! ```
//!
//! While a route is up, a poller finds its address in a table, so a call costs no more than a call to a fixed address.
//! Otherwise the call waits in its poller, and the first poller runs a *round*, which looks up the addresses and tries them
//! in turn until a session is up. Only lookup threads block.

mod balance;
mod connector;
mod failure;
pub(crate) mod id;
mod lookups;
#[cfg(feature = "identity")]
mod names;
mod outliers;
mod parked;
mod ready;
mod resolve;
mod round;
mod route;
mod target;
mod watches;

pub use balance::{Balance, Policy};
pub(crate) use balance::{Balanced, Chosen, Tried, is_away};
pub(crate) use connector::Connector;
pub(crate) use lookups::Lookups;
#[cfg(feature = "identity")]
pub(crate) use names::ProvenNames;
pub(crate) use outliers::is_fault;
pub(crate) use parked::Parked;
pub use ready::Ready;
pub use resolve::{AddressWatcher, Dns, Resolve, ResolveError, Resolving, ServerList};
pub use target::Target;
pub(crate) use watches::{Following, Watched};

use crate::call::NOWHERE;
use crate::node::fork_lock::Lock;
use balance::AllBalanced;
use id::{ExpectedId, Resolved, RouteId};
use route::{Phase, Route, Usage};
use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use target::Source;
use trunkline_machine::Runtime;
use trunkline_transport::{PeerIdentity, PeerKey, ServerReport};
use trunkline_verbs::Clock;
use trunkline_verbs::fork::Process;
use watches::Watches;

/// The routes and sessions of a node. Channels add and remove routes, even before the node starts. Pollers find a route by
/// the number in a call.
pub(crate) struct Routes {
    pollers: Arc<dyn Pollers>,
    started: OnceLock<Started>,
    known: Lock<Known>,
    balanced: AllBalanced,
    watches: Watches,
    /// UDP port of the node's software device.
    udp_port: AtomicU16,
}

/// Interface through which routes notify the node's pollers, which belong to the layer above.
///
/// The methods never block. A message to a poller that has ended is dropped.
pub(crate) trait Pollers: Send + Sync {
    /// Makes all pollers check a route.
    fn look(&self, id: RouteId);

    /// Makes the first poller, which runs rounds, check a route.
    fn seek(&self, id: RouteId);

    /// Passes the result of a lookup to the first poller.
    fn resolved(&self, resolved: Resolved);

    /// Makes the first poller watch the health of a service at a server with a session.
    fn watch(&self, watched: Weak<Watched>);
}

/// Properties of a started node.
pub(crate) struct Started {
    pub(crate) clock: Clock,
    runtime: Runtime,
    /// Maximum size of one call's metadata, in bytes.
    pub(crate) most_metadata: usize,
    /// The process that runs the pollers.
    process: Process,
}

#[derive(Default)]
struct Known {
    routes: BTreeMap<RouteId, Arc<Route>>,
    last: u32,
    /// Nodes with a session to this node.
    up: BTreeMap<PeerKey, Session>,
    /// Number of sessions so far.
    sessions: u64,
    is_closed: bool,
    #[cfg(feature = "identity")]
    expectations: names::Expectations,
    /// Names of the nodes with a session; `None` if this node has no identity.
    #[cfg(feature = "identity")]
    names: Option<ProvenNames>,
}

/// A session with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Session {
    /// Sequence number among all sessions of this node.
    serial: u64,
    /// Incarnation of the node.
    epoch: u64,
    /// True if the node drains, and accepts no further calls.
    pub(crate) drains: bool,
}

/// Returns the routes of a started node, with one poller that never runs.
#[cfg(test)]
fn opened() -> Arc<Routes> {
    let inboxes = Arc::<crate::executor::inbox::Inboxes>::default();
    let inbox =
        crate::executor::inbox::Inbox::new(crate::node::lifecycle::Lifecycle::new(1), Clock::monotonic());
    inboxes.open([Arc::new(inbox)].into_iter());
    let routes = Routes::new(inboxes, 4791);
    routes.open(Runtime::default(), Clock::monotonic(), crate::node::budgets::Limits::default().metadata);
    routes
}

impl Routes {
    /// Creates an empty table for a node that has not started.
    pub(crate) fn new(pollers: Arc<dyn Pollers>, udp_port: u16) -> Arc<Self> {
        Arc::new(Self {
            pollers,
            started: OnceLock::new(),
            known: Lock::default(),
            balanced: AllBalanced::default(),
            watches: Watches::default(),
            udp_port: udp_port.into(),
        })
    }

    /// Sets the UDP port of the node's software device. Must be called before channels are created.
    pub(crate) fn set_udp_port(&self, udp_port: u16) {
        self.udp_port.store(udp_port, Ordering::Relaxed);
    }

    fn udp_port(&self) -> u16 {
        self.udp_port.load(Ordering::Relaxed)
    }

    /// Records that the node starts. The pollers must exist.
    pub(crate) fn open(&self, runtime: Runtime, clock: Clock, most_metadata: usize) {
        let started = Started { clock, runtime, most_metadata, process: Process::current() };
        let _opened_before = self.started.set(started);
    }

    /// Returns the node's properties, or `None` before the node starts.
    #[inline]
    pub(crate) fn started(&self) -> Option<&Started> {
        self.started.get()
    }

    pub(crate) fn pollers(&self) -> &Arc<dyn Pollers> {
        &self.pollers
    }

    fn add_balanced(&self, balanced: &Arc<Balanced>) {
        if !self.is_forked() {
            self.balanced.add(balanced);
        }
    }

    /// Keeps the servers of a balanced channel connected, after a lookup for its target.
    fn keep_found(&self, target: RouteId) {
        if let Some(balanced) = self.balanced.get(target) {
            balanced.keep();
        }
    }

    /// Returns the state of each server of the balanced channels.
    pub(crate) fn report(&self) -> Vec<ServerReport> {
        self.started().map(|started| self.balanced.report(started.clock.now())).unwrap_or_default()
    }

    /// Returns how many times balanced channels left out a server whose calls failed or lagged.
    pub(crate) fn servers_left_out(&self) -> u64 {
        self.balanced.left_out.load(Ordering::Relaxed)
    }

    /// Returns a random number, or 0 before the node starts.
    pub(crate) fn random(&self) -> usize {
        let number = self.started().map_or(0, |started| started.runtime.random());
        // 31 bits fit in `usize` on all supported platforms.
        usize::try_from(number >> 33).unwrap_or(0)
    }

    /// Returns the maximum size of one call's metadata, in bytes.
    pub(crate) fn most_metadata(&self) -> usize {
        self.started().map_or(0, |started| started.most_metadata)
    }

    /// Returns true in a forked child, where threads of the parent may hold locks.
    fn is_forked(&self) -> bool {
        self.started().is_some_and(|started| started.process.is_forked())
    }

    /// Adds a route to a target.
    fn add(&self, target: Target, usage: Usage, expected: ExpectedId) -> Arc<Route> {
        if self.is_forked() {
            // A forked child has no pollers to look up the route.
            let route = Route::new(RouteId(NonZeroU32::MIN), target, usage, expected);
            route.publish(Phase::Closed);
            return Arc::new(route);
        }
        let mut known = self.known.lock();
        let id = loop {
            known.last = known.last.wrapping_add(1);
            // Numbers repeat after four billion channels.
            if let Some(number) = NonZeroU32::new(known.last)
                && !known.routes.contains_key(&RouteId(number))
            {
                break RouteId(number);
            }
        };
        let route = Arc::new(Route::new(id, target, usage, expected));
        if known.is_closed {
            route.publish(Phase::Closed);
        }
        known.routes.insert(id, Arc::clone(&route));
        route
    }

    /// Removes a route whose channels were dropped.
    fn remove(&self, route: &Route) {
        if self.is_forked() {
            return;
        }
        self.known.lock().routes.remove(&route.id);
        if route.is_known() {
            self.tell_all(route.id);
        }
    }

    /// Returns the route with this number, for a poller's table.
    fn get(&self, id: RouteId) -> Option<Arc<Route>> {
        let known = self.known.lock();
        let route = known.routes.get(&id)?;
        // Set under the lock, so that the poller is notified if the route is removed later.
        route.is_looked_at();
        Some(Arc::clone(route))
    }

    /// Makes all pollers check a route.
    fn tell_all(&self, id: RouteId) {
        self.pollers.look(id);
    }

    /// Makes the first poller check a route.
    fn tell_seeker(&self, id: RouteId) {
        self.pollers.seek(id);
    }

    /// Records a session with this incarnation of a node.
    fn up(&self, peer: PeerKey, epoch: u64, identity: PeerIdentity) {
        let mut known = self.known.lock();
        known.set_identity(peer, Some(identity));
        known.sessions += 1;
        let session = Session { serial: known.sessions, epoch, drains: false };
        known.up.insert(peer, session);
        drop(known);
        self.watches.begin(peer);
    }

    /// Records that a peer has proved its names again.
    fn renewed(&self, peer: PeerKey, identity: PeerIdentity) {
        self.known.lock().set_identity(peer, Some(identity));
        self.watches.begin(peer);
    }

    /// Records that the session with this node is over.
    fn down(&self, peer: PeerKey) {
        let mut known = self.known.lock();
        known.up.remove(&peer);
        known.set_identity(peer, None);
    }

    /// Records that this incarnation of a node drains. A poller may report this after a new session is up.
    pub(crate) fn drains(&self, peer: PeerKey, epoch: u64) {
        let mut known = self.known.lock();
        let Some(session) = known.up.get_mut(&peer).filter(|session| session.epoch == epoch) else { return };
        if mem::replace(&mut session.drains, true) {
            return;
        }
        let routes = known.routes.values().filter(|route| route.target.has_several()).map(Arc::clone);
        let routes = routes.collect::<Vec<_>>();
        drop(known);
        for route in routes {
            if matches!(route.phase().0, Phase::Up(to) if to == peer) {
                self.tell_seeker(route.id);
            }
            route.release();
        }
    }

    /// Returns true if a node has a session, accepts calls and has proved this name.
    fn serves(&self, peer: PeerKey, expected: ExpectedId) -> bool {
        self.session_as(peer, expected).is_some_and(|session| !session.drains)
    }

    /// Returns true if a node with a session drains.
    fn is_draining(&self, peer: PeerKey) -> bool {
        self.session(peer).is_some_and(|session| session.drains)
    }

    pub(crate) fn session(&self, peer: PeerKey) -> Option<Session> {
        self.known.lock().up.get(&peer).copied()
    }

    /// Returns the session with a node, if the node has proved this name.
    fn session_as(&self, peer: PeerKey, expected: ExpectedId) -> Option<Session> {
        let mut known = self.known.lock();
        let session = known.up.get(&peer).copied()?;
        known.mismatch(peer, expected).is_none().then_some(session)
    }

    /// Compares the name of a node with an expectation.
    fn judge(&self, peer: PeerKey, expected: ExpectedId) -> Judgement {
        let mut known = self.known.lock();
        match known.mismatch(peer, expected) {
            None => Judgement::Matches,
            Some(_) if !known.up.contains_key(&peer) => Judgement::NoSession,
            Some(why) => Judgement::Differs(why),
        }
    }

    /// Enables the comparison of names, because the node has an identity.
    #[cfg(feature = "identity")]
    pub(crate) fn compare_names(&self) {
        self.known.lock().names.get_or_insert_default();
    }

    /// Returns the expectation with this number.
    #[cfg(feature = "identity")]
    pub(crate) fn expectation(&self, id: ExpectedId) -> Option<Arc<names::Expectation>> {
        self.known.lock().expectations.get(id)
    }

    /// Returns the number of the name expected by a new channel to a target.
    fn expect(&self, target: &Target) -> ExpectedId {
        #[cfg(feature = "identity")]
        if target.expectation != names::Expectation::Address && !self.is_forked() {
            return self.known.lock().expectations.add(&target.expectation);
        }
        let _ = target;
        ExpectedId::ADDRESS
    }

    /// Records that a channel with this expectation was dropped.
    fn expect_no_longer(&self, expected: ExpectedId) {
        #[cfg(feature = "identity")]
        if expected != ExpectedId::ADDRESS && !self.is_forked() {
            self.known.lock().expectations.remove(expected);
        }
        let _ = expected;
    }

    /// Closes all routes, because the node shuts down or failed to start.
    pub(crate) fn close(&self) {
        let mut known = self.known.lock();
        known.is_closed = true;
        known.up.clear();
        #[cfg(feature = "identity")]
        known.names.iter_mut().for_each(ProvenNames::clear);
        let routes = known.routes.values().map(Arc::clone).collect::<Vec<_>>();
        drop(known);
        routes.into_iter().for_each(|route| route.publish(Phase::Closed));
    }
}

/// Result of comparing a node's name with an expectation.
#[derive(Debug)]
enum Judgement {
    Matches,
    /// The node has no session.
    NoSession,
    /// The node has proved another name. The text contains both names.
    Differs(Arc<str>),
}

impl Known {
    /// Sets the identity of a node, if names are compared.
    fn set_identity(&mut self, peer: PeerKey, identity: Option<PeerIdentity>) {
        #[cfg(feature = "identity")]
        if let Some(names) = &mut self.names {
            match identity {
                Some(identity) => names.up(peer, identity),
                None => names.down(peer),
            }
        }
        #[cfg(not(feature = "identity"))]
        let _ = (peer, identity);
    }

    /// Returns why a node does not match the expected name, if names are compared.
    fn mismatch(&mut self, peer: PeerKey, expected: ExpectedId) -> Option<Arc<str>> {
        #[cfg(feature = "identity")]
        if let Some(names) = &mut self.names {
            return names.mismatch(peer, expected, |id| self.expectations.get(id));
        }
        let _ = (peer, expected);
        None
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routes").field("routes", &self.known.lock().routes.len()).finish_non_exhaustive()
    }
}

/// A channel's handle to its route, shared by the channel's clones. Dropping the last reference removes the route.
pub(crate) struct Link {
    routes: Arc<Routes>,
    target: Target,
    usage: Usage,
    expected: ExpectedId,
    /// Route of the channel. For a single address it is created only when a future waits for it, because calls to an address
    /// need no route.
    route: OnceLock<Arc<Route>>,
}

impl Link {
    pub(crate) fn new(routes: &Arc<Routes>, target: Target) -> Arc<Self> {
        Self::with_usage(routes, target, Usage::Sticky)
    }

    /// Creates a link to a target, with this use of the target's addresses.
    fn with_usage(routes: &Arc<Routes>, target: Target, usage: Usage) -> Arc<Self> {
        let (routes, expected) = (Arc::clone(routes), routes.expect(&target));
        let target = target.seen_from(routes.udp_port());
        let link = Arc::new(Self { routes, target, usage, expected, route: OnceLock::new() });
        if link.target.address().is_none() {
            link.route();
        }
        // A forked child runs no lookups, and a thread of the parent may hold a lock of the resolver.
        if let Source::Resolver(resolver, _) = &link.target.source
            && !link.routes.is_forked()
        {
            resolver.watch(AddressWatcher::new(Arc::downgrade(&link)));
            // A resolver that dropped the watcher reports no changes.
            if Arc::weak_count(&link) > 0 {
                link.route().set_watched();
            }
        }
        link
    }

    pub(crate) fn routes(&self) -> &Arc<Routes> {
        &self.routes
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    fn route(&self) -> &Arc<Route> {
        self.route.get_or_init(|| self.routes.add(self.target.clone(), self.usage, self.expected))
    }

    /// Returns the number of the name that the server must have proved.
    pub(crate) fn expected(&self) -> ExpectedId {
        self.expected
    }

    /// Returns the address or the route of calls.
    pub(crate) fn server(&self) -> (PeerKey, Option<RouteId>) {
        match self.target.address() {
            Some(address) => (address, None),
            None => (NOWHERE, Some(self.route().id)),
        }
    }

    /// Returns the addresses of a target that may have several, if they are known.
    fn found(&self) -> Option<Arc<[PeerKey]>> {
        match &self.target.source {
            Source::Addresses(all) => Some(all.addresses.as_slice().into()),
            Source::Resolver(..) => self.route().found(),
            Source::Address(_) | Source::Nonsense(_) => None,
        }
    }

    /// Returns true if the addresses are looked up.
    fn is_name(&self) -> bool {
        matches!(self.target.source, Source::Resolver(..))
    }

    /// Requests another lookup of the addresses.
    fn look_again(&self) {
        if self.is_name() && self.route().look_again() {
            self.routes.tell_seeker(self.route().id);
        }
    }

    /// Requests another lookup of the addresses, because they have changed.
    fn has_changed(&self) {
        // Before the first round there is nothing to update.
        if !self.routes.is_forked() && self.route().phase().1 > 0 {
            self.look_again();
        }
    }

    /// Keeps the server connected, even without calls.
    fn keep(&self) {
        if self.routes.started().is_some() && !self.routes.is_forked() && self.route().keep() {
            self.routes.tell_seeker(self.route().id);
        }
    }

    /// Returns the session with the server, if the target is a single address and the server has proved the expected name.
    fn session(&self) -> Option<Session> {
        let address = self.target.address().filter(|_| !self.routes.is_forked())?;
        self.routes.session_as(address, self.expected)
    }

    /// Returns true if there is a session with the server.
    pub(crate) fn is_connected(&self) -> bool {
        if self.routes.is_forked() {
            return false;
        }
        match self.target.address() {
            Some(_) => self.session().is_some(),
            None => matches!(self.route().phase().0, Phase::Up(_)),
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.target.fmt(f)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Link").field(&self.target).finish()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(route) = self.route.get() {
            self.routes.remove(route);
        }
        self.routes.expect_no_longer(self.expected);
    }
}
