//! The queue from other threads to the RPC half of a poller, with a handle that wakes the poller.
//!
//! The queue is bounded and lock-free. When it is full, tasks and calls with [`AdmissionClass::Tries`] are refused, and all
//! other work goes to an overflow list. Later work also goes to the list until it is empty, so that the calls of a thread
//! stay in order. Operations do not block.

use crate::call::context::Spawn;
use crate::call::{AdmissionClass, Opening, Outcome, Submission};
use crate::client::routes::id::{Resolved, RouteId};
use crate::client::routes::{Pollers, Watched};
use crate::executor::running_handler::RunningHandler;
use crate::executor::timers::Timers;
use crate::executor::wakes::{Collecting, Wakes};
use crate::node::budgets::SharedMemory;
use crate::node::fork_lock::Lock;
use crate::node::lifecycle::{Drain, Lifecycle};
use crate::observe::counted::CountedMethods;
use crate::observe::recorder::Recorder;
use crate::stream::{CallStream, Changes, StreamHost};
use crate::wire::frame::Encoded;
use crossbeam_queue::ArrayQueue;
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use trunkline_machine::rings::cell::{self, Getter, Resting, Setter};
use trunkline_transport::{PollerHandle, RecordedEvent};
use trunkline_verbs::Clock;

/// Capacity of the queue. Calls beyond it go to the overflow list.
const DEPTH: usize = 4096;
/// Maximum number of argument buffers, and of outcome cells, that are kept for reuse.
const MAX_POOLED: usize = 256;
/// Maximum capacity of a buffer that is kept for reuse, in bytes. Larger buffers are freed.
const MAX_POOLED_BYTES: usize = 16 << 10;

/// Work that another thread requests from a poller.
pub(crate) enum Work {
    /// Start a call.
    Call(Submission<Setter<Outcome>>),
    /// Start a call that streams items.
    Open(Box<Opening>),
    /// Run a task.
    Spawn(Spawn),
    /// Check a route that has changed or that new calls wait for.
    Route(RouteId),
    /// Handle the result of a lookup.
    Resolved(Box<Resolved>),
    /// Watch the health of a service on a server.
    Watch(Weak<Watched>),
}

impl Work {
    /// Returns true if the work goes to the overflow list when the queue is full. This includes calls made by handlers,
    /// because a share of the budget is reserved for them and other calls must not block them.
    fn waits(&self) -> bool {
        match self {
            Self::Call(call) => call.entry != AdmissionClass::Tries,
            Self::Open(opening) => opening.submission.entry != AdmissionClass::Tries,
            Self::Spawn(_) => false,
            Self::Route(_) | Self::Resolved(_) | Self::Watch(_) => true,
        }
    }
}

/// The error when the queue is full.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Full;

/// The queue into one poller.
pub(crate) struct Inbox {
    work: ArrayQueue<Work>,
    /// Overflow list of `work`.
    more: Lock<VecDeque<Work>>,
    /// Length of `more`.
    listed: AtomicUsize,
    /// True if the future of a call was dropped. The poller then checks all its calls.
    sweep: AtomicBool,
    closed: AtomicBool,
    /// Streams of this poller's calls that have changed.
    changes: Changes,
    buffers: ArrayQueue<Encoded>,
    cells: ArrayQueue<Resting<Outcome>>,
    handle: OnceLock<PollerHandle>,
    wakes: Arc<Wakes>,
    /// Maximum memory of one decoded item in a stream, in bytes.
    most_decoded: OnceLock<usize>,
    /// The node's share of the memory for decoded arguments. Any thread may charge it.
    memory: OnceLock<SharedMemory>,
    /// The poller's timers.
    timers: OnceLock<Arc<Timers>>,
    lifecycle: Arc<Lifecycle>,
    running: RunningHandler,
    /// Counters of the methods that the poller serves, and of the methods that it calls.
    served: CountedMethods,
    called: CountedMethods,
    /// Recent calls of the poller, and recent failures.
    recorder: Recorder,
}

impl Inbox {
    /// Capacity of the queue. Calls beyond it go to the overflow list.
    pub(crate) const DEPTH: usize = DEPTH;
    /// Approximate size of one inbox, in bytes.
    pub(crate) const BYTES: usize = DEPTH * (size_of::<Work>() + size_of::<usize>())
        + MAX_POOLED * (size_of::<Encoded>() + size_of::<Resting<Outcome>>() + 2 * size_of::<usize>())
        + Recorder::BYTES;

