//! The queue from a poller's tasks to the poller, and its reused buffers. Used on one thread.

use super::completion::LocalCell;
use super::submission::{AdmissionClass, Submission, too_many};
use crate::status::Status;
use crate::wire::frame::Encoded;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use trunkline_transport::{PeerKey, PollerChoice};
use trunkline_verbs::Time;

/// Maximum number of calls queued for the poller's next turn. Beyond it, only calls that wait for room are accepted.
const DEPTH: usize = 65_536;
/// Maximum number of completion cells kept for later calls.
const MAX_POOLED_CELLS: usize = 256;

/// Calls of a poller's tasks since its last turn.
#[derive(Debug, Default)]
pub(crate) struct LocalQueue {
    calls: RefCell<VecDeque<Submission>>,
    sweep: Cell<bool>,
    /// Time of the last call; zero once the poller has read it.
    made: Cell<Time>,
    buffers: BufferPool,
    cells: RefCell<Vec<Rc<LocalCell>>>,
    /// Number of ordered channels so far.
    orders: Cell<u32>,
    /// The last server called.
    server: Cell<Option<PeerKey>>,
}

impl LocalQueue {
    /// Returns true if any call waits.
    #[inline]
    pub(crate) fn has_calls(&self) -> bool {
        !self.calls.borrow().is_empty()
    }

    /// Takes all waiting calls, in order.
    #[inline]
    pub(crate) fn take(&self) -> VecDeque<Submission> {
        self.calls.take()
    }

    /// Puts back the calls left over from this turn, ahead of newer calls.
    #[inline]
    pub(crate) fn put_back(&self, mut calls: VecDeque<Submission>) {
        let mut newer = self.calls.borrow_mut();
        if !newer.is_empty() {
            calls.append(&mut newer);
        }
        *newer = calls;
    }

    /// Returns the poller's key for `server`, or `server` itself if another server was called last.
    #[inline]
    pub(crate) fn key_of(&self, server: PeerKey) -> PeerKey {
        self.server.get().filter(|last| *last == server).unwrap_or(server)
    }

    /// Records the poller's key for the last server called.
    #[inline]
    pub(crate) fn called(&self, server: PeerKey) {
        self.server.set(Some(server));
    }

    /// Records the time of a call.
    #[inline]
    pub(crate) fn is_made(&self, now: Time) {
        self.made.set(now);
    }

    /// Takes the time of the last call, which is zero if there was no call since the previous read.
    pub(crate) fn last_made(&self) -> Time {
        self.made.replace(Time(0))
    }

    /// Returns true if a task dropped a call since the last check, and resets the flag.
    #[inline]
    pub(crate) fn take_sweep(&self) -> bool {
        self.sweep.take()
    }

    /// Records that a task dropped a call.
    pub(crate) fn ask_for_sweep(&self) {
        self.sweep.set(true);
    }

    /// Returns true if calls are queued or a task dropped a call.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.sweep.get() || !self.calls.borrow().is_empty()
    }

    #[inline]
    pub(crate) fn buffers(&self) -> &BufferPool {
        &self.buffers
    }

    /// Returns the number of a new ordered channel.
    pub(crate) fn next_order(&self) -> PollerChoice {
        PollerChoice::new(self.orders.replace(self.orders.get().wrapping_add(1)))
    }

    /// Returns an empty completion cell, reused if possible.
    #[inline]
    pub(crate) fn cell(&self) -> Rc<LocalCell> {
        self.cells.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps a cell for reuse after its outcome was taken, unless it is still shared.
    #[inline]
    pub(crate) fn rest_cell(&self, cell: Rc<LocalCell>) {
        let mut cells = self.cells.borrow_mut();
        if Rc::strong_count(&cell) == 1 && cells.len() < MAX_POOLED_CELLS {
            cells.push(cell);
        }
    }

    /// Returns the status with which a full queue refuses a call, or `None` if the queue accepts the call. A call that waits
    /// for room is queued beyond the limit, because its task would otherwise keep it in memory.
    #[inline]
    pub(crate) fn refusal(&self, entry: AdmissionClass) -> Option<Status> {
        (self.calls.borrow().len() >= DEPTH && entry != AdmissionClass::Waits).then(|| too_many(DEPTH))
    }

    #[inline(always)]
    pub(crate) fn push(&self, submission: Submission) {
        self.calls.borrow_mut().push_back(submission);
    }
}

/// Maximum number of buffers kept.
const KEPT: usize = 256;
/// Capacity in bytes beyond which a buffer is freed.
const KEPT_BYTES: usize = 16 << 10;

/// Empty buffers kept for reuse.
#[derive(Debug, Default)]
pub(crate) struct BufferPool(RefCell<Vec<Encoded>>);

impl BufferPool {
    /// Returns an empty buffer, reused if possible.
    #[inline]
    pub(crate) fn take(&self) -> Encoded {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps a buffer for reuse.
    #[inline]
    pub(crate) fn keep(&self, mut buffer: Encoded) {
        let mut kept = self.0.borrow_mut();
        if (1..=KEPT_BYTES).contains(&buffer.capacity()) && kept.len() < KEPT {
            buffer.clear();
            kept.push(buffer);
        }
    }
}
