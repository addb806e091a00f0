//! A call as its handler sees it.

use super::{Peer, Scoped, ambient};
use slab::Slab;
use std::fmt;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{self, Poll, Waker};
use std::time::{Duration, Instant};
use trunkline_rings::panics::catch;
use trunkline_transport::PeerKey;
use trunkline_verbs::{Clock, Time};

/// The call that a handler serves: its peer, its deadline, and whether it is cancelled.
///
/// A method receives it if the trait declares `cx: &Context` as the first argument, which is not sent. Other code
/// that a handler runs gets it by [`Context::current`]. Clones may go to other threads and may outlive the call.
///
/// Calls that a handler makes inherit the deadline of the handler's own call. A time limit can only shorten it.
/// [`Context::scope`] carries the context to another executor, and `Context::detached().scope(...)` makes calls
/// independent of the current one.
#[derive(Clone)]
pub struct Context(Arc<Shared>);

struct Shared {
    clock: Clock,
    peer: Option<Peer>,
    deadline: Option<Time>,
    is_over: AtomicBool,
    waiting: Mutex<Slab<Waker>>,
}

impl Context {
    pub(super) fn new(clock: Clock, peer: Peer, deadline: Option<Time>) -> Self {
        Self::with(clock, Some(peer), deadline)
    }

    fn with(clock: Clock, peer: Option<Peer>, deadline: Option<Time>) -> Self {
        let (is_over, waiting) = (AtomicBool::new(false), Mutex::default());
        Self(Arc::new(Shared { clock, peer, deadline, is_over, waiting }))
    }

    /// Returns the context of the handler or the [`Context::scope`] that this code runs in. `None` outside of both,
    /// as in a task of [`Node::run_on`](crate::Node::run_on).
    #[must_use]
    pub fn current() -> Option<Self> {
        ambient::context()
    }

    /// Creates a context without a deadline or a peer, which is never cancelled. Calls made in its
    /// [`Context::scope`] inherit nothing.
    #[must_use]
    pub fn detached() -> Self {
        Self::with(Clock::monotonic(), None, None)
    }

    /// Returns the call's deadline; `None` if it has no time limit, as in a detached context.
    ///
    /// The remaining time travels with the request, so the two clocks need not agree. Meaningless in a simulation;
    /// use [`Context::time_left`] there.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "it is the program's clock that the program asks for")]
    pub fn deadline(&self) -> Option<Instant> {
        self.time_left().map(|left| Instant::now() + left)
    }

    /// Returns the time left until the deadline, zero if it has passed. `None` without a deadline.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.0.deadline.map(|deadline| deadline.saturating_duration_since(self.0.clock.now()))
    }

    /// Returns the node that made the call; `None` if the context is detached.
    #[must_use]
    pub fn peer(&self) -> Option<Peer> {
        self.0.peer
    }

    /// Returns true if the call is over. See [`Context::cancelled`].
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        // SYNC: call-over
        self.0.is_over.load(Ordering::Acquire)
    }

    /// Completes when the call is over: its caller has dropped it, its time limit has passed, its session or its
    /// node has ended, or its handler has returned.
    ///
    /// In the first four cases the handler itself is dropped. Use this in tasks and threads that the handler
    /// started, and in `#[blocking]` methods, which keep running.
    pub fn cancelled(&self) -> Cancelled<'_> {
        Cancelled { context: self, key: None }
    }

    /// Wraps a future so that [`Context::current`] returns this context while it is polled, on any executor. Calls
    /// made in it inherit this deadline.
    pub fn scope<F>(&self, future: F) -> Scoped<F> {
        Scoped::new(self.clone(), future)
    }

    /// Returns the peer's key, or the key of an unspecified address if the context is detached.
    pub(crate) fn peer_key(&self) -> PeerKey {
        let nobody = || PeerKey::new((Ipv4Addr::UNSPECIFIED, 0).into());
        self.0.peer.map_or_else(nobody, Peer::key)
    }

    pub(super) fn due(&self) -> Option<Time> {
        self.0.deadline
    }

    /// Marks the call as over and wakes its waiters.
    pub(crate) fn end(&self) {
        // SYNC: call-over
        self.0.is_over.store(true, Ordering::Release);
        let woken = std::mem::take(&mut *self.waiting());
        for (_, waker) in woken {
            // It may be any program's.
            let _ended = catch(|| waker.wake());
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Slab<Waker>> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("peer", &self.0.peer)
            .field("time_left", &self.time_left())
            .field("is_cancelled", &self.is_cancelled())
            .finish()
    }
}

/// A future that completes when a call is over, from [`Context::cancelled`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Cancelled<'c> {
    context: &'c Context,
    /// Key of its waker.
    key: Option<usize>,
}

impl Future for Cancelled<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<()> {
        if self.context.0.deadline.is_none() && self.context.0.peer.is_none() {
            return Poll::Pending;
        }
        let mut waiting = self.context.waiting();
        // `end` stores before it takes the lock, so either it finds the waker or this finds what it stored.
        if self.context.is_cancelled() {
            self.key = None;
            return Poll::Ready(());
        }
        match self.key.and_then(|key| waiting.get_mut(key)) {
            Some(waker) => waker.clone_from(task.waker()),
            None => {
                let key = waiting.insert(task.waker().clone());
                drop(waiting);
                self.key = Some(key);
            }
        }
        Poll::Pending
    }
}

impl Drop for Cancelled<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            let mut waiting = self.context.waiting();
            // After the end others may not wait any more, so nobody else has this key.
            let removed = if self.context.is_cancelled() { None } else { waiting.try_remove(key) };
            drop(waiting);
            drop(removed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    fn of_call() -> Context {
        let peer = Peer::new(PeerKey::new(([127, 0, 0, 1], 7).into()));
        Context::new(Clock::monotonic(), peer, Some(Time::MAX))
    }

    #[test]
    fn whoever_waits_for_the_end_of_a_call_learns_of_it() {
        let context = of_call();
        let mut task = task::Context::from_waker(Waker::noop());
        let mut before = pin!(context.cancelled());
        assert!(before.as_mut().poll(&mut task).is_pending() && before.as_mut().poll(&mut task).is_pending());
        {
            let mut dropped = pin!(context.cancelled());
            assert!(dropped.as_mut().poll(&mut task).is_pending());
            assert_eq!(context.waiting().len(), 2);
        }
        assert_eq!(context.waiting().len(), 1, "a waiter that is dropped leaves nothing");
        context.end();
        assert!(context.is_cancelled() && before.as_mut().poll(&mut task).is_ready());
        assert!(pin!(context.cancelled()).poll(&mut task).is_ready(), "also one that asks later");
        assert!(context.waiting().is_empty());
        assert!(pin!(Context::detached().cancelled()).poll(&mut task).is_pending());
    }

    #[test]
    fn a_scope_is_the_current_context_within_its_polls() {
        let (outer, inner) = (of_call(), Context::detached());
        let is_outer = || Context::current().is_some_and(|current| Arc::ptr_eq(&current.0, &outer.0));
        let mut task = task::Context::from_waker(Waker::noop());
        let nested = outer.scope(async {
            assert!(is_outer());
            inner.scope(async { assert!(!is_outer()) }).await;
            assert!(is_outer());
        });
        assert!(pin!(nested).poll(&mut task).is_ready());
        assert!(Context::current().is_none());
    }
}
