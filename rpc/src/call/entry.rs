//! Admission of a call: its share of the node's budgets, and whether it waits when that is used up.
//!
//! A handler's call that waited for room could wait for itself: A calls B, whose handler calls A, whose handler calls B.
//! Handlers' calls therefore never wait, and a share of each budget is reserved for them.

use crate::executor::on_poller;
use trunkline_transport::Leaves;

/// Admission class of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Made outside of handlers: it waits for room.
    Waits,
    /// Made outside of handlers: it fails without room.
    Tries,
    /// Made by a handler of this node: it has a reserved share, and fails beyond that.
    Reserved,
}

impl Entry {
    /// Returns the class of a call made by this thread. `is_nested` is true on a poller of the call's node.
    #[inline]
    pub(crate) fn here(admission: Admission, is_nested: bool) -> Self {
        match admission {
            _ if is_nested && on_poller::is_in_handler() => Self::Reserved,
            Admission::Wait => Self::Waits,
            Admission::Try => Self::Tries,
        }
    }

    /// Returns the share of the call limit that is reserved for other classes.
    #[inline]
    pub(crate) fn leaves_calls(self) -> Leaves {
        if self == Self::Reserved { Leaves::Nothing } else { Leaves::Eighth }
    }

    /// Returns the share of the message queue that is reserved for other classes: an eighth for replies, one for handlers, and
    /// one for small calls.
    #[inline]
    pub(crate) fn leaves_queue(self, is_large: bool) -> Leaves {
        match (self, is_large) {
            (Self::Reserved, false) => Leaves::Eighth,
            (Self::Reserved, true) | (Self::Waits | Self::Tries, false) => Leaves::Quarter,
            (Self::Waits | Self::Tries, true) => Leaves::ThreeEighths,
        }
    }
}

/// The behaviour of a call when a limit of its node on calls in flight or queued messages is reached. See
/// [`CallOptions::admission`](crate::CallOptions::admission).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Admission {
    /// Waits for room, at most until the call's time limit.
    #[default]
    Wait,
    /// Fails at once.
    Try,
}
