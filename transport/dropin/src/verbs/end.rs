//! Programs that end without ending their connections.
//!
//! Owns the library's last function, which runs when the program's own handlers have run: where the
//! kernel closes what a process leaves behind, and so says goodbye to its peers, nobody is left here.
//! A process that is killed says nothing.

use super::host::host;
use std::sync::atomic::{AtomicBool, Ordering};

/// The process has forked: its child may go on with the connections.
static HAS_FORKED: AtomicBool = AtomicBool::new(false);

#[used]
// SAFETY: the section is an array of such functions, which the loader calls.
#[unsafe(link_section = ".fini_array")]
static LAST: extern "C" fn() = last;

/// Makes sure that [`LAST`] is in the library.
pub(super) fn install() {
    std::hint::black_box(&LAST);
}

/// In the parent, after a fork.
pub(super) fn forked() {
    HAS_FORKED.store(true, Ordering::Relaxed);
}

extern "C" fn last() {
    crate::border::guarded((), || {
        if !HAS_FORKED.load(Ordering::Relaxed)
            && let Some(device) = host().left_open()
        {
            device.part_from_all();
        }
    });
}
