//! Access of other threads to a poller: a command queue, and a wake that costs a system call only if the
//! poller sleeps.

use super::Command;
use crate::PollerIndex;
use crossbeam_queue::SegQueue;
use std::fmt;
use std::sync::Arc;
use trunkline_machine::Waker;

struct Shared {
    index: PollerIndex,
    waker: Waker,
    commands: SegQueue<Command>,
}

/// Handle that wakes one poller. Put work where its upper half finds it, then call [`PollerHandle::wake`].
#[derive(Clone)]
pub struct PollerHandle(Arc<Shared>);

impl PollerHandle {
    pub(crate) fn new(index: PollerIndex, waker: Waker) -> Self {
        Self(Arc::new(Shared { index, waker, commands: SegQueue::new() }))
    }

    /// Returns the poller's index.
    #[must_use]
    pub fn index(&self) -> PollerIndex {
        self.0.index
    }

    /// Makes sure that the poller looks at its queues again and sees everything pushed before this call.
    /// Makes a system call only if the poller sleeps.
    pub fn wake(&self) {
        self.0.waker.wake();
    }

    pub(crate) fn command(&self, command: Command) {
        self.0.commands.push(command);
        self.wake();
    }

    pub(crate) fn next_command(&self) -> Option<Command> {
        self.0.commands.pop()
    }

    pub(crate) fn has_commands(&self) -> bool {
        !self.0.commands.is_empty()
    }

    /// Returns the waker of the poller, for code that does not know pollers.
    pub(crate) fn waker(&self) -> &Waker {
        &self.0.waker
    }
}

impl fmt::Debug for PollerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PollerHandle").field(&self.0.index.0).finish()
    }
}
