//! Memory held on behalf of a peer by code outside of pollers, such as the buffers of an adapter to another protocol.
//!
//! A poller's share of a budget is used only on the poller's thread. A node has one more share, behind a lock, for charges
//! from any thread.

use crate::call::context::{Context, PollerContext};
use crate::node::budgets::DECODED_BYTES;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::stream::{StreamHost, Streaming};
use std::fmt;
use std::sync::Arc;
use trunkline_transport::PeerKey;

/// Part of the budget for decoded arguments, charged to a peer until this value is dropped.
pub struct PeerMemory {
    owner: Arc<dyn StreamHost>,
    peer: PeerKey,
    bytes: usize,
}

impl PeerMemory {
    /// Creates a charge of 0 bytes for the caller of a handler that runs on this poller. Returns `None` elsewhere, and for a
    /// detached context.
    #[must_use]
    pub fn of_caller(cx: &Context) -> Option<Self> {
        let owner = Arc::clone(PollerContext::current()?.owner());
        cx.peer().map(|_| Self { owner, peer: cx.peer_key(), bytes: 0 })
    }

    /// Creates a charge of 0 bytes for the writer of a stream. Returns `None` for a stream without a peer.
    #[must_use]
    pub fn of_writer<T>(items: &Streaming<T>) -> Option<Self> {
        items.peer().map(|(owner, peer)| Self { owner, peer, bytes: 0 })
    }

    /// Changes the charge. Does nothing in a forked child.
    ///
    /// # Errors
    /// Returns a status if the charge would exceed the peer's limit. The charge is then unchanged.
    pub fn resize(&mut self, bytes: usize) -> Result<(), Status> {
        if bytes == self.bytes {
            return Ok(());
        }
        // In a forked child, a thread of the parent may hold the lock.
        let Some(memory) = self.owner.memory().filter(|_| !self.owner.is_forked()) else { return Ok(()) };
        let mut share = memory.lock();
        if bytes > self.bytes {
            let taken = share.take(self.peer, bytes - self.bytes);
            // Returns reserved units to the budget, and removes the entry of a peer without charges.
            share.leave(self.peer);
            taken.map_err(|exhausted| {
                let text =
                    format!("a received message: {exhausted} (setting {DECODED_BYTES} of the receiver)");
                Status::ran(Code::ResourceExhausted, text).because(Reason::Overloaded)
            })?;
        } else {
            share.put_back(self.peer, self.bytes - bytes);
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        // A release cannot fail.
        let _ = self.resize(0);
    }
}

impl fmt::Debug for PeerMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerMemory")
            .field("peer", &self.peer)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
