//! Large replies wait here for room in the queue of messages, behind others to the same peer.
//!
//! The dispatcher owns them. Only large replies wait, so they delay no small one, and those to a peer leave in the
//! order in which their handlers ended. They have a separate budget, so that a peer that does not READ its replies
//! makes the node hold no more of them. It looks for room in rounds, every [`PAUSE`] while any waits.

use super::dispatch::{Caller, Key};
use crate::frame::{Encoded, Header};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use trunkline_transport::budget::Share;
use trunkline_transport::ledger::BudgetLedger;
use trunkline_transport::{Body, EAGER_BYTES, Exhausted, PeerKey};
use trunkline_verbs::Time;

/// Time between two rounds.
const PAUSE: Duration = Duration::from_millis(1);

/// The encoded part of a reply, and its body.
pub(super) type Parts = (Encoded, Body);

/// Returns true if the peer fetches the reply by RDMA READ, unless the header says otherwise.
#[inline]
pub(super) fn is_large((encoded, body): &Parts) -> bool {
    encoded.len() + body.len() > EAGER_BYTES
}

/// A reply that waits.
#[derive(Debug)]
pub(super) struct WaitingReply {
    pub(super) caller: Caller,
    pub(super) header: Header,
    pub(super) parts: Parts,
    /// Charge of its peer, also after the parts were sent.
    bytes: usize,
    /// Position in its line: lower ones have waited longer.
    place: u64,
}

impl WaitingReply {
    pub(super) fn new(caller: Caller, header: Header, parts: Parts) -> Self {
        // The memory of a small one is mostly that around it.
        let around = if is_large(&parts) { parts.0.len() } else { parts.0.capacity() + size_of::<Self>() };
        let bytes = around + parts.1.len();
        Self { caller, header, parts, bytes, place: 0 }
    }

    fn peer(&self) -> PeerKey {
        self.caller.key.peer
    }
}

/// The waiting replies of one poller.
#[derive(Debug)]
pub(super) struct WaitingReplies {
    /// Budget of their bytes.
    budget: Share,
    /// Waiting replies by peer, in order. No line is empty between two rounds.
    lines: BTreeMap<PeerKey, BTreeMap<u64, WaitingReply>>,
    /// Positions of replies in their peer's line, by caller. A peer that uses a number twice has several.
    by_caller: BTreeSet<(Key, u64)>,
    /// Position of the next reply.
    next_place: u64,
    /// Peers that still have a turn in this round.
    turns: VecDeque<PeerKey>,
    rounds: usize,
    next_round: Option<Time>,
}

