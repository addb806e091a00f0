//! Tasks that programs run on a poller alongside its handlers ([`crate::Node::run_on`], [`crate::spawn`]).

use super::ready::{Ready, TaskId, TaskWaker};
use crate::call::context::Task;
use slab::Slab;
use std::sync::Arc;
use std::task::{Context, Waker};
use trunkline_machine::rings::panics::catch;

struct Slot {
    task: Task,
    waker: Arc<TaskWaker>,
    std_waker: Waker,
}

/// The table of spawned tasks.
#[derive(Default)]
pub(crate) struct Tasks(Slab<Slot>);

impl Tasks {
    /// Adds a task, which is polled in the poller's next turn.
    pub(crate) fn add(&mut self, task: Task, ready: &Arc<Ready>) {
        let entry = self.0.vacant_entry();
        let Ok(slot) = u32::try_from(entry.key()) else { return };
        let (waker, std_waker) = TaskWaker::new(ready, TaskId { table: TaskId::SPAWNED, slot });
        std_waker.wake_by_ref();
        entry.insert(Slot { task, waker, std_waker });
    }

    /// Polls the task in a slot. A task that panics is dropped, and its waiter learns that it ended.
    pub(crate) fn poll(&mut self, slot: u32) {
        let Ok(key) = usize::try_from(slot) else { return };
        let Some(entry) = self.0.get_mut(key) else { return };
        entry.waker.polled();
        let mut context = Context::from_waker(&entry.std_waker);
        let polled = catch(|| entry.task.as_mut().poll(&mut context));
        if polled.is_err() {
            tracing::error!("a task of spawn or run_on panicked, which ends it");
        }
        if !matches!(polled, Ok(std::task::Poll::Pending)) {
            self.end(key);
        }
    }

    /// Drops all tasks one by one: a panic in one drop does not prevent the others.
    pub(crate) fn close(&mut self) {
        for key in self.0.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            self.end(key);
        }
    }

    fn end(&mut self, key: usize) {
        let ended = self.0.try_remove(key);
        // A task that panics while it is dropped has ended nonetheless.
        let _ended = catch(|| drop(ended));
    }
}

impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tasks").field("running", &self.0.len()).finish()
    }
}
