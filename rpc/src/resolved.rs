//! The result of a lookup, for the poller that requested it.

use crate::route_id::RouteId;
use std::net::SocketAddr;

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
