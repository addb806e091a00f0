//! The poller and the call of a stream, as its reader and its writer see them. Traits, because both belong to the layer above.

use super::state::Stream;
use crate::node::budgets::SharedMemory;
use crate::status::Status;
use crate::wire::metadata::ReplyMetadata;
use std::fmt;
use std::sync::Arc;

/// The poller that makes the call of a stream, or runs it. Nothing here waits.
pub(crate) trait StreamHost: fmt::Debug + Send + Sync {
    /// Tells the poller to process a stream that has changed.
    fn stream_changed(&self, stream: Arc<Stream>);

    /// Tells the poller that a caller has dropped a stream. The poller then searches its calls.
    fn stream_dropped(&self);

    /// Wakes the tasks whose wakers the poller has collected. Called by the first of these tasks that runs.
    fn wake_others(&self);

    /// Returns the memory that one decoded item may take, in bytes.
    fn most_decoded(&self) -> usize;

    /// Returns the share of the budget of decoded arguments that any thread may charge; `None` before its node has started.
    fn memory(&self) -> Option<&SharedMemory>;

    /// Returns true in a forked child, which has no pollers.
    fn is_forked(&self) -> bool;
}

/// The caller's work for a stream: the place for its metadata, and the closures of interceptors. Dropping it before the end
/// cancels the call for both.
pub(crate) trait CallEnd: fmt::Debug + Send {
    /// Called when the handler's stream exists.
    fn opened(&self, metadata: ReplyMetadata);

    /// Called when the stream has ended.
    ///
    /// # Errors
    /// Returns a status if an interceptor panics.
    fn closed(self: Box<Self>, ended: Result<(), &Status>, metadata: ReplyMetadata) -> Result<(), Status>;
}
