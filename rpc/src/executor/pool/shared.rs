//! The state shared by a pool's pollers and workers, which consists of jobs, their queue, the stages of workers, and
//! wake-ups.
//!
//! One lock guards the state. It is never held while code of the program runs. A worker becomes idle under the lock, and a
//! thread that adds a job marks an idle worker as woken. Jobs therefore do not wait while a worker sleeps.

use super::work::{Begin, Work, drop_quietly};
use crate::executor::runtime_guard::RuntimeGuard;
use crate::executor::timers::Timers;
use crate::node::fork_lock::Lock;
use crate::node::lifecycle::Lifecycle;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::wire::name::MethodName;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, Weak};
use std::task::{Context, Wake, Waker as TaskWaker};
use trunkline_machine::Waker;
use trunkline_machine::mutant;
use trunkline_transport::budget::{Budget, Share};
use trunkline_transport::histogram::HistogramWriter;
use trunkline_transport::{BudgetReport, Limit, MethodReport, PeerHosts, PeerKey};
use trunkline_verbs::{Clock, Time};

/// Name of the setting for queued jobs, used in refusals.
const QUEUED_JOBS: &str = "queued_jobs";

/// Settings of a pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolSettings {
    /// Number of threads; `None` for the default.
    pub(crate) workers: Option<u16>,
    /// Limit on queued jobs.
    pub(crate) queued: Limit,
}

/// Progress of an offloaded job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The job is queued for its first poll, or queued again after a wake-up.
    Queued,
    /// A worker polls the job.
    Polled,
    /// A worker polls the job, and the job was woken during the poll.
    PolledAndWoken,
    /// The job waits for its waker.
    Waiting,
    Ended,
}

/// An offloaded job, which is also its own waker.
pub(super) struct Offloaded {
    pub(super) method: &'static MethodName,
    pool: Arc<SharedPool>,
    phase: Lock<Phase>,
    /// `None` during a poll, and after the job has ended.
    work: Lock<Option<Box<dyn Work + Send>>>,
    is_cancelled: AtomicBool,
}

/// Result of polling an offloaded job.
pub(super) enum Polled {
    /// The job waits for its waker or is queued.
    Pending,
    /// The job has ended. The caller passes on the outcome.
    Ended(Box<dyn Work>),
    /// The job was cancelled. The caller drops the work.
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
            phase: Lock::new(Phase::Queued),
            work: Lock::new(Some(work)),
            is_cancelled: AtomicBool::new(false),
        })
    }

    /// Cancels the job, which is dropped instead of being polled again.
    pub(super) fn cancel(self: &Arc<Self>) {
        // SYNC: job-cancelled
        self.is_cancelled.store(true, Ordering::Release);
        self.wake_by_ref();
    }

    /// Takes the future of a job that no worker polls, and marks the job as ended.
    pub(super) fn take(&self) -> Option<Box<dyn Work + Send>> {
        *self.phase.lock() = Phase::Ended;
        self.work.lock().take()
    }

    /// Polls the job once.
    pub(super) fn poll(self: &Arc<Self>) -> Polled {
        *self.phase.lock() = Phase::Polled;
        let work = self.work.lock().take();
        // SYNC: job-cancelled
        let is_cancelled = self.is_cancelled.load(Ordering::Acquire);
        let Some(mut work) = work else {
            *self.phase.lock() = Phase::Ended;
            return Polled::Cancelled(None);
        };
        if is_cancelled && !mutant!(cancelled_futures_stay_in_the_pool) {
            *self.phase.lock() = Phase::Ended;
            return Polled::Cancelled(Some(work));
        }
        let waker = TaskWaker::from(Arc::clone(self));
        if work.poll(&mut Context::from_waker(&waker)) {
            *self.phase.lock() = Phase::Ended;
            return Polled::Ended(work);
        }
        *self.work.lock() = Some(work);
        let is_woken = {
            let mut phase = self.phase.lock();
            let is_woken = *phase == Phase::PolledAndWoken;
            *phase = if is_woken { Phase::Queued } else { Phase::Waiting };
            is_woken
        };
        if is_woken {
            self.pool.wake(Arc::clone(self));
        }
        Polled::Pending
    }
}

