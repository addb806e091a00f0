//! Calls to one peer wait for room, and neither small nor large ones may starve the other. Small calls leave by
//! SEND, and the peer READs large ones. Each kind has a part of the queue, in call order.
//!
//! The two parts take turns, and one without room does not end the other's turn. Small calls may use room that
//! large ones leave, so a large call delays small ones for at most one turn. After [`QUEUED`] small calls were
//! added to the queue of messages, further ones leave only if they need not be queued, until a large one has left.
//!
//! Calls on an ordered channel keep their order across both parts. Once one waits among the large calls, later
//! ones follow it there. It does not leave before those that wait among the small calls.

use super::statuses::NoRoom;
use crate::call::{AdmissionClass, Submission};
use std::collections::BTreeMap;
use trunkline_machine::mutant;
use trunkline_transport::{Leaves, Turn};

/// Position of a waiting call: lower ones are older.
pub(super) type Place = u64;

/// Maximum number of small calls queued before a large one's turn: 1 MiB at most.
const QUEUED: usize = 64;

/// A part of the queue to one peer: small or large calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Small,
    Large,
}

const PARTS: [Part; 2] = [Part::Small, Part::Large];

impl Part {
    /// Returns the part of a call that follows no other.
    pub(super) fn of(call: &Submission) -> Self {
        if call.is_large() && !mutant!(small_calls_wait_for_large_ones) { Self::Large } else { Self::Small }
    }

    fn other(self) -> Self {
        if self == Self::Small { Self::Large } else { Self::Small }
    }
}

/// The calls of one part.
#[derive(Debug)]
struct Waiters {
    calls: BTreeMap<Place, Submission>,
    /// Limit that the first call exceeds.
    why: NoRoom,
    /// Last round in which it found no room; 0 if there may be room now.
    blocked_in: u64,
}

/// The calls to one peer.
#[derive(Debug)]
pub(super) struct PeerQueue {
    /// Waiting calls, indexed by [`Part`].
    parts: [Waiters; 2],
    turn: Part,
    /// Number of calls in each part, by ordered channel; only channels with calls.
    ordered: BTreeMap<Turn, [usize; 2]>,
    /// Number of small calls that may still be queued before a large one.
    may_be_queued: usize,
}

impl PeerQueue {
    /// Creates an empty queue. `why` is the limit that the first call exceeds.
    pub(super) fn new(why: NoRoom) -> Self {
        let part = || Waiters { calls: BTreeMap::new(), why, blocked_in: 0 };
        Self { parts: [part(), part()], turn: Part::Small, ordered: BTreeMap::new(), may_be_queued: QUEUED }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.iter().all(|part| part.calls.is_empty())
    }

    /// Returns the calls in the order of the parts.
    pub(super) fn calls(&self) -> impl Iterator<Item = (Place, &Submission)> {
        self.parts.iter().flat_map(|part| part.calls.iter().map(|(place, call)| (*place, call)))
    }

    /// Returns the queue space reserved for others, if a new call need not wait.
    ///
    /// # Errors
    /// Returns the limit that it waits for. A handler's call waits only behind calls of its ordered channel.
    pub(super) fn pass(&self, call: &Submission) -> Result<Leaves, NoRoom> {
        let own = Part::of(call);
        if let Some(of_channel) = call.order.and_then(|order| self.ordered.get(&order)) {
            let part = if of_channel[Part::Large as usize] > 0 { Part::Large } else { Part::Small };
            return Err(self.parts[part as usize].why);
        }
        if call.entry == AdmissionClass::Reserved {
            return Ok(call.leaves());
        }
        for part in PARTS {
            let Waiters { calls, why, .. } = &self.parts[part as usize];
            // A limit that small calls exceed stops large ones too.
            let is_ahead = part == own || own == Part::Large || matches!(why, NoRoom::Calls(_));
            if is_ahead && !calls.is_empty() {
                return Err(*why);
            }
        }
        Ok(self.leaves(own, call))
    }

