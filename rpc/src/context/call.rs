//! A call, as its handler sees it.

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

/// The call that a handler runs for: who made it, when it ends, and whether anybody still waits for it.
///
/// A method gets it as its first argument if the trait declares that, as `cx: &Context`; the argument is not sent. Any
/// code that a handler runs finds the same one by [`Context::current`]. Clones may go to other threads, and outlive the call.
///
/// Calls that a handler makes inherit the deadline of the handler's own call: one without a time limit of its own has the
/// rest of it, and one with a time limit has the shorter of the two. [`Context::scope`] takes that along to another
/// executor, and `Context::detached().scope(...)` makes calls that do not depend on the current one.
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

    /// The context of the call whose handler, or whose [`Context::scope`], this code runs in; `None` outside of both, as in
    /// a task of [`Node::run_on`](crate::Node::run_on).
    #[must_use]
    pub fn current() -> Option<Self> {
        ambient::context()
    }

    /// A context of no call: without a deadline or a peer, and never cancelled. Calls that are made in its
    /// [`Context::scope`] inherit nothing.
    #[must_use]
    pub fn detached() -> Self {
        Self::with(Clock::monotonic(), None, None)
    }

    /// When the call ends; `None` if it has no time limit, as a detached one. A caller's clock is not needed for it: the
    /// time that is left travels with the request. Means nothing in a simulation; see [`Context::time_left`].
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "it is the program's clock that the program asks for")]
    pub fn deadline(&self) -> Option<Instant> {
        self.time_left().map(|left| Instant::now() + left)
    }

    /// The time that is left until the call ends, zero if it has ended.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        self.0.deadline.map(|deadline| deadline.saturating_duration_since(self.0.clock.now()))
    }

    /// The node that made the call; `None` if the context is detached.
    #[must_use]
    pub fn peer(&self) -> Option<Peer> {
        self.0.peer
    }

    /// Whether the call is over, as [`Context::cancelled`] has it.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        // SYNC: call-over
        self.0.is_over.load(Ordering::Acquire)
    }

    /// Completes when the call is over: its caller has dropped it, its time limit has passed, its session or its node has
    /// ended, or its handler has returned. The handler itself is dropped in the first four cases; this is for what it has
    /// left to other tasks and threads, and for `#[blocking]` methods, which go on.
    pub fn cancelled(&self) -> Cancelled<'_> {
        Cancelled { context: self, key: None }
    }

    /// The same future, in whose polls [`Context::current`] is this context, on whatever executor it runs: calls made in it
    /// inherit this deadline.
    pub fn scope<F>(&self, future: F) -> Scoped<F> {
        Scoped::new(self.clone(), future)
    }

    /// The peer as pollers name it; one that nobody is if the context is detached.
    pub(crate) fn peer_key(&self) -> PeerKey {
        let nobody = || PeerKey::new((Ipv4Addr::UNSPECIFIED, 0).into());
        self.0.peer.map_or_else(nobody, Peer::key)
    }

    pub(super) fn due(&self) -> Option<Time> {
        self.0.deadline
    }

    /// The call is over.
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

/// Completes when a call is over; see [`Context::cancelled`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Cancelled<'c> {
    context: &'c Context,
    /// Of its waker.
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