impl Wake for Offloaded {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A forked child does not run the job, and a thread of the parent may hold the lock.
        if self.pool.lifecycle().is_forked() {
            return;
        }
        let is_waiting = {
            let mut phase = self.phase.lock();
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

/// A job that no worker has begun.
pub(super) enum Job {
    Offloaded(Arc<Offloaded>),
    Blocking(&'static MethodName, Box<dyn Begin>),
}

impl Job {
    /// Ends the job without running it.
    fn refuse(self, why: Status) {
        match self {
            Self::Offloaded(offloaded) => {
                if let Some(work) = offloaded.take() {
                    work.refuse(why);
                }
            }
            Self::Blocking(_, begin) => begin.refuse(why),
        }
    }

    /// Drops the job without notifying its waiter.
    pub(super) fn discard(self) {
        match self {
            Self::Offloaded(offloaded) => drop_quietly(offloaded.take()),
            Self::Blocking(_, begin) => drop_quietly(begin),
        }
    }
}

/// Number of a job, in order of arrival. Numbers are not reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JobNumber(u64);

struct Waiting {
    peer: PeerKey,
    since: Time,
    job: Job,
}

/// State of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Busy,
    /// The worker sleeps or is about to sleep. It has not been woken.
    Idle,
    /// The worker has been woken but has not taken any work.
    Woken,
}

struct OfWorker {
    waker: Waker,
    stage: Stage,
    /// Method that the worker runs.
    runs: Option<&'static MethodName>,
}

struct PoolState {
    /// Jobs that have not begun, in order of arrival.
    queue: BTreeMap<u64, Waiting>,
    next: u64,
    /// Queueing times of jobs, by service and method.
    waits: BTreeMap<(&'static str, &'static str), Box<HistogramWriter>>,
    /// Share of the budget for queued jobs.
    share: Share,
    /// Jobs that have begun and have been woken.
    woken: VecDeque<Arc<Offloaded>>,
    workers: Vec<OfWorker>,
    /// Pollers that have not ended.
    pollers: u16,
    /// True if new jobs are refused.
    is_draining: bool,
    /// True if no more jobs arrive. Workers then end once the queues are empty.
    is_closed: bool,
    /// True if a woken job goes before a new job. Woken and new jobs take turns.
    turn_of_woken: bool,
}

/// The next task of a worker.
pub(super) enum Next {
    Begin(Job),
    Resume(Arc<Offloaded>),
    Nothing,
    /// The worker ends.
    Closed,
}

/// The state of a pool, shared by its pollers and workers.
pub(crate) struct SharedPool {
    state: Lock<PoolState>,
    /// Workers that have not ended.
    live: AtomicUsize,
    budget: Arc<Budget>,
    lifecycle: Arc<Lifecycle>,
    clock: Clock,
    runtime_guard: RuntimeGuard,
    timers: Arc<Timers>,
}

impl SharedPool {
    /// Creates a pool without workers for a node with this number of pollers.
    pub(crate) fn new(
        queued: Limit,
        pollers: u16,
        lifecycle: &Arc<Lifecycle>,
        clock: Clock,
        runtime_guard: RuntimeGuard,
        hosts: &Arc<PeerHosts>,
    ) -> Arc<Self> {
        let budget = Budget::new("jobs that wait for a worker", queued, 1, hosts);
        let state = PoolState {
            queue: BTreeMap::new(),
            next: 0,
            waits: BTreeMap::new(),
            share: Share::new(&budget, 0),
            woken: VecDeque::new(),
            workers: Vec::new(),
            pollers,
            is_draining: false,
            is_closed: false,
            turn_of_woken: false,
        };
        Arc::new_cyclic(|pool: &Weak<Self>| {
            let pool = Weak::clone(pool);
            let earlier = move || {
                pool.upgrade().inspect(|pool| pool.timer_was_set());
            };
            Self {
                state: Lock::new(state),
                live: AtomicUsize::new(0),
                budget,
                lifecycle: Arc::clone(lifecycle),
                timers: Arc::new(Timers::shared(clock.clone(), earlier)),
                clock,
                runtime_guard,
            }
        })
    }

    /// Adds a worker with its waker. Returns the worker's index.
    pub(super) fn add_worker(&self, waker: Waker) -> usize {
        let mut state = self.state.lock();
        self.live.fetch_add(1, Ordering::Relaxed);
        state.workers.push(OfWorker { waker, stage: Stage::Busy, runs: None });
        state.workers.len() - 1
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) fn runtime_guard(&self) -> &RuntimeGuard {
        &self.runtime_guard
    }

    pub(super) fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// Returns the timers for jobs.
    pub(super) fn timers(&self) -> &Arc<Timers> {
        &self.timers
    }

    /// Returns the use of the budget for queued jobs, for the node's report.
    pub(crate) fn report(&self) -> BudgetReport {
        self.budget.report()
    }

    /// Adds the queueing times of jobs to the rows of their methods.
    pub(crate) fn add_waits(&self, rows: &mut [MethodReport]) {
        let state = self.state.lock();
        for row in rows {
            let waits = state.waits.get(&(row.service, row.method));
            waits.into_iter().for_each(|waits| waits.add_to(&mut row.queued));
        }
    }

    /// Queues a job for a peer.
    ///
    /// # Errors
    /// Returns the job, and a status with the reason why it is refused.
    pub(super) fn submit(&self, peer: PeerKey, job: Job) -> Result<JobNumber, (Status, Job)> {
        let since = self.clock.now();
        let mut state = self.state.lock();
        if state.is_draining || state.is_closed {
            self.lifecycle.counters.refused.add();
            return Err((draining(), job));
        }
        if let Err(exhausted) = state.share.take(peer, 1) {
            let text = format!("{exhausted} (setting {QUEUED_JOBS} of the server)");
            let status = Status::not_run(Code::ResourceExhausted, text).because(Reason::Overloaded);
            return Err((status, job));
        }
        let number = state.next;
        state.next += 1;
        state.queue.insert(number, Waiting { peer, since, job });
        self.lifecycle.job_begins();
        let waker = if mutant!(jobs_wake_no_worker) { None } else { state.wake_one() };
        drop(state);
        wake(waker);
        Ok(JobNumber(number))
    }

    /// Removes a queued job whose caller no longer waits. Returns `None` if the job has begun.
    pub(super) fn withdraw(&self, JobNumber(number): JobNumber) -> Option<Job> {
        if mutant!(withdrawn_jobs_stay_queued) {
            return None;
        }
        let mut state = self.state.lock();
        let Waiting { peer, job, .. } = state.queue.remove(&number)?;
        state.leaves_queue(peer);
        drop(state);
        self.lifecycle.job_ends();
        Some(job)
    }

    /// Queues a woken job. Does nothing in a forked child, which has no workers, and where a thread of the parent may hold
    /// the lock.
    pub(super) fn wake(&self, job: Arc<Offloaded>) {
        if self.lifecycle.is_forked() {
            return;
        }
        let mut state = self.state.lock();
        if state.is_closed && self.is_ended() {
            drop(state);
            return drop_quietly(job.take());
        }
        state.woken.push_back(job);
        let waker = state.wake_one();
        drop(state);
        wake(waker);
    }

    /// Wakes an idle worker, so that it does not sleep past a new timer that is due before all others.
    fn timer_was_set(&self) {
        if self.lifecycle.is_forked() {
            return;
        }
        let waker = self.state.lock().wake_one();
        wake(waker);
    }

    /// Returns a worker's next task. The worker does not check the timers during the task. If timers are set, an idle worker
    /// is woken to check them, because it may have gone to sleep before they were set.
    pub(super) fn next(&self, worker: usize, now: Time) -> Next {
        let next = self.take(worker, now);
        if matches!(next, Next::Begin(_) | Next::Resume(_)) && self.timers().next().is_some() {
            let waker = self.state.lock().wake_one();
            wake(waker);
        }
        next
    }

    fn take(&self, worker: usize, now: Time) -> Next {
        let mut state = self.state.lock();
        state.set(worker, Stage::Busy, None);
        let woken_first = std::mem::replace(&mut state.turn_of_woken, false);
        if (woken_first || state.queue.is_empty())
            && let Some(job) = state.woken.pop_front()
        {
            state.set(worker, Stage::Busy, Some(job.method));
            return Next::Resume(job);
        }
        let Some((_, Waiting { peer, since, job })) = state.queue.pop_first() else {
            return if state.is_closed { Next::Closed } else { Next::Nothing };
        };
        state.leaves_queue(peer);
        state.turn_of_woken = true;
        let method = match &job {
            Job::Offloaded(offloaded) => offloaded.method,
            Job::Blocking(method, _) => method,
        };
        state.waits.entry((method.service.name, method.name)).or_default().record(now.since(since));
        state.set(worker, Stage::Busy, Some(method));
        Next::Begin(job)
    }

    /// Marks a worker as idle unless there is work. Returns true if the worker may sleep.
    pub(super) fn rest(&self, worker: usize) -> bool {
        let mut state = self.state.lock();
        let has_work = !state.queue.is_empty() || !state.woken.is_empty() || state.is_closed;
        state.set(worker, if has_work { Stage::Busy } else { Stage::Idle }, None);
        !has_work
    }

    /// Returns true if a worker sleeps although there is work, and no other worker has been woken.
    pub(super) fn is_forgotten(&self, worker: usize) -> bool {
        let state = self.state.lock();
        let is_idle = state.workers.get(worker).is_some_and(|worker| worker.stage == Stage::Idle);
        let has_work = !state.queue.is_empty() || !state.woken.is_empty();
        is_idle && has_work && state.workers.iter().all(|worker| worker.stage != Stage::Woken)
    }

    /// Returns the method that a worker runs, for reporting stalls.
    pub(super) fn runs(&self, worker: usize) -> Option<&'static MethodName> {
        self.state.lock().workers.get(worker)?.runs
    }

    pub(super) fn worker_ended(&self) {
        if self.live.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        let mut state = self.state.lock();
        state.is_closed = true;
        let woken = std::mem::take(&mut state.woken);
        self.refuse_all(state);
        // The queues are empty unless a worker panicked or a simulation killed the process.
        woken.into_iter().for_each(|job| drop_quietly(job.take()));
    }

    /// Returns true if all workers have ended.
    pub(crate) fn is_ended(&self) -> bool {
        self.live.load(Ordering::Relaxed) == 0
    }

    /// Records that a job has ended.
    pub(super) fn ended(&self) {
        self.lifecycle.job_ends();
    }

    /// Refuses jobs that have not begun, including later ones, because the node drains.
    pub(crate) fn drain(&self) {
        let mut state = self.state.lock();
        state.is_draining = true;
        self.refuse_all(state);
    }

    /// Records that one of the node's pollers has ended. The workers end after the last poller.
    pub(crate) fn poller_ended(&self) {
        let mut state = self.state.lock();
        state.pollers = state.pollers.saturating_sub(1);
        if state.pollers == 0 {
            drop(state);
            self.close();
        }
    }

    /// Lets the workers end when the queues are empty.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let wakers = std::iter::from_fn(|| state.wake_one()).collect::<Vec<_>>();
        self.refuse_all(state);
        wakers.into_iter().for_each(|waker| waker.wake());
    }

