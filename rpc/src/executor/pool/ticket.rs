//! The poller's half of a job. Generated code submits the job through a [`Pool`], and gets a [`Ticket`] for its outcome.

use super::shared::{Job, JobNumber, Offloaded, SharedPool};
use super::work::{Blocking, Handler};
use crate::call::context::{Context, PollerContext};
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::wire::name::MethodName;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};
use trunkline_machine::rings::cell::{self, Getter};

/// Handle to the worker pool of a node, for generated code.
#[derive(Debug, Clone)]
pub struct Pool(Option<Arc<SharedPool>>);

impl Pool {
    /// Wraps a pool. `pool` is `None` for services created without [`Service::pooled`](crate::stub::Service::pooled).
    pub(crate) fn new(pool: Option<Arc<SharedPool>>) -> Self {
        Self(pool)
    }

    /// Submits a handler's future. Any worker may poll it.
    pub fn offload<F>(&self, method: &'static MethodName, context: Context, future: F) -> Ticket<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let Some(pool) = &self.0 else { return Ticket::refused(no_pool()) };
        let (waiter, getter) = cell::pair();
        let peer = context.peer_key();
        let offloaded = Offloaded::new(pool, method, Box::new(Handler::new(context, future, waiter)));
        match pool.submit(peer, Job::Offloaded(Arc::clone(&offloaded))) {
            Ok(number) => {
                Ticket::new(getter, Submitted { pool: Arc::clone(pool), number, offloaded: Some(offloaded) })
            }
            Err((why, job)) => {
                job.discard();
                Ticket::refused(why)
            }
        }
    }

    /// Submits a handler's future. One worker creates it and polls it to completion.
    pub fn block<F, M>(&self, method: &'static MethodName, context: Context, make: M) -> Ticket<F::Output>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        let Some(pool) = &self.0 else { return Ticket::refused(no_pool()) };
        let (waiter, getter) = cell::pair();
        let peer = context.peer_key();
        let job = Job::Blocking(method, Box::new(Blocking::<M, F>::new(context, make, waiter)));
        match pool.submit(peer, job) {
            Ok(number) => Ticket::new(getter, Submitted { pool: Arc::clone(pool), number, offloaded: None }),
            Err((why, job)) => {
                job.discard();
                Ticket::refused(why)
            }
        }
    }
}

/// Returns the status of a call when a hand-written stub has no pool.
fn no_pool() -> Status {
    let text = "the node has no worker pool: make the service with Service::pooled";
    Status::not_run(Code::Internal, text).because(Reason::Misuse)
}

/// A future that resolves to the output of a job's handler, or to the status of a refused job.
///
/// Dropping the ticket removes the job from the queue. If the job has begun, an offloaded job is dropped at its next poll,
/// and a blocking job continues.
#[must_use = "dropping it cancels the job"]
pub struct Ticket<T>(TicketState<T>);

enum TicketState<T> {
    Refused(Option<Status>),
    Waits { getter: Getter<Result<T, Status>>, job: Submitted },
    Ended,
}

/// A submitted job.
pub(super) struct Submitted {
    pub(super) pool: Arc<SharedPool>,
    pub(super) number: JobNumber,
    /// `None` for a blocking job.
    pub(super) offloaded: Option<Arc<Offloaded>>,
}

impl<T> Ticket<T> {
    pub(super) fn refused(why: Status) -> Self {
        Self(TicketState::Refused(Some(why)))
    }

    pub(super) fn new(getter: Getter<Result<T, Status>>, job: Submitted) -> Self {
        Self(TicketState::Waits { getter, job })
    }
}

impl<T> Future for Ticket<T> {
    type Output = Result<T, Status>;

    fn poll(mut self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<Self::Output> {
        let ended = match &mut self.0 {
            TicketState::Refused(why) => why.take().map(Err),
            TicketState::Waits { getter, .. } => {
                let outcome = task::ready!(Pin::new(getter).poll(task));
                outcome.ok()
            }
            TicketState::Ended => None,
        };
        self.0 = TicketState::Ended;
        // Either the worker has ended, or the future was polled after completion.
        let lost = || {
            let text = "the worker that ran the handler has ended";
            Err(Status::ran(Code::Internal, text).because(Reason::Misuse))
        };
        Poll::Ready(ended.unwrap_or_else(lost))
    }
}

impl<T> Drop for Ticket<T> {
    fn drop(&mut self) {
        let TicketState::Waits { job: Submitted { pool, number, offloaded }, .. } = &self.0 else { return };
        if let Some(job) = pool.withdraw(*number) {
            // The dispatcher then replies that the call has not run.
            PollerContext::current().inspect(|poller| poller.call().withdraw());
            job.discard();
        } else if let Some(offloaded) = offloaded {
            offloaded.cancel();
        }
    }
}

impl<T> Unpin for Ticket<T> {}

impl<T> fmt::Debug for Ticket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            TicketState::Refused(_) => "Ticket(refused)",
            TicketState::Waits { .. } => "Ticket(waits)",
            TicketState::Ended => "Ticket(ended)",
        })
    }
}