    /// Creates the inbox for a poller of the node with this lifecycle.
    pub(crate) fn new(lifecycle: Arc<Lifecycle>, clock: Clock) -> Self {
        Self {
            work: ArrayQueue::new(DEPTH),
            more: Lock::default(),
            listed: AtomicUsize::new(0),
            sweep: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            changes: Changes::default(),
            buffers: ArrayQueue::new(MAX_POOLED),
            cells: ArrayQueue::new(MAX_POOLED),
            handle: OnceLock::new(),
            wakes: Arc::default(),
            most_decoded: OnceLock::new(),
            memory: OnceLock::new(),
            timers: OnceLock::new(),
            lifecycle,
            running: RunningHandler::default(),
            served: CountedMethods::new("server"),
            called: CountedMethods::new("client"),
            recorder: Recorder::new(clock),
        }
    }

    pub(crate) fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// Returns a handle to the node's drain state, for the contexts of this poller's calls.
    pub(crate) fn drain(&self) -> Arc<Drain> {
        Drain::new(&self.lifecycle)
    }

    /// Starts collecting the wakers of tasks during the poller's turn on this thread.
    pub(crate) fn collect_wakes(&self) -> Collecting {
        self.wakes.enter()
    }

    /// Wakes the tasks whose wakers the poller has collected. Called by the poller, and by each of these tasks when it runs.
    #[inline]
    pub(crate) fn wake_others(&self) {
        // In a forked child, popping could wait for a thread of the parent.
        if !self.wakes.is_empty() && !self.lifecycle.is_forked() {
            self.wakes.wake_all();
        }
    }

    /// Returns the marker for the code that the poller runs.
    pub(crate) fn running(&self) -> &RunningHandler {
        &self.running
    }

    pub(crate) fn served(&self) -> &CountedMethods {
        &self.served
    }

    pub(crate) fn called(&self) -> &CountedMethods {
        &self.called
    }

    /// Returns the rings of the poller's recent calls and failures.
    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Returns recent calls and failures as events of the poller with this index. The events have no calendar time.
    pub(crate) fn events(&self, poller: u16) -> Vec<RecordedEvent> {
        self.recorder.events([&self.served, &self.called], poller)
    }

    /// Attaches a poller that has started, and wakes it to check the queue.
    pub(crate) fn attach(&self, handle: PollerHandle) {
        let _ = self.handle.set(handle);
        self.wake();
    }

    /// Sets the maximum memory of one decoded item in a stream, in bytes, and the share that any thread may charge.
    pub(crate) fn set_memory(&self, most_decoded: usize, memory: SharedMemory) {
        let _ = self.most_decoded.set(most_decoded);
        let _ = self.memory.set(memory);
    }

    pub(crate) fn set_timers(&self, timers: Arc<Timers>) {
        let _ = self.timers.set(timers);
    }

    /// Returns the poller's timers. After setting a timer, another thread must push work, so that the poller checks its
    /// timers before it sleeps.
    pub(crate) fn timers(&self) -> Option<&Arc<Timers>> {
        self.timers.get()
    }

    /// Wakes the poller if it sleeps.
    pub(crate) fn wake(&self) {
        if let Some(handle) = self.handle.get() {
            handle.wake();
        }
    }

    /// Queues work and wakes the poller. Refused work is dropped, which completes a call.
    pub(crate) fn push(&self, work: Work) -> Result<(), Full> {
        // SYNC: listed. A thread reads the count of its last push or a later count, so its calls stay in order.
        let refused = if self.listed.load(Ordering::SeqCst) == 0 { self.work.push(work) } else { Err(work) };
        if let Err(work) = refused {
            if !work.waits() {
                return Err(Full);
            }
            let mut more = self.more.lock();
            more.push_back(work);
            self.listed.store(more.len(), Ordering::SeqCst);
        }
        // `close` first stores, then clears. This function first pushes, then loads. With sequential consistency, at least
        // one side sees the other's write, so the queue is emptied.
        if self.closed.load(Ordering::SeqCst) {
            self.clear();
        }
        self.wake();
        Ok(())
    }

    pub(crate) fn pop(&self) -> Option<Work> {
        // Entries in the overflow list are newer than those in the queue.
        self.work.pop().or_else(|| self.pop_listed())
    }

    fn pop_listed(&self) -> Option<Work> {
        // SYNC: listed.
        if self.listed.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut more = self.more.lock();
        let work = more.pop_front();
        if more.is_empty() {
            // Frees the memory after a burst.
            *more = VecDeque::new();
        }
        self.listed.store(more.len(), Ordering::SeqCst);
        work
    }

    /// Records that the future of a call was dropped.
    pub(crate) fn ask_for_sweep(&self) {
        self.sweep.store(true, Ordering::Release);
        self.wake();
    }

    pub(crate) fn changes(&self) -> &Changes {
        &self.changes
    }

