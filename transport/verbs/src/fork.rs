//! Detection of forks of the process.
//!
//! The child of a `fork` gets a copy of the process with only the calling thread. Code that waits for a thread must detect
//! this, and must not release resources that the parent still uses. A [`Process`] is recorded when threads are started, and
//! checked before the code waits for them. The check is one relaxed load and a comparison.

use crate::fork_ffi::{end_child, generation};
use std::sync::Once;

/// Error text for callers in the child, with the remedy.
pub const FORKED: &str = "the process was forked after this node started, and the child has none of the node's threads: \
                          fork first, start the node after";

/// Exit status of a child that [`Process::end_if_forked`] ends: `EX_SOFTWARE` of sysexits.h.
pub const ENDED_IN_CHILD: i32 = 70;

/// The process in which a value was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    generation: u32,
}

impl Process {
    /// Returns the running process. Forks are detected from the first call on.
    #[must_use]
    pub fn current() -> Self {
        static NOTICED: Once = Once::new();
        NOTICED.call_once(crate::fork_ffi::notice);
        Self { generation: generation() }
    }

    /// Returns true in a child that was forked from this process, and in the child's descendants.
    #[inline]
    #[must_use]
    pub fn is_forked(self) -> bool {
        generation() != self.generation
    }

    /// Ends the running process if it was forked from this one. A node's threads call this when the program's code returns
    /// to them. The sockets and the shared memory belong to the parent, so messages from the child would be duplicates.
    ///
    /// The child writes a line to standard error and exits with [`ENDED_IN_CHILD`], without running exit handlers.
    #[inline]
    pub fn end_if_forked(self) {
        if self.is_forked() {
            end_child(ENDED_IN_CHILD);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_process_is_not_forked() {
        let process = Process::current();
        assert!(!process.is_forked());
        assert_eq!(process, Process::current());
    }
}
