//! Queues of calls that exceed a limit. Each peer has a separate queue, so that a peer without room does not delay calls to
//! others. In a queue, small and large calls take turns.
//!
//! `Calls` checks for room in rounds. A round begins when a call from this poller ends, and after each [`PAUSE`], because
//! other pollers also release room. In a round each queue sends calls until the first calls of its parts have no room.

use super::peer_queue::{Part, PeerQueue, Place};
use super::statuses::Backpressure;
use crate::call::Submission;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use trunkline_transport::{Leaves, PeerKey, PollerChoice};
use trunkline_verbs::Time;

/// Maximum time between two rounds.
const PAUSE: Duration = Duration::from_millis(1);

/// Position of a call that was taken out of its queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seat {
    pub(super) peer: PeerKey,
    place: Place,
    part: Part,
    deadline: Time,
    order: Option<PollerChoice>,
}

#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Queues by peer. Empty queues are removed.
    queues: BTreeMap<PeerKey, PeerQueue>,
    /// Peers in the order of their turns in the next round.
    turns: VecDeque<PeerKey>,
    /// Peers without room that had their turn in this round.
    blocked: VecDeque<PeerKey>,
    /// Times at which the calls were queued, by deadline.
    deadlines: BTreeMap<(Time, Place, PeerKey), Time>,
    last: Place,
    /// Number of the last round that began.
    round: u64,
    /// True if waiting calls may have room.
    has_room: bool,
    /// True if the future of a call was dropped.
    has_abandoned: bool,
    /// Latest time of the next round; `None` if the queues are empty.
    next_round: Option<Time>,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.deadlines.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Records that waiting calls may have room.
    pub(super) fn there_is_room(&mut self) {
        self.has_room = true;
    }

    /// Records that the future of a call, which may wait here, was dropped.
    pub(super) fn ask_for_sweep(&mut self) {
        self.has_abandoned = true;
    }

    /// Returns true if a round should begin early.
    pub(super) fn is_ready(&self) -> bool {
        self.has_room && !self.is_empty()
    }

    /// Returns the time of the next round or deadline.
    pub(super) fn next_timer(&self) -> Option<Time> {
        let deadline = self.deadlines.first_key_value().map(|((deadline, ..), _)| *deadline);
        deadline.into_iter().chain(self.next_round).min()
    }

    /// Returns the space in the message queue that a new call to this peer must leave for other calls.
    ///
    /// # Errors
    /// Returns the limit that the call waits for.
    pub(super) fn pass(&self, peer: PeerKey, call: &Submission) -> Result<Leaves, Backpressure> {
        self.queues.get(&peer).map_or_else(|| Ok(call.leaves()), |queue| queue.pass(call))
    }

    /// Records a call that was queued or sent without waiting.
    pub(super) fn passed(&mut self, peer: PeerKey, part: Part, is_queued: bool) {
        if let Some(queue) = self.queues.get_mut(&peer) {
            queue.went(part, is_queued);
        }
    }

    /// Adds a waiting call at the end of its part of the queue.
    pub(super) fn push(&mut self, peer: PeerKey, call: Submission, why: Backpressure, now: Time) {
        let place = self.last;
        self.last += 1;
        self.deadlines.insert((call.deadline, place, peer), now);
        let queue = self.queues.entry(peer).or_insert_with(|| {
            self.turns.push_back(peer);
            PeerQueue::new(why)
        });
        queue.push(place, call, why);
        self.next_round.get_or_insert(now + PAUSE);
    }

    /// Begins a round if there may be room, or the pause is over. Returns true if a round began.
    pub(super) fn begin_round(&mut self, now: Time) -> bool {
        let is_due = self.is_ready() || self.next_round.is_some_and(|due| due <= now);
        if is_due {
            self.has_room = false;
            self.round += 1;
            self.next_round = Some(now + PAUSE);
        }
        is_due
    }

    /// Takes the next call of the first queue, with the space in the message queue that the call must leave. The queue moves
    /// to the back.
    pub(super) fn next(&mut self) -> Option<(Seat, Submission, Leaves)> {
        let peer = *self.turns.front()?;
        let queue = self.queues.get_mut(&peer)?;
        let (part, place, call) = queue.next(self.round)?;
        let leaves = queue.leaves(part, &call);
        self.turns.rotate_left(1);
        let order = call.order;
        Some((Seat { peer, place, part, deadline: call.deadline, order }, call, leaves))
    }

    /// Returns the time at which a taken call was queued.
    pub(super) fn since(&self, seat: &Seat) -> Option<Time> {
        self.deadlines.get(&(seat.deadline, seat.place, seat.peer)).copied()
    }

    /// Puts back a call that has no room. Its part of the queue gets no further turn in this round.
    pub(super) fn put_back(&mut self, seat: Seat, call: Submission, why: Backpressure) {
        if let Some(queue) = self.queues.get_mut(&seat.peer) {
            queue.put_back(seat.part, seat.place, call, why, self.round);
        }
        self.end_turn(seat.peer);
    }

    /// Records that a taken call no longer waits. `is_queued` is true if the request was queued, false if it was sent, and
    /// `None` if the call has ended.
    pub(super) fn leave(&mut self, seat: Seat, is_queued: Option<bool>) {
        if let (Some(queue), Some(is_queued)) = (self.queues.get_mut(&seat.peer), is_queued) {
            queue.went(seat.part, is_queued);
        }
        self.forget(seat);
        self.end_turn(seat.peer);
    }

    /// Ends the turns of the queue that had the last turn, if it has no more calls to send in this round.
    fn end_turn(&mut self, peer: PeerKey) {
        let is_blocked = self.queues.get(&peer).is_some_and(|queue| !queue.has_turn(self.round));
        if is_blocked && self.turns.back() == Some(&peer) {
            self.turns.pop_back();
            self.blocked.push_back(peer);
        }
    }

    pub(super) fn end_round(&mut self) {
        // Queues remain if the round reached the maximum number of calls.
        self.has_room |= !self.turns.is_empty();
        self.turns.append(&mut self.blocked);
        if self.is_empty() {
            self.next_round = None;
        }
    }

    /// Takes the next call whose deadline has passed, and the limit that it waited for.
    pub(super) fn late(&mut self, now: Time) -> Option<(Submission, Backpressure)> {
        let (&(_, place, peer), _) =
            self.deadlines.first_key_value().filter(|((deadline, ..), _)| *deadline <= now)?;
        self.remove(peer, place)
    }

    /// Takes the calls whose futures were dropped, if any.
    pub(super) fn abandoned(&mut self) -> Vec<Submission> {
        if !std::mem::take(&mut self.has_abandoned) {
            return Vec::new();
        }
        self.take(|_, call| call.is_abandoned())
    }

    /// Takes the calls that match, in the order in which they were queued.
    pub(super) fn take(&mut self, which: impl Fn(PeerKey, &Submission) -> bool) -> Vec<Submission> {
        let mut places = Vec::new();
        for (peer, queue) in &self.queues {
            let chosen = queue.calls().filter(|(_, call)| which(*peer, call));
            places.extend(chosen.map(|(place, _)| (place, *peer)));
        }
        places.sort_unstable();
        places
            .into_iter()
            .filter_map(|(place, peer)| self.remove(peer, place))
            .map(|(call, _)| call)
            .collect()
    }

    fn remove(&mut self, peer: PeerKey, place: Place) -> Option<(Submission, Backpressure)> {
        let (part, call, why) = self.queues.get_mut(&peer)?.remove(place)?;
        let order = call.order;
        self.forget(Seat { peer, place, part, deadline: call.deadline, order });
        Some((call, why))
    }

    /// Discards the records of a call that was taken out of its queue and does not return.
    fn forget(&mut self, seat: Seat) {
        self.deadlines.remove(&(seat.deadline, seat.place, seat.peer));
        if let (Some(queue), Some(order)) = (self.queues.get_mut(&seat.peer), seat.order) {
            queue.left_order(seat.part, order);
        }
        self.close_if_empty(seat.peer);
    }

    fn close_if_empty(&mut self, peer: PeerKey) {
        if self.queues.get(&peer).is_some_and(PeerQueue::is_empty) {
            self.queues.remove(&peer);
            self.turns.retain(|turn| *turn != peer);
            self.blocked.retain(|turn| *turn != peer);
            if self.is_empty() {
                self.next_round = None;
            }
        }
    }
}
