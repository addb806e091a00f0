//! Asynchronous events of a device.
//!
//! Owns the queue behind `next_async_event`. The card pushes, the program takes; what a program
//! that never looks leaves behind is bounded, and what no longer fits is counted.
#![forbid(unsafe_code)]

use super::signal::Signal;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use trunkline_verbs::{AsyncEvent, AsyncEventKind, AsyncSubject, VerbsError};

const MAX_WAITING: usize = 4096;

/// The queue.
#[derive(Debug)]
pub(super) struct AsyncEvents {
    events: Signal<AsyncEvent>,
    lost: AtomicU64,
}

impl AsyncEvents {
    pub(super) fn new() -> Result<Self, VerbsError> {
        Ok(Self { events: Signal::new(MAX_WAITING)?, lost: AtomicU64::new(0) })
    }

    /// Tells the program something.
    pub(super) fn raise(&self, kind: AsyncEventKind, subject: AsyncSubject) {
        if self.events.push(AsyncEvent { kind, subject }).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes the oldest.
    pub(super) fn next(&self) -> Option<AsyncEvent> {
        self.events.pop()
    }

    /// Events that found the queue full.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
