//! Asynchronous events of a device.
//!
//! Owns the queue behind `next_async_event`: the device pushes events, and the program takes them. The queue
//! is bounded. Events that do not fit are dropped and counted.
#![forbid(unsafe_code)]

use crate::device::threads::signal::Signal;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use trunkline_machine::Runtime;
use trunkline_verbs::{AsyncEvent, AsyncEventKind, AsyncSubject, VerbsError};

const MAX_WAITING: usize = 4096;

/// Function that receives the events in place of the queue.
pub(in crate::device) type Listener = Box<dyn Fn(AsyncEvent) + Send + Sync>;

/// Queue of a device's asynchronous events.
pub(in crate::device) struct AsyncEvents {
    events: Signal<AsyncEvent>,
    listener: OnceLock<Listener>,
    lost: AtomicU64,
}

impl AsyncEvents {
    pub(in crate::device) fn new(runtime: &Runtime) -> Result<Self, VerbsError> {
        let events = Signal::new(runtime, MAX_WAITING)?;
        Ok(Self { events, listener: OnceLock::new(), lost: AtomicU64::new(0) })
    }

    /// Reports an event to the program.
    pub(in crate::device) fn raise(&self, kind: AsyncEventKind, subject: AsyncSubject) {
        let event = AsyncEvent { kind, subject };
        if let Some(listener) = self.listener.get() {
            listener(event);
        } else if self.events.push(event).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Passes all later events to `listener`. Does nothing if a listener is already set.
    pub(in crate::device) fn listen(&self, listener: Listener) {
        let _there_is_one = self.listener.set(listener);
    }

    /// Takes the oldest event.
    pub(in crate::device) fn next(&self) -> Option<AsyncEvent> {
        self.events.pop()
    }

    /// Returns true if an event is queued.
    pub(in crate::device) fn has_event(&self) -> bool {
        self.events.has_event()
    }

    /// Returns the number of events dropped because the queue was full.
    pub(in crate::device) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for AsyncEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncEvents").field("events", &self.events).finish_non_exhaustive()
    }
}

impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
