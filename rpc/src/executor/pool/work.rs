//! A handler's future in the pool, with its context and the completion of its ticket.

use crate::call::context::{Context, Scope};
use crate::executor::runtime_guard::panicked;
use crate::status::Status;
use std::pin::Pin;
use std::task::{self, Poll};
use trunkline_machine::rings::cell::Setter;
use trunkline_machine::rings::panics::{catch, catch_or};

/// A job that a worker polls.
pub(super) trait Work {
    /// Polls the job. Returns true if it has ended.
    fn poll(&mut self, task: &mut task::Context<'_>) -> bool;

    /// Passes on the outcome of a job that has ended.
    fn finish(self: Box<Self>);

    /// Ends the job without running it, with this status.
    fn refuse(self: Box<Self>, why: Status);
}

/// A job that must be created on the worker's thread.
pub(super) trait Begin: Send {
    /// Creates the job.
    fn begin(self: Box<Self>) -> Box<dyn Work>;

    /// Ends the job without running it, with this status.
    fn refuse(self: Box<Self>, why: Status);
}

/// The completion for which a ticket waits.
pub(super) type Waiter<T> = Setter<Result<T, Status>>;

/// A future with its context and its waiter.
pub(super) struct Handler<F: Future> {
    /// `None` after the future has ended.
    future: Option<Pin<Box<F>>>,
    context: Context,
    outcome: Option<Result<F::Output, Status>>,
    waiter: Waiter<F::Output>,
}

impl<F: Future> Handler<F> {
    pub(super) fn new(context: Context, future: F, waiter: Waiter<F::Output>) -> Self {
        Self { future: Some(Box::pin(future)), context, outcome: None, waiter }
    }
}

impl<F: Future> Work for Handler<F> {
    fn poll(&mut self, task: &mut task::Context<'_>) -> bool {
        let _scope = Scope::enter(self.context.clone());
        let Some(future) = &mut self.future else { return true };
        let polled = catch_or(|| future.as_mut().poll(task), panicked)
            .map_or_else(|why| Poll::Ready(Err(why)), |polled| polled.map(Ok));
        let Poll::Ready(outcome) = polled else { return false };
        self.outcome = Some(outcome);
        drop_quietly(self.future.take());
        true
    }

    fn finish(self: Box<Self>) {
        let Self { future, outcome, waiter, .. } = *self;
        drop_quietly(future);
        if let Some(outcome) = outcome {
            // A cancelled blocking job has no waiter.
            drop_quietly(waiter.set(outcome));
        }
    }

    fn refuse(self: Box<Self>, why: Status) {
        let Self { future, waiter, .. } = *self;
        drop_quietly(future);
        drop_quietly(waiter.set(Err(why)));
    }
}

/// A blocking job that has not begun.
pub(super) struct Blocking<M, F: Future> {
    make: M,
    context: Context,
    waiter: Waiter<F::Output>,
}

impl<M, F: Future> Blocking<M, F> {
    pub(super) fn new(context: Context, make: M, waiter: Waiter<F::Output>) -> Self {
        Self { make, context, waiter }
    }
}

impl<M, F> Begin for Blocking<M, F>
where
    M: FnOnce() -> F + Send,
    F: Future + 'static,
    F::Output: Send + 'static,
{
    fn begin(self: Box<Self>) -> Box<dyn Work> {
        let Self { make, context, waiter } = *self;
        // `make` does not run code of the program. It only moves the arguments into the future.
        Box::new(Handler::new(context, make(), waiter))
    }

    fn refuse(self: Box<Self>, why: Status) {
        let Self { make, waiter, .. } = *self;
        drop_quietly(make);
        drop_quietly(waiter.set(Err(why)));
    }
}

/// Drops a value of the program. Catches a panic of its destructor.
pub(super) fn drop_quietly<T>(value: T) {
    let _ended = catch(|| drop(value));
}
