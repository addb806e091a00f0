//! Woken tasks must reach their poller from any thread, and cheaply from the poller's own turn.
//!
//! Any thread may push to the queue, and the poller pops. A task woken in the poller's own turn, as by the reply to
//! a call, goes to a list of its thread, which needs no atomics and no wake-up.

use crate::executor::inbox::Inbox;
use crossbeam_queue::SegQueue;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::{mem, ptr};

/// A task of a poller: a slot in a method's table, or in the table of spawned tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TaskId {
    /// Number of the method, or [`TaskId::SPAWNED`].
    pub(crate) table: u32,
    /// Index of the slot in that table.
    pub(crate) slot: u32,
}

impl TaskId {
    /// Table number of spawned tasks.
    pub(crate) const SPAWNED: u32 = u32::MAX;
}

thread_local! {
    static HERE: Here = const { Here { of: Cell::new(ptr::null()), woken: RefCell::new(Vec::new()) } };
}

/// The poller that runs on this thread, and its tasks woken here, which no other thread needs to see.
struct Here {
    /// Address of its queue, only compared; null between turns.
    of: Cell<*const Ready>,
    woken: RefCell<Vec<TaskId>>,
}

/// The queue of tasks that wait to be polled.
#[derive(Debug)]
pub(crate) struct Ready {
    /// Tasks woken by other threads, and tasks not polled in the turn in which they were woken.
    queue: SegQueue<TaskId>,
    inbox: Arc<Inbox>,
}

impl Ready {
    pub(crate) fn new(inbox: Arc<Inbox>) -> Arc<Self> {
        Arc::new(Self { queue: SegQueue::new(), inbox })
    }

    /// Begins the poller's turn on this thread, until the guard is dropped.
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

    /// Appends tasks that are to be polled in a later turn.
    pub(crate) fn put_back(&self, tasks: impl Iterator<Item = TaskId>) {
        tasks.for_each(|task| self.queue.push(task));
    }

    /// Takes the tasks that were woken in this turn, in exchange for an empty list.
    pub(crate) fn take_woken(&self, list: &mut Vec<TaskId>) {
        HERE.with(|here| mem::swap(&mut *here.woken.borrow_mut(), list));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && HERE.with(|here| !self.is_here(here) || here.woken.borrow().is_empty())
    }

    fn is_here(&self, here: &Here) -> bool {
        ptr::eq(here.of.get(), self)
    }

    /// Appends a task, and wakes the poller unless this is its turn.
    fn push(&self, task: TaskId) {
        // A thread whose locals are gone is in no poller's turn.
        let is_here = HERE.try_with(|here| {
            let is_here = self.is_here(here);
            if is_here {
                here.woken.borrow_mut().push(task);
            }
            is_here
        });
        // In a forked child no poller takes the task, and the push could wait for one that a thread of the parent has begun.
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
    /// Previous value: a simulation runs programs and pollers on one thread.
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

/// The waker of a slot. It is created once and serves every task that uses the slot. A waker left over from an
/// earlier task costs one spurious poll.
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

    /// Records that the task is about to be polled. A later wake queues it again.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::lifecycle::Lifecycle;
    use trunkline_testkit::{in_forked_child, runs_alone};

    /// A push may wait for one of another thread, which the child does not have.
    #[test]
    fn wake_in_a_forked_child_does_not_touch_the_queue() {
        if !runs_alone(module_path!(), "wake_in_a_forked_child_does_not_touch_the_queue") {
            return;
        }
        let ready = Ready::new(Arc::new(Inbox::new(Lifecycle::new(1))));
        let (_, waker) = TaskWaker::new(&ready, TaskId { table: 0, slot: 0 });
        in_forked_child(|| {
            waker.wake_by_ref();
            assert_eq!(ready.len(), 0);
        });
        waker.wake_by_ref();
        assert_eq!(ready.len(), 1);
    }
}
