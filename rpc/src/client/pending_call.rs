//! Calls in flight, and their numbers on the wire.

use crate::call::{Completion, Submission};
#[cfg(feature = "identity")]
use crate::client::routes::id::ExpectedId;
use crate::wire::frame::{Header, Unparsed};
use crate::wire::name::MethodName;
use trunkline_transport::{Leaves, Message, PeerKey, PollerChoice, SessionNumber};
use trunkline_verbs::Time;

/// A call in flight.
#[derive(Debug)]
pub(super) struct PendingCall {
    pub(super) generation: u32,
    pub(super) peer: PeerKey,
    pub(super) method: &'static MethodName,
    /// Index of the method's counters.
    pub(super) counters: u32,
    /// Time at which the request was passed to the transport.
    pub(super) started: Time,
    pub(super) one_way: bool,
    /// True if the call belongs to an ordered channel.
    pub(super) ordered: bool,
    /// True if a handler or task of this node waits for the call.
    pub(super) nested: bool,
    /// True if the call may move to another server.
    pub(super) is_chosen: bool,
    /// Part of the call budget reserved for other classes; `None` if the call uses no budget.
    pub(super) leaves: Option<Leaves>,
    /// Deadline of the call, or next check of its stream's limits; [`Time::MAX`] if there is neither.
    pub(super) due: Time,
    /// The remote poller that owns the call.
    pub(super) choice: PollerChoice,
    pub(super) progress: Progress,
    /// Copy of the call without its completion, kept if the call may have to be repeated.
    pub(super) again: Option<Box<Submission<()>>>,
    pub(super) completion: Completion,
}

/// The progress of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// The request waits to be sent, or this poller has not been notified that the request was sent.
    Waits,
    /// The request was sent in this session. If the session ends without a report, the request counts as delivered.
    Left(SessionNumber),
    /// The request is in the peer's memory.
    Delivered,
}

impl PendingCall {
    /// Returns the method and the server, as named in statuses.
    pub(super) fn name(&self) -> String {
        format!("{} at {}", self.method, self.peer)
    }
}

/// The session with a peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Session {
    pub(super) number: SessionNumber,
    /// Incarnation of the peer.
    pub(super) epoch: u64,
    /// Number of pollers of the peer.
    pub(super) pollers: u16,
    /// Expected name that matched last, on a node that compares names.
    #[cfg(feature = "identity")]
    pub(super) matched: Option<ExpectedId>,
}

/// The calls that a poller accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AcceptMode {
    All,
    /// Only calls made by handlers and tasks, because the node shuts down.
    Nested,
    None,
}

/// Flag in the number of a one-way call. A refusal can arrive after the call has ended, and is identified by the flag.
const ONE_WAY: u32 = 1 << 31;

/// Returns the number of a call on the wire. Slot numbers never reach the bit of [`ONE_WAY`], because memory is exhausted
/// earlier.
#[inline]
pub(super) fn number(slot: usize, generation: u32, one_way: bool) -> u64 {
    let mark = if one_way { u64::from(ONE_WAY) } else { 0 };
    u64::from(generation) << 32 | mark | slot as u64
}

/// Returns true for the number of a one-way call.
pub(crate) fn is_one_way(call: u64) -> bool {
    call & u64::from(ONE_WAY) != 0
}

/// Splits a call's number into its slot and its generation.
#[allow(clippy::cast_possible_truncation, reason = "the two halves of a word")]
#[inline]
pub(super) fn parts(call: u64) -> Option<(usize, u32)> {
    Some((usize::try_from(call as u32 & !ONE_WAY).ok()?, (call >> 32) as u32))
}

/// Returns true if a partially received message is a reply to this call.
pub(super) fn is_reply_to(part: &Message, call: u64) -> bool {
    matches!(Header::unparsed(part.header(), part.as_slice()), Some(Unparsed::Reply { call: of }) if of == call)
}
