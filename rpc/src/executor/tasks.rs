//! Tasks on a poller, which are the futures of handlers and the tasks spawned by the program.
//!
//! Tasks can be woken from any thread, and at low cost during the poller's turn. Any thread may push to the queue of ready
//! tasks, and the poller pops. A task that is woken during the poller's turn, for example by the reply to a call, goes to a
//! thread-local list, which needs neither atomics nor a wake-up.

use crate::call::context::{PollerContext, Task};
use crate::executor::inbox::Inbox;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crossbeam_queue::SegQueue;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::{mem, ptr};
use trunkline_machine::rings::cell::{self, Getter};
use trunkline_machine::rings::panics::catch;

/// A task on a poller, identified by a slot in a method's table or in the table of spawned tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TaskId {
    /// Number of the method, or [`TaskId::SPAWNED`].
    pub(crate) table: u32,
    /// Index of the slot in the table.
    pub(crate) slot: u32,
}

impl TaskId {
    /// Table number of spawned tasks.
    pub(crate) const SPAWNED: u32 = u32::MAX;
}

thread_local! {
    static HERE: Here = const { Here { of: Cell::new(ptr::null()), woken: RefCell::new(Vec::new()) } };
}

/// The poller running on this thread, and the tasks woken during its turn. Other threads cannot access these tasks.
struct Here {
    /// Address of the poller's queue, used only for comparison; null between turns.
    of: Cell<*const Ready>,
    woken: RefCell<Vec<TaskId>>,
}

/// The queue of tasks that wait to be polled.
#[derive(Debug)]
pub(crate) struct Ready {
    /// Tasks woken by other threads, and tasks left from the turn in which they were woken.
    queue: SegQueue<TaskId>,
    inbox: Arc<Inbox>,
}

impl Ready {
    pub(crate) fn new(inbox: Arc<Inbox>) -> Arc<Self> {
        Arc::new(Self { queue: SegQueue::new(), inbox })
    }

    /// Begins the poller's turn on this thread. The turn ends when the guard is dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> Turn {
        HERE.with(|here| {
            let outer = here.of.replace(Arc::as_ptr(self));
            let woken = if outer.is_null() { Vec::new() } else { here.woken.take() };
            Turn { ready: Arc::clone(self), outer, woken }
        })
    }

    pub(crate) fn pop(&self) -> Option<TaskId> {
        self.queue.pop()
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Appends tasks to be polled in a later turn.
    pub(crate) fn put_back(&self, tasks: impl Iterator<Item = TaskId>) {
        tasks.for_each(|task| self.queue.push(task));
    }

    /// Takes the tasks woken in this turn. `list` must be empty and is swapped with the list of tasks.
    pub(crate) fn take_woken(&self, list: &mut Vec<TaskId>) {
        HERE.with(|here| mem::swap(&mut *here.woken.borrow_mut(), list));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && HERE.with(|here| !self.is_here(here) || here.woken.borrow().is_empty())
    }

    fn is_here(&self, here: &Here) -> bool {
        ptr::eq(here.of.get(), self)
    }

    /// Appends a task, and wakes the poller unless this is the poller's turn.
    fn push(&self, task: TaskId) {
        // A thread whose locals have been destroyed is not in a poller's turn.
        let is_here = HERE.try_with(|here| {
            let is_here = self.is_here(here);
            if is_here {
                here.woken.borrow_mut().push(task);
            }
            is_here
        });
        // In a forked child, no poller would take the task, and the push could wait for a thread of the parent.
        if is_here != Ok(true) && !self.inbox.lifecycle().is_forked() {
            self.queue.push(task);
            self.inbox.wake();
        }
    }
}

/// The turn of a poller on this thread.
#[derive(Debug)]
pub(crate) struct Turn {
    ready: Arc<Ready>,
    /// Previous value. A simulation runs programs and pollers on one thread.
    outer: *const Ready,
    woken: Vec<TaskId>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        HERE.with(|here| {
            let mut woken = here.woken.borrow_mut();
            woken.drain(..).for_each(|task| self.ready.queue.push(task));
            here.of.set(self.outer);
            if !self.outer.is_null() {
                mem::swap(&mut *woken, &mut self.woken);
            }
        });
    }
}

/// The waker of a slot. It is created once and shared by all tasks that use the slot in turn, so a waker from an earlier
/// task can cause a spurious poll.
#[derive(Debug)]
pub(crate) struct TaskWaker {
    ready: Arc<Ready>,
    task: TaskId,
    queued: AtomicBool,
}

impl TaskWaker {
    pub(crate) fn new(ready: &Arc<Ready>, task: TaskId) -> (Arc<Self>, Waker) {
        let waker = Arc::new(Self { ready: Arc::clone(ready), task, queued: AtomicBool::new(false) });
        (Arc::clone(&waker), Waker::from(waker))
    }

    /// Clears the flag before a poll, so that a wake-up during the poll queues the task again.
    #[inline]
    pub(crate) fn polled(&self) {
        // SYNC: task-queued
        self.queued.store(false, Ordering::SeqCst);
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // SYNC: task-queued
        if !self.queued.swap(true, Ordering::SeqCst) {
            self.ready.push(self.task);
        }
    }
}

struct Slot {
    task: Task,
    waker: Arc<TaskWaker>,
    std_waker: Waker,
}

/// The table of spawned tasks.
#[derive(Default)]
pub(crate) struct Tasks(Slab<Slot>);

