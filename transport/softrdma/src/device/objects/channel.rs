//! Completion channels.
//!
//! Owns the queue of fired CQs. An armed CQ pushes its context here with its next completion; a sleeping
//! thread waits on the descriptor.
#![forbid(unsafe_code)]

use crate::device::threads::signal::Signal;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use trunkline_machine::Runtime;
use trunkline_verbs::{CompletionChannel, VerbsError};

/// Maximum number of queued events, far more than a program that reads its channel ever leaves.
const MAX_WAITING: usize = 1 << 16;

/// A completion channel of the software device.
#[derive(Debug)]
pub(in crate::device) struct SoftCompletionChannel {
    /// Contexts of the CQs that fired.
    pub(in crate::device) fired: Arc<Signal<u64>>,
}

impl SoftCompletionChannel {
    pub(in crate::device) fn new(runtime: &Runtime) -> Result<Self, VerbsError> {
        Ok(Self { fired: Arc::new(Signal::new(runtime, MAX_WAITING)?) })
    }
}

impl AsFd for SoftCompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fired.as_fd()
    }
}

impl CompletionChannel for SoftCompletionChannel {
    fn next_event(&self) -> Option<u64> {
        self.fired.pop()
    }

    fn has_event(&self) -> bool {
        self.fired.has_event()
    }

    fn forget(&self, context: u64) {
        let _dropped = self.fired.extract(|fired| *fired == context);
    }
}
