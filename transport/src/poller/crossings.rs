//! Rings between the pollers of a node, which forward frames to their target poller.
//!
//! Over RC, a peer's connection ends at one of this node's pollers, the *home* of all frames on that connection, and
//! each frame names its target poller. The home reads only the target, forwards the frame through a ring, and wakes
//! the target poller. There is a ring for each ordered pair of pollers. The frame holds a receive slot of the home,
//! which is returned when the message is dropped. Credit limits the frames that a session has in flight, and a
//! session that exceeds its limit is closed. Frames of other sessions wait at the home while the ring is full.
//!
//! When a session is closed, its senders assume that everything in a home's CQ has arrived. So each poller takes the
//! frames that arrived through its own QPs, forwards the frames for other pollers, and then sends the end of the
//! session through every ring.
//!
//! Over XRC, or with one poller, there are no rings.
#![forbid(unsafe_code)]

use super::Transport;
use crate::PeerKey;
use crate::buffer::Received;
use crate::provider::connections::ConnectionKind;
use crate::wire::BATCH;
use crate::wire::frame::{FrameError, Header};
use std::collections::VecDeque;
use std::vec;
use trunkline_machine::mutant;
use trunkline_machine::rings::spsc::{self, Consumer, Producer};
use trunkline_verbs::QpNumber;

/// Item that a home sends to another poller. Items carry the session because QP numbers are reused.
#[derive(Debug)]
pub(crate) enum Crossing {
    /// A frame for the other poller.
    Frame { target: QpNumber, peer: PeerKey, number: u32, frame: Received },
    /// The end of a closed session, after all of its frames.
    End { peer: PeerKey, number: u32 },
}

impl Crossing {
    fn session(&self) -> (PeerKey, u32) {
        match *self {
            Self::Frame { peer, number, .. } | Self::End { peer, number } => (peer, number),
        }
    }
}

/// A home's ring to another poller, and the items that wait for it.
#[derive(Debug)]
struct Outlet {
    ring: Producer<Crossing>,
    /// Peers and sessions of the frames in the ring, in order. The frames of the first entries may already have been
    /// taken from the ring.
    handed: VecDeque<(PeerKey, u32)>,
    /// Items that did not fit in the ring, at most as many as the ring holds.
    waiting: VecDeque<Crossing>,
    /// Maximum number of frames of one session in the ring and in `waiting`.
    allowance: usize,
}

impl Outlet {
    fn new(ring: Producer<Crossing>, share: u32) -> Self {
        let handed = VecDeque::with_capacity(ring.capacity() + 1);
        Self { ring, handed, waiting: VecDeque::new(), allowance: allowance(share) }
    }

    /// Forwards a frame, now or when the ring has room again. Returns false if the session has more frames in this
    /// outlet than its credit allows. The waiting frames of the session are then dropped.
    fn push(&mut self, crossing: Crossing) -> bool {
        if self.count() >= self.allowance {
            // Items taken from the ring since the last count no longer use the allowance.
            self.flush();
            let session = crossing.session();
            if self.waiting.len() >= self.ring.capacity() || self.count_of(session) >= self.allowance {
                self.waiting.retain(|other| other.session() != session);
                return false;
            }
        }
        self.waiting.push_back(crossing);
        self.flush();
        true
    }

    /// Sends the end of a session, after the session's frames.
    fn end(&mut self, peer: PeerKey, number: u32) {
        self.waiting.push_back(Crossing::End { peer, number });
        self.flush();
    }

    /// Moves waiting items into the ring until it is full.
    fn flush(&mut self) {
        while let Some(crossing) = self.waiting.pop_front() {
            let session = crossing.session();
            if let Err(crossing) = self.ring.push(crossing) {
                self.waiting.push_front(crossing);
                break;
            }
            self.handed.push_back(session);
        }
        let taken = self.handed.len().saturating_sub(self.ring.len());
        self.handed.drain(..taken);
    }

    fn count(&self) -> usize {
        self.handed.len() + self.waiting.len()
    }

