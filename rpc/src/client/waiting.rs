//! The calls of one poller that wait for room: a line for each peer, whose small and large calls take turns.
//!
//! The table of calls owns it. It looks for room in rounds: when a call has ended here, and every [`PAUSE`], because room
//! may come from another poller. In a round each line has its turn until the first calls of its parts find no room, so a
//! peer that has none holds up no other.

use super::line::{Line, Part, Place};
use super::no_room::NoRoom;
use crate::call::{Answer, Submission};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use trunkline_transport::{Leaves, PeerKey};
use trunkline_verbs::Time;

/// The longest time between two rounds.
const PAUSE: Duration = Duration::from_millis(1);

/// A call whose turn it is, without the call itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seat {
    pub(super) peer: PeerKey,
    place: Place,
    part: Part,
    deadline: Time,
    order: Option<u32>,
}

#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// None is empty.
    lines: BTreeMap<PeerKey, Line>,
    /// The peers of all lines, in the order in which they have their turns in the next round.
    turns: VecDeque<PeerKey>,
    /// Those that have had theirs in this round, and have no room.
    blocked: VecDeque<PeerKey>,
    deadlines: BTreeSet<(Time, Place, PeerKey)>,
    last: Place,
    /// The number of the round that began last.
    round: u64,
    /// There may be room.
    has_room: bool,
    /// A caller has dropped a call.
    has_abandoned: bool,
    /// When the next round is due, at the latest; `None` while no call waits.
    next_round: Option<Time>,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.deadlines.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// There may be room for a call now.
    pub(super) fn there_is_room(&mut self) {
        self.has_room = true;
    }

    /// A caller has dropped a call, which may wait here.
    pub(super) fn ask_for_sweep(&mut self) {
        self.has_abandoned = true;
    }

    /// Whether a round is due before its time.
    pub(super) fn is_ready(&self) -> bool {
        self.has_room && !self.is_empty()
    }

    /// When a round or a deadline is due.
    pub(super) fn next_timer(&self) -> Option<Time> {
        let deadline = self.deadlines.first().map(|(deadline, ..)| *deadline);
        deadline.into_iter().chain(self.next_round).min()
    }

    /// What a call to this peer that is made now would leave of the queue of messages.
    ///
    /// # Errors
    /// What it has to wait for first.
    pub(super) fn pass(&self, peer: PeerKey, call: &Submission) -> Result<Leaves, NoRoom> {
        self.lines.get(&peer).map_or_else(|| Ok(call.leaves()), |line| line.pass(call))
    }

    /// A call was made that did not wait, and was queued or has left.
    pub(super) fn passed(&mut self, peer: PeerKey, part: Part, is_queued: bool) {
        if let Some(line) = self.lines.get_mut(&peer) {
            line.went(part, is_queued);
        }
    }

    /// A call waits from now on, after all others to its peer that it does not take turns with.
    pub(super) fn push(&mut self, peer: PeerKey, call: Submission, why: NoRoom, now: Time) {
        let place = self.last;
        self.last += 1;
        self.deadlines.insert((call.deadline, place, peer));
        let line = self.lines.entry(peer).or_insert_with(|| {
            self.turns.push_back(peer);
            Line::new(why)
        });
        line.push(place, call, why);
        self.next_round.get_or_insert(now + PAUSE);
    }

    /// Begins a round if one is due.
    pub(super) fn begin_round(&mut self, now: Time) -> bool {
        let is_due = self.is_ready() || self.next_round.is_some_and(|due| due <= now);
        if is_due {
            self.has_room = false;
            self.round += 1;
            self.next_round = Some(now + PAUSE);
        }
        is_due
    }

    /// The next call of the line whose turn it is, and what it leaves of the queue. The line's next turn comes after all
    /// others'.
    pub(super) fn next(&mut self) -> Option<(Seat, Submission, Leaves)> {
        let peer = *self.turns.front()?;
        let line = self.lines.get_mut(&peer)?;
        let (part, place, call) = line.next(self.round)?;
        let leaves = line.leaves(part, &call);
        self.turns.rotate_left(1);
        let order = call.order.map(|order| order.0);
        Some((Seat { peer, place, part, deadline: call.deadline, order }, call, leaves))
    }

    /// The call that was taken has no room. Its part of the line has no turn any more in this round.
    pub(super) fn put_back(&mut self, seat: Seat, call: Submission, why: NoRoom) {
        if let Some(line) = self.lines.get_mut(&seat.peer) {
            line.put_back(seat.part, (seat.place, call), why, self.round);
        }
        self.end_turn(seat.peer);
    }

    /// The call that was taken waits no more. `is_queued` if it waits to be sent now; `None` if it has ended.
    pub(super) fn leave(&mut self, seat: Seat, is_queued: Option<bool>) {
        if let (Some(line), Some(is_queued)) = (self.lines.get_mut(&seat.peer), is_queued) {
            line.went(seat.part, is_queued);
        }
        self.forget(seat);
        self.end_turn(seat.peer);
    }

    /// Ends the turns of the line that had the last one, if none of its calls may go in this round.
    fn end_turn(&mut self, peer: PeerKey) {
        let is_blocked = self.lines.get(&peer).is_some_and(|line| !line.has_turn(self.round));
        if is_blocked && self.turns.back() == Some(&peer) {
            self.turns.pop_back();
            self.blocked.push_back(peer);
        }
    }

    /// Ends a round.
    pub(super) fn end_round(&mut self) {
        // Lines are left over if the round was long enough.
        self.has_room |= !self.turns.is_empty();
        self.turns.append(&mut self.blocked);
        if self.is_empty() {
            self.next_round = None;
        }
    }

    /// Takes the next call whose deadline has passed, and what it has waited for.
    pub(super) fn late(&mut self, now: Time) -> Option<(Submission, NoRoom)> {
        let &(_, place, peer) = self.deadlines.first().filter(|(deadline, ..)| *deadline <= now)?;
        self.remove(peer, place)
    }

    /// Takes the calls that nobody waits for any more, if there may be any.
    pub(super) fn abandoned(&mut self) -> Vec<Submission> {
        if !std::mem::take(&mut self.has_abandoned) {
            return Vec::new();
        }
        self.take(|_, call| call.answer.as_ref().is_none_or(Answer::is_abandoned))
    }

    /// Takes the calls of which this is true, in the order in which they were made.
    pub(super) fn take(&mut self, which: impl Fn(PeerKey, &Submission) -> bool) -> Vec<Submission> {
        let mut places = Vec::new();
        for (peer, line) in &self.lines {
            let chosen = line.calls().filter(|(_, call)| which(*peer, call));
            places.extend(chosen.map(|(place, _)| (place, *peer)));
        }
        places.sort_unstable();
        places
            .into_iter()
            .filter_map(|(place, peer)| self.remove(peer, place))
            .map(|(call, _)| call)
            .collect()
    }

    fn remove(&mut self, peer: PeerKey, place: Place) -> Option<(Submission, NoRoom)> {
        let (part, call, why) = self.lines.get_mut(&peer)?.remove(place)?;
        let order = call.order.map(|order| order.0);
        self.forget(Seat { peer, place, part, deadline: call.deadline, order });
        Some((call, why))
    }

    /// The call that was taken out of its line does not return there.
    fn forget(&mut self, seat: Seat) {
        self.deadlines.remove(&(seat.deadline, seat.place, seat.peer));
        if let (Some(line), Some(order)) = (self.lines.get_mut(&seat.peer), seat.order) {
            line.left_order(seat.part, order);
        }
        self.close_if_empty(seat.peer);
    }

    fn close_if_empty(&mut self, peer: PeerKey) {
        if self.lines.get(&peer).is_some_and(Line::is_empty) {
            self.lines.remove(&peer);
            self.turns.retain(|turn| *turn != peer);
            self.blocked.retain(|turn| *turn != peer);
            if self.is_empty() {
                self.next_round = None;
            }
        }
    }
}
