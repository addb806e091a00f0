//! Messages from routes to the pollers of their node. A trait, because pollers belong to the layer above.

use crate::client::routes::id::Resolved;
use crate::client::routes::id::RouteId;

/// The pollers of a node. Nothing here waits. A message to a poller that has ended is dropped.
pub(crate) trait Pollers: Send + Sync {
    /// Tells all pollers to look at a route.
    fn look(&self, id: RouteId);

    /// Tells the first poller, which seeks, to look at a route.
    fn seek(&self, id: RouteId);

    /// Tells the first poller the result of its lookup.
    fn resolved(&self, resolved: Resolved);
}