    fn count_of(&self, session: (PeerKey, u32)) -> usize {
        let handed = self.handed.iter().filter(|other| **other == session).count();
        handed + self.waiting.iter().filter(|other| other.session() == session).count()
    }
}

/// One poller's ends of the rings.
#[derive(Debug)]
pub(crate) struct Crossings {
    /// Number of homes that receive this poller's messages, which is the number of pollers over RC, and otherwise 1.
    homes: u16,
    /// Outlets by poller; `None` for this poller.
    to: Vec<Option<Outlet>>,
    from: Vec<Consumer<Crossing>>,
    /// Pollers to which items were forwarded since they were last woken.
    unwoken: Vec<usize>,
}

impl Crossings {
    /// Creates the ends of all pollers of a node whose SRQs have this depth.
    pub(crate) fn of_node(kind: ConnectionKind, pollers: u16, depth: u32) -> Vec<Self> {
        let homes = homes(kind, pollers);
        let count = usize::from(pollers);
        let mut ends = (0..count)
            .map(|_| Self { homes, to: Vec::new(), from: Vec::new(), unwoken: Vec::new() })
            .collect::<Vec<_>>();
        if homes < 2 {
            return ends;
        }
        for home in 0..count {
            for poller in 0..count {
                let ring = (home != poller).then(|| spsc::ring(capacity(share(kind, pollers, depth))));
                let (producer, consumer) = ring.unzip();
                let outlet = producer.map(|ring| Outlet::new(ring, share(kind, pollers, depth)));
                ends[home].to.push(outlet);
                ends[poller].from.extend(consumer);
            }
        }
        ends
    }

    /// Returns the memory of all rings of a node, in bytes.
    pub(crate) fn bytes_of_node(kind: ConnectionKind, pollers: u16, depth: u32) -> usize {
        if homes(kind, pollers) < 2 {
            return 0;
        }
        let rings = usize::from(pollers) * usize::from(pollers - 1);
        let ring = capacity(share(kind, pollers, depth)).next_power_of_two();
        // Each item takes an entry in the ring and an entry in `handed`.
        let entry = size_of::<Crossing>() + size_of::<(PeerKey, u32)>();
        rings.saturating_mul(ring.saturating_mul(entry))
    }

    /// Returns the number of SRQs that receive messages for this poller.
    pub(crate) fn homes(&self) -> u16 {
        self.homes
    }

    /// Returns the home for the messages of a peer's poller.
    pub(crate) fn home_of(&self, poller: u16) -> u16 {
        poller % self.homes.max(1)
    }

    /// Returns the index of the other poller to which a frame must be forwarded, if any.
    pub(crate) fn other(&self, frame: &Received) -> Option<usize> {
        let poller = usize::from(Header::peek_target(frame.as_ref())?);
        self.to.get(poller)?.as_ref().map(|_| poller)
    }

    /// Returns true if any ring holds an item for this poller.
    pub(crate) fn has_any(&self) -> bool {
        self.from.iter().any(|ring| !ring.is_empty())
    }

    /// Returns true if an item waits for room in a ring.
    pub(crate) fn is_waiting(&self) -> bool {
        self.to.iter().flatten().any(|outlet| !outlet.waiting.is_empty())
    }

    /// Forwards waiting items until the rings are full.
    pub(crate) fn flush(&mut self) {
        for (poller, outlet) in self.to.iter_mut().enumerate() {
            let Some(outlet) = outlet.as_mut().filter(|outlet| !outlet.waiting.is_empty()) else { continue };
            outlet.flush();
            if !self.unwoken.contains(&poller) {
                self.unwoken.push(poller);
            }
        }
    }

    /// Forwards an item to another poller. Returns false if its session has more items for that poller than its credit
    /// allows.
    pub(crate) fn push(&mut self, poller: usize, crossing: Crossing) -> bool {
        let Some(Some(outlet)) = self.to.get_mut(poller) else { return false };
        let is_allowed = outlet.push(crossing);
        if !self.unwoken.contains(&poller) {
            self.unwoken.push(poller);
        }
        is_allowed
    }

