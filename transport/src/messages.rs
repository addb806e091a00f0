//! Messages and events that a transport exchanges with its driver, which implements the protocol above.
#![forbid(unsafe_code)]

use crate::Body;
use crate::PeerKey;
use crate::budget::{Exhausted, Leaves};
use crate::buffer::Received;
#[cfg(feature = "identity")]
use crate::identity::{HandshakeFailure, Proven};
use crate::wire::frame::{self, FrameError, HEADER, MessageHeader, TIMED_HEADER};
use bytes::{Buf as _, Bytes};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
#[cfg(feature = "identity")]
use std::sync::Arc;
use std::time::Duration;
use trunkline_verbs::{Mtu, Time, VerbsError};

/// Reason for a refusal by a node that requires an identity, with the remedy.
pub(crate) const NO_IDENTITY: &str = "it requires an identity, and this node has none: give this node one, or let the peer accept nodes without";

/// Index of a poller within its node, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PollerIndex(pub u16);

/// Destination of a message among the peer's pollers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// The poller with this index.
    Poller(PollerIndex),
    /// Any poller. The transport selects the peer's pollers in turn.
    Any,
    /// The poller that this choice selects. Within a session, a choice always selects the same poller.
    Choice(PollerChoice),
}

/// Choice of one of a peer's pollers. The index of the poller is this number modulo the number of the peer's pollers
/// in the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PollerChoice(NonZeroU32);

impl PollerChoice {
    /// Creates a choice from a number. `u32::MAX - 1` and `u32::MAX` give the same choice, so that an
    /// `Option<PollerChoice>` fits in four bytes.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(number))
    }

    /// Returns the index of the chosen poller among `pollers` pollers.
    #[must_use]
    pub fn of(self, pollers: u16) -> PollerIndex {
        let index = (self.0.get() - 1).checked_rem(u32::from(pollers)).unwrap_or_default();
        PollerIndex(u16::try_from(index).unwrap_or_default())
    }
}

/// Number of a message, chosen by the driver and returned with the outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// Number of a session with a peer, assigned by this node. A restarted peer keeps its key but gets a new session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionNumber(pub u32);

/// Origin of a message. Answers are sent to the same peer and poller, through the same session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Node that sent the message.
    pub peer: PeerKey,
    /// Session through which the message arrived.
    pub session: SessionNumber,
    /// Poller that sent the message.
    pub poller: PollerIndex,
}

/// Effect of a failed connection attempt on a message that waits for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Connect {
    /// The message fails if the connection attempt fails, and immediately while the node pauses before its next attempt.
    #[default]
    FailFast,
    /// The message waits for a session until its deadline, even if connection attempts fail.
    Wait,
}

/// Progress of a connection to a node; see [`Transport::reach`](crate::Transport::reach).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// A session is up.
    Up,
    /// An attempt is in progress.
    UnderWay,
    /// The last attempt failed, and the node pauses before the next one.
    Away {
        /// Cause of the failure.
        cause: PeerDown,
        /// Time until the next attempt may begin.
        due_in: Duration,
    },
}

/// Outcomes of a message that are reported to its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Report {
    /// All outcomes.
    #[default]
    Always,
    /// All outcomes except the delivery of a message that was sent immediately. Such a message was delivered unless its
    /// failure is reported before the session in [`Accepted::left`] ends.
    Failure,
    /// Outcomes are not reported.
    Never,
}

/// The token of a message's sender, and the outcomes to report to the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeliveryReport {
    pub(crate) token: Token,
    pub(crate) report: Report,
}

impl DeliveryReport {
    /// Returns the delivery report for a queued message, whose delivery is always reported.
    pub(crate) fn of_waiting(self) -> Self {
        Self { report: if self.report == Report::Failure { Report::Always } else { self.report }, ..self }
    }
}

/// Placement of an accepted message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// Choice of the destination poller.
    pub choice: PollerChoice,
    /// Session through which the message is sent, if it is sent immediately.
    pub left: Option<SessionNumber>,
}