    pub(crate) fn take_sweep(&self) -> bool {
        self.sweep.load(Ordering::Relaxed) && self.sweep.swap(false, Ordering::Acquire)
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.work.is_empty()
            || self.listed.load(Ordering::SeqCst) > 0
            || self.sweep.load(Ordering::Acquire)
            || self.changes.any()
    }

    /// Closes the queue, because the poller ends. Work that is queued now or later is dropped at once.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.clear();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Returns an empty buffer, reused if possible.
    pub(crate) fn buffer(&self) -> Encoded {
        self.buffers.pop().unwrap_or_default()
    }

    /// Keeps a buffer for a later call.
    pub(crate) fn keep(&self, mut buffer: Encoded) {
        if buffer.capacity() <= MAX_POOLED_BYTES {
            buffer.clear();
            let _ = self.buffers.push(buffer);
        }
    }

    /// Returns an empty cell for an outcome, reused if possible.
    pub(crate) fn cell(&self) -> (Setter<Outcome>, Getter<Outcome>) {
        let Some(resting) = self.cells.pop() else { return cell::pair() };
        resting.pair().unwrap_or_else(|resting| {
            // The poller still owns its half, but releases it before this cell is popped again.
            let _ = self.cells.push(resting);
            cell::pair()
        })
    }

    /// Keeps a cell for a later call, after its outcome was taken. Does nothing in a forked child, because the fork may have
    /// interrupted a push by another thread of the parent.
    pub(crate) fn rest_cell(&self, getter: Getter<Outcome>) {
        if let Some(resting) = getter.rest()
            && !self.lifecycle.is_forked()
        {
            let _ = self.cells.push(resting);
        }
    }

    /// Drops all queued work. Dropping a call completes it.
    fn clear(&self) {
        while self.pop().is_some() {}
        self.changes.clear();
    }
}

impl StreamHost for Inbox {
    fn stream_changed(&self, stream: Arc<CallStream>) {
        self.changes.add(stream);
        if self.closed.load(Ordering::SeqCst) {
            self.changes.clear();
        }
        self.wake();
    }

    fn stream_dropped(&self) {
        self.ask_for_sweep();
    }

    fn wake_others(&self) {
        Self::wake_others(self);
    }

    fn most_decoded(&self) -> usize {
        self.most_decoded.get().copied().unwrap_or_default()
    }

    fn memory(&self) -> Option<&SharedMemory> {
        self.memory.get()
    }

    fn is_forked(&self) -> bool {
        self.lifecycle.is_forked()
    }
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox")
            .field("waiting", &self.work.len())
            .field("listed", &self.listed)
            .finish_non_exhaustive()
    }
}

/// The inbox of each poller. Empty before the node starts.
#[derive(Debug, Default)]
pub(crate) struct Inboxes {
    of_pollers: OnceLock<Box<[Arc<Inbox>]>>,
    channels: AtomicUsize,
}

impl Inboxes {
    /// Sets the inboxes of the pollers, in order. There is at least one. Called once, when the node starts.
    pub(crate) fn open(&self, of_pollers: impl Iterator<Item = Arc<Inbox>>) {
        let _opened_before = self.of_pollers.set(of_pollers.collect());
    }

    /// Refuses all calls, because the node failed to start.
    pub(crate) fn close(&self) {
        for inbox in self.iter() {
            inbox.lifecycle().begin_end();
            inbox.close();
        }
    }

    /// Returns the first turn for a new channel or clone, so that programs that clone a client for each call use all pollers
    /// equally. Each channel has a separate counter for its further turns, so that calls do not share a counter.
    pub(crate) fn first_turn(&self) -> usize {
        self.channels.fetch_add(1, Ordering::Relaxed)
    }
}

impl Deref for Inboxes {
    type Target = [Arc<Inbox>];

    fn deref(&self) -> &Self::Target {
        self.of_pollers.get().map_or(&[], |all| all)
    }
}

impl Pollers for Inboxes {
    fn look(&self, id: RouteId) {
        for inbox in self.iter() {
            let _closed = inbox.push(Work::Route(id));
        }
    }

    fn seek(&self, id: RouteId) {
        if let Some(first) = self.first() {
            let _closed = first.push(Work::Route(id));
        }
    }

    fn resolved(&self, resolved: Resolved) {
        if let Some(first) = self.first() {
            let _closed = first.push(Work::Resolved(Box::new(resolved)));
        }
    }

    fn watch(&self, watched: Weak<Watched>) {
        if let Some(first) = self.first() {
            let _closed = first.push(Work::Watch(watched));
        }
    }
}

/// The owner of a stream whose call fails because the node has not started.
impl StreamHost for Inboxes {}