    /// Sends the end of a session to all other pollers.
    pub(crate) fn end(&mut self, peer: PeerKey, number: u32) {
        for (poller, outlet) in self.to.iter_mut().enumerate() {
            let Some(outlet) = outlet else { continue };
            outlet.end(peer, number);
            if !self.unwoken.contains(&poller) {
                self.unwoken.push(poller);
            }
        }
    }

    /// Returns true if items were forwarded to pollers that have not been woken since.
    #[inline]
    pub(crate) fn is_anyone_unwoken(&self) -> bool {
        !self.unwoken.is_empty()
    }

    /// Returns the pollers to which items were forwarded since the last call. The caller wakes them.
    pub(crate) fn take_unwoken(&mut self) -> vec::Drain<'_, usize> {
        self.unwoken.drain(..)
    }

    /// Takes the items that wait for room in the rings, by poller, before the rings are dropped. They follow
    /// the items in the rings.
    pub(crate) fn take_waiting(&mut self) -> Vec<(usize, Vec<Crossing>)> {
        let outlets = self.to.iter_mut().enumerate();
        let waiting = outlets.filter_map(|(poller, outlet)| {
            let waiting = std::mem::take(&mut outlet.as_mut()?.waiting);
            (!waiting.is_empty()).then(|| (poller, waiting.into()))
        });
        waiting.collect()
    }

    /// Returns the number of pollers that forward frames to this poller.
    pub(crate) fn others(&self) -> usize {
        self.from.len()
    }

    /// Takes the oldest item that another poller has forwarded. `other` is less than [`Crossings::others`].
    pub(crate) fn pop(&mut self, other: usize) -> Option<Crossing> {
        self.from.get_mut(other)?.pop()
    }
}

/// Returns the number of frames that one ring holds.
fn capacity(share: u32) -> usize {
    usize::try_from(share).unwrap_or(0) * 4 + BATCH
}

/// Returns the number of frames that one session may have in a ring. A poller grants at most its share of a home's SRQ.
/// A pair holds at least one credit. A peer that has not received an answer sends only a few frames without credit per
/// pair.
fn allowance(share: u32) -> usize {
    usize::try_from(share).unwrap_or(0) * 2 + BATCH
}

/// Returns the number of SRQs that receive the messages of one poller.
pub(crate) fn homes(kind: ConnectionKind, pollers: u16) -> u16 {
    if kind == ConnectionKind::Rc { pollers } else { 1 }
}

/// Returns the part of each SRQ's depth that each poller may grant.
pub(crate) fn share(kind: ConnectionKind, pollers: u16, depth: u32) -> u32 {
    depth / u32::from(homes(kind, pollers).max(1))
}

/// Returns the minimum depth of an SRQ that is divided among the pollers.
pub(crate) fn least_depth(kind: ConnectionKind, pollers: u16) -> u32 {
    const LEAST_SHARE: u32 = 16;
    LEAST_SHARE * u32::from(homes(kind, pollers))
}

impl Transport {
    /// Forwards a frame received through a TGT of this poller to another poller.
    pub(super) fn cross(&mut self, poller: usize, target: QpNumber, frame: Received) {
        if !self.targets.knows(target) {
            self.commands_amid_completions();
        }
        let Some(known) = self.targets.get_mut(target) else {
            return self.keep_unannounced(target, frame);
        };
        if known.is_broken() {
            return;
        }
        let (peer, number) = known.session();
        let frame = self.res.receives.keep(frame);
        if !self.crossings.push(poller, Crossing::Frame { target, peer, number, frame }) {
            known.ignore();
            self.misbehaved(peer, number, FrameError::Broken("more frames at once than its credit allows"));
        }
    }

    /// Forwards the frames that waited for room in a ring, and wakes the pollers that received frames.
    pub(super) fn wake_crossed(&mut self) {
        self.crossings.flush();
        for poller in self.crossings.take_unwoken() {
            if let Some(handle) = self.res.shared.pollers.get(poller)
                && !mutant!(crossed_frames_wake_nobody)
            {
                handle.wake();
            }
        }
    }