/// A message to send.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// Destination node.
    pub peer: PeerKey,
    /// Destination poller.
    pub destination: Destination,
    /// Session to send the message through, or `None` for the current or the next session. If the session has ended,
    /// the message is refused, or fails if it is already queued. An answer therefore never reaches a later incarnation
    /// of the peer.
    pub session: Option<SessionNumber>,
    /// Behaviour when the peer cannot be reached.
    pub connect: Connect,
    /// True if the peer's poller receives the message after all ordered messages that this poller sent to it before,
    /// including large ones. Other messages overtake large messages, which the peer fetches by RDMA READ.
    pub ordered: bool,
    /// Kind, flags and word.
    pub header: MessageHeader,
    /// First part of the contents, copied before `send` returns.
    pub head: &'a [u8],
    /// Number of bytes of the head that the announcement of a large message carries, at most 4096. Only the first
    /// 1000 are guaranteed to arrive before the peer READs the rest.
    pub announced: usize,
    /// Second part of the contents, which directly follows the head at the receiver. It is sent without a copy if it
    /// is large and in registered memory. May be empty.
    pub body: Body,
    /// Returned in [`Event::Sent`].
    pub token: Token,
    /// Outcomes to report.
    pub report: Report,
    /// Time after which the message is dropped if it is not sent yet. The frame carries the time that is left when it
    /// is sent; see [`Message::time_left_us`].
    pub deadline: Option<Time>,
    /// Share of the queue that is reserved for other messages if this one has to be queued.
    pub leaves: Leaves,
}

impl Outgoing<'_> {
    #[inline]
    pub(crate) fn delivery(&self) -> DeliveryReport {
        DeliveryReport { token: self.token, report: self.report }
    }
}

/// A message that fits in one frame, for [`Transport::join`](crate::Transport::join).
#[derive(Debug, Clone, Copy)]
pub struct Small<'a> {
    /// Kind, flags and word.
    pub header: MessageHeader,
    /// Parts of the contents, which are concatenated at the receiver.
    pub parts: [&'a [u8]; 3],
    /// True if the message must not overtake ordered messages; see [`Outgoing::ordered`].
    pub ordered: bool,
    /// Returned in [`Event::Sent`].
    pub token: Token,
    /// Outcomes to report.
    pub report: Report,
    /// Time after which the message is dropped if it is not sent yet.
    pub deadline: Option<Time>,
}

impl<'a> From<&'a Outgoing<'_>> for Small<'a> {
    #[inline]
    fn from(message: &'a Outgoing<'_>) -> Self {
        let Outgoing { header, head, ref body, ordered, token, report, deadline, .. } = *message;
        Self { header, parts: [head, body, &[]], ordered, token, report, deadline }
    }
}

impl Small<'_> {
    #[inline]
    pub(crate) fn delivery(&self) -> DeliveryReport {
        DeliveryReport { token: self.token, report: self.report }
    }

    /// Returns the size of the contents, in bytes.
    #[inline]
    pub(crate) fn contents(&self) -> usize {
        self.parts.iter().fold(0, |bytes, part| part.len().saturating_add(bytes))
    }

    /// Returns the encoded header with the time left at `now`, and its size.
    #[inline]
    pub(crate) fn header(&self, now: Time) -> ([u8; TIMED_HEADER], usize) {
        let left = self.deadline.map(|deadline| frame::time_left(deadline, now));
        let bytes = self.contents() + if left.is_some() { TIMED_HEADER } else { HEADER };
        frame::message(self.header, 0, u32::try_from(bytes).unwrap_or(u32::MAX), left)
    }
}

