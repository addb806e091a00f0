//! Messages of the CM machine and the node to a poller.
#![forbid(unsafe_code)]

use crate::crossings::Crossing;
use crate::incarnation::PollerDevice;
use crate::{PeerDown, PeerKey};
use std::sync::Arc;
use trunkline_verbs::{QpNumber, QueuePair, SrqNumber, Time};

/// A session that came up, as one poller needs it.
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
    /// READs that may be outstanding on the INI.
    pub(crate) read_depth: u8,
}

/// A command to a poller.
#[derive(Debug)]
pub(crate) enum Command {
    /// A TGT was made: messages through it come from there. Comes before the peer can send.
    TargetAdded { peer: PeerKey, number: u32, poller: u16, target: QpNumber },
    /// A session is up.
    SessionUp(Box<SessionUp>),
    /// The TGTs of a session are destroyed: nothing is received or READ by the peer any more. The cause comes from the
    /// `PeerDown` which follows.
    SessionClosed { peer: PeerKey, number: u32, cause: PeerDown },
    /// The session is over, or could not be made. Comes after its `SessionClosed`. After an attempt that failed,
    /// `next` is when the next one may begin.
    PeerDown { peer: PeerKey, number: u32, cause: PeerDown, next: Option<Time> },
    /// The peer will not come back under this key.
    Forget { peer: PeerKey },
    /// The device was removed: take what has arrived, and say so.
    DeviceLost,
    /// Frames that another poller had for us when its device was removed, and found no room in the ring for; all of them
    /// came after what the ring holds.
    HandedOn(Vec<Crossing>),
    /// All pollers have. Comes before the sessions are closed: take what others handed on.
    TakeHandedOn,
    /// The device was removed, and all sessions are closed: release everything on it and report that.
    ReleaseDevice,
    /// There is a device again. Comes before anything that concerns it.
    TakeDevice(Box<PollerDevice>),
    /// The node shuts down: finish what is under way, until then.
    Shutdown { deadline: Time },
    /// All sessions were closed; end as soon as the device is done.
    End,
}