    /// Takes frames forwarded by other pollers. Returns true if there were any.
    pub(super) fn take_crossed(&mut self) -> bool {
        let mut worked = false;
        for other in 0..self.crossings.others() {
            for _ in 0..BATCH {
                let Some(crossing) = self.crossings.pop(other) else { break };
                worked = true;
                self.crossed(crossing);
            }
        }
        if worked {
            self.res.grants.grant(self.res.time.now_ms());
        }
        worked
    }

    fn crossed(&mut self, crossing: Crossing) {
        let (target, peer, number, frame) = match crossing {
            Crossing::Frame { target, peer, number, frame } => (target, peer, number, frame),
            Crossing::End { peer, number } => return self.end_received(peer, number),
        };
        let is_of_session = |transport: &Self| {
            transport.targets.get(target).is_some_and(|known| known.session() == (peer, number))
        };
        if !is_of_session(self) {
            // The home may have received the command about the session before this poller.
            self.commands_amid_completions();
        }
        if is_of_session(self) {
            self.wait(target, frame);
        } else if !self.targets.knows(target) {
            self.keep_unannounced(target, frame);
        }
    }

    /// Reports to the other pollers that all frames of a closed session were forwarded. The session is closed on this
    /// poller once all other pollers have reported this too.
    pub(super) fn begin_closing(&mut self, peer: PeerKey, number: u32) {
        self.crossings.end(peer, number);
        self.wake_crossed();
        if self.closings.begin((peer, number), self.res.time.now(), self.crossings.others()) {
            self.finish_closing(peer, number);
        }
    }

    /// Counts another poller that has forwarded all frames of the session.
    fn end_received(&mut self, peer: PeerKey, number: u32) {
        if self.closings.end_received((peer, number), self.crossings.others()) {
            self.finish_closing(peer, number);
        }
    }

    /// Closes the sessions that have waited too long for other pollers.
    pub(super) fn expire_closing(&mut self) {
        for (peer, number) in self.closings.expire(self.res.time.now()) {
            tracing::warn!(
                %peer,
                cause = "a poller was too busy to forward them",
                "messages lost at the end of a session"
            );
            self.finish_closing(peer, number);
        }
    }

    /// Takes all items that other pollers have forwarded for known sessions, before these sessions end.
    pub(super) fn take_handed_on(&mut self) {
        for other in 0..self.crossings.others() {
            while let Some(crossing) = self.crossings.pop(other) {
                self.take_last(crossing);
            }
        }
    }

    /// Handles a frame or the end of a session from another poller. A frame of an unknown session is dropped.
    pub(super) fn take_last(&mut self, crossing: Crossing) {
        match crossing {
            Crossing::Frame { target, peer, number, frame } => {
                if self.targets.get(target).is_some_and(|known| known.session() == (peer, number)) {
                    self.take_line(peer);
                    self.take_frame(target, frame);
                }
            }
            Crossing::End { peer, number } => self.end_received(peer, number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number_of(crossing: Option<Crossing>) -> Option<u32> {
        crossing.map(|crossing| crossing.session().1)
    }

    /// Each session has a separate allowance. Items that wait for room are kept when the rings are dropped.
    #[test]
    fn overflow_items_follow_items_of_ring() {
        let mut ends = Crossings::of_node(ConnectionKind::Rc, 2, 32);
        let (mut poller, mut home) = (ends.pop().unwrap(), ends.pop().unwrap());
        let count = u32::try_from(capacity(share(ConnectionKind::Rc, 2, 32)).next_power_of_two()).unwrap();
        let peer = PeerKey::new(([127, 0, 0, 1], 1).into());
        for number in 0..count + 2 {
            assert!(home.push(1, Crossing::End { peer, number }));
        }
        assert!(home.is_waiting());
        let waiting = home.take_waiting();
        assert!(!home.is_waiting() && home.take_waiting().is_empty());
        for number in 0..count {
            assert_eq!(number_of(poller.pop(0)), Some(number));
        }
        assert!(poller.pop(0).is_none());
        let [(1, rest)] = <[_; 1]>::try_from(waiting).unwrap() else { panic!("for the other poller") };
        let rest = rest.into_iter().map(|crossing| number_of(Some(crossing)));
        assert!(rest.eq([Some(count), Some(count + 1)]));
    }
}
