//! Yields the core of a program that polls without a pause.
//!
//! A physical NIC works while its program spins, but this device runs in threads and needs a core. With fewer cores
//! than spinning programs, each program would wait for the end of another program's time slice. A thread therefore
//! yields its core once per [`EMPTY_POLLS`] consecutive empty polls, which each thread counts.
#![forbid(unsafe_code)]

use std::cell::Cell;

/// Number of consecutive empty polls after which a thread yields its core once. The number can be small: on a
/// free core, a yield costs as much as an empty poll.
const EMPTY_POLLS: u32 = 8;

/// Counts a poll. `found` is true if it found completions.
pub(super) fn polled(found: bool) {
    thread_local!(static EMPTY: Cell<u32> = const { Cell::new(0) });
    let empty = if found { 0 } else { EMPTY.get() + 1 };
    EMPTY.set(empty % EMPTY_POLLS);
    if empty == EMPTY_POLLS {
        std::thread::yield_now();
    }
}