/// Reason why a message was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The message is larger than `max_message_bytes` of this node or of the peer.
    #[error("message of {bytes} bytes exceeds the limit of {limit} (setting max_message_bytes)")]
    TooLarge {
        /// Size of the message.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The queue for this peer, or for all peers, is full.
    #[error("too much waits to be sent: {0}")]
    QueueFull(Exhausted),
    /// The last attempt to connect failed, and the next one may not begin yet.
    #[error("{cause}")]
    BackingOff {
        /// Cause of the last failure.
        cause: PeerDown,
        /// Time until a message can start the next attempt. The error text omits it, so that equal causes give equal
        /// texts.
        due_in: Duration,
    },
    /// The session of the message has ended.
    #[error("the session that the message is for is over")]
    SessionOver,
    /// The kind of the message is reserved for the transport, or [`Outgoing::announced`] exceeds its maximum.
    #[error("the kind of the message is not the driver's, or it announces too much")]
    BadHeader,
    /// The node is shutting down, or the key is unknown.
    #[error("no such peer, or the node is shutting down")]
    NoPeer,
}

/// Outcome of sending a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOutcome {
    /// The message is in the peer's memory. The peer's program may not have read it yet.
    Delivered,
    /// The message was not delivered, or its delivery is uncertain.
    Failed(SendFailure),
}

/// Reason why a message failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendFailure {
    /// True if the peer may have received the message; false if it certainly has not.
    pub may_have_arrived: bool,
    /// Cause of the failure.
    pub cause: PeerDown,
}

