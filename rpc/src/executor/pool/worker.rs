//! A worker, which begins jobs, polls them, and fires the pool's timers.

use super::shared::{Job, Next, Offloaded, Polled, SharedPool};
use super::work::{Work, drop_quietly};
use crate::call::context::InPool;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker as TaskWaker};
use trunkline_machine::{Machine, Sleeper, Turn, Waker};
use trunkline_verbs::Time;

/// Wakes the blocking job that occupies a worker.
struct Bell {
    is_rung: AtomicBool,
    waker: Waker,
}

impl Bell {
    fn take(&self) -> bool {
        // SYNC: blocking-job-woken
        self.is_rung.swap(false, Ordering::SeqCst)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // SYNC: blocking-job-woken
        self.is_rung.store(true, Ordering::SeqCst);
        self.waker.wake();
    }
}

pub(super) struct Worker {
    pool: Arc<SharedPool>,
    index: usize,
    sleeper: Sleeper,
    bell: Arc<Bell>,
    /// The blocking job that occupies the worker until the job ends.
    blocking: Option<Box<dyn Work>>,
    /// A job that has ended. Its waiter is notified after the job's simulated time has passed.
    ended: Option<Box<dyn Work>>,
    is_asleep: bool,
}

impl Worker {
    /// Creates the worker with this index, from the two halves of a sleep.
    pub(super) fn new(pool: Arc<SharedPool>, index: usize, sleeper: Sleeper, waker: Waker) -> Self {
        let bell = Arc::new(Bell { is_rung: AtomicBool::new(false), waker });
        Self { pool, index, sleeper, bell, blocking: None, ended: None, is_asleep: false }
    }

    fn begin(&mut self, job: Job) {
        match job {
            Job::Offloaded(offloaded) => self.resume(&offloaded),
            Job::Blocking(_, begin) => {
                self.blocking = Some(begin.begin());
                self.poll_blocking();
            }
        }
    }

    fn resume(&mut self, offloaded: &Arc<Offloaded>) {
        match offloaded.poll() {
            Polled::Pending => {}
            Polled::Ended(work) => self.ended = Some(work),
            Polled::Cancelled(work) => {
                drop_quietly(work);
                self.pool.ended();
            }
        }
    }

    fn poll_blocking(&mut self) {
        let waker = TaskWaker::from(Arc::clone(&self.bell));
        let Some(work) = &mut self.blocking else { return };
        if work.poll(&mut Context::from_waker(&waker)) {
            self.ended = self.blocking.take();
        }
    }

    /// Runs the next task. Returns `None` if there is none.
    fn work(&mut self) -> Option<Turn> {
        let pool = Arc::clone(&self.pool);
        let _here = InPool::enter(pool.lifecycle(), pool.timers());
        let _inside = pool.runtime_guard().enter();
        let now = pool.clock().now();
        pool.timers().fire(now);
        if let Some(ended) = self.ended.take() {
            ended.finish();
            pool.ended();
            return Some(Turn::Again);
        }
        if self.blocking.is_some() {
            if !self.bell.take() {
                return None;
            }
            self.poll_blocking();
            return Some(Turn::Again);
        }
        match pool.next(self.index, now) {
            Next::Begin(job) => self.begin(job),
            Next::Resume(offloaded) => self.resume(&offloaded),
            Next::Nothing => return None,
            Next::Closed => return Some(Turn::Done),
        }
        Some(Turn::Again)
    }

    /// Checks for work again before sleeping. Returns true if there is none.
    fn may_sleep(&self) -> bool {
        if self.blocking.is_some() {
            // SYNC: blocking-job-woken
            return !self.bell.is_rung.load(Ordering::SeqCst);
        }
        self.pool.rest(self.index)
    }
}

impl Machine for Worker {
    fn turn(&mut self) -> Turn {
        if std::mem::take(&mut self.is_asleep) {
            self.sleeper.awake();
        }
        if let Some(turn) = self.work() {
            return turn;
        }
        self.sleeper.announce();
        if !self.may_sleep() {
            self.sleeper.awake();
            return Turn::Again;
        }
        self.is_asleep = true;
        Turn::Sleep(self.pool.timers().next())
    }

    fn sleep(&mut self, until: Option<Time>) {
        if let Err(error) = self.sleeper.sleep(until) {
            tracing::error!(%error, "worker could not wait for jobs");
        }
    }

    fn is_woken(&self) -> bool {
        self.sleeper.is_woken()
    }

    fn is_due(&self) -> bool {
        if self.blocking.is_some() {
            return self.bell.is_rung.load(Ordering::SeqCst);
        }
        self.pool.is_forgotten(self.index)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop_quietly((self.ended.take(), self.blocking.take()));
        self.pool.worker_ended();
    }
}
