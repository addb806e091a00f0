//! Commands between a node's machines, and the handles of the machines.
//!
//! All modules may use these queues and wakers. Pollers execute [`Command`]s and the CM machine executes
//! [`CmCommand`]s, without waiting for each other.
#![forbid(unsafe_code)]

#[cfg(feature = "identity")]
use crate::identity::Credentials;
#[cfg(feature = "identity")]
use crate::identity::keys::PollerKeys;
use crate::node::incarnation::PollerDevice;
use crate::poller::crossings::Crossing;
use crate::{Connect, PeerDown, PeerIdentity, PeerKey, PollerIndex};
use crossbeam_queue::SegQueue;
use std::fmt;
use std::sync::Arc;
use trunkline_machine::Waker;
use trunkline_verbs::{CmId, QpNumber, QueuePair, SrqNumber, Time, VerbsError};

/// A session that came up, for one poller.
#[derive(Debug)]
pub(crate) struct SessionUp {
    pub(crate) peer: PeerKey,
    /// This node's number for the session.
    pub(crate) number: u32,
    /// The peer's incarnation.
    pub(crate) epoch: u64,
    /// INI of the poller, connected and detached from its endpoint.
    pub(crate) qp: Arc<dyn QueuePair>,
    /// SRQ numbers of the peer's pollers.
    pub(crate) srqs: Vec<SrqNumber>,
    /// Maximum number of outstanding READs on the INI.
    pub(crate) read_depth: u8,
    /// True if the peer dialled the session. This node then probes the peer while the session is idle.
    pub(crate) is_accepted: bool,
    pub(crate) identity: PeerIdentity,
    /// Settings from the handshake's proof. The peer's SETTINGS frame must equal them.
    pub(crate) settings: Option<Arc<[u8]>>,
    /// Keys of the poller's lanes; `None` if their frames are not sealed.
    #[cfg(feature = "identity")]
    pub(crate) keys: Option<PollerKeys>,
    /// Number of the renewal exchange that ended while this session waited behind an earlier one.
    #[cfg(feature = "identity")]
    pub(crate) renewed_by: Option<u32>,
}

/// A command to a poller.
#[derive(Debug)]
pub(crate) enum Command {
    /// A TGT was created for messages from this poller of the peer. The command is sent before the peer can send.
    TargetAdded { peer: PeerKey, number: u32, poller: u16, target: QpNumber },
    /// A TGT was destroyed. Its session continues.
    TargetDropped { target: QpNumber },
    /// A session is up.
    SessionUp(Box<SessionUp>),
    /// The INI of poller 0 is connected to the peer's poller 0, whose SRQ is `srq`. Handshake frames are sent through
    /// this INI until the session is up or closed.
    #[cfg(feature = "identity")]
    BeginHandshake { peer: PeerKey, number: u32, qp: Arc<dyn QueuePair>, srq: SrqNumber },
    /// Send a handshake frame, after the frames of earlier commands.
    #[cfg(feature = "identity")]
    SendHandshake { peer: PeerKey, number: u32, frame: Box<[u8]> },
    /// Probe whether the peer of a session still answers.
    Probe { peer: PeerKey, number: u32 },
    /// The peer of a session proved its names again, in the exchange with this number. Each lane switches to the keys
    /// of this exchange.
    #[cfg(feature = "identity")]
    Renewed { peer: PeerKey, number: u32, identity: PeerIdentity, exchange: u32 },
    /// The TGTs of a session are destroyed, so the peer can no longer send or READ. The `PeerDown` that follows has
    /// the same cause.
    SessionClosed { peer: PeerKey, number: u32, cause: PeerDown },
    /// The session is over, or could not be created. Comes after its `SessionClosed`. After a failed attempt,
    /// `next` is the earliest time of the next one.
    PeerDown { peer: PeerKey, number: u32, cause: PeerDown, next: Option<Time> },
    /// The CM machine has removed the peer.
    Forget { peer: PeerKey },
    /// The device was removed. Take the frames that have arrived, and report completion.
    DeviceLost,
    /// Frames for this poller that another poller held when its device was removed, and that did not fit in the ring.
    /// They arrived after the frames in the ring.
    HandedOn(Vec<Crossing>),
    /// Take the frames that other pollers forwarded. Sent when all pollers have taken their frames, before
    /// the sessions are closed.
    TakeHandedOn,
    /// The device was removed, and all sessions are closed. Release everything on the device and report completion.
    ReleaseDevice,
    /// A device is available again. Precedes all commands that use it.
    TakeDevice(Box<PollerDevice>),
    /// The node shuts down. Finish work in progress before the deadline.
    Shutdown { deadline: Time },
    /// All sessions are closed. End as soon as the device has completed all work.
    End,
}

