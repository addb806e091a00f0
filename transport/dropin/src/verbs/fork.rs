//! Programs that fork after they opened a device.
//!
//! Owns the handlers around `fork`: before it the card stands still, so that the child's copy of
//! its lock is free; in the child the card's thread starts again with the first use. A child that
//! only executes another program pays a few system calls.

use super::host::host;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::cell::RefCell;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Once};
use trunkline_softrdma::device::{Held, SoftDevice};

/// The device of a fork under way. Fields are dropped in this order.
struct Forking {
    held: Option<Held<'static>>,
    device: Arc<SoftDevice>,
}

thread_local! {
    static FORKING: RefCell<Option<Forking>> = const { RefCell::new(None) };
}

/// Installs the handlers, once.
pub(super) fn install() {
    static ONCE: Once = Once::new();
    // SAFETY: the three functions take no arguments, do not unwind, and stay as long as the library.
    ONCE.call_once(|| unsafe {
        // Fails for want of memory only; then a fork is as dangerous as without handlers.
        let _no_memory = libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    });
}

unsafe extern "C" fn before() {
    crate::border::guarded((), || {
        let Some(device) = host().opened() else { return };
        let held = device.hold();
        // SAFETY: the device is kept beside it and dropped after it.
        let held = unsafe { std::mem::transmute::<Held<'_>, Held<'static>>(held) };
        FORKING.set(Some(Forking { held: Some(held), device }));
    });
}

unsafe extern "C" fn in_parent() {
    crate::border::guarded((), || {
        super::end::forked();
        drop(FORKING.take());
    });
}

unsafe extern "C" fn in_child() {
    crate::border::guarded((), || {
        let Some(mut forking) = FORKING.take() else { return };
        let waker = forking.device.forked().as_raw_fd();
        if let Ok(fresh) = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK) {
            // SAFETY: both are open; the number goes on meaning the device's waker, in this process
            // alone.
            unsafe { libc::dup3(fresh.as_raw_fd(), waker, libc::O_CLOEXEC) };
        }
        forking.held = None;
    });
}
