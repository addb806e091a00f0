//! Streams of items in calls. [`Streaming`] reads a stream, and [`channel`] feeds one.
//!
//! The attribute [`service`](macro@crate::service#streams) contains an example of both directions.
//! `docs/book/src/guide/streams.md` describes flow control, the end of a stream and clean-up.

// A stream is a call. The request opens it, the reply ends it, and cancellation drops the handler. On each side, the reader,
// the writer and the poller of the call share one `CallStream`. The poller stores received items and sends the items that
// the writer has queued. The reader and the writer may run on any thread, and notify the poller through `StreamHost`.
//
// All frames of one direction are sent as ordered messages, so that large items keep their position. A writer sends only
// within the reader's window, so a reader buffers at most one window and one item. Each side charges this memory to the
// peer. A server also charges the `BATCH` that the writer may queue. A client does not charge the first window.

use crate::node::budgets::SharedMemory;
use crate::status::Status;
use crate::wire::metadata::ReplyMetadata;
use crate::wire::name::Streams;
use std::fmt;
use std::sync::Arc;
use trunkline_transport::PeerKey;

mod buffer;
mod changes;
mod channel;
mod items;
pub(crate) mod peer_memory;
mod state;
mod writer;

pub(crate) use buffer::Item;
#[doc(hidden)]
pub use buffer::ItemBuffer;
pub(crate) use changes::{Changes, Unsent};
#[doc(hidden)]
pub use channel::Watch;
pub use channel::{Closed, Receiver, Sender, TrySendError, channel};
pub use futures_core::Stream;
pub use items::Streaming;
pub(crate) use state::{Address, CallStream, Expiry, Misuse};
pub(crate) use writer::{SendItemsError, send_all, send_from_handler};

/// Size of a direction's window at the start of a stream, in bytes.
const FIRST_BYTES: usize = 16 << 10;
/// Window at the start of a stream.
const FIRST: Window = Window { bytes: 16 << 10, items: 64 };
/// Maximum size of a batch that a writer queues. The last item may exceed it.
const BATCH: Window = Window { bytes: 16 << 10, items: 256 };
/// Maximum size of an item that the REPLY contains, in bytes. It is the maximum window.
pub(crate) const MOST_IN_REPLY: usize = 4 << 20;
/// Maximum window.
const MOST: Window = Window { bytes: 4 << 20, items: 4096 };
/// Size up to which a window grows, in bytes, unless [`ITEMS_AHEAD`] items of the largest size need more.
const ENOUGH_BYTES: i64 = 1 << 20;
/// Number of items of the largest size that fit into a fully grown window, within [`MOST`]. If only one fitted, the writer
/// would wait for the reader before each item.
const ITEMS_AHEAD: i64 = 4;
/// Number of consumed bytes after which a WINDOW frame is sent, even if less than half of the window is consumed. The cost
/// of the frame is negligible for this size.
const RETURNED_BYTES: i64 = 128 << 10;

/// Returns the bytes that a server charges for a new stream. It charges a window if it receives items, and a batch if it
/// sends items.
pub(crate) fn first_charge(streams: Streams) -> usize {
    let directions = usize::from(streams.has_client_items()) + usize::from(streams.has_server_items());
    directions * FIRST_BYTES
}

/// A number of bytes and a number of items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Window {
    pub(crate) bytes: i64,
    pub(crate) items: i64,
}

impl Window {
    const NONE: Self = Self { bytes: 0, items: 0 };

    /// Returns true if another item may be sent within the window.
    fn is_open(self) -> bool {
        self.bytes > 0 && self.items > 0
    }

    /// Subtracts an item of `bytes` bytes.
    fn spend(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.items -= 1;
    }

    fn add(&mut self, more: Self) {
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.items = self.items.saturating_add(more.items);
    }

    fn at_most(self, most: Self) -> Self {
        Self { bytes: self.bytes.min(most.bytes), items: self.items.min(most.items) }
    }
}

/// Changes the charge to a peer from the first to the second number of bytes. Returns false if this exceeds the peer's
/// limit.
type Charge<'a> = &'a dyn Fn(PeerKey, usize, usize) -> bool;

/// Interface of a stream to its call's poller, which belongs to the layer above. The methods never block.
///
/// The default implementations are for a node that has not started, on which all calls fail.
pub(crate) trait StreamHost: fmt::Debug + Send + Sync {
    /// Tells the poller to process a changed stream.
    fn stream_changed(&self, _stream: Arc<CallStream>) {}

    /// Tells the poller to check its calls, because a caller dropped a stream.
    fn stream_dropped(&self) {}

    /// Wakes the tasks whose wakers the poller has collected. Called by the first of these tasks that runs.
    fn wake_others(&self) {}

    /// Returns the maximum memory of one decoded item, in bytes.
    fn most_decoded(&self) -> usize {
        0
    }

    /// Returns the share of the budget for decoded arguments that any thread may charge; `None` before the node starts.
    fn memory(&self) -> Option<&SharedMemory> {
        None
    }

    /// Returns true in a forked child, which lacks the pollers.
    fn is_forked(&self) -> bool {
        false
    }
}

/// The caller's end of a stream, which stores the response metadata and runs the closures of interceptors. If it is dropped
/// before the end of the stream, the closures get `Cancelled`.
pub(crate) trait CallEnd: fmt::Debug + Send {
    /// Called when the handler has returned its stream. `metadata` belongs to the start of the response.
    fn opened(&self, metadata: ReplyMetadata);

    /// Called when the stream has ended.
    ///
    /// # Errors
    /// Returns a status if an interceptor panics.
    fn closed(self: Box<Self>, ended: Result<(), &Status>, metadata: ReplyMetadata) -> Result<(), Status>;
}
