//! The interface between a poller and the protocol above it.
//!
//! A poller thread owns one [`Upper`] (the RPC layer's per-poller half) and calls it for every
//! message, outcome and change of a peer. Each call passes a [`Carrier`], through which the upper half acts. Both
//! live on the poller's thread, so neither needs `Send` nor locks.

use crate::PeerKey;
use crate::body::Body;
use crate::budget::{Exhausted, Leaves};
use crate::buffer::Received;
use crate::frame::FrameError;
use crate::ledger::UpperLedger;
use bytes::{Buf as _, Bytes};
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;
use trunkline_verbs::{Time, VerbsError};

/// Index of a poller within its node, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PollerIndex(pub u16);

/// Choice of the peer's poller for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Toward {
    /// The poller with this index.
    Poller(PollerIndex),
    /// The carrier chooses: messages go to the peer's pollers in turn.
    Any,
    /// The poller with this turn: in one session it is the same for all messages with this turn.
    Turn(Turn),
}

/// Poller of a peer that the carrier has chosen for a message: this number modulo those that the peer has in
/// the session through which the message leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Turn(NonZeroU32);

impl Turn {
    /// The turn with this number. The last two numbers are one turn, so that an `Option<Turn>` fits in four bytes.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(number))
    }

    /// The poller, of `pollers` in all.
    #[must_use]
    pub fn of(self, pollers: u16) -> PollerIndex {
        let index = (self.0.get() - 1).checked_rem(u32::from(pollers)).unwrap_or_default();
        PollerIndex(u16::try_from(index).unwrap_or_default())
    }
}

/// Number of a message, chosen by the upper half and returned with the outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// A session with a peer, by this node's number of it. A peer that is restarted has the same key, and
/// another session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionNumber(pub u32);

/// Origin of a message: answers go back to the same peer and poller, through the same session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The node.
    pub peer: PeerKey,
    /// The session through which it came.
    pub session: SessionNumber,
    /// The poller there that sent it.
    pub poller: PollerIndex,
}

/// The behaviour of a message that has no session to its peer after an attempt to connect has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Connect {
    /// Fails with the attempt that it waited for, and at once while the node pauses before its next attempt.
    #[default]
    FailFast,
    /// Waits for a session until its deadline, however many attempts fail.
    Wait,
}

/// Progress of a connection to a node; see [`Carrier::reach`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// A session is up.
    Up,
    /// An attempt is under way.
    UnderWay,
    /// The last attempt has failed, and the node pauses before the next one.
    Away {
        /// Why it failed.
        cause: PeerDown,
        /// Time until the next attempt may begin.
        due_in: Duration,
    },
}

/// Outcomes of a message that are reported to its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Report {
    /// Any.
    #[default]
    Always,
    /// Any but that it was delivered, if it has left at once: [`Taken::left`] names its session then, and it was delivered
    /// if that ends before it has failed.
    Failure,
    /// None.
    Never,
}

/// Report of a message's outcome to its sender, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub(crate) token: Token,
    pub(crate) report: Report,
}

impl Receipt {
    /// Returns the receipt of a message that does not leave at once.
    pub(crate) fn of_waiting(self) -> Self {
        Self { report: if self.report == Report::Failure { Report::Always } else { self.report }, ..self }
    }
}

/// Placement of a message that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Turn of the peer's poller that it is for.
    pub turn: Turn,
    /// The session through which it leaves, if it does so at once.
    pub left: Option<SessionNumber>,
}

/// A message to send.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// Destination node.
    pub peer: PeerKey,
    /// Destination poller.
    pub toward: Toward,
    /// Session of the message; `None` takes the one that is up, or the next one. A message for a session
    /// that is over is refused, or fails if it has waited: an answer must not reach the incarnation that follows
    /// the one which asked.
    pub session: Option<SessionNumber>,
    /// Behaviour when the peer cannot be reached.
    pub connect: Connect,
    /// True if the peer's poller gets it after all ordered messages that this poller has sent there before, however
    /// large they are. Other messages overtake large ones, which the peer has yet to READ.
    pub ordered: bool,
    /// First part: copied before `send` returns. It begins with a header: kind (1), of 0x10 or more, flags (1), two
    /// bytes that are its own, and four that the transport writes; in all 8 times as many bytes as the upper four
    /// bits of the kind give. `docs/wire.md` has the flags. The only one of the transport's flags that may be set is
    /// the one for a time left: then the header has at least 20 bytes, and in those from 16 the transport writes
    /// the microseconds until `deadline` when the message leaves.
    pub head: &'a [u8],
    /// Number of bytes of the head, the header first among them, that reach the peer with the announcement of a large
    /// message, before it READs the rest: at most 4096. More than the first 1024 may be left to be READ.
    pub announced: usize,
    /// Second part, directly after the first at the receiver; sent without a copy when it is
    /// in registered memory and large. May be empty.
    pub body: Body,
    /// Passed back to [`Upper::sent`].
    pub token: Token,
    /// Outcomes to report.
    pub report: Report,
    /// Time after which the message is dropped if it has not left yet.
    pub deadline: Option<Time>,
    /// Share of the queue reserved for others, if the message has to be queued.
    pub leaves: Leaves,
}

