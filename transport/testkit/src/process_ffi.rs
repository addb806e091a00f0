//! Support for tests of forked children and of code that runs at program exit.

use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Time limit for a child. Only a child that hangs reaches it.
const LIMIT: Duration = Duration::from_secs(60);

/// Forks, runs `work` in the child, and waits for the child. The child ends without running the parent's exit handlers.
///
/// The child contains only the caller's thread. It must not need a lock that another thread may have held.
///
/// # Panics
/// Panics if `work` panics in the child or runs for more than a minute. In the latter case, the child is killed.
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

/// Waits until a child ends, and kills it if it exceeds the time limit.
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
    /// Waits until the child ends. Returns its exit status, or `None` if it was ended by a signal.
    ///
    /// # Panics
    /// Panics if the child runs for more than a minute. The child is then killed.
    #[must_use]
    pub fn exit_status(self) -> Option<i32> {
        match wait_for(self.0) {
            WaitStatus::Exited(_, status) => Some(status),
            _ => None,
        }
    }
}

/// Forks. Returns the child in the parent, and `None` in the child, which contains only the calling thread.
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

/// Runs `work` through `atexit` on the exiting thread, whose thread-local values have then been destroyed. The program
/// exits with an error if `work` panics.
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