/// Reason why a peer is unreachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerDown {
    /// The peer's address does not answer requests to connect.
    #[error(
        "the peer does not answer requests to connect at all: its host or its process is down, stopped or not reached, or a firewall \
         drops packets to the UDP port of its device, 4791 by default; `trunkctl nodes`, `doctor` and `ping` on that host tell which: if they \
         find the peer, the route or a firewall on the way is the cause"
    )]
    Unreachable,
    /// The peer answered one of this node's requests to connect, and further packets from it did not arrive in time.
    #[error(
        "the peer has answered, and its later packets did not arrive: a firewall drops packets between the UDP ports of the two nodes, 4791 \
         by default, or the peer has ended or is stopped"
    )]
    NoFurtherAnswer,
    /// The UDP port of the peer's device is closed at this address, as reported by its host or by a firewall
    /// that rejects packets in this way.
    #[error(
        "nothing listens on UDP port {} of {}: start the node there, or have its firewall accept the port; if the node's UDP port is another, \
         append it to the address, as in 10.0.0.1:7000/4792",
        .0.port(),
        .0.ip()
    )]
    PortUnreachable(SocketAddr),
    /// A router, or this host, reports that it cannot reach the peer's address.
    #[error(
        "no route to {0}: a router, or this host, reports that it does not reach the address; check the address and the routes \
         (ip route get {0})"
    )]
    HostUnreachable(IpAddr),
    /// A firewall, of this host or on the path, refuses packets to this address and UDP port of the peer's device.
    #[error(
        "a firewall, on this host or on the path, refuses packets to UDP port {} of {}: have it accept the port",
        .0.port(),
        .0.ip()
    )]
    Prohibited(SocketAddr),
    /// The peer accepted all connections from this node, but its connections to this node did not arrive in time.
    #[error(
        "the peer accepts connections and does not connect back: have firewalls let its packets through to this node's UDP port, 4791 by \
         default"
    )]
    NoConnectionBack,
    /// The peer's address does not answer, and a process that receives packets for one of the two nodes is stopped.
    #[error(
        "the peer does not answer requests to connect, and process {pid}, which holds UDP port {} at {} on this host, is stopped: \
         continue or end it",
        address.port(),
        address.ip()
    )]
    HolderStopped {
        /// Process id.
        pid: u32,
        /// Address and UDP port of the device of this node or of the peer.
        address: SocketAddr,
    },
    /// This node does not listen on an address of the peer's family, IPv4 or IPv6.
    #[error(
        "this node has no {} address to call from: it listens on {listens_on}; listen on an {} address as well, if this host has one",
        other_family(listens_on),
        other_family(listens_on)
    )]
    NoAddress {
        /// First address that this node listens on.
        listens_on: SocketAddr,
    },
    /// This host, or its device, cannot send to the peer's address.
    #[error("this host cannot send to the peer's address: {0}")]
    NoRoute(VerbsError),
    /// This node's device is limited to shared memory (`TRUNKLINE_LINK=shm`, or the setting `link`), and cannot share
    /// memory with this peer.
    #[error(
        "this node reaches peers through shared memory only (TRUNKLINE_LINK=shm, or setting link), which it cannot share with the peer: {0}"
    )]
    NotShared(&'static str),
    /// The peer's host answers, but its port is closed.
    #[error("no node listens on that port of the peer: start the node there, or correct the port")]
    NotListening,
    /// The peer refused the session, because of authentication or limits.
    #[error("the peer refused the session: {0}")]
    Refused(&'static str),
    /// The peer requires an identity, which this node lacks.
    #[error("the peer refused the session: {NO_IDENTITY}")]
    IdentityRequired,
    /// The handshake in which both nodes prove their names failed.
    #[cfg(feature = "identity")]
    #[error(transparent)]
    Handshake(HandshakeFailure),
    /// This node refused the session, because of a limit.
    #[error("this node refused the session: {0}")]
    RefusedHere(&'static str),
    /// The peer accepted a connection, but the connection was then not completed.
    #[error("a connection was not completed: the peer withdrew it, or the local device could not open it")]
    NotCompleted,
    /// The peer refused the session because it is shutting down.
    #[error("the peer is shutting down")]
    Leaving,
    /// The two nodes lack a common protocol version.
    #[error(
        "the peer speaks {} of the protocol, this node {}: update one of them",
        Range(theirs),
        Range(ours)
    )]
    Version {
        /// Lowest and highest version that this node speaks.
        ours: (u8, u8),
        /// Lowest and highest version that the peer speaks.
        theirs: (u8, u8),
    },
    /// The peer stopped answering.
    #[error("the peer stopped answering in an open session")]
    Died,
    /// The peer's device answered that the session's SRQs or memory do not exist.
    #[error("the peer has ended the session, or has named memory that it does not hold")]
    AccessRefused,
    /// The same incarnation of the peer began another session. The peer may have lost the earlier session
    /// because this node was silent.
    #[error("the peer gave up the session and began another")]
    Replaced,
    /// The peer stopped answering when the session's packets became larger than all packets delivered before. Reported
    /// only on NICs. Software devices detect that the peer still answers, and report [`Self::PathMtu`].
    #[error(
        "the peer stopped answering, and no packet with {bytes} bytes of payload has got through in this session: if the \
         peer is up, the path carries less than the interfaces at its ends; lower the MTU of one of them to that of the path"
    )]
    FullPacketsLost {
        /// Payload of the larger packets, in bytes.
        bytes: u32,
    },
    /// Large packets are lost between the nodes, although the peer answers. The next sessions use the next smaller
    /// path MTU.
    #[error("{}", PathMtuText(*mtu, *is_told))]
    PathMtu {
        /// Path MTU of the session.
        mtu: Mtu,
        /// True if the peer reported the loss when it closed the session. The report is not authenticated.
        is_told: bool,
    },
    /// The peer closed the session in an orderly way, or its process died and a device reported that.
    #[error("the peer closed the session, or its process has ended")]
    Closed,
    /// The peer closed the session and named the cause. The cause is not authenticated.
    #[error("the peer closed the session, and says: {0}")]
    ClosedFor(&'static str),
    /// The session ended during or right after a stop of this node, because the peer had closed it.
    #[error(
        "the session ended because this node was stopped for {seconds} s, as by SIGSTOP or for lack of CPU time"
    )]
    Stopped {
        /// Time for which the node did not run, in seconds.
        seconds: u64,
    },
    /// The peer restarted and is now another incarnation.
    #[error("the peer was restarted")]
    Restarted,
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Misbehaved(&'static str),
    /// A sealed frame, or a part of a sealed message, was altered in transit.
    #[cfg(feature = "identity")]
    #[error("{0}")]
    Altered(&'static str),
    /// The peer sent a critical frame of an unknown kind.
    #[error("the peer sent a frame of kind {0:#04x}, which this node does not know and must not ignore")]
    UnknownFrame(u8),
    /// The peer's settings contain a critical entry that is unknown to this node.
    #[error(
        "the peer has setting {0}, which this node does not know and must not ignore: update one of them"
    )]
    UnknownSetting(u16),
    /// This node's settings contain a critical entry that is unknown to the peer.
    #[error("the peer does not know setting {0} of this node and must not ignore it: update one of them")]
    SettingRefused(u16),
    /// The message's deadline passed before it could be sent.
    #[error("the deadline passed before the message could be sent")]
    Deadline,
    /// The message exceeds the peer's limit, which arrived only when the session came up.
    #[error("message of {bytes} bytes exceeds the peer's limit of {limit} (its max_message_bytes)")]
    TooLarge {
        /// Size of the message.
        bytes: usize,
        /// The peer's limit.
        limit: usize,
    },
    /// The peer lacked memory for the large message until the deadline.
    #[error(
        "the peer had no buffer free for the message in time (its rendezvous_bytes or rendezvous_bytes_per_peer)"
    )]
    ResourceExhausted,
    /// The local device refused to register the message's memory, because its memory regions or the limit on pinned
    /// memory are used up.
    #[error("the memory of the message cannot be registered: {0}")]
    NotRegistered(VerbsError),
    /// This node is shutting down.
    #[error("this node is shutting down")]
    ShuttingDown,
    /// The local device refused an operation or reported a local error.
    #[error(
        "the local RDMA device failed: look at this node's log and the kernel's; restart the program if later calls fail too"
    )]
    DeviceFailed,
    /// The local device was removed. The node continues when it is back.
    #[error("the local RDMA device was removed")]
    DeviceRemoved,
}

