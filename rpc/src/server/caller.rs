//! The caller of a request: its key and the properties of its reply.

use crate::wire::frame::Number;
use crate::wire::name::Streams;
use trunkline_transport::{Origin, PeerKey, PollerIndex, SessionNumber};
use trunkline_verbs::Time;

/// Index of a method that is not served.
pub(super) const NOT_SERVED: u32 = u32::MAX;

/// The key by which the sender identifies a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) peer: PeerKey,
    pub(super) session: SessionNumber,
    pub(super) poller: PollerIndex,
    pub(super) call: u64,
}

impl Key {
    pub(super) fn new(from: Origin, call: u64) -> Self {
        Self { peer: from.peer, session: from.session, poller: from.poller, call }
    }
}

/// The caller of a request and the properties of its reply.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller {
    pub(super) key: Key,
    pub(super) deadline: Option<Time>,
    pub(super) one_way: bool,
    /// Size of the request's metadata, in bytes.
    pub(super) metadata: u32,
    /// Index of the method, or [`NOT_SERVED`].
    pub(super) table: u32,
    /// Directions in which the call streams items.
    pub(super) streams: Streams,
    /// Number of the method, if it must be sent to the caller.
    pub(super) number: Option<Number>,
    /// True if the reply may overtake items of the call's stream.
    pub(super) overtakes: bool,
}

impl Caller {
    /// Returns the caller of a one-way call, which is sufficient to address a frame.
    pub(super) fn of_one_way(key: Key) -> Self {
        Self {
            key,
            deadline: None,
            one_way: true,
            metadata: 0,
            table: NOT_SERVED,
            streams: Streams::Neither,
            number: None,
            overtakes: false,
        }
    }
}
