//! Calls submitted to a poller, and their admission classes. The class of a call determines its share of the node's budgets,
//! and its behaviour when a budget is used up.
//!
//! If calls made by handlers waited for room, two nodes whose handlers call each other could deadlock. Calls made by
//! handlers therefore never wait, and a share of each budget is reserved for them.

use super::Completion;
use crate::client::routes::id::{ExpectedId, RouteId};
use crate::executor::on_poller;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::wire::frame::Encoded;
use crate::wire::metadata::Metadata;
use crate::wire::name::MethodName;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use trunkline_transport::{Body, Connect, EAGER_BYTES, Leaves, PeerKey, PollerChoice, SendError};
use trunkline_verbs::Time;

/// A call submitted to a poller, from any thread or from a task on the same poller.
#[derive(Debug)]
pub(crate) struct Submission<C = Completion> {
    /// The server; a placeholder until the route of the call has an address.
    pub(crate) server: PeerKey,
    /// The route of the call; `None` for a call to an address, and for a call that must stay at its server.
    pub(crate) route: Option<RouteId>,
    /// Name that the server must prove.
    pub(crate) expected: ExpectedId,
    pub(crate) method: &'static MethodName,
    pub(crate) one_way: bool,
    /// The encoded arguments, after the metadata.
    pub(crate) encoded: Encoded,
    /// Size of the metadata, in bytes.
    pub(crate) metadata: u32,
    /// The raw argument; empty if there is none.
    pub(crate) body: Body,
    /// Time at which the call fails if it has no outcome.
    pub(crate) deadline: Time,
    /// Behaviour if the server is unreachable.
    pub(crate) connect: Connect,
    /// Number of an ordered channel, which selects the peer's poller.
    pub(crate) order: Option<PollerChoice>,
    /// True for a call made by a handler or task of this node. Such a call continues while the node shuts down.
    pub(crate) nested: bool,
    pub(crate) entry: AdmissionClass,
    /// Completion for the outcome; `None` once it has been taken.
    pub(crate) completion: Option<C>,
}

/// Placeholder for the server of a call whose route has no address yet.
pub(crate) const NOWHERE: PeerKey = PeerKey::new(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0));

/// The compiler moves values of up to 128 bytes without a call to `memcpy`. Only the `identity` feature needs more.
const _: () = assert!(size_of::<Submission>() <= if cfg!(feature = "identity") { 136 } else { 128 });

impl<C: Into<Completion>> Submission<C> {
    /// Converts the completion to [`Completion`].
    pub(crate) fn erase_completion(mut self) -> Submission {
        let completion = self.completion.take().map(C::into);
        self.with_completion(completion)
    }
}

impl Submission {
    /// Returns true if the future of the call was dropped.
    #[inline]
    pub(crate) fn is_abandoned(&self) -> bool {
        self.completion.as_ref().is_none_or(Completion::is_abandoned)
    }

    /// Moves the call out, and leaves a call without a completion.
    pub(crate) fn take(&mut self) -> Self {
        Self {
            encoded: mem::take(&mut self.encoded),
            body: mem::take(&mut self.body),
            completion: self.completion.take(),
            ..*self
        }
    }

    /// Drops the trace of a request that is too large, because the trace may come from a remote caller. Returns true if the
    /// request is now smaller.
    pub(crate) fn drops_trace(&mut self, error: SendError) -> bool {
        let SendError::TooLarge { bytes, limit } = error else { return false };
        let size = usize::try_from(self.metadata).unwrap_or(usize::MAX);
        let block = self.encoded.part().get(..size).unwrap_or_default();
        let Ok(mut metadata) = Metadata::parse(block) else { return false };
        metadata.drop_trace_beyond(size.saturating_sub(bytes.saturating_sub(limit)));
        let is_smaller = metadata.size() < size;
        if is_smaller {
            self.encoded.replace_metadata(size, metadata.block());
            self.metadata = u32::try_from(metadata.size()).unwrap_or(u32::MAX);
        }
        is_smaller
    }
}

