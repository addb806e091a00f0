//! Disconnects the peers of a program that exits with open connections.
//!
//! The kernel closes everything that a process leaves open, and thereby disconnects its peers. This library has to do so
//! itself, in a finaliser that runs after the program's exit handlers. If a process is killed, the finaliser does not run,
//! and the peers detect the end by their timeouts.

use super::host::host;
use std::sync::atomic::{AtomicBool, Ordering};

/// True if the process has forked. A child may then still use the connections.
static HAS_FORKED: AtomicBool = AtomicBool::new(false);

#[used]
// SAFETY: the section is an array of functions of this type, which the loader calls once.
#[unsafe(link_section = ".fini_array")]
static FINALISER: extern "C" fn() = finalise;

/// Makes the linker keep [`FINALISER`].
pub(super) fn install() {
    std::hint::black_box(&FINALISER);
}

/// Handles a fork in the parent.
pub(super) fn forked() {
    HAS_FORKED.store(true, Ordering::Relaxed);
}

extern "C" fn finalise() {
    crate::border::guarded((), || {
        if !HAS_FORKED.load(Ordering::Relaxed)
            && let Some(device) = host().left_open()
        {
            device.disconnect_all();
        }
    });
}
