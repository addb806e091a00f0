//! How a frame reaches its poller when it came to another one.
//!
//! Over RC a peer's connection ends at one of our pollers, the *home* of all that comes through
//! it, and each frame names the poller that it is for. The home looks at nothing but that name and
//! hands the frame on: one ring for each pair of pollers, and a wake. The frame lends the home's
//! receive slot, which goes back there when the message is dropped. Credit bounds what a session
//! has under way; who exceeds that is at fault, and not who then finds the ring full: what comes from
//! others waits at the home.
//!
//! When a session is closed, senders believe that whatever lies in a home's CQ has arrived. So each
//! poller takes what has come through its own QPs, hands on what is for others, and sends the end of
//! the session after it through every ring. A poller considers a session closed when all others have
//! sent that, or after a second: a home that is busy for longer must not keep a dead peer from being
//! reported.
//!
//! Over XRC, and with one poller, there is nothing to hand on, and no ring.
#![forbid(unsafe_code)]

use super::{BATCH, Core, Resources};
use crate::PeerKey;
use crate::buffer::Received;
use crate::command::PollerHandle;
use crate::connections::ConnectionKind;
use crate::frame::Header;
use std::collections::VecDeque;
use std::time::Duration;
use trunkline_mutants::mutant;
use trunkline_rings::spsc::{self, Consumer, Producer};
use trunkline_verbs::{QpNumber, Time};

/// A session that is closed waits this long for other pollers to hand on what came before.
const CLOSING_LIMIT: Duration = Duration::from_secs(1);

/// What a home sends to another poller. QP numbers come again, names of sessions do not.
#[derive(Debug)]
enum Crossing {
    /// A frame for that poller.
    Frame { target: QpNumber, peer: PeerKey, number: u32, frame: Received },
    /// All frames of a session that is closed have been sent.
    End { peer: PeerKey, number: u32 },
}

impl Crossing {
    fn session(&self) -> (PeerKey, u32) {
        match *self {
            Self::Frame { peer, number, .. } | Self::End { peer, number } => (peer, number),
        }
    }
}

/// A session that is being closed over RC.
#[derive(Debug, Default)]
pub(super) struct Closing {
    /// When the CM machine reported that its QPs are destroyed.
    since: Option<Time>,
    /// Other pollers that have sent the end of it.
    ends: usize,
    /// It was closed without the ends that are missing.
    is_over: bool,
}

/// A home's way to another poller.
#[derive(Debug)]
struct Outlet {
    ring: Producer<Crossing>,
    /// Whose frames the ring holds, in its order, and some before them that were taken since.
    handed: VecDeque<(PeerKey, u32)>,
    /// What found the ring full. No more than the ring holds.
    waiting: VecDeque<Crossing>,
    /// Frames that one session may have here.
    allowance: usize,
}

impl Outlet {
    fn new(ring: Producer<Crossing>, share: u32) -> Self {
        let handed = VecDeque::with_capacity(ring.capacity() + 1);
        Self { ring, handed, waiting: VecDeque::new(), allowance: allowance(share) }
    }