impl Outgoing<'_> {
    #[inline]
    pub(crate) fn receipt(&self) -> Receipt {
        Receipt { token: self.token, report: self.report }
    }
}

/// Reason why a message was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// It is larger than the node's `max_message_bytes` (or the peer's).
    #[error("message of {bytes} bytes exceeds the limit of {limit} (setting max_message_bytes)")]
    TooLarge {
        /// Size of the message.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The queue of this peer, or of all peers, is full.
    #[error("too much waits to be sent: {0}")]
    QueueFull(Exhausted),
    /// The last attempt to connect has failed, and the next one is not due yet.
    #[error("{cause}")]
    BackingOff {
        /// Why the last attempt failed.
        cause: PeerDown,
        /// The time until a message begins the next attempt. The text leaves it out, so that one cause has one text.
        due_in: Duration,
    },
    /// It is for a session that is over.
    #[error("the session that the message is for is over")]
    SessionOver,
    /// The message does not begin with a header.
    #[error("the message does not begin with a header, or has too long a one")]
    BadHeader,
    /// The node shuts down, or the key is unknown.
    #[error("no such peer, or the node is shutting down")]
    NoPeer,
}

/// Outcome of sending a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOutcome {
    /// It is in the peer's memory; the peer's program may not have looked at it yet.
    Delivered,
    /// It was not delivered, or its fate is unknown.
    Failed(SendFailure),
}

/// Reason why a message failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendFailure {
    /// `false` is a guarantee that the peer has not seen it; `true` may be cautious.
    pub may_have_arrived: bool,
    /// Why.
    pub cause: PeerDown,
}

