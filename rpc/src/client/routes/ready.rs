//! A future that waits until a channel is connected.

use super::Link;
use super::balance::Balanced;
use super::route::{Phase, WaitingFuture};
use crate::executor::on_poller;
use crate::node::lifecycle::{not_started, refused_in_child};
use crate::status::Status;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A future that completes when a channel is connected, or fails with the cause, from
/// [`Channel::ready`](crate::Channel::ready).
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Ready {
    link: Arc<Link>,
    /// Servers of a balanced channel.
    balance: Option<Arc<Balanced>>,
    /// `None` before the first poll.
    since: Option<WaitingFuture>,
}

impl Ready {
    pub(crate) fn new(link: &Arc<Link>) -> Self {
        Self { link: Arc::clone(link), balance: None, since: None }
    }

    /// Creates the future of a balanced channel.
    pub(crate) fn of_any(balance: &Arc<Balanced>) -> Self {
        Self { link: Arc::clone(balance.target()), balance: Some(Arc::clone(balance)), since: None }
    }
}

impl Future for Ready {
    type Output = Result<(), Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { link, balance, since } = &mut *self;
        let named = |status: Status| status.of_call(format_args!("connecting to {link}"));
        let Some(started) = link.routes().started() else { return Poll::Ready(Err(named(not_started()))) };
        if link.routes().is_forked() {
            return Poll::Ready(Err(named(refused_in_child())));
        }
        if let Some(balance) = balance {
            balance.keep();
            if balance.is_connected() {
                return Poll::Ready(Ok(()));
            }
        }
        let (route, routes) = (link.route(), link.routes());
        let is_new = since.is_none();
        let outcome = route.wait(since, context.waker(), started.clock.now());
        let outcome = outcome.or_else(|| on_poller::refusal().map(Err));
        match outcome {
            Some(outcome) => Poll::Ready(outcome.map_err(named)),
            None => {
                if is_new && !matches!(route.phase().0, Phase::Seeking) {
                    routes.tell_seeker(route.id);
                }
                Poll::Pending
            }
        }
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        if let Some(future) = self.since
            && !self.link.routes().is_forked()
        {
            self.link.route().leave(future);
        }
    }
}
