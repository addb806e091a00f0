//! An offloaded future between its polls, and the waker that queues it again.

use super::shared::SharedPool;
use super::work::Work;
use crate::wire::name::MethodName;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};
use trunkline_machine::mutant;

/// Progress of an offloaded job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Queued for its first poll, or woken and queued again.
    Queued,
    /// A worker polls it.
    Polled,
    /// A worker polls it, and it was woken meanwhile.
    PolledAndWoken,
    /// Waits for its waker.
    Waiting,
    Ended,
}

/// An offloaded job. Its waker is itself.
pub(super) struct Offloaded {
    pub(super) method: &'static MethodName,
    pool: Arc<SharedPool>,
    phase: Mutex<Phase>,
    /// `None` while it is polled, and once it has ended.
    work: Mutex<Option<Box<dyn Work + Send>>>,
    is_cancelled: AtomicBool,
}

/// Result of a poll of an offloaded job.
pub(super) enum Polled {
    /// Waits for its waker, or in the queue.
    Pending,
    /// Ended; the caller hands over the outcome.
    Ended(Box<dyn Work>),
    /// Cancelled; the caller drops the work.
    Cancelled(Option<Box<dyn Work + Send>>),
}

impl Offloaded {
    pub(super) fn new(
        pool: &Arc<SharedPool>,
        method: &'static MethodName,
        work: Box<dyn Work + Send>,
    ) -> Arc<Self> {
        Arc::new(Self {
            method,
            pool: Arc::clone(pool),
            phase: Mutex::new(Phase::Queued),
            work: Mutex::new(Some(work)),
            is_cancelled: AtomicBool::new(false),
        })
    }

    /// Cancels the job: it is dropped instead of polled from now on.
    pub(super) fn cancel(self: &Arc<Self>) {
        // SYNC: job-cancelled
        self.is_cancelled.store(true, Ordering::Release);
        self.wake_by_ref();
    }

    /// Takes the future of a job that has not begun.
    pub(super) fn take(&self) -> Option<Box<dyn Work + Send>> {
        *self.phase() = Phase::Ended;
        self.work().take()
    }

    /// Polls it once.
    pub(super) fn poll(self: &Arc<Self>) -> Polled {
        *self.phase() = Phase::Polled;
        let work = self.work().take();
        // SYNC: job-cancelled
        let is_cancelled = self.is_cancelled.load(Ordering::Acquire);
        let Some(mut work) = work else {
            *self.phase() = Phase::Ended;
            return Polled::Cancelled(None);
        };
        if is_cancelled && !mutant!(cancelled_futures_stay_in_the_pool) {
            *self.phase() = Phase::Ended;
            return Polled::Cancelled(Some(work));
        }
        let waker = Waker::from(Arc::clone(self));
        if work.poll(&mut Context::from_waker(&waker)) {
            *self.phase() = Phase::Ended;
            return Polled::Ended(work);
        }
        *self.work() = Some(work);
        let is_woken = {
            let mut phase = self.phase();
            let is_woken = *phase == Phase::PolledAndWoken;
            *phase = if is_woken { Phase::Queued } else { Phase::Waiting };
            is_woken
        };
        if is_woken {
            self.pool.wake(Arc::clone(self));
        }
        Polled::Pending
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) -> MutexGuard<'_, Option<Box<dyn Work + Send>>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Offloaded {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A forked child does not run it, and a thread of the parent may have left the lock taken.
        if self.pool.lifecycle().is_forked() {
            return;
        }
        let is_waiting = {
            let mut phase = self.phase();
            let is_waiting = *phase == Phase::Waiting;
            match *phase {
                Phase::Waiting => *phase = Phase::Queued,
                Phase::Polled => *phase = Phase::PolledAndWoken,
                Phase::Queued | Phase::PolledAndWoken | Phase::Ended => {}
            }
            is_waiting
        };
        if is_waiting {
            self.pool.wake(Arc::clone(self));
        }
    }
}

impl fmt::Debug for Offloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offloaded")
            .field("method", self.method)
            .field("phase", &*self.phase())
            .finish_non_exhaustive()
    }
}
