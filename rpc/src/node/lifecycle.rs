//! The stage of a node: it serves, drains, or shuts down.
//!
//! One per node, shared by its handle, its pollers and their inboxes. The handle moves the stage forward, never back. Pollers
//! report when their handlers have ended. Only [`Lifecycle::wait_drained`] blocks.

use crate::executor::wakes::Waiters;
use crate::node::fork_lock::Lock;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;
use trunkline_verbs::fork::{FORKED, Process};

/// Maximum number of services and methods that are logged as not served. Their hashes are chosen by peers.
const MOST_LOGGED: usize = 64;

const SERVING: u8 = 0;
/// Stage in which requests of peers are refused and all other work continues.
const DRAINING: u8 = 1;
/// Stage in which calls from outside of handlers are refused too.
const ENDING: u8 = 2;

/// The state of a node.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    /// The process that runs the node's threads.
    process: Process,
    phase: AtomicU8,
    pub(crate) counters: Counters,
    /// Hashes of services and methods already logged as not served.
    logged: Lock<BTreeSet<u64>>,
    /// Jobs that wait or run in the worker pool, including abandoned ones.
    jobs: AtomicUsize,
    left: Lock<Left>,
    changed: Condvar,
    /// Handlers that wait for the drain.
    waiting: Waiters,
}

/// A count of events since the start of the node.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Counts an event.
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of events.
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Requests and calls of a node that are not counted per method.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Requests that were refused since draining began.
    pub(crate) refused: Counter,
    /// Requests with a critical extension that is unknown.
    pub(crate) unknown_extensions: Counter,
    /// One-way requests of methods that this node does not serve.
    pub(crate) not_served: Counter,
    /// One-way calls of this node that their server did not serve.
    pub(crate) not_served_by_peers: Counter,
    /// One-way requests of served methods that failed.
    pub(crate) one_way_failed: Counter,
    /// Requests refused by `NodeBuilder::authorize`.
    pub(crate) unauthorised: Counter,
    /// Calls that were hedged.
    pub(crate) hedged: Counter,
    /// Hedged calls decided by the second attempt.
    pub(crate) hedges_won: Counter,
}

/// The drain state of a node for the contexts of one poller's calls. Each poller has its own, so that pollers do not contend
/// for one reference count.
#[derive(Debug)]
pub(crate) struct Drain(Arc<Lifecycle>);

impl Drain {
    pub(crate) fn new(lifecycle: &Arc<Lifecycle>) -> Arc<Self> {
        Arc::new(Self(Arc::clone(lifecycle)))
    }

    /// Returns true if requests of peers are refused.
    pub(crate) fn has_begun(&self) -> bool {
        self.0.is_draining()
    }

    /// Registers a waker for the drain. Returns true if the drain has begun.
    pub(crate) fn register(&self, key: &mut Option<usize>, waker: &Waker) -> bool {
        if !self.has_begun() && !self.0.is_forked() {
            self.0.waiting.register(key, waker);
        }
        self.has_begun()
    }

    /// Removes a registered waker.
    pub(crate) fn remove(&self, key: &mut Option<usize>) {
        if !self.0.is_forked() {
            self.0.waiting.remove(key);
        }
    }
}

#[derive(Debug)]
struct Left {
    /// Number of pollers that have not reported the end of their handlers.
    pollers: u16,
    /// True if a poller has cut off its handlers, or ended before them.
    is_cut: bool,
}

impl Lifecycle {
    /// Creates the lifecycle of a serving node with this number of pollers.
    pub(crate) fn new(pollers: u16) -> Arc<Self> {
        Arc::new(Self {
            process: Process::current(),
            phase: AtomicU8::new(SERVING),
            counters: Counters::default(),
            logged: Lock::default(),
            jobs: AtomicUsize::new(0),
            left: Lock::new(Left { pollers, is_cut: false }),
            changed: Condvar::new(),
            waiting: Waiters::default(),
        })
    }

