//! The seam between a poller and the protocol that rides on it.
//!
//! A poller thread owns one [`Upper`] (the RPC layer's per-poller half) and calls it for every
//! message, outcome and change of a peer; the upper half acts through the [`Carrier`] that each
//! call lends it. Both live on the poller's thread, so neither needs `Send` nor locks.

use crate::PeerKey;
use crate::budget::Exhausted;
use crate::buffer::Received;
use crate::ledger::UpperLedger;
use bytes::Bytes;
use std::net::SocketAddr;
use trunkline_verbs::Time;

/// Position of a poller within its node, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PollerIndex(pub u16);

/// The upper half's own number for a message it sends; comes back with the outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// A session with a peer, by this node's number of it. A peer that is restarted has the same key, and
/// another session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionNumber(pub u32);

/// Where a message came from: answers go back to the same peer and poller, through the same session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The node.
    pub peer: PeerKey,
    /// The session through which it came.
    pub session: SessionNumber,
    /// The poller there that sent it.
    pub poller: PollerIndex,
}

/// A message to send.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// To which node.
    pub peer: PeerKey,
    /// To which poller there; `None` lets the carrier choose (it spreads calls over the peer's
    /// pollers, preferring the one that is cheapest to reach).
    pub poller: Option<PollerIndex>,
    /// Through which session; `None` takes whichever is up, or the next one. A message for a session
    /// that is over fails: an answer must not reach the incarnation that follows the one which asked.
    pub session: Option<SessionNumber>,
    /// First part: copied before `send` returns.
    pub head: &'a [u8],
    /// Second part, directly after the first at the receiver; sent without a copy when it is
    /// in registered memory and large. May be empty.
    pub body: Bytes,
    /// Passed back to [`Upper::sent`].
    pub token: Token,
    /// After this the message is given up if it has not left yet.
    pub deadline: Option<Time>,
}

/// Why a message was not taken at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// It is larger than the node's `max_message_bytes` (or the peer's).
    #[error("message of {bytes} bytes exceeds the limit of {limit}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Too much waits for this peer, or for all peers, already.
    #[error("too much waits to be sent: {0}")]
    QueueFull(Exhausted),
    /// The node shuts down, or the key is unknown.
    #[error("no such peer, or the node is shutting down")]
    NoPeer,
}

/// How sending a message ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOutcome {
    /// It is in the peer's memory; the peer's program may not have looked at it yet.
    Delivered,
    /// It did not get there, or nobody knows.
    Failed(SendFailure),
}

/// Why a message failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendFailure {
    /// `false` is a guarantee that the peer has not seen it; `true` may be cautious.
    pub may_have_arrived: bool,
    /// Why.
    pub cause: PeerDown,
}

/// Why a peer is unreachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerDown {
    /// Nobody answers at its address.
    #[error("the peer does not answer")]
    Unreachable,
    /// It answers, but nobody listens on that port.
    #[error("nobody listens on that port at the peer")]
    NotListening,
    /// It refused the session: version, authentication or limits.
    #[error("the peer refused the session: {0}")]
    Refused(&'static str),
    /// It stopped answering.
    #[error("the peer stopped answering")]
    Died,
    /// It closed the session in an orderly way.
    #[error("the peer closed the session")]
    Closed,
    /// It came back as another incarnation.
    #[error("the peer was restarted")]
    Restarted,
    /// It broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Misbehaved(&'static str),
    /// The message's deadline passed before it could leave.
    #[error("the deadline passed before the message could leave")]
    Deadline,
    /// It was cancelled before it left.
    #[error("cancelled")]
    Cancelled,
    /// Buffers for large messages were used up at the peer until the deadline.
    #[error("no buffer for the message became free in time")]
    ResourceExhausted,
    /// This node shuts down.
    #[error("this node is shutting down")]
    ShuttingDown,
    /// The local device failed.
    #[error("the local device failed")]
    DeviceFailed,
    /// The local device was taken away; the node looks for it and goes on when it is back.
    #[error("the local RDMA device was removed")]
    DeviceRemoved,
}

