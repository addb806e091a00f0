//! A call in progress, as its caller holds it: the same for both kinds of channel.

use super::answer::Outcome;
use crate::on_poller;
use crate::reason::Reason;
use crate::status::{Code, Status};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Waits for the outcome of a call that was handed to a poller. Dropping it before the outcome has
/// come cancels the call.
pub trait Wait: Unpin {
    /// Returns the outcome, once.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Outcome>;
}

/// A future of a call's outcome. Dropping it cancels the call.
// `Err` holds the status of a call that could not be started; `None` follows the outcome.
#[derive(Debug)]
#[must_use = "a call ends when its future is dropped"]
pub struct Call<W>(Option<Result<W, Status>>);

impl<W> Call<W> {
    pub(crate) fn new(started: Result<W, Status>) -> Self {
        Self(Some(started))
    }
}

impl<W: Wait> Future for Call<W> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        if let Some(Ok(waiting)) = &mut self.0 {
            let outcome = match waiting.poll(context) {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => match on_poller::interruption() {
                    Some(status) => Err(status),
                    None => return Poll::Pending,
                },
            };
            self.0 = None;
            return Poll::Ready(outcome);
        }
        let status = self.0.take().and_then(Result::err);
        let misuse =
            || Status::ran(Code::Internal, "a call was polled after its end").because(Reason::Misuse);
        Poll::Ready(Err(status.unwrap_or_else(misuse)))
    }
}
