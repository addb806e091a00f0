//! The handler that runs in the child of a `fork`, for [`crate::fork`].

use nix::libc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between the process that called [`notice`] first and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Number of forks that have led to this process.
#[inline]
pub(crate) fn generation() -> u32 {
    // A child starts with the thread that has run the handler, so nothing needs an order.
    GENERATION.load(Ordering::Relaxed)
}

/// Has each child counted from now on.
pub(crate) fn notice() {
    // SAFETY: the handler takes no arguments, does not unwind and does one atomic addition, which a child may do
    // before it executes another program. The C library forgets the handlers of a library that is unloaded.
    let _no_memory = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
