//! A channel's handle to its route. All clones of a channel share it.

use super::resolve::AddressWatcher;
use super::route::{Phase, Route, Usage};
use super::table::{Routes, Session};
use super::target::{Source, Target};
use crate::call::NOWHERE;
use crate::client::routes::id::RouteId;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use trunkline_transport::PeerKey;

/// A channel's end of a route. Dropping it removes the route.
pub(crate) struct Link {
    routes: Arc<Routes>,
    target: Target,
    usage: Usage,
    /// Route of the channel. For a single address it is created when a future waits for it; calls need none.
    route: OnceLock<Arc<Route>>,
}

impl Link {
    /// Creates a link to a target.
    pub(crate) fn new(routes: &Arc<Routes>, target: Target) -> Arc<Self> {
        Self::with_usage(routes, target, Usage::Sticky)
    }

    /// Creates a link to a target whose addresses are used in this way.
    pub(super) fn with_usage(routes: &Arc<Routes>, target: Target, usage: Usage) -> Arc<Self> {
        let link = Arc::new(Self { routes: Arc::clone(routes), target, usage, route: OnceLock::new() });
        if link.target.address().is_none() {
            link.route();
        }
        // In a forked child there are no lookups, and the resolver may have a lock that a thread of the parent has taken.
        if let Source::Resolver(resolver, _) = &link.target.0
            && !routes.is_forked()
        {
            resolver.watch(AddressWatcher::new(Arc::downgrade(&link)));
        }
        link
    }

    pub(crate) fn routes(&self) -> &Arc<Routes> {
        &self.routes
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    pub(super) fn route(&self) -> &Arc<Route> {
        self.route.get_or_init(|| self.routes.add(self.target.clone(), self.usage))
    }

    /// Returns the address or the route of calls.
    pub(crate) fn server(&self) -> (PeerKey, Option<RouteId>) {
        match self.target.address() {
            Some(address) => (PeerKey::new(address), None),
            None => (NOWHERE, Some(self.route().id)),
        }
    }

    /// Returns the addresses of a target that has several, if they are known.
    pub(super) fn found(&self) -> Option<Arc<[SocketAddr]>> {
        match &self.target.0 {
            Source::Addresses(all) => Some(all.addresses.as_slice().into()),
            Source::Resolver(..) => self.route().found(),
            Source::Address(_) | Source::Nonsense(_) => None,
        }
    }

    /// Returns true if its addresses are looked up.
    pub(super) fn is_name(&self) -> bool {
        matches!(self.target.0, Source::Resolver(..))
    }

    /// Requests another lookup of a name's addresses.
    pub(super) fn look_again(&self) {
        if self.is_name() && self.route().look_again() {
            self.routes.tell_seeker(self.route().id);
        }
    }

    /// Requests another lookup of the addresses, because they have changed.
    pub(super) fn has_changed(&self) {
        // Before the first round there is nothing to correct.
        if !self.routes.is_forked() && self.route().phase().1 > 0 {
            self.look_again();
        }
    }

    /// Keeps the server connected from now on.
    pub(super) fn keep(&self) {
        if self.routes.started().is_some() && !self.routes.is_forked() && self.route().keep() {
            self.routes.tell_seeker(self.route().id);
        }
    }

    /// Returns the session with the server, if the target is a single address.
    pub(super) fn session(&self) -> Option<Session> {
        let address = self.target.address().filter(|_| !self.routes.is_forked())?;
        self.routes.session(PeerKey::new(address))
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
    }
}