    fn refuse_all(&self, mut state: MutexGuard<'_, PoolState>) {
        let queue = std::mem::take(&mut state.queue);
        for waiting in queue.values() {
            state.leaves_queue(waiting.peer);
        }
        drop(state);
        for Waiting { job, .. } in queue.into_values() {
            self.lifecycle.counters.refused.add();
            job.refuse(draining());
            self.lifecycle.job_ends();
        }
    }
}

impl PoolState {
    fn set(&mut self, worker: usize, stage: Stage, runs: Option<&'static MethodName>) {
        if let Some(worker) = self.workers.get_mut(worker) {
            (worker.stage, worker.runs) = (stage, runs);
        }
    }

    /// Removes a queued job from the count for its peer. Removes the count if the peer has no more jobs.
    fn leaves_queue(&mut self, peer: PeerKey) {
        self.share.put_back(peer, 1);
        if self.share.used_by(peer) == 0 {
            self.share.leave(peer);
        }
    }

    /// Takes an idle worker, to be woken after the lock is released.
    fn wake_one(&mut self) -> Option<Waker> {
        let worker = self.workers.iter_mut().find(|worker| worker.stage == Stage::Idle)?;
        worker.stage = Stage::Woken;
        Some(worker.waker.clone())
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Returns the status of a job refused by a draining node.
fn draining() -> Status {
    let text = "the server is draining: it begins no jobs that wait for a worker";
    Status::not_run(Code::Unavailable, text).because(Reason::Draining)
}

impl fmt::Debug for SharedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("SharedPool")
            .field("workers", &state.workers.len())
            .field("queued", &state.queue.len())
            .finish_non_exhaustive()
    }
}
