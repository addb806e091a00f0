//! Where the outcome of a call is delivered: to any thread, or to a task of the same poller.

use super::response::Response;
use crate::status::Status;
use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use trunkline_rings::cell::Setter;
use trunkline_rings::panics::catch;

/// How a call ended. The response of a one-way call is empty.
pub(crate) type Outcome = Result<Response, Status>;

/// The waiter for a call's outcome.
#[derive(Debug)]
pub(crate) enum Answer {
    /// On any thread.
    Shared(Setter<Outcome>),
    /// A task of the same poller.
    Local(Rc<LocalCell>),
}

impl From<Setter<Outcome>> for Answer {
    fn from(setter: Setter<Outcome>) -> Self {
        Self::Shared(setter)
    }
}

impl From<Rc<LocalCell>> for Answer {
    fn from(cell: Rc<LocalCell>) -> Self {
        Self::Local(cell)
    }
}

impl Answer {
    /// Delivers the outcome and wakes the waiter.
    pub(crate) fn complete(self, outcome: Outcome) {
        match self {
            Self::Shared(setter) => {
                // If nobody waits any more, the outcome is dropped.
                let _ = setter.set(outcome);
            }
            Self::Local(cell) => cell.complete(outcome),
        }
    }

    /// Whether the waiter is gone.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            Self::Shared(setter) => setter.is_abandoned(),
            Self::Local(cell) => Rc::strong_count(cell) == 1,
        }
    }
}

/// A completion cell that is used by one thread only.
#[derive(Debug, Default)]
pub(crate) struct LocalCell(RefCell<LocalState>);

#[derive(Debug, Default)]
struct LocalState {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

impl LocalCell {
    pub(super) fn complete(&self, outcome: Outcome) {
        let waker = {
            let mut state = self.0.borrow_mut();
            state.outcome = Some(outcome);
            state.waker.take()
        };
        if let Some(waker) = waker {
            // It may be any program's, of an executor within a handler.
            let _ended = catch(|| waker.wake_by_ref());
            // Cells are used again, often by the same task: then its waker need not be cloned again.
            self.0.borrow_mut().waker.get_or_insert(waker);
        }
    }

    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Outcome> {
        let mut state = self.0.borrow_mut();
        if let Some(outcome) = state.outcome.take() {
            return Poll::Ready(outcome);
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}
