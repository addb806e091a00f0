//! How other threads reach the RPC half of a poller: a bounded queue, and the poller's wake.

use crate::client::{Outcome, Submission};
use crate::executor::Spawn;
use crossbeam_queue::ArrayQueue;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use trunkline_rings::cell::{self, Getter, Resting, Setter};
use trunkline_transport::PollerHandle;

/// Calls that may wait for a poller to take them.
const DEPTH: usize = 4096;
/// Buffers kept for the arguments of later calls, and cells for their outcomes.
const SPARE: usize = 256;
/// A buffer that has grown larger than this is not kept.
const SPARE_BYTES: usize = 16 << 10;

/// What another thread asks of a poller.
pub(crate) enum Work {
    /// Make a call.
    Call(Submission<Setter<Outcome>>),
    /// Run a task.
    Spawn(Spawn),
}

/// Too much waits for the poller already.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TooMuch;

/// The queue into one poller.
pub(crate) struct Inbox {
    work: ArrayQueue<Work>,
    /// Some call was given up by its caller; the poller looks which.
    sweep: AtomicBool,
    closed: AtomicBool,
    spare: ArrayQueue<Vec<u8>>,
    cells: ArrayQueue<Resting<Outcome>>,
    handle: OnceLock<PollerHandle>,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self {
            work: ArrayQueue::new(DEPTH),
            sweep: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            spare: ArrayQueue::new(SPARE),
            cells: ArrayQueue::new(SPARE),
            handle: OnceLock::new(),
        }
    }

    /// Tells which poller to wake, once it runs; it looks at the queue then.
    pub(crate) fn attach(&self, handle: PollerHandle) {
        handle.wake();
        let _ = self.handle.set(handle);
        self.wake();
    }

    /// Wakes the poller if it sleeps.
    pub(crate) fn wake(&self) {
        if let Some(handle) = self.handle.get() {
            handle.wake();
        }
    }

    /// Gives the poller work. What is refused is dropped.
    pub(crate) fn push(&self, work: Work) -> Result<(), TooMuch> {
        self.work.push(work).map_err(|_| TooMuch)?;
        // The order of the two is that of `close`, mirrored: one side sees the other's.
        if self.closed.load(Ordering::SeqCst) {
            self.clear();
        }
        self.wake();
        Ok(())
    }

    pub(crate) fn pop(&self) -> Option<Work> {
        self.work.pop()
    }

    /// A caller dropped its call.
    pub(crate) fn ask_for_sweep(&self) {
        self.sweep.store(true, Ordering::Release);
        self.wake();
    }

    pub(crate) fn take_sweep(&self) -> bool {
        self.sweep.load(Ordering::Relaxed) && self.sweep.swap(false, Ordering::Acquire)
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.work.is_empty() || self.sweep.load(Ordering::Acquire)
    }

    /// The poller ends: what waits, and what comes still, ends at once.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.clear();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// An empty buffer.
    pub(crate) fn buffer(&self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps a buffer for later.
    pub(crate) fn rest(&self, mut buffer: Vec<u8>) {
        if buffer.capacity() <= SPARE_BYTES {
            buffer.clear();
            let _ = self.spare.push(buffer);
        }
    }

    /// An empty cell for an outcome.
    pub(crate) fn cell(&self) -> (Setter<Outcome>, Getter<Outcome>) {
        let Some(resting) = self.cells.pop() else { return cell::pair() };
        resting.pair().unwrap_or_else(|resting| {
            // The poller is just leaving it; it will be free when its turn comes again.
            let _ = self.cells.push(resting);
            cell::pair()
        })
    }

    /// Keeps a cell whose outcome was taken for later.
    pub(crate) fn rest_cell(&self, getter: Getter<Outcome>) {
        if let Some(resting) = getter.rest() {
            let _ = self.cells.push(resting);
        }
    }

    /// Dropping a call completes it.
    fn clear(&self) {
        while self.work.pop().is_some() {}
    }
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").field("waiting", &self.work.len()).finish_non_exhaustive()
    }
}
