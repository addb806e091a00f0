//! The threads of a pool. They are started and ended with the node.

use super::shared::{PoolSettings, SharedPool};
use super::worker::Worker;
use crate::executor::runtime_guard::RuntimeGuard;
use crate::node::fork_lock::Lock;
use crate::node::lifecycle::Lifecycle;
use crate::node::start_error::StartError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use trunkline_machine::{Machine, NotJoined, Running, Runtime, Sleeper, Waker};
use trunkline_transport::PeerHosts;
use trunkline_transport::check::MAX_COUNT;
use trunkline_verbs::{Clock, Time};

/// Maximum number of workers.
const MOST: u16 = 1024;
/// Number of workers in a simulation by default, and minimum default elsewhere.
const FEW: usize = 2;

/// A pool and its threads.
#[derive(Debug)]
pub(crate) struct PoolThreads {
    pool: Arc<SharedPool>,
    clock: Clock,
    /// Sleepers and wakers of threads that have not started.
    parts: Lock<Vec<(Sleeper, Waker)>>,
    /// Time at which running workers are abandoned, in ns. It is the earliest time set by any shutdown.
    abandon_at: AtomicU64,
    /// Threads that have not been joined, with their indices.
    running: Lock<Vec<(usize, Running)>>,
}

impl PoolThreads {
    /// Creates the pool of a node with this number of pollers. The threads are not started.
    ///
    /// # Errors
    /// Returns an error if a setting is out of range, or if the system has no file descriptors left.
    pub(crate) fn new(
        settings: PoolSettings,
        pollers: u16,
        lifecycle: &Arc<Lifecycle>,
        runtime: &Runtime,
        runtime_guard: RuntimeGuard,
        hosts: &Arc<PeerHosts>,
    ) -> Result<Self, StartError> {
        let clock = runtime.clock().clone();
        let pool = SharedPool::new(settings.queued, pollers, lifecycle, clock.clone(), runtime_guard, hosts);
        let workers = Self::workers(settings, runtime);
        let parts = (0..workers).map(|_| runtime.sleeper()).collect::<Result<Vec<_>, _>>();
        let parts = parts.map_err(|cause| StartError::os("make an event queue", cause))?;
        let abandon_at = AtomicU64::new(u64::MAX);
        Ok(Self { pool, clock, parts: Lock::new(parts), abandon_at, running: Lock::default() })
    }

    /// Returns an error for invalid settings.
    pub(crate) fn check(settings: PoolSettings) -> Result<(), StartError> {
        if let Some(workers) = settings.workers.filter(|workers| !(1..=MOST).contains(workers)) {
            return Err(StartError::bad_option("workers", usize::from(workers), "choose 1 to 1024"));
        }
        let checked = settings.queued.check("queued_jobs", 1..=MAX_COUNT, "choose 1 to 4294967295");
        checked.map_err(StartError::from_transport)
    }

    /// Returns the number of threads for a pool with these settings.
    pub(crate) fn workers(settings: PoolSettings, runtime: &Runtime) -> usize {
        settings.workers.map_or_else(|| by_default(runtime), usize::from)
    }

    pub(crate) fn pool(&self) -> &Arc<SharedPool> {
        &self.pool
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// Returns an error if the system cannot start another thread.
    pub(crate) fn start(&self, runtime: &Runtime) -> Result<(), StartError> {
        let parts = std::mem::take(&mut *self.parts.lock());
        for (sleeper, waker) in parts {
            let index = self.pool.add_worker(waker.clone());
            let pool = Arc::clone(&self.pool);
            let make = move || {
                let worker = Worker::new(pool, index, sleeper, waker);
                Ok(Box::new(worker) as Box<dyn Machine>)
            };
            let running = runtime.spawn(&format!("trunkline-work-{index}"), Box::new(make));
            let running = running.map_err(|cause| StartError::os("start a thread", cause))?;
            self.running.lock().push((index, running));
        }
        Ok(())
    }

    /// Sets the time at which running workers are abandoned, unless an earlier time is set.
    pub(crate) fn abandon_at(&self, at: Time) {
        self.abandon_at.fetch_min(at.0, Ordering::Relaxed);
    }

    /// Waits for the workers until the time at which they are abandoned. The log lists workers that are still running.
    pub(crate) fn end(&self) {
        self.pool.close();
        let left =
            || Time(self.abandon_at.load(Ordering::Relaxed)).saturating_duration_since(self.clock.now());
        for (index, running) in self.running.lock().drain(..) {
            match running.join_within(|| left().max(Duration::from_millis(1))) {
                Ok(()) => {}
                Err(NotJoined::Panicked) => {
                    tracing::error!(worker = index, "worker panicked")
                }
                Err(NotJoined::Abandoned) => {
                    let runs =
                        self.pool.runs(index).map_or_else(|| "no handler".to_owned(), ToString::to_string);
                    tracing::error!(
                        worker = index,
                        occupied_by = %runs,
                        remedy = "have the handler return: until then its thread keeps what it uses",
                        "worker not ended after the grace period; its thread is abandoned"
                    );
                }
            }
        }
    }
}

impl Drop for PoolThreads {
    /// Closes the pool without waiting for the workers, which then end by themselves.
    fn drop(&mut self) {
        self.pool.close();
    }
}

/// Returns the default number of threads, which is one per CPU, within limits.
fn by_default(runtime: &Runtime) -> usize {
    if runtime.is_simulated() {
        return FEW;
    }
    std::thread::available_parallelism().map_or(FEW, usize::from).clamp(FEW, usize::from(MOST))
}
