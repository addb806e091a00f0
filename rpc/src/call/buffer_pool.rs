//! Buffers that one poller reuses, for the arguments of local calls and for replies.

use crate::wire::frame::Encoded;
use std::cell::RefCell;

/// Maximum number of buffers kept.
const KEPT: usize = 256;
/// Capacity in bytes beyond which a buffer is freed.
const KEPT_BYTES: usize = 16 << 10;

/// The kept buffers, all empty.
#[derive(Debug, Default)]
pub(crate) struct BufferPool(RefCell<Vec<Encoded>>);

impl BufferPool {
    /// Returns an empty buffer, reused if possible.
    #[inline]
    pub(crate) fn take(&self) -> Encoded {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps a buffer for later.
    #[inline]
    pub(crate) fn keep(&self, mut buffer: Encoded) {
        let mut kept = self.0.borrow_mut();
        if (1..=KEPT_BYTES).contains(&buffer.capacity()) && kept.len() < KEPT {
            buffer.clear();
            kept.push(buffer);
        }
    }
}