/// Reason why a peer is unreachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerDown {
    /// No answer from its address.
    #[error("the peer does not answer")]
    Unreachable,
    /// This node has no address of the peer's family, IPv4 or IPv6, to call from.
    #[error(
        "this node has no {} address to call from: it listens on {listens_on}; listen on an {} address as well, if this host has one",
        other_family(listens_on),
        other_family(listens_on)
    )]
    NoAddress {
        /// Address that this node listens on: the first of its addresses.
        listens_on: SocketAddr,
    },
    /// This host, or its device, cannot send to the peer's address.
    #[error("this host cannot send to the peer's address: {0}")]
    NoRoute(VerbsError),
    /// This node's device reaches peers through shared memory only (`TRUNKLINE_LINK=shm`, or its setting link), and this one it cannot.
    #[error(
        "this node reaches peers through shared memory only (TRUNKLINE_LINK=shm, or setting link), which it cannot share with the peer: {0}"
    )]
    NotShared(&'static str),
    /// It answers, but no node listens on that port.
    #[error("nobody listens on that port at the peer")]
    NotListening,
    /// It refused the session: authentication or limits.
    #[error("the peer refused the session: {0}")]
    Refused(&'static str),
    /// The two nodes have no version of the protocol in common.
    #[error(
        "the peer speaks {} of the protocol, this node {}: update one of them",
        Range(theirs),
        Range(ours)
    )]
    Version {
        /// The lowest and the highest version that this node speaks.
        ours: (u8, u8),
        /// The same of the peer.
        theirs: (u8, u8),
    },
    /// It stopped answering.
    #[error("the peer stopped answering")]
    Died,
    /// It stopped answering when packets became larger than any that had got through.
    #[error(
        "the peer stopped answering, and no packet with {bytes} bytes of payload has got through in this session: if the \
         peer is up, the path carries less than the interfaces at its ends; lower the MTU of one of them to that of the path"
    )]
    FullPacketsLost {
        /// Payload of such a packet.
        bytes: u32,
    },
    /// It closed the session in an orderly way, or its process died and a device said so in its place.
    #[error("the peer closed the session")]
    Closed,
    /// It came back as another incarnation.
    #[error("the peer was restarted")]
    Restarted,
    /// It broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Misbehaved(&'static str),
    /// It sent a frame of a kind that this node does not know and must not ignore.
    #[error("the peer sent a frame of kind {0:#04x}, which this node does not know and must not ignore")]
    UnknownFrame(u8),
    /// The peer's settings have an entry that this node does not know and must not ignore.
    #[error(
        "the peer has setting {0}, which this node does not know and must not ignore: update one of them"
    )]
    UnknownSetting(u16),
    /// Our settings have an entry that it does not know and must not ignore.
    #[error("the peer does not know setting {0} of this node and must not ignore it: update one of them")]
    SettingRefused(u16),
    /// The message's deadline passed before it could leave.
    #[error("the deadline passed before the message could leave")]
    Deadline,
    /// The message is larger than the peer takes, which became known when the session came up.
    #[error("message of {bytes} bytes exceeds the peer's limit of {limit} (its max_message_bytes)")]
    TooLarge {
        /// Size of the message.
        bytes: usize,
        /// The peer's limit.
        limit: usize,
    },
    /// Buffers for large messages were used up at the peer until the deadline.
    #[error("the peer had no buffer free for the message in time (its rendezvous_bytes)")]
    ResourceExhausted,
    /// The local device refused to register the message's memory: it has no more regions, or may pin no more memory.
    #[error("the memory of the message cannot be registered: {0}")]
    NotRegistered(VerbsError),
    /// This node shuts down.
    #[error("this node is shutting down")]
    ShuttingDown,
    /// The local device failed.
    #[error("the local device failed")]
    DeviceFailed,
    /// The local device was removed. The node continues when it is back.
    #[error("the local RDMA device was removed")]
    DeviceRemoved,
}

impl From<FrameError> for PeerDown {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Broken(what) => Self::Misbehaved(what),
            FrameError::Kind(kind) => Self::UnknownFrame(kind),
            FrameError::Setting(number) => Self::UnknownSetting(number),
        }
    }
}

impl PeerDown {
    /// Returns true if this ends a session that was up, rather than an attempt to make one.
    #[must_use]
    pub fn ends_a_session(self) -> bool {
        matches!(
            self,
            Self::Died
                | Self::FullPacketsLost { .. }
                | Self::Closed
                | Self::Restarted
                | Self::Misbehaved(_)
                | Self::DeviceFailed
                | Self::DeviceRemoved
        )
    }

    /// Returns true if a later attempt to connect cannot succeed.
    #[must_use]
    pub fn is_final(self) -> bool {
        self.is_of_this_node() || self.is_incompatible()
    }

    /// Returns true if one of the two nodes has to be updated.
    pub(crate) fn is_incompatible(self) -> bool {
        matches!(self, Self::Version { .. } | Self::UnknownSetting(_) | Self::SettingRefused(_))
    }

    /// Returns true if no pause before the next attempt can help, because the peer was not asked.
    pub(crate) fn is_of_this_node(self) -> bool {
        matches!(self, Self::ShuttingDown | Self::NoAddress { .. })
    }
}

/// The lowest and the highest version that a node speaks, as a text.
struct Range<'a>(&'a (u8, u8));

impl fmt::Display for Range<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self.0 {
            (lowest, highest) if lowest == highest => write!(f, "version {highest}"),
            (lowest, highest) => write!(f, "versions {lowest} to {highest}"),
        }
    }
}

/// Returns the name of the other address family.
fn other_family(address: &SocketAddr) -> &'static str {
    if address.is_ipv4() { "IPv6" } else { "IPv4" }
}

/// A change of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerEvent {
    /// A session is up, and the peer's settings have come. `epoch` distinguishes incarnations of the peer.
    Up {
        /// Number of the session, as [`Origin::session`] has it.
        session: SessionNumber,
        /// Random number of the incarnation.
        epoch: u64,
        /// Number of its pollers.
        pollers: u16,
    },
    /// The session ended, or an attempt to make one failed; each message under way has had its [`Upper::sent`]
    /// before this, but for those that wait for the next session ([`Connect::Wait`]).
    Down {
        /// Why.
        cause: PeerDown,
    },
}