impl WaitingReplies {
    pub(super) fn new(budget: Share) -> Self {
        Self {
            budget,
            lines: BTreeMap::new(),
            by_caller: BTreeSet::new(),
            next_place: 0,
            turns: VecDeque::new(),
            rounds: 0,
            next_round: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_caller.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns true if any reply to a peer waits.
    pub(super) fn has_any_to(&self, peer: PeerKey) -> bool {
        self.lines.contains_key(&peer)
    }

    /// Returns the time of the next round.
    pub(super) fn next_timer(&self) -> Option<Time> {
        self.next_round
    }

    /// Adds a waiting reply, behind all others to its peer.
    ///
    /// # Errors
    /// Returns the exceeded limit. The reply is then dropped.
    pub(super) fn add(&mut self, reply: WaitingReply, now: Time) -> Result<(), Exhausted> {
        self.budget.take(reply.peer(), reply.bytes)?;
        let place = self.next_place;
        self.next_place += 1;
        self.insert(WaitingReply { place, ..reply });
        self.next_round.get_or_insert(now + PAUSE);
        Ok(())
    }

    /// Returns the peers of replies that the next round drops, if it is time for one: a turn in between must not look at
    /// all replies.
    pub(super) fn late(&self, now: Time) -> impl Iterator<Item = PeerKey> {
        let is_late =
            move |reply: &&WaitingReply| reply.caller.deadline.is_some_and(|deadline| deadline <= now);
        let is_round = self.next_round.is_some_and(|due| due <= now);
        let lines = is_round.then(|| self.lines.values());
        lines.into_iter().flatten().flat_map(BTreeMap::values).filter(is_late).map(WaitingReply::peer)
    }

    /// Begins a round if it is time for one: drops replies whose caller no longer waits, and gives the others a
    /// turn.
    pub(super) fn begin_round(&mut self, now: Time) -> bool {
        if self.next_round.is_none_or(|due| due > now) {
            return false;
        }
        self.remove(|reply| reply.caller.deadline.is_some_and(|deadline| deadline <= now));
        self.next_round = (!self.is_empty()).then_some(now + PAUSE);
        self.turns = self.lines.keys().copied().collect();
        if !self.turns.is_empty() {
            // All lines may wait for the limit in all, so each round begins with another one.
            self.rounds = self.rounds.wrapping_add(1);
            self.turns.rotate_left(self.rounds % self.turns.len());
        }
        true
    }

    /// Takes the next reply in turn.
    pub(super) fn next(&mut self) -> Option<WaitingReply> {
        loop {
            let peer = *self.turns.front()?;
            if let Some((place, reply)) = self.lines.get_mut(&peer).and_then(BTreeMap::pop_first) {
                self.by_caller.remove(&(reply.caller.key, place));
                return Some(reply);
            }
            self.lines.remove(&peer);
            self.turns.pop_front();
        }
    }

    /// Puts back a reply that has no room. Its peer has no further turn in this round.
    pub(super) fn put_back(&mut self, reply: WaitingReply) {
        self.turns.pop_front();
        self.insert(reply);
    }

    fn insert(&mut self, reply: WaitingReply) {
        self.by_caller.insert((reply.caller.key, reply.place));
        self.lines.entry(reply.peer()).or_default().insert(reply.place, reply);
    }

    /// Releases the charge of a taken reply that was sent, or never will be.
    pub(super) fn left(&mut self, reply: &WaitingReply) {
        self.budget.put_back(reply.peer(), reply.bytes);
    }

    /// Ends a round.
    pub(super) fn end_round(&mut self) {
        if self.is_empty() {
            self.next_round = None;
        }
    }

    /// Drops the reply of a caller that no longer waits, without examining others.
    pub(super) fn cancel(&mut self, caller: Key) {
        let places = self.by_caller.range((caller, 0)..=(caller, u64::MAX));
        let places = places.map(|(_, place)| *place).collect::<Vec<_>>();
        let Some(line) = self.lines.get_mut(&caller.peer) else { return };
        for place in places {
            self.by_caller.remove(&(caller, place));
            if let Some(reply) = line.remove(&place) {
                self.budget.put_back(caller.peer, reply.bytes);
            }
        }
        if line.is_empty() {
            self.lines.remove(&caller.peer);
        }
        self.end_round();
    }

    /// Drops all replies.
    pub(super) fn close(&mut self) {
        self.remove(|_| true);
    }

    /// Drops the replies that match.
    fn remove(&mut self, which: impl Fn(&WaitingReply) -> bool) {
        let (budget, by_caller) = (&mut self.budget, &mut self.by_caller);
        self.lines.retain(|peer, line| {
            line.retain(|place, reply| {
                let stays = !which(reply);
                if !stays {
                    budget.put_back(*peer, reply.bytes);
                    by_caller.remove(&(reply.caller.key, *place));
                }
                stays
            });
            !line.is_empty()
        });
        self.end_round();
    }

    /// Drops the replies to a peer that is down.
    pub(super) fn down(&mut self, peer: PeerKey) {
        self.remove(|reply| reply.peer() == peer);
        self.budget.leave(peer);
    }

    /// Returns the charged bytes and the waiting ones.
    pub(super) fn ledger(&self) -> BudgetLedger {
        let counted = self.lines.iter().map(|(peer, line)| {
            let of_line = line.values().map(|reply| reply.bytes);
            (*peer, of_line.sum())
        });
        self.budget.ledger(counted.collect())
    }
}