    /// Hands a frame on, now or when there is room again. `false` when its session has more here than
    /// its credit allows; what still waits of it is dropped then.
    fn push(&mut self, crossing: Crossing) -> bool {
        if self.count() >= self.allowance {
            // Some may have been taken since it was counted last.
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

    /// Sends the end of a session after what was sent of it.
    fn end(&mut self, peer: PeerKey, number: u32) {
        self.waiting.push_back(Crossing::End { peer, number });
        self.flush();
    }

    /// Moves what waits into the ring, as far as there is room.
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
    /// Homes that our messages come through: all pollers, or only ourselves.
    homes: u16,
    /// By poller; none to ourselves.
    to: Vec<Option<Outlet>>,
    from: Vec<Consumer<Crossing>>,
    /// Pollers that were handed something since the last wake.
    unwoken: Vec<usize>,
}

impl Crossings {
    /// The ends of all pollers of a node whose SRQs have this depth.
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

    /// Through how many SRQs our messages come.
    pub(crate) fn homes(&self) -> u16 {
        self.homes
    }

    /// Which of them that is for what a peer's poller sends.
    pub(super) fn home_of(&self, poller: u16) -> u16 {
        poller % self.homes.max(1)
    }

    /// The other poller that a frame is for, if it is for one.
    pub(super) fn other(&self, frame: &Received) -> Option<usize> {
        let poller = usize::from(Header::peek_target(frame.as_ref())?);
        self.to.get(poller)?.as_ref().map(|_| poller)
    }

    /// Whether something waits to be taken.
    pub(super) fn has_any(&self) -> bool {
        self.from.iter().any(|ring| !ring.is_empty())
    }

    /// Whether something waits for room in a ring.
    pub(super) fn is_waiting(&self) -> bool {
        self.to.iter().flatten().any(|outlet| !outlet.waiting.is_empty())
    }

    fn flush(&mut self) {
        for (poller, outlet) in self.to.iter_mut().enumerate() {
            let Some(outlet) = outlet.as_mut().filter(|outlet| !outlet.waiting.is_empty()) else { continue };
            outlet.flush();
            if !self.unwoken.contains(&poller) {
                self.unwoken.push(poller);
            }
        }
    }

    fn push(&mut self, poller: usize, crossing: Crossing) -> bool {
        let Some(Some(outlet)) = self.to.get_mut(poller) else { return false };
        let is_allowed = outlet.push(crossing);
        if !self.unwoken.contains(&poller) {
            self.unwoken.push(poller);
        }
        is_allowed
    }

    /// Sends the end of a session to all others.
    fn end(&mut self, peer: PeerKey, number: u32) {
        for (poller, outlet) in self.to.iter_mut().enumerate() {
            let Some(outlet) = outlet else { continue };
            outlet.end(peer, number);
            if !self.unwoken.contains(&poller) {
                self.unwoken.push(poller);
            }
        }
    }

    fn wake(&mut self, pollers: &[PollerHandle]) {
        for poller in self.unwoken.drain(..) {
            if let Some(handle) = pollers.get(poller)
                && !mutant!(crossed_frames_wake_nobody)
            {
                handle.wake();
            }
        }
    }
}

/// Frames that one ring holds.
fn capacity(share: u32) -> usize {
    usize::try_from(share).unwrap_or(0) * 4 + BATCH
}

/// Frames that one session may have in a ring. A poller grants at most its share of a home's SRQ; a pair
/// holds one credit at least, and of frames that use none, a peer sends a few for each pair while nobody
/// answers it.
fn allowance(share: u32) -> usize {
    usize::try_from(share).unwrap_or(0) * 2 + BATCH
}

/// Through how many SRQs the messages of each poller come.
fn homes(kind: ConnectionKind, pollers: u16) -> u16 {
    if kind == ConnectionKind::Rc { pollers } else { 1 }
}

/// What each poller may promise of the depth of each SRQ that its messages come through.
pub(crate) fn share(kind: ConnectionKind, pollers: u16, depth: u32) -> u32 {
    depth / u32::from(homes(kind, pollers).max(1))
}

/// The least depth of an SRQ whose receives `homes` pollers share out.
pub(crate) fn least_depth(kind: ConnectionKind, pollers: u16) -> u32 {
    const LEAST_SHARE: u32 = 16;
    LEAST_SHARE * u32::from(homes(kind, pollers))
}

impl Core {
    /// Hands a frame that came through our TGT on to another poller.
    pub(super) fn cross(&mut self, poller: usize, target: QpNumber, frame: Received) {
        if !self.targets.contains_key(&target) {
            self.commands_within(true);
        }
        let Some(known) = self.targets.get_mut(&target) else {
            return self.keep_unknown_target_frame(target, frame);
        };
        if known.broken {
            return;
        }
        let (peer, number) = (known.peer, known.number);
        let frame = self.res.keep(frame);
        if !self.res.crossings.push(poller, Crossing::Frame { target, peer, number, frame }) {
            known.broken = true;
            self.misbehaved(peer, number, "more frames at once than its credit allows");
        }
    }

    /// Hands on what waited for room, and tells the pollers that were handed something.
    pub(super) fn wake_crossed(&mut self) {
        self.res.crossings.flush();
        self.res.crossings.wake(&self.res.shared.pollers);
    }

    /// Takes what other pollers handed on; returns whether there was anything.
    pub(super) fn take_crossed(&mut self) -> bool {
        let mut worked = false;
        for ring in 0..self.res.crossings.from.len() {
            for _ in 0..BATCH {
                let Some(crossing) = self.res.crossings.from[ring].pop() else { break };
                worked = true;
                self.crossed(crossing);
            }
        }
        if worked {
            self.res.grants.grant(self.res.now_ms);
        }
        worked
    }

    fn crossed(&mut self, crossing: Crossing) {
        let (target, peer, number, frame) = match crossing {
            Crossing::Frame { target, peer, number, frame } => (target, peer, number, frame),
            Crossing::End { peer, number } => return self.end_received(peer, number),
        };
        let is_of_session = |core: &Self| {
            core.targets.get(&target).is_some_and(|known| (known.peer, known.number) == (peer, number))
        };
        if !is_of_session(self) {
            // Its home may have heard of the session before us.
            self.commands_within(true);
        }
        if is_of_session(self) {
            self.frame_received(target, frame);
        } else if !self.targets.contains_key(&target) {
            self.keep_unknown_target_frame(target, frame);
        }
    }

    /// The QPs of a session are destroyed, and what came through ours was handed on. The session is
    /// closed here when the others have done the same.
    pub(super) fn begin_closing(&mut self, peer: PeerKey, number: u32) {
        self.res.crossings.end(peer, number);
        self.wake_crossed();
        let now = self.res.now;
        self.closing.entry((peer, number)).or_default().since.get_or_insert(now);
        self.close_if_all_ended(peer, number);
    }

    /// Another poller has handed on all that it had of a session.
    fn end_received(&mut self, peer: PeerKey, number: u32) {
        self.closing.entry((peer, number)).or_default().ends += 1;
        self.close_if_all_ended(peer, number);
    }

    fn close_if_all_ended(&mut self, peer: PeerKey, number: u32) {
        let others = self.res.crossings.from.len();
        let Some(closing) = self.closing.get(&(peer, number)) else { return };
        if closing.since.is_none() || closing.ends < others {
            return;
        }
        let is_over = closing.is_over;
        self.closing.remove(&(peer, number));
        if !is_over {
            self.finish_closing(peer, number);
        }
    }

    /// Closes the sessions that have waited too long for other pollers.
    pub(super) fn expire_closing(&mut self) {
        let now = self.res.now;
        let is_late = |closing: &Closing| {
            !closing.is_over && closing.since.is_some_and(|since| now - since > CLOSING_LIMIT)
        };
        let late = self.closing.iter_mut().filter(|(_, closing)| is_late(closing));
        let late = late.map(|(&session, closing)| {
            closing.is_over = true;
            session
        });
        for (peer, number) in late.collect::<Vec<_>>() {
            tracing::warn!(peer = peer.0, "a poller is too busy to hand on what came before a session ended");
            self.finish_closing(peer, number);
        }
    }

    /// Whether a session waits for other pollers to hand on what they have of it.
    pub(super) fn is_closing(&self) -> bool {
        self.closing.values().any(|closing| !closing.is_over)
    }

    /// Takes all that other pollers have handed on, for sessions that are known, before they end.
    pub(super) fn take_handed_on(&mut self) {
        for ring in 0..self.res.crossings.from.len() {
            while let Some(crossing) = self.res.crossings.from[ring].pop() {
                let (target, peer, number, frame) = match crossing {
                    Crossing::Frame { target, peer, number, frame } => (target, peer, number, frame),
                    Crossing::End { peer, number } => {
                        self.end_received(peer, number);
                        continue;
                    }
                };
                let known = self.targets.get(&target);
                if known.is_some_and(|known| (known.peer, known.number) == (peer, number)) {
                    self.frame_received(target, frame);
                }
            }
        }
    }
}

impl Resources {
    /// A frame that waits for another poller: lent while receive slots are plentiful, else copied,
    /// so that a poller that is busy for long does not keep us from receiving.
    fn keep(&mut self, frame: Received) -> Received {
        if self.receives.free() < self.low_water { frame.copied() } else { frame }
    }
}
