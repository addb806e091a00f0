//! Identifier of a route, for calls and messages to pollers. The routes themselves are in `routes`.

use std::net::SocketAddr;
use std::num::NonZeroU32;

/// A route of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RouteId(pub(crate) NonZeroU32);

/// The result of a lookup.
#[derive(Debug)]
pub(crate) struct Resolved {
    /// The route that was looked up.
    pub(crate) route: RouteId,
    /// Number of the lookup.
    pub(crate) number: u64,
    /// The usable addresses, or an error and its sources.
    pub(crate) outcome: Result<Vec<SocketAddr>, Vec<String>>,
}