/// A received message. It may lend a registered receive buffer, which goes back to its poller
/// when the message, or the `Bytes` made from it, is dropped, on any thread. One of at most 1024 bytes, its header included,
/// shares a block of 4 KiB with others instead, which is used again when all of them are dropped.
#[derive(Debug)]
pub struct Message(Content);

#[derive(Debug)]
enum Content {
    Owned(Bytes),
    /// An announced message that the upper half has accepted.
    Accepted(Bytes),
    Lent(Received),
}

impl Message {
    pub(crate) fn lent(frame: Received) -> Self {
        Self(Content::Lent(frame))
    }

    pub(crate) fn accepted(bytes: Bytes) -> Self {
        Self(Content::Accepted(bytes))
    }

    /// Returns true if it was announced, and accepted then.
    #[must_use]
    #[inline]
    pub fn is_accepted(&self) -> bool {
        matches!(self.0, Content::Accepted(_))
    }

    /// The bytes, with their header first.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Content::Owned(bytes) | Content::Accepted(bytes) => bytes,
            Content::Lent(frame) => frame.as_ref(),
        }
    }

    /// Returns the bytes from `start` on, as shared bytes, without a copy; costs at most one allocation. Empty if
    /// it is not as
    /// long.
    #[must_use]
    #[inline]
    pub fn bytes_from(self, start: usize) -> Bytes {
        let mut bytes = match self.0 {
            Content::Owned(bytes) | Content::Accepted(bytes) => bytes,
            Content::Lent(frame) => Bytes::from_owner(frame),
        };
        bytes.advance(start.min(bytes.len()));
        bytes
    }
}

impl From<Bytes> for Message {
    #[inline]
    fn from(bytes: Bytes) -> Self {
        Self(Content::Owned(bytes))
    }
}

/// Decision about an announced message, see [`Upper::announced`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Screening {
    /// The message is READ, and the decision waits for the rest of it.
    Undecided,
    /// The message is READ, and is marked as accepted: [`Message::is_accepted`].
    Accepted,
    /// The message is not READ. Its sender takes it as delivered.
    Refused,
}

/// Services of a poller for its upper half. Nothing here blocks.
pub trait Carrier {
    /// The time, as read when the poller's turn began.
    fn now(&self) -> Time;

    /// The program has read the clock since the poller's turn began, in a handler that took its time: it is at least this
    /// late. So a message that is sent next does not claim more time than is left.
    fn advance(&mut self, time: Time);

    /// Returns true if what the turn has led to has waited long enough to leave before its end. Reads the clock: ask every
    /// few handlers, and then call [`Self::flush`].
    fn is_flush_overdue(&mut self) -> bool;

    /// Posts what has been sent, so that peers need not wait for the rest of the turn.
    fn flush(&mut self);

    /// Returns the index of this poller.
    fn poller(&self) -> PollerIndex;

    /// Returns the number of this node's pollers.
    fn pollers(&self) -> u16;

    /// The key of a node as this poller has it, by which it is found most quickly. Starts to connect when there is no
    /// session, and again, with backoff, whenever something waits to be sent.
    fn peer(&mut self, node: PeerKey) -> PeerKey;

    /// Returns true if a message to the peer would leave through a session that is up.
    fn is_up(&self, peer: PeerKey) -> bool;

    /// Begins to connect to a node, if there is no session and it is time for an attempt. How the attempt ends comes to
    /// [`Upper::peer`]; it may have begun earlier, and may last until a device that was removed is back.
    fn reach(&mut self, node: PeerKey) -> Reach;

