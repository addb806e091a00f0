//! Buffers that one poller reuses, for the arguments of local calls and for replies.

use std::cell::RefCell;

/// Most buffers kept.
const KEPT: usize = 256;
/// Capacity in bytes beyond which a buffer is freed.
const KEPT_BYTES: usize = 16 << 10;

/// The kept buffers, all empty.
#[derive(Debug, Default)]
pub(crate) struct Spare(RefCell<Vec<Vec<u8>>>);

impl Spare {
    /// An empty buffer: a kept one if there is one.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps a buffer for later.
    pub(crate) fn rest(&self, mut buffer: Vec<u8>) {
        let mut kept = self.0.borrow_mut();
        if (1..=KEPT_BYTES).contains(&buffer.capacity()) && kept.len() < KEPT {
            buffer.clear();
            kept.push(buffer);
        }
    }
}