/// A change of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerEvent {
    /// A session is up. `epoch` distinguishes incarnations of the peer.
    Up {
        /// Random number of the incarnation.
        epoch: u64,
        /// Pollers it has.
        pollers: u16,
    },
    /// The session ended; each message under way has had its [`Upper::sent`] before this.
    Down {
        /// Why.
        cause: PeerDown,
    },
}

/// A received message. It may lend a registered receive buffer, which goes back to its poller
/// when the message, or the `Bytes` made from it, is dropped, on any thread.
#[derive(Debug)]
pub struct Message(Content);

#[derive(Debug)]
enum Content {
    Owned(Bytes),
    Lent(Received),
}

/// A lent message up to this size is copied into the `Bytes` made from it: that costs no more
/// than lending it, and gives the receive buffer back at once.
const COPY_BYTES: usize = 1024;

impl Message {
    pub(crate) fn lent(frame: Received) -> Self {
        Self(Content::Lent(frame))
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Content::Owned(bytes) => bytes,
            Content::Lent(frame) => frame.as_ref(),
        }
    }

    /// The same as shared bytes; costs at most one allocation and, unless it is short, no copy.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            Content::Owned(bytes) => bytes,
            Content::Lent(frame) if frame.as_ref().len() <= COPY_BYTES => {
                Bytes::copy_from_slice(frame.as_ref())
            }
            Content::Lent(frame) => Bytes::from_owner(frame),
        }
    }
}

impl From<Bytes> for Message {
    fn from(bytes: Bytes) -> Self {
        Self(Content::Owned(bytes))
    }
}

/// What a poller does for its upper half. Nothing here blocks.
pub trait Carrier {
    /// The time, as read when the poller's turn began.
    fn now(&self) -> Time;

    /// Which poller this is.
    fn poller(&self) -> PollerIndex;

    /// How many pollers this node has.
    fn pollers(&self) -> u16;

    /// The key of the node that listens at `address`. Starts to connect when there is no session,
    /// and again, with backoff, whenever something waits to be sent.
    fn peer(&mut self, address: SocketAddr) -> PeerKey;

    /// Takes a message; its outcome comes to [`Upper::sent`], exactly once, and never from
    /// inside this call. While there is no session yet it waits in a bounded queue.
    ///
    /// # Errors
    /// When it was not taken; then no outcome comes.
    fn send(&mut self, message: Outgoing<'_>) -> Result<(), SendError>;

    /// Gives up a message that has not left yet; its outcome is then `Cancelled`. Does nothing
    /// when it has left.
    fn cancel(&mut self, token: Token);

    /// Whether the reply to one more request of the peer may be queued. A part of the budget is left to those
    /// who refuse requests because it may not.
    ///
    /// # Errors
    /// The budget that is used up.
    fn has_reply_room(&mut self, peer: PeerKey) -> Result<(), Exhausted>;

    /// Largest message to any peer, head and body together.
    fn max_message_bytes(&self) -> usize;
}

/// The protocol above a poller.
pub trait Upper: 'static {
    /// A message came.
    fn message(&mut self, carrier: &mut dyn Carrier, from: Origin, message: Message);

    /// A message that was sent has its outcome.
    fn sent(&mut self, carrier: &mut dyn Carrier, token: Token, outcome: SendOutcome);

    /// A peer changed.
    fn peer(&mut self, carrier: &mut dyn Carrier, peer: PeerKey, event: PeerEvent);

    /// Its turn in the poller's loop: take from queues, run ready tasks, fire timers up to
    /// `carrier.now()`. Returns whether it did anything.
    fn run(&mut self, carrier: &mut dyn Carrier) -> bool;

    /// When it must run next even if nothing happens.
    fn next_timer(&self) -> Option<Time>;

    /// Whether it has work that must not wait for a sleep (checked after the poller announced
    /// that it goes to sleep).
    fn is_ready(&self) -> bool;

    /// The node shuts down; what is open should end soon. Called once.
    fn shutdown(&mut self, carrier: &mut dyn Carrier);

    /// Whether nothing of it is open any more. A node that shuts down waits for this, and for
    /// what it has sent, as long as its grace lasts.
    fn is_drained(&self) -> bool {
        true
    }

    /// What is open, for a simulation to count.
    fn ledger(&self) -> UpperLedger {
        UpperLedger::default()
    }
}