    /// Adds a waiting call.
    pub(super) fn push(&mut self, place: Place, call: Submission, why: NoRoom) {
        let mut part = Part::of(&call);
        if let Some(order) = call.order {
            let of_channel = self.ordered.entry(order).or_default();
            if of_channel[Part::Large as usize] > 0 {
                part = Part::Large;
            }
            of_channel[part as usize] += 1;
        }
        let waiters = &mut self.parts[part as usize];
        if waiters.calls.is_empty() {
            waiters.why = why;
        }
        waiters.calls.insert(place, call);
    }

    /// Returns true if any call has a turn in this round.
    pub(super) fn has_turn(&self, round: u64) -> bool {
        PARTS.into_iter().any(|part| self.may_go(part, round))
    }

    /// Takes the first call of the current part, or else of the other one.
    pub(super) fn next(&mut self, round: u64) -> Option<(Part, Place, Submission)> {
        let part = [self.turn, self.turn.other()].into_iter().find(|part| self.may_go(*part, round))?;
        let (place, call) = self.parts[part as usize].calls.pop_first()?;
        Some((part, place, call))
    }

    /// Returns the queue space reserved for other classes of calls.
    pub(super) fn leaves(&self, part: Part, call: &Submission) -> Leaves {
        let is_large_ones_turn = part == Part::Small && self.may_be_queued == 0;
        if is_large_ones_turn && self.large_wait_for_room() { Leaves::All } else { call.leaves() }
    }

    /// Puts back a call that has no room. Its part has no further turn in this round.
    pub(super) fn put_back(&mut self, part: Part, place: Place, call: Submission, why: NoRoom, round: u64) {
        let is_large_ones_turn = self.leaves(part, &call) == Leaves::All;
        let waiters = &mut self.parts[part as usize];
        waiters.calls.insert(place, call);
        waiters.blocked_in = round;
        waiters.why = why;
        if is_large_ones_turn {
            self.parts[Part::Small as usize].why = self.parts[Part::Large as usize].why;
        }
        if matches!(why, NoRoom::Calls(_)) {
            self.parts[part.other() as usize].blocked_in = round;
        }
    }

    /// Records that a call of a part was sent or queued. The next turn is the other part's.
    pub(super) fn went(&mut self, part: Part, is_queued: bool) {
        self.turn = part.other();
        match part {
            Part::Large => {
                self.may_be_queued = QUEUED;
                self.parts[Part::Small as usize].blocked_in = 0;
            }
            Part::Small if is_queued && self.large_wait_for_room() => {
                self.may_be_queued = self.may_be_queued.saturating_sub(1);
            }
            Part::Small => {}
        }
    }

    /// Records that a call on an ordered channel has left its part.
    pub(super) fn left_order(&mut self, part: Part, order: Turn) {
        let Some(of_channel) = self.ordered.get_mut(&order) else { return };
        of_channel[part as usize] -= 1;
        if *of_channel == [0, 0] {
            self.ordered.remove(&order);
        }
    }

    /// Removes a call from its part, and returns it with the limit that it waited for.
    pub(super) fn remove(&mut self, place: Place) -> Option<(Part, Submission, NoRoom)> {
        PARTS.into_iter().find_map(|part| {
            let waiters = &mut self.parts[part as usize];
            Some((part, waiters.calls.remove(&place)?, waiters.why))
        })
    }

    fn may_go(&self, part: Part, round: u64) -> bool {
        let waiters = &self.parts[part as usize];
        let has_calls = !waiters.calls.is_empty() && waiters.blocked_in != round;
        has_calls && (part == Part::Small || !self.large_wait_for_order())
    }

    /// Returns true if the first large call must wait for one of the small part.
    fn large_wait_for_order(&self) -> bool {
        let first = self.parts[Part::Large as usize].calls.first_key_value();
        let of_channel = first.and_then(|(_, call)| self.ordered.get(&call.order?));
        of_channel.is_some_and(|of_channel| of_channel[Part::Small as usize] > 0)
    }

    fn large_wait_for_room(&self) -> bool {
        !self.parts[Part::Large as usize].calls.is_empty() && !self.large_wait_for_order()
    }
}
