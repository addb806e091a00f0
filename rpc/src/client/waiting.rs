//! The calls of one poller that wait for room: a line for each peer, in the order in which the calls were made.
//!
//! The table of calls owns it. It looks for room in rounds: when a call has ended here, and every [`PAUSE`], because room
//! may come from another poller. In a round each line has its turn until its first call finds no room, so a peer
//! that has none holds up no other.

use super::no_room::NoRoom;
use crate::call::{Answer, Entry, Submission};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use trunkline_transport::PeerKey;
use trunkline_verbs::Time;

/// The longest time between two rounds.
const PAUSE: Duration = Duration::from_millis(1);

/// Its place: lower ones were made earlier.
pub(super) type Place = u64;

/// The calls to one peer.
#[derive(Debug)]
struct Line {
    calls: BTreeMap<Place, Submission>,
    /// Of them: those on ordered channels.
    ordered: usize,
    /// What the first one has no room in.
    why: NoRoom,
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

    /// What a call to this peer that is made now has to wait for. A handler's does not wait for others, unless they are on
    /// its ordered channel.
    pub(super) fn ahead_of(&self, peer: PeerKey, call: &Submission) -> Option<NoRoom> {
        let line = self.lines.get(&peer)?;
        if call.entry != Entry::Reserved {
            return Some(line.why);
        }
        if call.order.is_none() || line.ordered == 0 {
            return None;
        }
        line.calls.values().any(|ahead| ahead.order == call.order).then_some(line.why)
    }

    /// A call waits from now on, after all others to its peer.
    pub(super) fn push(&mut self, peer: PeerKey, call: Submission, why: NoRoom, now: Time) {
        let place = self.last;
        self.last += 1;
        self.deadlines.insert((call.deadline, place, peer));
        let line = self.lines.entry(peer).or_insert_with(|| {
            self.turns.push_back(peer);
            Line { calls: BTreeMap::new(), ordered: 0, why }
        });
        line.ordered += usize::from(call.order.is_some());
        line.calls.insert(place, call);
        self.next_round.get_or_insert(now + PAUSE);
    }

    /// Begins a round if one is due.
    pub(super) fn begin_round(&mut self, now: Time) -> bool {
        let is_due = self.is_ready() || self.next_round.is_some_and(|due| due <= now);
        if is_due {
            self.has_room = false;
            self.next_round = Some(now + PAUSE);
        }
        is_due
    }

    /// The first call of the line whose turn it is, with its place in it. The line's next turn comes after all others'.
    pub(super) fn next(&mut self) -> Option<(PeerKey, Place, Submission)> {
        let peer = *self.turns.front()?;
        let (place, call) = self.lines.get_mut(&peer)?.calls.pop_first()?;
        self.turns.rotate_left(1);
        Some((peer, place, call))
    }

    /// The call that was taken has no room. Its line has no turn any more in this round.
    pub(super) fn put_back(&mut self, peer: PeerKey, place: Place, call: Submission, why: NoRoom) {
        if let Some(line) = self.lines.get_mut(&peer) {
            line.calls.insert(place, call);
            line.why = why;
        }
        if self.turns.back() == Some(&peer) {
            self.turns.pop_back();
            self.blocked.push_back(peer);
        }
    }

    /// The call that was taken waits no more.
    pub(super) fn leave(&mut self, peer: PeerKey, place: Place, (deadline, is_ordered): (Time, bool)) {
        self.deadlines.remove(&(deadline, place, peer));
        if let Some(line) = self.lines.get_mut(&peer) {
            line.ordered -= usize::from(is_ordered);
        }
        self.close_if_empty(peer);
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
            let chosen = line.calls.iter().filter(|(_, call)| which(*peer, call));
            places.extend(chosen.map(|(place, _)| (*place, *peer)));
        }
        places.sort_unstable();
        places
            .into_iter()
            .filter_map(|(place, peer)| self.remove(peer, place))
            .map(|(call, _)| call)
            .collect()
    }

    fn remove(&mut self, peer: PeerKey, place: Place) -> Option<(Submission, NoRoom)> {
        let line = self.lines.get_mut(&peer)?;
        let (why, call) = (line.why, line.calls.remove(&place)?);
        self.leave(peer, place, (call.deadline, call.order.is_some()));
        Some((call, why))
    }

    fn close_if_empty(&mut self, peer: PeerKey) {
        if self.lines.get(&peer).is_some_and(|line| line.calls.is_empty()) {
            self.lines.remove(&peer);
            self.turns.retain(|turn| *turn != peer);
            self.blocked.retain(|turn| *turn != peer);
            if self.is_empty() {
                self.next_round = None;
            }
        }
    }
}
