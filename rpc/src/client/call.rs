//! A call under way, as its caller holds it: the same for both kinds of channel.

use super::Outcome;
use crate::Status;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Waits for the outcome of a call that a poller has, or will have. Dropping it before the outcome
/// came cancels the call.
pub trait Wait: Unpin {
    /// The outcome, once.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Outcome>;
}

/// A call under way, or one that could not begin; nothing once its outcome was told. Dropping it
/// cancels the call.
#[derive(Debug)]
#[must_use = "a call ends when its future is dropped"]
pub struct Call<W>(Option<Result<W, Status>>);

impl<W> Call<W> {
    pub(super) fn new(begun: Result<W, Status>) -> Self {
        Self(Some(begun))
    }
}

impl<W: Wait> Future for Call<W> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        if let Some(Ok(waiting)) = &mut self.0 {
            let outcome = std::task::ready!(waiting.poll(context));
            self.0 = None;
            return Poll::Ready(outcome);
        }
        let status = self.0.take().and_then(Result::err);
        Poll::Ready(Err(status.unwrap_or_else(|| Status::internal("a call was polled after its end"))))
    }
}
