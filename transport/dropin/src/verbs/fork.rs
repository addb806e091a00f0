//! Support for programs that fork after they have opened the device.
//!
//! The handlers in this module run before and after `fork`. The device is locked before the fork, so that in the child its
//! lock is not held by a thread that does not exist there. In the child, the first use of the device starts its thread
//! again. A child that only executes another program makes a few additional system calls.

use super::host::host;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Once};
use trunkline_softrdma::device::{Held, SoftDevice};

/// The device during a fork. Fields are dropped in this order.
struct Forking {
    held: Option<Held<'static>>,
    device: Arc<SoftDevice>,
}

thread_local! {
    // The type has no destructor, because a program may fork after the thread-local values have been destroyed.
    static FORKING: RefCell<ManuallyDrop<Option<Forking>>> = const { RefCell::new(ManuallyDrop::new(None)) };
}

/// Installs the handlers, once.
pub(super) fn install() {
    static ONCE: Once = Once::new();
    // SAFETY: the three functions take no arguments and do not unwind, and glibc forgets the handlers of
    // a library that is unloaded.
    ONCE.call_once(|| unsafe {
        // The registration fails only if there is no memory. Forks are then as unsafe as without the handlers.
        let _no_memory = libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    });
}

/// Takes the value that [`before`] stored for this thread.
fn take() -> Option<Forking> {
    FORKING.with_borrow_mut(|forking| forking.take())
}

unsafe extern "C" fn before() {
    crate::border::guarded((), || {
        let Some(device) = host().opened() else { return };
        let held = device.hold();
        // SAFETY: `Forking` keeps the borrowed device, and drops it after the lock.
        let held = unsafe { std::mem::transmute::<Held<'_>, Held<'static>>(held) };
        let forking = Forking { held: Some(held), device };
        FORKING.set(ManuallyDrop::new(Some(forking)));
    });
}

unsafe extern "C" fn in_parent() {
    crate::border::guarded((), || {
        super::end::forked();
        drop(take());
    });
}

unsafe extern "C" fn in_child() {
    crate::border::guarded((), || {
        let Some(mut forking) = take() else { return };
        for waker in forking.device.forked() {
            let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
            let Ok(fresh) = EventFd::from_value_and_flags(0, flags) else { break };
            // SAFETY: both descriptors are open. `waker` keeps its number, and then wakes this process's device
            // instead of the parent's.
            unsafe { libc::dup3(fresh.as_raw_fd(), waker.as_raw_fd(), libc::O_CLOEXEC) };
        }
        forking.held = None;
    });
}
