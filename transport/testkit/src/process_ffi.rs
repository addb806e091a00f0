//! Support for tests of forked children, and of code that runs while the program exits.

use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Time limit of a child. Only a child that never ends reaches it.
const LIMIT: Duration = Duration::from_secs(60);

/// Forks, runs `work` in the child, which then ends without the parent's exit handlers, and waits for the
/// child.
///
/// The child has only the caller's thread, and must not need a lock that another thread may have held.
///
/// # Panics
/// Panics if `work` panics in the child, or has not ended after a minute. The child is then killed.
pub fn in_forked_child(work: impl FnOnce()) {
    // SAFETY: the child runs `work` on its only thread. glibc makes the heap usable there, and the caller
    // guarantees that the child does not need locks of other threads.
    match unsafe { fork() }.expect("a process") {
        ForkResult::Child => {
            let ended = catch_unwind(AssertUnwindSafe(work));
            let _no_output = std::io::stderr().flush();
            // SAFETY: `_exit` has no preconditions.
            unsafe { nix::libc::_exit(i32::from(ended.is_err())) }
        }
        ForkResult::Parent { child } => {
            assert_eq!(wait_for(child), WaitStatus::Exited(child, 0), "the child's work failed");
        }
    }
}

/// Waits for the end of a child, and kills it if it does not end.
fn wait_for(child: Pid) -> WaitStatus {
    let ended = catch_unwind(|| {
        crate::wait_until("the forked child ends", LIMIT, || {
            let status = waitpid(child, Some(WaitPidFlag::WNOHANG)).expect("it is a child");
            (status != WaitStatus::StillAlive).then_some(status)
        })
    });
    ended.unwrap_or_else(|panic| {
        let _gone = nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL);
        let _reaped = waitpid(child, None);
        std::panic::resume_unwind(panic);
    })
}

/// A child process created by [`fork_here`].
#[derive(Debug)]
#[must_use = "a child that nobody waits for may outlast the test"]
pub struct ForkedChild(Pid);

impl ForkedChild {
    /// Waits for the child's end and returns its exit status; `None` if a signal has ended it.
    ///
    /// # Panics
    /// Panics if the child has not ended after a minute. The child is then killed.
    #[must_use]
    pub fn exit_status(self) -> Option<i32> {
        match wait_for(self.0) {
            WaitStatus::Exited(_, status) => Some(status),
            _ => None,
        }
    }
}

/// Forks. Returns the child, or `None` in the child, where the calling thread is the only one.
///
/// # Panics
/// Panics if the system cannot create a process.
#[must_use]
pub fn fork_here() -> Option<ForkedChild> {
    // SAFETY: glibc makes the heap usable in the child, and the caller guarantees that the child does not
    // need locks of other threads.
    match unsafe { fork() }.expect("a process") {
        ForkResult::Child => None,
        ForkResult::Parent { child } => Some(ForkedChild(child)),
    }
}

type Work = Box<dyn FnOnce() + Send>;

static AT_EXIT: Mutex<Vec<Work>> = Mutex::new(Vec::new());

/// Runs `work` through `atexit` when the program exits, on the exiting thread. The thread's locals are destroyed by
/// then. The program exits with an error if `work` panics.
///
/// # Panics
/// Panics if there is no memory for the handler.
pub fn at_exit(work: impl FnOnce() + Send + 'static) {
    AT_EXIT.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(work));
    // SAFETY: the handler takes no arguments and does not unwind.
    assert_eq!(unsafe { nix::libc::atexit(exiting) }, 0, "no memory");
}

extern "C" fn exiting() {
    let work = AT_EXIT.lock().unwrap_or_else(PoisonError::into_inner).pop();
    if catch_unwind(AssertUnwindSafe(|| work.map(|work| work()))).is_err() {
        // SAFETY: `_exit` has no preconditions.
        unsafe { nix::libc::_exit(1) }
    }
}
