//! Delivers a call's outcome to any thread, or to a task on the same poller.

use crate::call::response::Response;
use crate::executor::wakes;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::stream::CallStream;
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use trunkline_machine::rings::cell::Setter;
use trunkline_machine::rings::panics::catch;

/// Outcome of a call. The response of a one-way call is empty.
pub(crate) type Outcome = Result<Response, Status>;

/// Completion of a call, which delivers the outcome to its waiter.
#[derive(Debug)]
pub(crate) enum Completion {
    /// A waiter on any thread.
    Shared(Setter<Outcome>),
    /// A task on the same poller.
    Local(Rc<LocalCell>),
    /// The stream of a call, on any thread.
    Stream(StreamCompletion),
}

impl From<Setter<Outcome>> for Completion {
    fn from(setter: Setter<Outcome>) -> Self {
        Self::Shared(setter)
    }
}

impl From<Rc<LocalCell>> for Completion {
    fn from(cell: Rc<LocalCell>) -> Self {
        Self::Local(cell)
    }
}

impl From<StreamCompletion> for Completion {
    fn from(completion: StreamCompletion) -> Self {
        Self::Stream(completion)
    }
}

impl Completion {
    /// Returns the stream of the call, if any.
    pub(crate) fn stream(&self) -> Option<&Arc<CallStream>> {
        if let Self::Stream(completion) = self { completion.stream() } else { None }
    }

    /// Delivers the outcome and wakes the waiter.
    #[inline]
    pub(crate) fn complete(self, outcome: Outcome) {
        match self {
            Self::Shared(setter) => {
                // Fails if the waiter has been dropped. The outcome is then dropped too.
                let _ = setter.set_and(outcome, wakes::wake);
            }
            Self::Local(cell) => cell.complete(outcome),
            Self::Stream(completion) => completion.complete(outcome),
        }
    }

    /// Returns true if the call's future was dropped.
    #[inline]
    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            Self::Shared(setter) => setter.is_abandoned(),
            Self::Local(cell) => Rc::strong_count(cell) == 1,
            Self::Stream(completion) => completion.is_abandoned(),
        }
    }

    /// Returns true if another attempt at the same call has delivered the outcome.
    pub(crate) fn is_superseded(&self) -> bool {
        matches!(self, Self::Shared(setter) if setter.is_superseded())
    }
}

/// A completion cell for use on one thread.
#[derive(Default)]
pub(crate) struct LocalCell {
    outcome: Cell<Option<Outcome>>,
    waker: Cell<Option<Waker>>,
}

impl LocalCell {
    #[inline]
    pub(super) fn complete(&self, outcome: Outcome) {
        self.outcome.set(Some(outcome));
        if let Some(waker) = self.waker.take() {
            // The waker may belong to any executor, such as one within a handler, and may panic.
            let _ended = catch(|| waker.wake_by_ref());
            // The same task often reuses the cell, so keeping the waker saves a clone.
            let newer = self.waker.take();
            self.waker.set(newer.or(Some(waker)));
        }
    }

    #[inline]
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Outcome> {
        if let Some(outcome) = self.outcome.take() {
            return Poll::Ready(outcome);
        }
        let waker = match self.waker.take() {
            Some(waker) if waker.will_wake(context.waker()) => waker,
            _ => context.waker().clone(),
        };
        self.waker.set(Some(waker));
        Poll::Pending
    }
}

impl fmt::Debug for LocalCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalCell")
    }
}

/// Delivers the outcome of a call that streams items. Dropping it ends the call.
#[derive(Debug)]
pub(crate) struct StreamCompletion(Option<Arc<CallStream>>);

impl StreamCompletion {
    pub(super) fn new(stream: Arc<CallStream>) -> Self {
        Self(Some(stream))
    }

    pub(crate) fn complete(mut self, outcome: Outcome) {
        if let Some(stream) = self.0.take() {
            stream.complete(outcome);
        }
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.0.as_ref().is_none_or(|stream| stream.is_abandoned())
    }

    pub(crate) fn stream(&self) -> Option<&Arc<CallStream>> {
        self.0.as_ref()
    }
}

impl Drop for StreamCompletion {
    fn drop(&mut self) {
        if let Some(stream) = self.0.take() {
            stream.complete(Err(shutting_down()));
        }
    }
}

/// Returns the status of a call that a node refuses while it shuts down.
pub(crate) fn shutting_down() -> Status {
    Status::not_run(Code::Unavailable, "this node is shutting down").because(Reason::Draining)
}
