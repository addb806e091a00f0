//! The queue between a poller's tasks and the poller itself. One thread uses it.

use super::answer::LocalCell;
use super::entry::Entry;
use super::spare::Spare;
use super::submission::{Submission, too_many};
use crate::status::Status;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use trunkline_transport::Turn;

/// Calls that wait for the poller's next turn, from which on those that do not wait for room are refused.
const DEPTH: usize = 65_536;
/// Most completion cells kept for later calls.
const SPARE_CELLS: usize = 256;

/// Calls that tasks of a poller have made since its last turn.
#[derive(Debug, Default)]
pub(crate) struct LocalQueue {
    calls: RefCell<VecDeque<Submission>>,
    sweep: Cell<bool>,
    spare: Spare,
    cells: RefCell<Vec<Rc<LocalCell>>>,
    /// Ordered channels so far.
    orders: Cell<u32>,
}

impl LocalQueue {
    /// The oldest call that waits.
    #[inline]
    pub(crate) fn pop(&self) -> Option<Submission> {
        self.calls.borrow_mut().pop_front()
    }

    /// Whether a task has dropped a call since the last time; resets it.
    pub(crate) fn take_sweep(&self) -> bool {
        self.sweep.take()
    }

    /// A task has dropped a call.
    pub(crate) fn ask_for_sweep(&self) {
        self.sweep.set(true);
    }

    /// Whether the poller has something to take.
    pub(crate) fn has_work(&self) -> bool {
        self.sweep.get() || !self.calls.borrow().is_empty()
    }

    /// The poller's reused buffers.
    pub(crate) fn spare(&self) -> &Spare {
        &self.spare
    }

    /// The number of another ordered channel.
    pub(crate) fn next_order(&self) -> Turn {
        Turn(self.orders.replace(self.orders.get().wrapping_add(1)))
    }

    /// An empty completion cell: a kept one if there is one.
    pub(crate) fn cell(&self) -> Rc<LocalCell> {
        self.cells.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps a cell whose outcome was taken, unless somebody else still holds it.
    pub(crate) fn rest_cell(&self, cell: Rc<LocalCell>) {
        let mut cells = self.cells.borrow_mut();
        if Rc::strong_count(&cell) == 1 && cells.len() < SPARE_CELLS {
            cells.push(cell);
        }
    }

    /// Queues a call. One that waits for room has it here: its task would hold it otherwise.
    ///
    /// # Errors
    /// `ResourceExhausted` when the queue is full and the call does not wait.
    #[inline]
    pub(crate) fn push(&self, submission: Submission) -> Result<(), Status> {
        let mut calls = self.calls.borrow_mut();
        if calls.len() >= DEPTH && submission.entry != Entry::Waits {
            return Err(too_many());
        }
        calls.push_back(submission);
        Ok(())
    }
}
