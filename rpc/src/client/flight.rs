//! A call in flight, as the table of calls keeps it, and its number.

use crate::call::Answer;
use crate::name::MethodName;
use trunkline_transport::{DeadlineKey, Leaves, PeerKey, SessionNumber, Turn};

/// A call in flight.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) generation: u32,
    pub(super) peer: PeerKey,
    pub(super) method: &'static MethodName,
    pub(super) one_way: bool,
    /// It was made on an ordered channel.
    pub(super) ordered: bool,
    /// A handler or task of this node waits for it.
    pub(super) nested: bool,
    /// What it leaves of the calls that may be under way.
    pub(super) leaves: Leaves,
    /// Its place among the deadlines.
    pub(super) timer: Option<DeadlineKey>,
    /// Which of the peer's pollers has it.
    pub(super) turn: Turn,
    pub(super) progress: Progress,
    pub(super) answer: Answer,
}

/// How far a request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// It waits to leave, as far as is known.
    Waits,
    /// It has left through this session: it is in the peer's memory if the session ends without a word of it.
    Left(SessionNumber),
    /// It is in the peer's memory.
    Delivered,
}

impl Flight {
    /// Its method and server, by which statuses name it.
    pub(super) fn name(&self) -> String {
        format!("{} at {}", self.method, self.peer)
    }
}

/// The number of a call on the wire. A slot fits 32 bits: the budget of calls does.
#[inline]
pub(super) fn number(slot: usize, generation: u32) -> u64 {
    u64::from(generation) << 32 | slot as u64
}

/// The slot and the generation of a call's number.
#[allow(clippy::cast_possible_truncation, reason = "the two halves of a word")]
#[inline]
pub(super) fn parts(call: u64) -> Option<(usize, u32)> {
    Some((usize::try_from(call as u32).ok()?, (call >> 32) as u32))
}
