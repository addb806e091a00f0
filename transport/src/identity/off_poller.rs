//! A check in debug builds that rustls, ring and webpki do not run on a poller, since verification takes far longer
//! than a turn.
#![forbid(unsafe_code)]

use std::cell::Cell;

thread_local! {
    /// True while this thread is in a poller's turn. In a simulation, all machines share a thread.
    static IN_TURN: Cell<bool> = const { Cell::new(false) };
}

/// Records that a poller's turn begins on this thread.
pub(crate) fn begin_turn() {
    IN_TURN.set(true);
}

/// Records that the turn ends.
pub(crate) fn end_turn() {
    IN_TURN.set(false);
}

/// Checks that no poller's turn runs on this thread.
///
/// # Panics
/// Panics within a turn.
pub(super) fn assert() {
    assert!(!IN_TURN.get(), "a handshake runs on a poller");
}
