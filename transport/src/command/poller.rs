//! Messages of the CM machine and the node to a poller.
#![forbid(unsafe_code)]

use crate::crossings::Crossing;
use crate::incarnation::PollerDevice;
use crate::{PeerDown, PeerKey};
use std::sync::Arc;
use trunkline_verbs::{QpNumber, QueuePair, SrqNumber, Time};

/// A session that came up, for one poller.
#[derive(Debug)]
pub(crate) struct SessionUp {
    pub(crate) peer: PeerKey,
    /// Our number of the session.
    pub(crate) number: u32,
    /// The peer's incarnation.
    pub(crate) epoch: u64,
    /// INI of the poller, connected and detached from its endpoint.
    pub(crate) qp: Arc<dyn QueuePair>,
    /// SRQ numbers of the peer's pollers.
    pub(crate) srqs: Vec<SrqNumber>,
    /// Maximum number of outstanding READs on the INI.
    pub(crate) read_depth: u8,
    /// True if the peer has dialled the session: this side probes it while it is idle.
    pub(crate) is_accepted: bool,
}

/// A command to a poller.
#[derive(Debug)]
pub(crate) enum Command {
    /// A TGT was created: messages through it come from this peer's poller. Comes before the peer can send.
    TargetAdded { peer: PeerKey, number: u32, poller: u16, target: QpNumber },
    /// A session is up.
    SessionUp(Box<SessionUp>),
    /// The TGTs of a session are destroyed, so nothing more is received from the peer or READ by it. The
    /// `PeerDown` that follows has the same cause.
    SessionClosed { peer: PeerKey, number: u32, cause: PeerDown },
    /// The session is over, or could not be created. Comes after its `SessionClosed`. After a failed attempt,
    /// `next` is the earliest time of another.
    PeerDown { peer: PeerKey, number: u32, cause: PeerDown, next: Option<Time> },
    /// The peer will not come back under this key.
    Forget { peer: PeerKey },
    /// The device was removed: take what has arrived, and report that.
    DeviceLost,
    /// Frames that another poller had for us when its device was removed, and that did not fit the ring. All
    /// of them came after those in the ring.
    HandedOn(Vec<Crossing>),
    /// All pollers have taken what had arrived. Comes before the sessions are closed: take the frames that
    /// others handed on.
    TakeHandedOn,
    /// The device was removed, and all sessions are closed: release everything on it and report that.
    ReleaseDevice,
    /// There is a device again. Comes before anything that uses it.
    TakeDevice(Box<PollerDevice>),
    /// The node shuts down: finish work in progress, until the deadline.
    Shutdown { deadline: Time },
    /// All sessions were closed: end as soon as the device is done.
    End,
}
