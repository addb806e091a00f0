//! Buffers that are used again, on one poller: for arguments of local calls, and for answers.

use std::cell::RefCell;

/// Buffers kept.
const KEPT: usize = 256;
/// A buffer that has grown larger than this is not kept.
const KEPT_BYTES: usize = 16 << 10;

/// The buffers.
#[derive(Debug, Default)]
pub(crate) struct Spare(RefCell<Vec<Vec<u8>>>);

impl Spare {
    /// An empty buffer.
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
