//! Futures of calls in progress, used by both kinds of channels.

use super::completion::Outcome;
use super::interceptors::{EndHooks, interceptor_panicked};
use crate::call::response::Response;
use crate::executor::on_poller;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::stream::CallEnd;
use crate::wire::metadata::{ReplyMetadata, ResponseMetadata};
use crate::wire::name::MethodName;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The receiver of a queued call's outcome. Dropping it before the outcome arrives cancels the call.
pub trait Wait: Unpin {
    /// Polls for the outcome, which is returned once.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Outcome>;

    /// Stores the work for the end of a call that continues after its outcome, such as a stream. For all other calls,
    /// returns the work.
    #[doc(hidden)]
    fn defer(&mut self, after: Box<After>) -> Option<Box<After>> {
        Some(after)
    }

    /// Runs or defers the work for the end of a call. Returns the call's outcome.
    #[doc(hidden)]
    #[cold]
    #[inline(never)]
    fn end(&mut self, after: Box<After>, mut outcome: Outcome) -> Outcome {
        let after = if outcome.is_ok() { self.defer(after) } else { Some(after) };
        if let Some(mut after) = after {
            after.end(&mut outcome);
        }
        outcome
    }
}

/// A future that resolves to a call's outcome. Dropping it cancels the call.
// `Err` is the status of a call that could not be started. `None` once the outcome has been returned.
#[derive(Debug)]
#[must_use = "a call ends when its future is dropped"]
pub struct Call<W> {
    made: Option<Result<W, Status>>,
    /// Work for the end of the call; `None` if there is none.
    after: Option<Box<After>>,
}

impl<W> Call<W> {
    /// Creates the future of a call that was queued, or that failed to start with a status.
    pub(crate) fn new(
        made: Result<W, Status>,
        method: &MethodName,
        server: &impl fmt::Display,
        metadata: Option<&ResponseMetadata>,
    ) -> Self {
        let made = made.map_err(|status| status.of_call(format_args!("{method} at {server}")));
        Self { made: Some(made), after: metadata.map(After::storing) }
    }

    pub(crate) fn with_hooks(mut self, hooks: EndHooks) -> Self {
        if !hooks.is_empty() {
            self.after.get_or_insert_default().hooks = hooks;
        }
        self
    }

    /// Returns a future that resolves to the response as decoded by `decode`.
    pub fn decoded<T, E, F>(self, decode: F) -> Decoded<W, F>
    where
        F: Fn(Response) -> Result<T, E>,
        E: From<Status>,
    {
        Decoded { call: self, decode }
    }
}

impl<W: Wait> Future for Call<W> {
    type Output = Outcome;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let Self { made, after } = self.get_mut();
        if let Some(Ok(waiting)) = made {
            let outcome = match waiting.poll(context) {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => match on_poller::interruption() {
                    Some(status) => Err(status),
                    None => return Poll::Pending,
                },
            };
            let outcome = match after.take() {
                Some(after) => waiting.end(after, outcome),
                None => outcome,
            };
            *made = None;
            return Poll::Ready(outcome);
        }
        Poll::Ready(not_made(made.take().and_then(Result::err), after.take()))
    }
}

/// Returns the outcome of a call that failed to start, or was polled after its end.
#[cold]
#[inline(never)]
fn not_made(status: Option<Status>, after: Option<Box<After>>) -> Outcome {
    let misuse = || Status::ran(Code::Internal, "a call was polled after its end").because(Reason::Misuse);
    let mut outcome = Err(status.unwrap_or_else(misuse));
    if let Some(mut after) = after {
        after.end(&mut outcome);
    }
    outcome
}

/// Work for the end of a call. It is also done if the call's future is dropped.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct After {
    /// Storage for the metadata of the response, if requested.
    metadata: Option<ResponseMetadata>,
    hooks: EndHooks,
}

impl After {
    #[cold]
    fn storing(place: &ResponseMetadata) -> Box<Self> {
        // Clear the metadata of an earlier call, which could be mistaken for metadata of this call.
        place.store(ReplyMetadata::default());
        Box::new(Self { metadata: Some(place.clone()), hooks: EndHooks::default() })
    }

    /// Does the work, and replaces the outcome with a status if a closure panics.
    #[cold]
    #[inline(never)]
    fn end(&mut self, outcome: &mut Outcome) {
        if let Some(place) = self.metadata.take() {
            place.store(match outcome {
                Ok(response) => response.metadata(),
                Err(status) => status.reply_metadata().cloned().unwrap_or_default(),
            });
        }
        let ended = match outcome {
            Ok(response) if response.is_error() => self.hooks.run(Err(&Status::of_own_error())),
            Ok(_) => self.hooks.run(Ok(())),
            Err(status) => self.hooks.run(Err(status)),
        };
        if ended.is_err() {
            let may_have_run = outcome.as_ref().map_or_else(Status::may_have_run, |_| true);
            *outcome = Err(interceptor_panicked(may_have_run));
        }
    }
}

/// A stream that outlives the future of its call does the work when the stream ends.
impl CallEnd for After {
    fn opened(&self, metadata: ReplyMetadata) {
        if let Some(place) = &self.metadata {
            place.store(metadata);
        }
    }

    fn closed(
        mut self: Box<Self>,
        ended: Result<(), &Status>,
        metadata: ReplyMetadata,
    ) -> Result<(), Status> {
        self.opened(metadata);
        self.hooks.run(ended).map_err(|_| interceptor_panicked(true))
    }
}

impl Drop for After {
    fn drop(&mut self) {
        if !self.hooks.is_empty() {
            let status = Status::ran(Code::Cancelled, "the caller gave up").because(Reason::Cancelled);
            // A panic in a closure is not reported, because the caller has dropped the call.
            let _ended = self.hooks.run(Err(&status));
        }
    }
}

/// A future that resolves to the decoded value or error of a call. Dropping it cancels the call.
// An `async` block would store the call twice: captured, and awaited.
#[derive(Debug)]
#[must_use = "a call ends when its future is dropped"]
pub struct Decoded<W, F> {
    call: Call<W>,
    decode: F,
}

impl<W, F, T, E> Future for Decoded<W, F>
where
    W: Wait,
    F: Fn(Response) -> Result<T, E> + Unpin,
    E: From<Status>,
{
    type Output = Result<T, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, E>> {
        let outcome = std::task::ready!(Pin::new(&mut self.call).poll(context));
        Poll::Ready(outcome.map_err(E::from).and_then(|response| (self.decode)(response)))
    }
}