    /// Takes a message; its outcome comes to [`Upper::sent`] as far as it asks for that, at most once, and never from
    /// inside this call. While there is no session yet it waits in a bounded queue for the attempt to connect that
    /// is under way, or begins one.
    ///
    /// # Errors
    /// When it was not taken; then no outcome comes, and it may be offered again.
    fn send(&mut self, message: &Outgoing<'_>) -> Result<Taken, SendError>;

    /// Gives up those of these messages that have not left yet, and returns them: the peer will never see them, and no
    /// outcomes come. Does nothing with those that have left. It searches the queues once, so give up many at a time.
    fn cancel(&mut self, tokens: &BTreeSet<Token>) -> BTreeSet<Token>;

    /// Returns true if a message for this session of the peer could leave through it. The upper half hears of a
    /// session's end
    /// only when all that was under way in it has an outcome.
    fn has_session(&self, peer: PeerKey, session: SessionNumber) -> bool;

    /// Why the last attempt to connect to the peer failed, if nothing has come of a later one.
    fn away(&self, peer: PeerKey) -> Option<PeerDown>;

    /// Bytes of the oldest large message of the peer that waits for memory here, of those whose announcing frame
    /// `is_it` chooses. That begins with the message's header; an announcement follows it.
    fn waiting_bytes(&self, peer: PeerKey, is_it: &dyn Fn(&[u8]) -> bool) -> Option<usize>;

    /// Refuses a request of the peer if its reply may not be queued. A part of the budget is left to those
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
    /// Mark of the protocol on its thread.
    type Here;

    /// The poller's turn begins on this thread, and lasts until this is dropped. Code of the program may run in all of
    /// it, not only in the upper half: when bytes are dropped that it has lent.
    fn enter(&self) -> Self::Here;

    /// A message came.
    fn message(&mut self, carrier: &mut dyn Carrier, from: Origin, message: Message);

    /// Returns true if [`Self::announced`] decides about large messages. Called once.
    fn screens(&self) -> bool {
        false
    }

    /// A large message is announced, and none of its rest is READ yet. `header` is its header, in which a flag of the
    /// transport is set. `part` is the part that has come with it, from the end of the header.
    fn announced(
        &mut self,
        _carrier: &mut dyn Carrier,
        _from: Origin,
        _header: &[u8],
        _part: &[u8],
    ) -> Screening {
        Screening::Undecided
    }

    /// A message that was sent has its outcome.
    fn sent(&mut self, carrier: &mut dyn Carrier, token: Token, outcome: SendOutcome);

    /// A large message of the given size does not come, because no memory became free for it in time, or too many were
    /// announced; its sender knows. `frame` announced it: it begins with the message's header.
    fn given_up(&mut self, from: Origin, frame: &[u8], bytes: usize);

    /// A message with [`Report::Never`] cannot be sent to this poller of a peer, in a session that goes on. `head` begins
    /// with its header. Ordered messages that were sent after it still leave.
    fn not_sent(&mut self, carrier: &mut dyn Carrier, to: Origin, head: &[u8], cause: PeerDown);

    /// A peer changed.
    fn peer(&mut self, carrier: &mut dyn Carrier, peer: PeerKey, event: PeerEvent);

    /// Sends what messages and tasks have led to so far, and posts it. Called within a turn that takes long.
    fn flush(&mut self, carrier: &mut dyn Carrier) {
        carrier.flush();
    }

    /// Runs one turn in the poller's loop: take from queues, run ready tasks, fire timers up to
    /// `carrier.now()`. Returns whether it did anything.
    fn run(&mut self, carrier: &mut dyn Carrier) -> bool;

    /// Returns the time at which it must run next even if nothing happens.
    fn next_timer(&self) -> Option<Time>;

    /// Returns true if it has work that must not wait for a sleep (checked after the poller announced
    /// that it goes to sleep).
    fn is_ready(&self) -> bool;

    /// The node shuts down; what is open should end soon. Called once. Messages may still be sent, also to new
    /// peers, until the sessions are closed: when every poller's upper half is drained, or the grace is over.
    fn shutdown(&mut self, carrier: &mut dyn Carrier);

    /// The grace period of the shutdown is over. Called once. Ends what its peers can still be told of, and returns true if
    /// it has sent that.
    fn grace_over(&mut self, _: &mut dyn Carrier) -> bool {
        false
    }

    /// Returns true if nothing of it is open any more. A node that shuts down waits for this, and for
    /// what it has sent, as long as its grace lasts.
    fn is_drained(&self) -> bool {
        true
    }

    /// Returns true if nothing is open any more that a peer waits for. A node that shuts down asks once it takes nothing new.
    fn has_ended(&self, _: PeerKey) -> bool {
        self.is_drained()
    }

    /// The node shuts down, and all that was sent to the peer was delivered after [`Upper::has_ended`] was true of it.
    /// Called at most once in a session, and not if a message of the session was lost whose outcome is not reported.
    /// Sessions are closed when the messages that it sends are delivered too, or a second after all peers have settled.
    fn settled(&mut self, _: &mut dyn Carrier, _: PeerKey) {}

    /// Returns the open work, for a simulation to count.
    fn ledger(&self) -> UpperLedger {
        UpperLedger::default()
    }
}
