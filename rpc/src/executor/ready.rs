//! The queue of woken tasks. Any thread may push; the poller pops.

use crate::inbox::Inbox;
use crossbeam_queue::SegQueue;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

/// A task of a poller: a slot in a method's table, or in the table of spawned tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TaskId {
    /// Number of the method, or [`TaskId::SPAWNED`].
    pub(crate) table: u32,
    /// Index of the slot in that table.
    pub(crate) slot: u32,
}

impl TaskId {
    /// The table of spawned tasks.
    pub(crate) const SPAWNED: u32 = u32::MAX;
}

/// The tasks that wait to be polled.
#[derive(Debug)]
pub(crate) struct Ready {
    queue: SegQueue<TaskId>,
    inbox: Arc<Inbox>,
}

impl Ready {
    pub(crate) fn new(inbox: Arc<Inbox>) -> Arc<Self> {
        Arc::new(Self { queue: SegQueue::new(), inbox })
    }

    pub(crate) fn pop(&self) -> Option<TaskId> {
        self.queue.pop()
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Appends a task and wakes the poller.
    pub(crate) fn push(&self, task: TaskId) {
        self.queue.push(task);
        self.inbox.wake();
    }
}

/// The waker of a slot. It is created once and serves every task that uses the slot; a waker that an
/// earlier task left somewhere costs one spurious poll.
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

    /// The task is about to be polled: a wake from now on queues it again.
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
