//! The handler that runs in the child of a `fork`, for [`crate::fork`].

use nix::libc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of forks between the process that first called [`notice`] and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Returns the number of forks that have led to this process.
#[inline]
pub(crate) fn generation() -> u32 {
    // A child starts with the thread that ran the handler, so relaxed ordering suffices.
    GENERATION.load(Ordering::Relaxed)
}

/// Starts counting forks.
pub(crate) fn notice() {
    // SAFETY: the handler takes no arguments, does not unwind and does one atomic addition, which a child may do before it
    // executes another program. The C library removes the handlers of an unloaded library.
    let _no_memory = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

/// Message of a child before it exits.
const RETURNED: &[u8] =
    b"trunkline: a handler or task has forked the process and returned in the child, which ends here: \
                          execute another program in the child, or call _exit\n";

/// Exits from this process, the child of a `fork`. A library normally does not exit, but this is the child's only thread,
/// and it cannot return. A panic, a log event or an exit handler may need a lock that another thread of the parent held.
#[cold]
pub(crate) fn end_child(status: i32) -> ! {
    // SAFETY: the text is valid for its length. Both functions may be called in the child of a process with threads.
    unsafe {
        let _no_output = libc::write(libc::STDERR_FILENO, RETURNED.as_ptr().cast(), RETURNED.len());
        libc::_exit(status)
    }
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
