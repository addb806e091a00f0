//! What a lookup has found, on its way to the poller that asked for it.

use crate::route_id::RouteId;
use std::net::SocketAddr;

/// What has come of a lookup.
#[derive(Debug)]
pub(crate) struct Resolved {
    /// For this route.
    pub(crate) route: RouteId,
    /// The lookup's number.
    pub(crate) number: u64,
    /// The addresses, or an error and its sources.
    pub(crate) outcome: Result<Vec<SocketAddr>, Vec<String>>,
}