impl From<FrameError> for PeerDown {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Broken(what) => Self::Misbehaved(what),
            #[cfg(feature = "identity")]
            FrameError::Altered(what) => Self::Altered(what),
            FrameError::Kind(kind) => Self::UnknownFrame(kind),
            FrameError::Setting(number) => Self::UnknownSetting(number),
        }
    }
}

impl PeerDown {
    /// Returns true if the cause ended a session, or ended a connection attempt for a temporary reason. Another
    /// attempt may then be in progress.
    #[must_use]
    pub fn ends_a_session(self) -> bool {
        matches!(
            self,
            Self::Died
                | Self::AccessRefused
                | Self::Replaced
                | Self::FullPacketsLost { .. }
                | Self::PathMtu { .. }
                | Self::Leaving
                | Self::NotCompleted
                | Self::Closed
                | Self::ClosedFor(_)
                | Self::Stopped { .. }
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

    /// Returns the path MTU for the next sessions if large packets were lost in this session. `asked` is the path MTU
    /// that the session's peer requested. A DREQ applies only to the path MTU of its own connection, so a forged DREQ
    /// lowers the path MTU by at most one step.
    pub(crate) fn next_mtu(self, asked: Option<Mtu>) -> Option<Mtu> {
        let Self::PathMtu { mtu, is_told } = self else { return None };
        mtu.smaller().filter(|_| !is_told || asked == Some(mtu))
    }

    /// Returns true if one of the two nodes has to be updated.
    pub(crate) fn is_incompatible(self) -> bool {
        matches!(self, Self::Version { .. } | Self::UnknownSetting(_) | Self::SettingRefused(_))
    }

    /// Returns true if the cause lies in this node, so that a pause before the next attempt cannot help.
    pub(crate) fn is_of_this_node(self) -> bool {
        matches!(self, Self::ShuttingDown | Self::NoAddress { .. })
    }
}

/// Display adapter for the range of protocol versions that a node speaks, lowest and highest.
struct Range<'a>(&'a (u8, u8));

impl fmt::Display for Range<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self.0 {
            (lowest, highest) if lowest == highest => write!(f, "version {highest}"),
            (lowest, highest) => write!(f, "versions {lowest} to {highest}"),
        }
    }
}

