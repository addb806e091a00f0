//! Programs that poll without a pause, as most do.
//!
//! Owns one count for each thread. A card of hardware works while its program spins; this one is a thread or a program that
//! needs a core, and where there are fewer cores than programs that spin, each would wait for the end of the other's time slice.
#![forbid(unsafe_code)]

use std::cell::Cell;

/// Polls that found nothing, after which a thread lets others have the core for once. Few, since each costs as much as giving it up
/// where nobody wants it.
const EMPTY_POLLS: u32 = 8;

/// Notes what a poll found.
pub(super) fn polled(found: bool) {
    thread_local!(static EMPTY: Cell<u32> = const { Cell::new(0) });
    let empty = if found { 0 } else { EMPTY.get() + 1 };
    EMPTY.set(empty % EMPTY_POLLS);
    if empty == EMPTY_POLLS {
        std::thread::yield_now();
    }
}
