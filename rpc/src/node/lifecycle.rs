//! The phase of a node, which is serving, draining or ending.
//!
//! Each node has one [`Lifecycle`], shared by its handle, its pollers and their inboxes. The handle advances the phase,
//! which never goes back. Pollers report when their handlers have ended. Only [`Lifecycle::wait_drained`] blocks.

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

/// Maximum number of services and methods that are logged as not served. It is limited because peers choose the hashes.
const MOST_LOGGED: usize = 64;

const SERVING: u8 = 0;
/// Phase in which requests from peers are refused and all other work continues.
const DRAINING: u8 = 1;
/// Phase in which calls from outside handlers are refused too.
const ENDING: u8 = 2;

/// Phase and counters of a node.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    /// The process that runs the node's threads.
    process: Process,
    phase: AtomicU8,
    pub(crate) counters: Counters,
    /// Hashes of the services and methods that were logged as not served.
    logged: Lock<BTreeSet<u64>>,
    /// Number of queued and running jobs in the worker pool, including abandoned ones.
    jobs: AtomicUsize,
    left: Lock<Left>,
    changed: Condvar,
    /// Wakers of handlers that wait for the drain.
    waiting: Waiters,
}

/// A number of events since the node started.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of requests and calls that are not counted per method.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Requests that were refused because the node is draining.
    pub(crate) refused: Counter,
    /// Requests with an unknown critical extension.
    pub(crate) unknown_extensions: Counter,
    /// One-way requests for methods that this node does not serve.
    pub(crate) not_served: Counter,
    /// One-way calls from this node that their server did not serve.
    pub(crate) not_served_by_peers: Counter,
    /// One-way requests for served methods that failed.
    pub(crate) one_way_failed: Counter,
    /// Requests refused by `NodeBuilder::authorize`.
    pub(crate) unauthorised: Counter,
    /// Calls that were hedged.
    pub(crate) hedged: Counter,
    /// Hedged calls whose second attempt decided the outcome.
    pub(crate) hedges_won: Counter,
}

/// Handle to the node's drain state, for the call contexts of one poller. Each poller has a separate handle, so that pollers
/// do not contend for one reference count.
#[derive(Debug)]
pub(crate) struct Drain(Arc<Lifecycle>);

impl Drain {
    pub(crate) fn new(lifecycle: &Arc<Lifecycle>) -> Arc<Self> {
        Arc::new(Self(Arc::clone(lifecycle)))
    }

    /// Returns true if requests from peers are refused.
    pub(crate) fn has_begun(&self) -> bool {
        self.0.is_draining()
    }

    /// Registers a waker for the start of the drain. Returns true if the drain has begun.
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
    /// Number of pollers that have not reported that their handlers have ended.
    pollers: u16,
    /// True if a poller dropped running handlers, or ended before they did.
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

    /// Returns true in a forked child, which lacks the node's threads. The child must not wait for such a thread, or take a
    /// lock that such a thread may have held.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.process.is_forked()
    }

    /// Returns the poll result of an unfinished call or task. In a forked child it is an error, because the call or task can
    /// never finish.
    pub(crate) fn pending<T>(&self) -> Poll<Result<T, Status>> {
        if self.is_forked() { Poll::Ready(Err(lost_in_child())) } else { Poll::Pending }
    }

    /// Begins the drain, so that pollers refuse requests. Wake the pollers afterwards, so that they report. Returns true if
    /// the node was serving.
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

    /// Returns true if requests from peers are refused.
    pub(crate) fn is_draining(&self) -> bool {
        self.phase.load(Ordering::Acquire) >= DRAINING
    }

    /// Returns true if calls from outside handlers are refused.
    pub(crate) fn is_ending(&self) -> bool {
        self.phase.load(Ordering::Acquire) >= ENDING
    }

    /// Counts a one-way request for a service or method that this node does not serve. Returns true if it is to be logged,
    /// which applies to the first request with this hash.
    pub(crate) fn count_not_served(&self, hash: u64) -> bool {
        self.counters.not_served.add();
        let mut logged = self.logged.lock();
        logged.len() < MOST_LOGGED && logged.insert(hash)
    }

    /// Records that all handlers of a poller have ended and that it starts no more. Each poller reports once.
    pub(crate) fn poller_drained(&self) {
        self.left.lock().pollers -= 1;
        self.changed.notify_all();
    }

    /// Records that a poller dropped running handlers, or ended before they did.
    pub(crate) fn poller_cut(&self) {
        self.left.lock().is_cut = true;
        self.changed.notify_all();
    }

    /// Counts a job of the worker pool, which is about to be queued.
    pub(crate) fn job_begins(&self) {
        self.jobs.fetch_add(1, Ordering::SeqCst);
    }

    /// Records that a job has ended or was removed from the queue.
    pub(crate) fn job_ends(&self) {
        if self.jobs.fetch_sub(1, Ordering::SeqCst) == 1 && self.is_draining() {
            // Waiters check the number while they hold the lock, so taking it here prevents a lost wake-up.
            let _left = self.left.lock();
            self.changed.notify_all();
        }
    }

    /// Returns the number of queued and running jobs.
    pub(crate) fn jobs(&self) -> usize {
        self.jobs.load(Ordering::SeqCst)
    }

    /// Returns true if the handlers of all pollers and the jobs of the pool have ended.
    pub(crate) fn is_drained(&self) -> bool {
        !self.is_forked() && self.left.lock().pollers == 0 && self.jobs() == 0
    }

    /// Waits until the handlers of all pollers and the jobs of the pool have ended, at most for `limit`. Returns true if
    /// they have ended.
    pub(crate) fn wait_drained(&self, limit: Duration) -> bool {
        if self.is_forked() {
            return false;
        }
        let waits = |left: &mut Left| (left.pollers > 0 || self.jobs() > 0) && !left.is_cut;
        let waited = self.changed.wait_timeout_while(self.left.lock(), limit, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.pollers == 0 && self.jobs() == 0
    }
}

/// Returns the status of a call on a channel whose node has not started.
#[cold]
pub(crate) fn not_started() -> Status {
    let text = "the node of this client has not started: make calls after NodeBuilder::start of its builder";
    Status::not_run(Code::FailedPrecondition, text).because(Reason::Misuse)
}

/// Returns the status of a call or task that is started in a forked child.
#[cold]
pub(crate) fn refused_in_child() -> Status {
    Status::not_run(Code::FailedPrecondition, FORKED).because(Reason::Misuse)
}

/// Returns the status of a call or task that was started before a fork and is polled in the child.
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