    /// Returns true in a forked child, which has none of the node's threads. The child must not wait for such a thread, or
    /// take a lock that one may have held.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.process.is_forked()
    }

    /// Returns the result of polling an unfinished call or task, which fails in a forked child because it can never finish.
    pub(crate) fn pending<T>(&self) -> Poll<Result<T, Status>> {
        if self.is_forked() { Poll::Ready(Err(lost_in_child())) } else { Poll::Pending }
    }

    /// Begins the drain: pollers refuse requests. Wake the pollers after this, so that they report. Returns true if the node
    /// was serving.
    pub(crate) fn begin_drain(&self) -> bool {
        self.enter(DRAINING)
    }

    /// Begins the shutdown. Returns true if the node was serving.
    pub(crate) fn begin_end(&self) -> bool {
        self.enter(ENDING)
    }

    fn enter(&self, phase: u8) -> bool {
        let before = self.phase.fetch_max(phase, Ordering::SeqCst);
        self.waiting.wake_all();
        before == SERVING
    }

    /// Returns true if requests of peers are refused.
    pub(crate) fn is_draining(&self) -> bool {
        self.phase.load(Ordering::Acquire) >= DRAINING
    }

    /// Returns true if calls from outside of handlers are refused.
    pub(crate) fn is_ending(&self) -> bool {
        self.phase.load(Ordering::Acquire) >= ENDING
    }

    /// Counts a one-way request of a service or method that this node does not serve. Returns true for the first request with
    /// this hash.
    pub(crate) fn count_not_served(&self, hash: u64) -> bool {
        self.counters.not_served.add();
        let mut logged = self.logged.lock();
        logged.len() < MOST_LOGGED && logged.insert(hash)
    }

    /// Records that a poller's handlers have ended and it starts no others. Each poller reports once.
    pub(crate) fn poller_drained(&self) {
        self.left.lock().pollers -= 1;
        self.changed.notify_all();
    }

    /// Records that a poller cuts off its handlers, or ends before them.
    pub(crate) fn poller_cut(&self) {
        self.left.lock().is_cut = true;
        self.changed.notify_all();
    }

    /// Counts a job of the worker pool, from the time of its queueing.
    pub(crate) fn job_begins(&self) {
        self.jobs.fetch_add(1, Ordering::SeqCst);
    }

    /// Records the end or removal of a job.
    pub(crate) fn job_ends(&self) {
        if self.jobs.fetch_sub(1, Ordering::SeqCst) == 1 && self.is_draining() {
            // Waiters check the number under the lock.
            let _left = self.left.lock();
            self.changed.notify_all();
        }
    }

    /// Returns the number of jobs that wait or run.
    pub(crate) fn jobs(&self) -> usize {
        self.jobs.load(Ordering::SeqCst)
    }

    /// Returns true if the handlers of all pollers, and the jobs of the pool, have ended.
    pub(crate) fn is_drained(&self) -> bool {
        !self.is_forked() && self.left.lock().pollers == 0 && self.jobs() == 0
    }

    /// Waits until the handlers of all pollers and the jobs of the pool have ended, but not longer than `limit`. Returns true
    /// if they have ended.
    pub(crate) fn wait_drained(&self, limit: Duration) -> bool {
        if self.is_forked() {
            return false;
        }
        let waits = |left: &mut Left| (left.pollers > 0 || self.jobs() > 0) && !left.is_cut;
        let waited = self.changed.wait_timeout_while(self.left.lock(), limit, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.pollers == 0 && self.jobs() == 0
    }
}

/// Returns the status of a call through a channel whose node has not started.
#[cold]
pub(crate) fn not_started() -> Status {
    let text = "the node of this client has not started: make calls after NodeBuilder::start of its builder";
    Status::not_run(Code::FailedPrecondition, text).because(Reason::Misuse)
}

/// Returns the status of a call or task in a forked child.
#[cold]
pub(crate) fn refused_in_child() -> Status {
    Status::not_run(Code::FailedPrecondition, FORKED).because(Reason::Misuse)
}

/// Returns the status, in a forked child, of a call or task started before the fork.
#[cold]
pub(crate) fn lost_in_child() -> Status {
    Status::ran(Code::FailedPrecondition, FORKED).because(Reason::Misuse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_drained_after_all_pollers_drained() {
        let lifecycle = Lifecycle::new(2);
        assert!(!lifecycle.is_draining());
        assert!(lifecycle.begin_drain());
        assert!(lifecycle.is_draining() && !lifecycle.is_ending());
        lifecycle.poller_drained();
        assert!(!lifecycle.wait_drained(Duration::ZERO));
        lifecycle.poller_drained();
        assert!(lifecycle.wait_drained(Duration::from_secs(30)) && lifecycle.is_drained());
        assert!(!lifecycle.begin_end() && !lifecycle.begin_drain());
        assert!(lifecycle.is_ending(), "nothing moves it back");
        assert!(Lifecycle::new(1).begin_end());
    }

    #[test]
    fn unserved_service_names_are_logged_once_up_to_limit() {
        let lifecycle = Lifecycle::new(1);
        assert!(lifecycle.count_not_served(7) && !lifecycle.count_not_served(7));
        let logged = (0..1000).filter(|hash| lifecycle.count_not_served(*hash)).count();
        assert_eq!((logged, lifecycle.counters.not_served.count()), (MOST_LOGGED - 1, 1002));
    }

    #[test]
    fn wait_drained_returns_false_after_poller_drops_handlers() {
        let lifecycle = Lifecycle::new(1);
        lifecycle.poller_cut();
        assert!(!lifecycle.wait_drained(Duration::MAX));
    }
}
