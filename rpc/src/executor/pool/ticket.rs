//! The poller's half of a job: a future that resolves to the job's outcome.

use super::shared::{Offloaded, Place, SharedPool};
use crate::call::context::PollerContext;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use trunkline_machine::rings::cell::Getter;

/// A future that resolves to the output of a job's handler, or to the reason why there is none.
///
/// Dropping it takes the job out of the queue. An offloaded job that has begun is dropped at its next poll; a
/// blocking one continues.
#[must_use = "dropping it cancels the job"]
pub struct Ticket<T>(State<T>);

enum State<T> {
    Refused(Option<Status>),
    Waits { getter: Getter<Result<T, Status>>, job: Submitted },
    Ended,
}

/// A job that was submitted.
pub(super) struct Submitted {
    pub(super) pool: Arc<SharedPool>,
    pub(super) place: Place,
    /// `None` for a blocking job.
    pub(super) offloaded: Option<Arc<Offloaded>>,
}

impl<T> Ticket<T> {
    pub(super) fn refused(why: Status) -> Self {
        Self(State::Refused(Some(why)))
    }

    pub(super) fn new(getter: Getter<Result<T, Status>>, job: Submitted) -> Self {
        Self(State::Waits { getter, job })
    }
}

impl<T> Future for Ticket<T> {
    type Output = Result<T, Status>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = match &mut self.0 {
            State::Refused(why) => why.take().map(Err),
            State::Waits { getter, .. } => {
                let outcome = std::task::ready!(Pin::new(getter).poll(task));
                outcome.ok()
            }
            State::Ended => None,
        };
        self.0 = State::Ended;
        // Its worker is gone, or it was polled after its end.
        let lost = || {
            let text = "the worker that ran the handler has ended";
            Err(Status::ran(Code::Internal, text).because(Reason::Misuse))
        };
        Poll::Ready(ended.unwrap_or_else(lost))
    }
}

impl<T> Drop for Ticket<T> {
    fn drop(&mut self) {
        let State::Waits { job: Submitted { pool, place, offloaded }, .. } = &self.0 else { return };
        if let Some(job) = pool.withdraw(*place) {
            // The dispatcher replies that the call has not run.
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
            State::Refused(_) => "Ticket(refused)",
            State::Waits { .. } => "Ticket(waits)",
            State::Ended => "Ticket(ended)",
        })
    }
}
