//! A trunk: one poller's INI to one peer node, with a lane for each of the peer's pollers.
//!
//! Owns what is queued, staged, in flight and half transferred on the INI; nothing of that changes but by its
//! methods. The poller makes it when a session comes up and calls it. It never calls the upper half: what is
//! for that is queued as events, and what the poller must look at is marked, in the [`Resources`] that each
//! call lends.
//!
//! | file | role |
//! |---|---|
//! | `sending.rs` | from lanes' queues to staged frames |
//! | `pipeline.rs` | from staged frames to posted work and its completions |
//! | `receiving.rs` | checked frames of the peer |
//! | `large.rs` | rendezvous, both sides |
//! | `copying.rs` | large messages into memory that the peer may READ |
//! | `timers.rs` | deadlines, keepalive, credit that is released |
//! | `ending.rs` | being taken down, in two phases |
//! | `lane.rs`, `queue.rs` | one of the peer's pollers; messages that wait |
//! | `resources.rs` | what all trunks of a poller share |
#![forbid(unsafe_code)]

mod copying;
mod ending;
mod lane;
mod large;
mod pipeline;
mod queue;
mod receiving;
mod resources;
mod sending;
mod timers;

pub(crate) use ending::destroy_ini;
pub(crate) use pipeline::parse_wr_id;
pub(crate) use queue::{Cancelling, MessageQueue, Outbound};
pub(crate) use resources::{Event, ReceiveRoom, Resources, SendRoom};

use crate::PeerKey;
use crate::PollerIndex;
use crate::budget::Counted;
use crate::command::SessionUp;
use crate::credit::GrantId;
use crate::ledger::Spending;
use crate::rendezvous::{READS_OUT, Sinks, Sources};
use crate::settings::Settings;
use ending::Health;
use lane::Lane;
use pipeline::Pipeline;

/// A trunk of one session.
#[derive(Debug)]
pub(crate) struct Trunk {
    peer: PeerKey,
    /// Our number of its session.
    number: u32,
    health: Health,
    /// Lanes by poller of the peer.
    lanes: Vec<Lane>,
    /// The peer's incarnation.
    epoch: u64,
    /// Largest message and frame that the peer takes, in bytes, and announced messages of a lane; once its settings
    /// have come.
    max_message: usize,
    max_frame: usize,
    large_messages: u32,
    /// Largest bundle that is sent to it, in bytes, and largest message in one; 0 if it takes none.
    max_bundle: usize,
    max_bundled: usize,
    /// True once the messages that waited for the session are queued here.
    is_open: bool,
    pipeline: Pipeline,
    sources: Sources,
    sinks: Sinks,
    /// Index of the lane whose queues copy next.
    next_copy: usize,
    /// Time of the next keepalive to a silent peer, in milliseconds of the poller.
    keepalive_due_ms: u64,
    /// A keepalive is staged or in flight.
    keepalive_out: bool,
    /// It is in the poller's list of trunks to stage and post.
    marked: bool,
}

impl Trunk {
    /// The credits of each of its lanes, for a count.
    pub(crate) fn spending(&self) -> Vec<Spending> {
        let Ok(attributes) = self.pipeline.qp().query() else { return Vec::new() };
        let peer = self.peer.address();
        let lane = |(poller, lane): (u16, &Lane)| {
            let [granted, released, sent] = lane.spender.positions();
            Spending { peer, target: attributes.destination_qp, poller, granted, released, sent }
        };
        (0..).zip(&self.lanes).map(lane).collect()
    }

    /// The trunk of a session that came up, for the poller's table at `slot`. The pairs are those of the TGTs
    /// of the peer's pollers, in their order.
    pub(crate) fn new(
        res: &mut Resources,
        session: SessionUp,
        slot: usize,
        pairs: impl Iterator<Item = (PollerIndex, GrantId)>,
    ) -> Self {
        let SessionUp { peer, number, srqs, .. } = session;
        let lane = |(srq, (poller, pair))| {
            let counters = res.shared.traffic.lane(peer, res.index, poller);
            Lane::new(srq, pair, counters, res.time.now_ms())
        };
        Self {
            peer,
            number,
            health: Health::Live,
            lanes: srqs.into_iter().zip(pairs).map(lane).collect(),
            epoch: session.epoch,
            max_message: 0,
            max_frame: 0,
            large_messages: 0,
            max_bundle: 0,
            max_bundled: 0,
            is_open: false,
            pipeline: Pipeline::new(session.qp, slot),
            sources: Sources::new(),
            sinks: Sinks::new(u32::from(session.read_depth).clamp(1, READS_OUT)),
            next_copy: 0,
            // The first keepalive is sent at once: a QP waits longer for its first answer than for later ones, and a
            // peer that dies before it has sent anything must not be noticed later than others.
            keepalive_due_ms: res.time.now_ms(),
            keepalive_out: false,
            marked: false,
        }
    }

    /// The peer node.
    pub(crate) fn peer(&self) -> PeerKey {
        self.peer
    }

    /// Our number of its session.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Returns true if messages may be sent: it takes what has waited for the session, and all that follows.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns true if the peer's settings have come since [`Trunk::is_open`] was `false`.
    pub(crate) fn is_newly_open(&self) -> bool {
        !self.is_open && self.is_live() && self.settings().is_some()
    }

    /// Opens the trunk: messages that waited for the session are queued from now on.
    pub(crate) fn open(&mut self) {
        self.is_open = true;
    }

    /// Starts the lanes, with our settings, at the next push.
    pub(crate) fn begin(&mut self, res: &mut Resources) {
        self.mark(res);
    }

    /// The peer's settings, once they have come in any lane.
    fn settings(&self) -> Option<Settings> {
        self.lanes.iter().find_map(|lane| lane.heard)
    }

    /// Counts the resources that the peer holds.
    pub(crate) fn count(&self, counted: &mut Counted) {
        for lane in &self.lanes {
            counted.queued(self.peer, lane.waiting());
        }
        counted.pinned(self.peer, self.sources.size());
        counted.announced(self.peer, self.sinks.len());
    }

    /// Returns true if nothing waits and nothing is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.pipeline.is_empty()
            && self.sources.is_empty()
            && self.sinks.is_empty()
            && self.lanes.iter().all(Lane::is_empty)
    }

    /// Returns true if bytes of large messages are on their way in or out.
    pub(crate) fn is_transferring(&self) -> bool {
        self.sinks.is_reading() || !self.sources.is_empty()
    }

    /// Puts it into the poller's list of trunks to stage and post.
    fn mark(&mut self, res: &mut Resources) {
        if !self.marked {
            self.marked = true;
            res.marked.add(self.pipeline.slot());
        }
    }
}