/// Display adapter for a path MTU that is too large. The flag is true if the peer reported it.
struct PathMtuText(Mtu, bool);

impl fmt::Display for PathMtuText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(mtu, is_told) = *self;
        let (said, next) = (
            if is_told { "the peer closed the session, and says: " } else { "" },
            mtu.smaller().unwrap_or(mtu),
        );
        write!(
            f,
            "{said}large packets vanish on the way between the nodes, although the peer answers: the next session tries a path MTU of {1} \
             in place of {0}; lower the MTU of the interface at one end to that of the path",
            mtu.bytes(),
            next.bytes()
        )
    }
}

/// Returns the name of the other address family.
fn other_family(address: &SocketAddr) -> &'static str {
    if address.is_ipv4() { "IPv6" } else { "IPv4" }
}

/// Identity of a session's peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerIdentity {
    /// The peer is unauthenticated, and identified only by its address.
    #[default]
    Unproven,
    /// The peer is a process on this host, and the host has proved the uid of its user.
    LocalUser(u32),
    /// The peer has proved these names with a certificate.
    #[cfg(feature = "identity")]
    Proven(Arc<Proven>),
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unproven => f.write_str("unproven"),
            Self::LocalUser(uid) => write!(f, "local:{uid}"),
            #[cfg(feature = "identity")]
            Self::Proven(proven) => proven.principal().fmt(f),
        }
    }
}

/// Change in the state of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerEvent {
    /// A session is up, and the peer's settings have arrived. `epoch` distinguishes incarnations of the peer.
    Up {
        /// Number of the session, as in [`Origin::session`].
        session: SessionNumber,
        /// Random number of the incarnation.
        epoch: u64,
        /// Number of the peer's pollers.
        pollers: u16,
        /// Identity of the peer.
        identity: PeerIdentity,
    },
    /// The peer of a session that is up proved its names again. The principal has not changed.
    Renewed {
        /// Identity of the peer.
        identity: PeerIdentity,
    },
    /// The session ended, or an attempt to connect failed. The outcome of each message in flight is reported through
    /// [`Event::Sent`] before this event. Messages with [`Connect::Wait`] wait for the next session instead.
    Down {
        /// Reason for the end of the session or the failure of the attempt.
        cause: PeerDown,
    },
}

/// A received message. It may hold a registered receive buffer, which returns to its poller when the message, or all
/// `Bytes` created from it, are dropped on any thread. A message of at most 1024 bytes, including its header, shares a
/// block of 4 KiB with other messages instead. The block is reused when all of them are dropped.
#[derive(Debug)]
pub struct Message {
    header: MessageHeader,
    time_left_us: u32,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Owned(Bytes),
    /// Announced message that the driver has accepted.
    Accepted(Bytes),
    /// A frame, and the offset of the contents in it.
    Lent(Received, usize),
}

impl Message {
    /// Creates a message with these contents.
    #[inline]
    #[must_use]
    pub fn new(header: MessageHeader, time_left_us: u32, contents: Bytes) -> Self {
        Self { header, time_left_us, content: Content::Owned(contents) }
    }

    pub(crate) fn lent(header: MessageHeader, time_left_us: u32, frame: Received, start: usize) -> Self {
        Self { header, time_left_us, content: Content::Lent(frame, start) }
    }

    pub(crate) fn accepted(header: MessageHeader, time_left_us: u32, contents: Bytes) -> Self {
        Self { header, time_left_us, content: Content::Accepted(contents) }
    }

    /// Returns the message's kind, flags and word.
    #[must_use]
    #[inline]
    pub fn header(&self) -> MessageHeader {
        self.header
    }