impl Tasks {
    /// Adds a task, to be polled in the poller's next turn.
    pub(crate) fn add(&mut self, task: Task, ready: &Arc<Ready>) {
        let entry = self.0.vacant_entry();
        let Ok(slot) = u32::try_from(entry.key()) else { return };
        let (waker, std_waker) = TaskWaker::new(ready, TaskId { table: TaskId::SPAWNED, slot });
        std_waker.wake_by_ref();
        entry.insert(Slot { task, waker, std_waker });
    }

    /// Polls the task in a slot. If the task panics, it is dropped, which notifies its waiter.
    pub(crate) fn poll(&mut self, slot: u32) {
        let Ok(key) = usize::try_from(slot) else { return };
        let Some(entry) = self.0.get_mut(key) else { return };
        entry.waker.polled();
        let mut context = Context::from_waker(&entry.std_waker);
        let polled = catch(|| entry.task.as_mut().poll(&mut context));
        if polled.is_err() {
            tracing::error!("spawned task panicked");
        }
        if !matches!(polled, Ok(Poll::Pending)) {
            self.end(key);
        }
    }

    /// Drops all tasks one by one, so that a panic in one destructor does not affect the others.
    pub(crate) fn close(&mut self) {
        for key in self.0.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            self.end(key);
        }
    }

    fn end(&mut self, key: usize) {
        let ended = self.0.try_remove(key);
        // A task has ended even if dropping it panics.
        let _ended = catch(|| drop(ended));
    }
}

/// Spawns a task on the current poller, alongside its handlers. The future need not be `Send`.
///
/// The task continues after its handle is dropped and after the handler ends, but not after the node ends. It does not
/// inherit the call's deadline or [`Context`](crate::Context). Use [`Context::scope`](crate::Context::scope) to pass them
/// on.
///
/// # Panics
/// Panics outside a poller's handlers and tasks, including in `#[offload]` and `#[blocking]` methods. Use another executor
/// there.
///
/// ```
/// # let network = trunkline::InProcessNetwork::new();
/// # let node = trunkline::Node::builder().in_process(&network).start().unwrap();
/// let task = node.run_on(trunkline::PollerIndex(0), |_| async {
///     let (one, two) = (trunkline::spawn(async { 1 }), trunkline::spawn(async { 2 }));
///     Ok::<_, trunkline::Status>(one.await? + two.await?)
/// });
/// assert_eq!(trunkline::block_on(task).unwrap(), Ok(3));
/// ```
#[track_caller]
pub fn spawn<F>(future: F) -> Spawned<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let poller = PollerContext::current().expect(
        "trunkline::spawn works in handlers and in tasks of a node's pollers; elsewhere use an executor of the program's",
    );
    let (setter, getter) = cell::pair();
    poller.spawn(Box::pin(async move {
        let output = future.await;
        // Fails if the handle was dropped.
        let _ = setter.set(output);
    }));
    Spawned(getter)
}

/// The future returned by [`spawn`], which resolves to the task's output. Dropping it does not stop the task.
#[derive(Debug)]
pub struct Spawned<T>(Getter<T>);

impl<T> Future for Spawned<T> {
    type Output = Result<T, Status>;

    /// Returns `Internal` if the task panicked or ended together with its node.
    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = std::task::ready!(Pin::new(&mut self.0).poll(task));
        let lost = |_| {
            let text = "the task panicked, or its node has shut down";
            Status::ran(Code::Internal, text).because(Reason::Panicked)
        };
        Poll::Ready(ended.map_err(lost))
    }
}

/// Yields once, so that other ready tasks run first. Works on any executor.
///
/// Use this in long computations, so that the poller can handle messages and timers in between.
///
/// ```
/// # let network = trunkline::InProcessNetwork::new();
/// # let node = trunkline::Node::builder().in_process(&network).start().unwrap();
/// let task = node.run_on(trunkline::PollerIndex(0), |_| async {
///     let mut sum = 0_u64;
///     for part in 0..4 {
///         sum += (0..1000).map(|number| number * part).sum::<u64>();
///         trunkline::yield_now().await;
///     }
///     sum
/// });
/// assert_eq!(trunkline::block_on(task).unwrap(), 6 * 499_500);
/// ```
pub fn yield_now() -> Yielded {
    Yielded { has_yielded: false }
}

/// The future returned by [`yield_now`], which completes at its second poll.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Yielded {
    has_yielded: bool,
}

impl Future for Yielded {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        if mem::replace(&mut self.has_yielded, true) {
            return Poll::Ready(());
        }
        task.waker().wake_by_ref();
        Poll::Pending
    }
}

impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tasks").field("running", &self.0.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::lifecycle::Lifecycle;
    use trunkline_testkit::{in_forked_child, runs_alone};
    use trunkline_verbs::Clock;

    /// A push may wait for another thread's push, and the child lacks this thread.
    #[test]
    fn wake_in_forked_child_does_not_touch_queue() {
        if !runs_alone(module_path!(), "wake_in_forked_child_does_not_touch_queue") {
            return;
        }
        let ready = Ready::new(Arc::new(Inbox::new(Lifecycle::new(1), Clock::monotonic())));
        let (_, waker) = TaskWaker::new(&ready, TaskId { table: 0, slot: 0 });
        in_forked_child(|| {
            waker.wake_by_ref();
            assert_eq!(ready.len(), 0);
        });
        waker.wake_by_ref();
        assert_eq!(ready.len(), 1);
    }
}
