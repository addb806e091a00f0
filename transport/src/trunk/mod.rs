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
//! | `timers.rs` | deadlines, keepalive, credit that is released |
//! | `ending.rs` | being taken down, in two phases |
//! | `lane.rs`, `queue.rs` | one of the peer's pollers; messages that wait |
//! | `resources.rs` | what all trunks of a poller share |
#![forbid(unsafe_code)]

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
pub(crate) use queue::{MessageQueue, Outbound};
pub(crate) use resources::{Event, ReceiveRoom, Resources, SendRoom};

use crate::PeerKey;
use crate::PollerIndex;
use crate::budget::Counted;
use crate::command::SessionUp;
use crate::credit::GrantId;
use crate::ledger::Spending;
use crate::rendezvous::{Sinks, Sources};
use ending::Health;
use lane::Lane;
use pipeline::Pipeline;
use std::net::SocketAddr;

/// A trunk of one session.
#[derive(Debug)]
pub(crate) struct Trunk {
    peer: PeerKey,
    /// Our number of its session.
    number: u32,
    health: Health,
    /// By poller of the peer.
    lanes: Vec<Lane>,
    /// Lane for the next message that names no poller.
    next_lane: usize,
    /// Largest message and frame that the peer takes, in bytes.
    max_message: usize,
    max_frame: usize,
    pipeline: Pipeline,
    sources: Sources,
    sinks: Sinks,
    /// When the peer has been silent for so long that a keepalive is due, in milliseconds of the poller.
    keepalive_due_ms: u64,
    /// A keepalive is staged or in flight.
    keepalive_out: bool,
    /// It is in the poller's list of trunks to stage and post.
    marked: bool,
}

impl Trunk {
    /// The credits of each of its lanes, for whoever counts them.
    pub(crate) fn spending(&self, peer: SocketAddr) -> Vec<Spending> {
        let Ok(attributes) = self.pipeline.qp().query() else { return Vec::new() };
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
        let SessionUp { peer, address, number, srqs, .. } = session;
        let lane = |(srq, (poller, pair))| {
            let counters = res.shared.traffic.lane(peer, address, res.index, poller);
            Lane::new(srq, pair, counters, res.time.now_ms())
        };
        Self {
            peer,
            number,
            health: Health::Live,
            lanes: srqs.into_iter().zip(pairs).map(lane).collect(),
            next_lane: usize::from(res.index.0),
            max_message: usize::try_from(session.max_message).unwrap_or(usize::MAX),
            max_frame: usize::try_from(session.max_frame).unwrap_or(usize::MAX),
            pipeline: Pipeline::new(session.qp, slot),
            sources: Sources::new(),
            sinks: Sinks::new(u32::from(session.read_depth.max(1))),
            // The first keepalive is due at once: a QP waits longer for its first answer than for later ones, and a
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

    /// What the peer makes us hold.
    pub(crate) fn count(&self, counted: &mut Counted) {
        for lane in &self.lanes {
            counted.queued(self.peer, lane.queue.size());
        }
        counted.pinned(self.peer, self.sources.size());
        counted.announced(self.peer, self.sinks.len());
    }

    /// Whether nothing waits and nothing is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.pipeline.is_empty()
            && self.sources.is_empty()
            && self.sinks.is_empty()
            && self.lanes.iter().all(Lane::is_empty)
    }

    /// Whether bytes of large messages are on their way in or out.
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