/// An endpoint whose route to a peer is resolved, or the error.
pub(crate) type DialOutcome = Result<Arc<dyn CmId>, VerbsError>;

/// A command to the CM machine.
#[derive(Debug)]
pub(crate) enum CmCommand {
    /// A poller has a message for this peer, or will soon have one.
    Want { peer: PeerKey, connect: Connect },
    /// Result of resolving a peer's address, for one INI of a session.
    Resolved { peer: PeerKey, number: u32, poller: u16, hello: Vec<u8>, outcome: DialOutcome },
    /// A poller found a session unusable.
    Broken { peer: PeerKey, number: u32, cause: PeerDown },
    /// A handshake frame of a session that is not up arrived through the TGT of poller 0.
    #[cfg(feature = "identity")]
    Handshake { peer: PeerKey, number: u32, frame: Box<[u8]> },
    /// All handshake frames queued for a session were sent, and the peer has acknowledged this number of them.
    #[cfg(feature = "identity")]
    HandshakeSent { peer: PeerKey, number: u32, acknowledged: u32 },
    /// All lanes of a session at one poller have switched to the keys of the last renewal, in both directions.
    #[cfg(feature = "identity")]
    Switched { peer: PeerKey, number: u32 },
    /// New handshakes use these credentials.
    #[cfg(feature = "identity")]
    Credentials(Arc<Credentials>),
    /// A poller has taken the frames that the removed device had received.
    Emptied { poller: PollerIndex },
    /// A poller has released the removed device.
    Released { poller: PollerIndex },
    /// A poller has drained, after the command to shut down.
    Drained { poller: PollerIndex },
    /// The node shuts down, and its grace period ends at the deadline. Close everything 50 ms after the deadline, even
    /// if not every poller has reported.
    ShutDownBy { deadline: Time },
    /// Close everything now.
    Shutdown,
}

struct CmQueue {
    commands: SegQueue<CmCommand>,
    waker: Waker,
}

/// Handle of the CM machine.
#[derive(Clone)]
pub(crate) struct CmHandle(Arc<CmQueue>);

impl CmHandle {
    pub(crate) fn new(waker: Waker) -> Self {
        Self(Arc::new(CmQueue { commands: SegQueue::new(), waker }))
    }

    pub(crate) fn command(&self, command: CmCommand) {
        self.0.commands.push(command);
        self.0.waker.wake();
    }

    pub(crate) fn next_command(&self) -> Option<CmCommand> {
        self.0.commands.pop()
    }

    pub(crate) fn has_commands(&self) -> bool {
        !self.0.commands.is_empty()
    }
}

impl fmt::Debug for CmHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CmHandle")
    }
}

struct PollerQueue {
    index: PollerIndex,
    waker: Waker,
    commands: SegQueue<Command>,
}

/// Handle that wakes one poller. To pass work to the poller's driver, add it to a queue that the driver checks, then
/// call [`PollerHandle::wake`].
#[derive(Clone)]
pub struct PollerHandle(Arc<PollerQueue>);

impl PollerHandle {
    pub(crate) fn new(index: PollerIndex, waker: Waker) -> Self {
        Self(Arc::new(PollerQueue { index, waker, commands: SegQueue::new() }))
    }

    /// Returns the poller's index.
    #[must_use]
    pub fn index(&self) -> PollerIndex {
        self.0.index
    }

    /// Ensures that the poller checks its queues again and takes everything pushed before this call. Enters
    /// the kernel only if the poller sleeps.
    pub fn wake(&self) {
        self.0.waker.wake();
    }

    pub(crate) fn command(&self, command: Command) {
        self.0.commands.push(command);
        self.wake();
    }

    pub(crate) fn next_command(&self) -> Option<Command> {
        self.0.commands.pop()
    }

    pub(crate) fn has_commands(&self) -> bool {
        !self.0.commands.is_empty()
    }

    /// Returns the waker of the poller, for code that does not depend on pollers.
    pub(crate) fn waker(&self) -> &Waker {
        &self.0.waker
    }
}

impl fmt::Debug for PollerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PollerHandle").field(&self.0.index.0).finish()
    }
}