    /// Returns the time that was left until the message's deadline when it was sent, in microseconds. Returns 0 if the
    /// message has no deadline, or if more than 71 minutes were left.
    #[must_use]
    #[inline]
    pub fn time_left_us(&self) -> u32 {
        self.time_left_us
    }

    /// Returns true if the message was announced and the driver accepted it.
    #[must_use]
    #[inline]
    pub fn is_accepted(&self) -> bool {
        matches!(self.content, Content::Accepted(_))
    }

    /// Returns the contents.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        match &self.content {
            Content::Owned(bytes) | Content::Accepted(bytes) => bytes,
            Content::Lent(frame, start) => frame.as_ref().get(*start..).unwrap_or_default(),
        }
    }

    /// Returns the contents from `start` on, as shared bytes, without a copy. Costs at most one allocation.
    /// Returns no bytes if the message is shorter.
    #[must_use]
    #[inline]
    pub fn bytes_from(self, start: usize) -> Bytes {
        let (mut bytes, start) = match self.content {
            Content::Owned(bytes) | Content::Accepted(bytes) => (bytes, start),
            Content::Lent(frame, skipped) => (Bytes::from_owner(frame), start.saturating_add(skipped)),
        };
        bytes.advance(start.min(bytes.len()));
        bytes
    }
}

/// Decision about an announced message; see [`Event::Announced`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Screening {
    /// The message is READ, and the decision is made when all of it has arrived.
    Undecided,
    /// The message is READ, and marked as accepted; see [`Message::is_accepted`].
    Accepted,
    /// The message is not READ. Its sender regards it as delivered.
    Refused,
}

/// The kind of message that a driver awaits from a peer. It decides how soon a silent peer is probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Awaited {
    /// The driver is idle. Only the node that accepted the session probes the peer, at the idle interval.
    #[default]
    Nothing,
    /// The driver holds state for the peer, such as a running handler. The peer is probed at the idle
    /// interval.
    Interest,
    /// The driver awaits an item of a stream, which may take long. By default, the peer is probed after 2 s of
    /// silence.
    Item,
    /// The driver awaits a reply. By default, the peer is probed after 500 ms of silence.
    Reply,
}

/// An event for the driver; see [`Transport::poll_event`](crate::Transport::poll_event).
#[derive(Debug)]
pub enum Event {
    /// A message has arrived.
    Message(Origin, Message),
    /// A large message was announced. The driver takes the announcement with
    /// [`Transport::announcement`](crate::Transport::announcement) and decides about the message before the rest of it
    /// is READ. Sent only to drivers that screen announcements.
    Announced(Origin),
    /// The outcome of a sent message.
    Sent(Token, SendOutcome),
    /// The state of a peer changed.
    Peer(PeerKey, PeerEvent),
    /// A large message from a peer was dropped for lack of memory, or because too many were announced. Its sender is
    /// notified.
    GivenUp {
        /// Sender of the message.
        from: Origin,
        /// Part of the message that its announcement carried.
        part: Message,
        /// Size of the message.
        bytes: usize,
    },
    /// A message with [`Report::Never`] could not be sent, but its session continues. Later ordered messages are still
    /// sent.
    NotSent {
        /// Destination of the message.
        to: Origin,
        /// Kind, flags and word of the message.
        header: MessageHeader,
        /// First part of the message's contents.
        head: Vec<u8>,
        /// Reason why the message was not sent.
        cause: PeerDown,
    },
}

/// An announced large message. The decision about it is passed to
/// [`Transport::screened`](crate::Transport::screened).
#[derive(Debug)]
pub struct Announcement {
    pub(crate) from: Origin,
    /// The received part of the message.
    pub(crate) part: Message,
}

impl Announcement {
    /// Returns the sender of the message.
    #[must_use]
    pub fn from(&self) -> Origin {
        self.from
    }

    /// Returns the part of the message that the announcement carries.
    #[must_use]
    pub fn part(&self) -> &Message {
        &self.part
    }
}
