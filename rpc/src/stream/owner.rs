//! The poller of a stream, as its reader and its writer see it. A trait, because pollers belong to the layer above.

use super::state::Stream;
use std::fmt;
use std::sync::Arc;

/// The poller that makes the call of a stream, or runs it. Nothing here waits.
pub(crate) trait Owner: fmt::Debug + Send + Sync {
    /// A stream has changed, and the poller has to look at it.
    fn stream_changed(&self, stream: Arc<Stream>);

    /// A caller has given up, and the poller finds out which.
    fn stream_dropped(&self);

    /// Returns the memory that one decoded item may take, in bytes.
    fn most_decoded(&self) -> usize;

    /// Returns true in a forked child, which has no pollers.
    fn is_forked(&self) -> bool;
}