impl<C> Submission<C> {
    pub(crate) fn with_completion<D>(self, completion: Option<D>) -> Submission<D> {
        Submission {
            server: self.server,
            route: self.route,
            expected: self.expected,
            method: self.method,
            one_way: self.one_way,
            encoded: self.encoded,
            metadata: self.metadata,
            body: self.body,
            deadline: self.deadline,
            connect: self.connect,
            order: self.order,
            nested: self.nested,
            entry: self.entry,
            completion,
        }
    }

    /// Returns true if the call moves to another server on its route when this server is lost before the request is sent.
    #[inline]
    pub(crate) fn is_chosen(&self) -> bool {
        self.route.is_some() && self.server != NOWHERE
    }

    /// Returns a copy of the call with another completion. The arguments are copied to `encoded`, which must be empty.
    pub(crate) fn copy<D>(&self, mut encoded: Encoded, completion: Option<D>) -> Submission<D> {
        encoded.buffer().extend_from_slice(self.encoded.part());
        Submission {
            server: self.server,
            route: self.route,
            expected: self.expected,
            method: self.method,
            one_way: self.one_way,
            encoded,
            metadata: self.metadata,
            body: self.body.clone(),
            deadline: self.deadline,
            connect: self.connect,
            order: self.order,
            nested: self.nested,
            entry: self.entry,
            completion,
        }
    }

    /// Returns true if the encoded part and the body exceed [`EAGER_BYTES`]. The header is not counted.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        self.encoded.len() + self.body.len() > EAGER_BYTES
    }

    /// Returns the part of the message queue reserved for other classes of calls.
    #[inline]
    pub(crate) fn leaves(&self) -> Leaves {
        self.entry.leaves_queue(self.is_large())
    }
}

/// Returns the status of a call refused by a full queue.
pub(crate) fn too_many(most: usize) -> Status {
    let text = format!(
        "{most} calls wait for this poller to take them, a limit that no setting changes; make them with \
         Admission::Wait, or fewer at once"
    );
    Status::not_run(Code::ResourceExhausted, text).because(Reason::Overloaded)
}

/// Admission class of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdmissionClass {
    /// A call made outside of handlers that waits if a limit is reached.
    Waits,
    /// A call made outside of handlers that fails if a limit is reached.
    Tries,
    /// A call made by a handler of this node. It may use the reserved share, and fails if a limit is reached.
    Reserved,
    /// An internal call of the node. It is exempt from the call limit, but fails if too many messages wait to be sent.
    Exempt,
}

impl AdmissionClass {
    /// Returns the class of a call made on this thread. `is_nested` is true on a poller of the call's node.
    #[inline]
    pub(crate) fn here(admission: Option<Admission>, is_nested: bool) -> Self {
        match admission {
            None => Self::Exempt,
            _ if is_nested && on_poller::is_in_handler() => Self::Reserved,
            Some(Admission::Wait) => Self::Waits,
            Some(Admission::Try) => Self::Tries,
        }
    }

    /// Returns the share of the call limit reserved for other classes, or `None` if the limit does not apply.
    #[inline]
    pub(crate) fn leaves_calls(self) -> Option<Leaves> {
        match self {
            Self::Exempt => None,
            Self::Reserved => Some(Leaves::Nothing),
            Self::Waits | Self::Tries => Some(Leaves::Eighth),
        }
    }

    /// Returns the share of the message queue reserved for other classes. An eighth each is reserved for replies, for calls
    /// made by handlers, and for small calls.
    #[inline]
    pub(crate) fn leaves_queue(self, is_large: bool) -> Leaves {
        match (self, is_large) {
            (Self::Reserved, false) => Leaves::Eighth,
            (Self::Reserved, true) | (Self::Waits | Self::Tries | Self::Exempt, false) => Leaves::Quarter,
            (Self::Waits | Self::Tries | Self::Exempt, true) => Leaves::ThreeEighths,
        }
    }
}

/// Behaviour of a call when its node reaches a limit on calls in flight or queued messages, set with
/// [`CallOptions::admission`](crate::CallOptions::admission).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Admission {
    /// Waits for room, at most until the call's time limit.
    #[default]
    Wait,
    /// Fails at once.
    Try,
}
