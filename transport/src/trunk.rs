//! A trunk: one poller's INI to one peer node, with a lane for each of the peer's pollers.
//!
//! Owns what is staged, in flight and half transferred on the INI. The poller calls it; the
//! submodules of [`crate::poller`] hold its behaviour, by role. It never calls the upper half:
//! what that must hear is queued as events.
#![forbid(unsafe_code)]

use crate::credit::{GrantId, Spender};
use crate::frame::{Fin, Kind};
use crate::rendezvous::{Sink, Source};
use crate::report::LaneCounters;
use crate::sizes::SEND_QUEUE_DEPTH;
use crate::{PeerDown, PeerKey, PollerIndex, Token};
use bytes::Bytes;
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use trunkline_verbs::{QueuePair, RemoteAddress, Sge, SrqNumber, Time};

/// Credit frames per lane that the device has not seen acknowledged, at most.
const CREDITS_OUT: u8 = 2;

/// A message that waits to leave.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) token: Token,
    pub(crate) poller: Option<PollerIndex>,
    pub(crate) head: Vec<u8>,
    pub(crate) body: Bytes,
    pub(crate) deadline: Option<Time>,
}

/// What a posted work request was for.
#[derive(Debug)]
pub(crate) enum Record {
    /// A whole message.
    Message(Token),
    /// A rendezvous request; its outcome is the FIN's.
    Request,
    Fin,
    Credit {
        lane: usize,
    },
    Read {
        sink: usize,
        bytes: u32,
    },
    Keepalive,
}

/// Where the bytes of a staged frame are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    /// In a send slot.
    Slot(u32),
    /// In the trunk's inline bytes, from here.
    Inline(usize),
}

/// Work that the next flush posts.
#[derive(Debug)]
pub(crate) enum Staged {
    Frame { lane: usize, kind: Kind, place: Place, payload: usize, count: u16, record: Record },
    Read { sge: Sge, from: RemoteAddress, srq: SrqNumber, record: Record },
    Keepalive { srq: SrqNumber },
}

/// Work that the device has.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) sequence: u64,
    pub(crate) record: Record,
    pub(crate) slot: Option<u32>,
}

/// One of the peer's pollers.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) srq: SrqNumber,
    pub(crate) spender: Spender,
    /// What that poller may send to us.
    pub(crate) pair: GrantId,
    pub(crate) queue: VecDeque<Outbound>,
    pub(crate) fins: VecDeque<Fin>,
    /// Credit frames that the device has not seen acknowledged.
    pub(crate) credits_out: u8,
    /// Requests without their FIN.
    pub(crate) requests_out: u32,
    pub(crate) counters: Arc<LaneCounters>,
}

impl Lane {
    /// Whether a credit frame may be sent now.
    pub(crate) fn may_tell(&self) -> bool {
        self.credits_out < CREDITS_OUT
    }
}

/// Whether a trunk still works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    /// It does.
    Live,
    /// It is being taken down; nothing is posted any more.
    Dying {
        /// When that began.
        since: Time,
        /// Why its messages failed.
        cause: PeerDown,
        /// The TGTs of its session are destroyed, so the peer reads our memory no more.
        closed: bool,
        /// What the upper half will be told, once known.
        verdict: Option<PeerDown>,
    },
}

/// A trunk of one session.
#[derive(Debug)]
pub(crate) struct Trunk {
    pub(crate) peer: PeerKey,
    /// Our number of its session.
    pub(crate) number: u32,
    /// Its place in the poller's table, for work request numbers.
    pub(crate) slot: usize,
    pub(crate) qp: Arc<dyn QueuePair>,
    pub(crate) health: Health,
    pub(crate) lanes: Vec<Lane>,
    /// Lane for the next message that names no poller.
    pub(crate) next_lane: usize,
    pub(crate) max_message: usize,
    pub(crate) max_frame: usize,
    pub(crate) max_inline: usize,
    pub(crate) staged: Vec<Staged>,
    pub(crate) inline: Vec<u8>,
    pub(crate) in_flight: VecDeque<Posted>,
    pub(crate) next_sequence: u64,
    pub(crate) unsignaled: u32,
    pub(crate) sources: BTreeMap<u64, Source>,
    pub(crate) next_source: u64,
    pub(crate) sinks: Slab<Sink>,
    /// Sinks that wait for memory.
    pub(crate) waiting_for_memory: VecDeque<usize>,
    /// Sinks with pieces left to READ.
    pub(crate) reading: VecDeque<usize>,
    pub(crate) reads_out: u32,
    pub(crate) read_depth: u32,
    pub(crate) heard_ms: u64,
    pub(crate) keepalive_out: bool,
    /// It stands in the poller's list of trunks to pump and flush.
    pub(crate) marked: bool,
}

impl Trunk {
    /// Whether it can be used.
    pub(crate) fn is_live(&self) -> bool {
        self.health == Health::Live
    }

    /// Whether `more` work requests fit the send queue.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        self.in_flight.len() + self.staged.len() + more <= SEND_QUEUE_DEPTH
    }

    /// Whether nothing waits and nothing is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.staged.is_empty()
            && self.in_flight.is_empty()
            && self.sources.is_empty()
            && self.sinks.is_empty()
            && self.lanes.iter().all(|lane| lane.queue.is_empty() && lane.fins.is_empty())
    }

    /// The lane of a message: the named poller's, or the next in turn, beginning with the one
    /// of our own index so that the pollers of a node spread out.
    pub(crate) fn choose_lane(&mut self, poller: Option<PollerIndex>) -> Option<usize> {
        if let Some(poller) = poller {
            let lane = usize::from(poller.0);
            return (lane < self.lanes.len()).then_some(lane);
        }
        let lane = self.next_lane % self.lanes.len().max(1);
        self.next_lane = lane + 1;
        Some(lane)
    }
}
