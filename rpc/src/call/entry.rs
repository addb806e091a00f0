//! Admission of a call: its share of the node's budgets, and whether it waits when that is used up.
//!
//! A call that waited for room while a handler waits for the call could wait for itself: A calls B, whose handler calls A,
//! whose handler calls B. So handlers' calls never wait. Instead all others leave a part of each budget to them.

use crate::admission::Admission;
use crate::on_poller;
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
    /// Returns the class of a call that is made here, if its node's poller `is_nested` in this thread.
    #[inline]
    pub(crate) fn here(admission: Admission, is_nested: bool) -> Self {
        match admission {
            _ if is_nested && on_poller::is_in_handler() => Self::Reserved,
            Admission::Wait => Self::Waits,
            Admission::Try => Self::Tries,
        }
    }

    /// Returns the part of the calls under way that it leaves to others.
    #[inline]
    pub(crate) fn leaves_calls(self) -> Leaves {
        if self == Self::Reserved { Leaves::Nothing } else { Leaves::Eighth }
    }

    /// Returns the part of the message queue that it leaves: a part to replies, one to handlers, and a large call one to small ones.
    #[inline]
    pub(crate) fn leaves_queue(self, is_large: bool) -> Leaves {
        match (self, is_large) {
            (Self::Reserved, false) => Leaves::Eighth,
            (Self::Reserved, true) | (Self::Waits | Self::Tries, false) => Leaves::Quarter,
            (Self::Waits | Self::Tries, true) => Leaves::ThreeEighths,
        }
    }
}
