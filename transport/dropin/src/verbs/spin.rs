//! Yields the processor core of a program that polls without a pause.
//!
//! A physical NIC works while its program spins. This device runs in threads and needs a core. If there were fewer cores
//! than spinning programs, each program would wait for the end of another program's time slice. A thread therefore yields
//! its core once per [`EMPTY_POLLS`] consecutive empty polls, which are counted per thread.
#![forbid(unsafe_code)]

use std::cell::Cell;

/// Number of consecutive empty polls after which a thread yields its core. The number can be small, because on a free core
/// a yield costs as much as an empty poll.
const EMPTY_POLLS: u32 = 8;

/// Counts a poll. `found` is true if the poll found completions.
pub(super) fn polled(found: bool) {
    thread_local!(static EMPTY: Cell<u32> = const { Cell::new(0) });
    let empty = if found { 0 } else { EMPTY.get() + 1 };
    EMPTY.set(empty % EMPTY_POLLS);
    if empty == EMPTY_POLLS {
        std::thread::yield_now();
    }
}
