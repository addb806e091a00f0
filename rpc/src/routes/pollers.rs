//! How routes reach the pollers of their node, which are above them.

use crate::resolved::Resolved;
use crate::route_id::RouteId;

/// The pollers of a node. Nothing here waits, and what is told to a poller that has ended is dropped.
pub(crate) trait Pollers: Send + Sync {
    /// All are to look at a route.
    fn look(&self, id: RouteId);

    /// The first, which seeks, is to look at a route.
    fn seek(&self, id: RouteId);

    /// A lookup has ended that the first one asked for.
    fn resolved(&self, resolved: Resolved);
}
