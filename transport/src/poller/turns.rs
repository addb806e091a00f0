//! Fair turns among peers, so that a busy peer delays the messages of other peers by at most its turn.
//!
//! The device completes receives in the order of their arrival, so a peer that uses all its credit could put
//! thousands of messages before the next message of another peer. In each round, only a peer's first messages are
//! therefore handled on arrival. Further frames wait here, in a line for each peer, and the lines take turns. A round
//! ends after [`ROUND_MESSAGES`] or [`ROUND_TIME`], so that sends, tasks and timers are not delayed. A message whose
//! decoding or handling takes longer than its part of that time counts as several messages.
//!
//! Waiting frames use credit, which the peer gets back when the frames are handled. This bounds the lines, since the
//! session of a peer that exceeds its credit is closed before such a frame waits. A session ends only after its line
//! is emptied.
#![forbid(unsafe_code)]

use crate::buffer::Received;
use crate::wire::frame::Bundle;
use crate::wire::{ROUND_MESSAGES, TURN_MESSAGES};
use crate::{Origin, PeerKey};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use trunkline_machine::mutant;
use trunkline_verbs::{Clock, QpNumber, Time};

/// Time after which a round ends.
const ROUND_TIME: Duration = Duration::from_micros(100);
/// Time that a message may take without counting as more than one, in nanoseconds, which is its part of a round.
const MESSAGE_TIME_NS: u64 = 3_125;
/// Maximum number of messages between two readings of the clock.
const UNTIMED: u32 = 4;
/// Capacity, in frames, that an empty list keeps.
const KEPT: usize = 256;

/// A frame, or the rest of a frame, that waits for its peer's turn.
#[derive(Debug)]
pub(super) enum Waiting {
    /// A frame, the TGT through which it arrived, and a flag that is true if the frame uses credit.
    Frame { target: QpNumber, frame: Received, uses_credit: bool },
    /// Bytes of a bundle, with the position of the remaining messages.
    Bundle(Part, Bytes, Bundle),
}

/// Origin of a bundle's messages, and the lane that counts them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) from: Origin,
    /// Place of the trunk.
    pub(super) trunk: usize,
    pub(super) lane: usize,
}

#[derive(Debug, Default)]
struct Line {
    frames: VecDeque<Waiting>,
    /// True while the line is in `order`, which includes the turn of its last frame.
    is_in_order: bool,
    /// Value of `handled` when the line's last turn ended, or when the line began.
    since: u64,
}

/// The lines of all peers, and the progress of the round.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Lines by peer. Empty lines are kept until [`Turns::forget`], to avoid an allocation for each.
    lines: BTreeMap<PeerKey, Line>,
    /// Peers with a line, in the order of their turns.
    order: VecDeque<PeerKey>,
    round: u32,
    /// Number of messages handled in all rounds.
    handled: u64,
    /// Number of messages that the round has handled. A long message counts as several, in proportion to its time.
    spent: u32,
    /// Time up to which messages are counted, number of messages since then, and number of messages until the
    /// clock is read again.
    timed: Time,
    since_timed: u32,
    until_timed: u32,
    /// End of the round.
    until: Time,
    /// True if the round has polled the CQ, after which frames of other peers do not arrive before the
    /// round's end.
    has_polled: bool,
    /// Number of messages left to the peer that has its turn.
    left: u32,
    /// Largest number of messages handled between two turns of a waiting peer, and the number of lines at that time.
    longest_wait: (u64, usize),
}

impl Turns {
    pub(super) fn begin_round(&mut self, now: Time) {
        self.round = self.round.wrapping_add(1);
        self.spent = 0;
        (self.timed, self.since_timed) = (now, 0);
        self.until = now + ROUND_TIME;
        self.has_polled = false;
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns true if the round has handled [`ROUND_MESSAGES`] or has lasted [`ROUND_TIME`].
    pub(super) fn is_round_over(&self, clock: &Clock) -> bool {
        self.spent >= ROUND_MESSAGES || self.spent >= TURN_MESSAGES && clock.now() >= self.until
    }

    pub(super) fn round(&self) -> u32 {
        self.round
    }

    /// Returns true if frames of the peer wait.
    pub(super) fn has_line(&self, peer: PeerKey) -> bool {
        !self.is_empty() && self.lines.get(&peer).is_some_and(|line| line.is_in_order)
    }

    /// Sets the number of messages left to the peer that has its turn.
    pub(super) fn give(&mut self, messages: u32) {
        self.left = messages;
    }

    /// Returns the number of messages left to the peer in its turn.
    pub(super) fn left(&self) -> u32 {
        self.left
    }

    /// Returns true if the current peer may continue. It may if it has messages left in its turn, or gets more because
    /// other peers do not wait and the round is not over.
    #[inline]
    pub(super) fn goes_on(&mut self, peer: PeerKey, clock: &Clock) -> bool {
        if self.left > 0 {
            return true;
        }
        let is_alone = self.has_polled && self.order.len() == 1 && self.order[0] == peer;
        if is_alone && !self.is_round_over(clock) {
            self.left = TURN_MESSAGES;
        }
        self.left > 0
    }

    /// Records that the round has taken the completions.
    pub(super) fn polled(&mut self) {
        self.has_polled = true;
    }

    /// Returns true if the round has taken the completions.
    pub(super) fn has_polled(&self) -> bool {
        self.has_polled
    }

    /// Counts a message of the peer that has its turn.
    #[inline]
    pub(super) fn count(&mut self) {
        self.handled += 1;
        self.spent += 1;
        self.left = self.left.saturating_sub(1);
    }

    /// Records that a message was handled. Reads the clock after each message while messages take long, and otherwise
    /// after [`UNTIMED`] messages.
    #[inline]
    pub(super) fn took(&mut self, clock: &Clock) {
        self.since_timed += 1;
        if self.since_timed >= self.until_timed {
            self.charge_time(clock.now());
        }
    }

    /// Counts messages by the time that they took.
    #[cold]
    fn charge_time(&mut self, now: Time) {
        let times = now.since(self.timed) / MESSAGE_TIME_NS;
        let more = u32::try_from(times).unwrap_or(u32::MAX).saturating_sub(self.since_timed);
        self.until_timed = if more > 0 { 1 } else { UNTIMED.min(2 * self.until_timed.max(1)) };
        (self.timed, self.since_timed) = (now, 0);
        if !mutant!(peers_take_no_turns) {
            self.spent = self.spent.saturating_add(more);
            self.left = self.left.saturating_sub(more);
        }
    }

    /// Appends a frame to its peer's line.
    pub(super) fn wait(&mut self, peer: PeerKey, frame: Waiting) {
        self.line(peer).frames.push_back(frame);
    }

    /// Puts the rest of a frame back at the front of its peer's line.
    pub(super) fn put_back(&mut self, peer: PeerKey, frame: Waiting) {
        self.line(peer).frames.push_front(frame);
    }

    fn line(&mut self, peer: PeerKey) -> &mut Line {
        let since = self.handled;
        let line = self.lines.entry(peer).or_default();
        if !line.is_in_order {
            (line.is_in_order, line.since) = (true, since);
            self.order.push_back(peer);
        }
        line
    }

    /// Begins the next turn. Returns its peer; `None` if all lines are empty.
    pub(super) fn begin_turn(&mut self) -> Option<PeerKey> {
        let peer = *self.order.front()?;
        self.left = if mutant!(peers_take_no_turns) { u32::MAX } else { TURN_MESSAGES };
        if let Some(line) = self.lines.get(&peer) {
            let waited = self.handled - line.since;
            self.longest_wait = self.longest_wait.max((waited, self.order.len()));
        }
        Some(peer)
    }

    /// Takes the next frame of a peer, unless its turn is over.
    pub(super) fn next(&mut self, peer: PeerKey) -> Option<Waiting> {
        if self.left == 0 { None } else { self.take(peer) }
    }

    /// Takes the next frame of a peer.
    pub(super) fn take(&mut self, peer: PeerKey) -> Option<Waiting> {
        self.lines.get_mut(&peer)?.frames.pop_front()
    }

    /// Ends a peer's turn. If frames of the peer still wait, its next turn follows the turns of all other peers.
    pub(super) fn end_turn(&mut self, peer: PeerKey) {
        let Some(line) = self.lines.get_mut(&peer) else { return };
        line.since = self.handled;
        let waits = !line.frames.is_empty();
        line.is_in_order = waits;
        if !waits && line.frames.capacity() > KEPT {
            line.frames = VecDeque::new();
        }
        if let Some(place) = self.order.iter().position(|waiting| *waiting == peer) {
            self.order.remove(place);
        }
        if waits {
            self.order.push_back(peer);
        }
    }

    /// Removes a peer's empty line.
    pub(super) fn forget(&mut self, peer: PeerKey) {
        if !self.has_line(peer) {
            self.lines.remove(&peer);
        }
    }

    /// Returns the first of the waiting peers.
    pub(super) fn first(&self) -> Option<PeerKey> {
        self.order.front().copied()
    }

    pub(super) fn peers(&self) -> usize {
        self.order.len()
    }

    /// Returns the largest number of messages handled between two turns of a waiting peer, and the number of peers that
    /// waited then.
    pub(super) fn longest_wait(&self) -> (u64, usize) {
        self.longest_wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_verbs::VirtualClock;

    fn handle(turns: &mut Turns, clocks: (&VirtualClock, &Clock), message: Duration) {
        turns.count();
        clocks.0.charge(message);
        turns.took(clocks.1);
    }

    /// Returns the number of messages of this duration in one turn, and true if the round is then over.
    fn turn(turns: &mut Turns, clocks: (&VirtualClock, &Clock), message: Duration) -> (u32, bool) {
        turns.give(TURN_MESSAGES);
        let mut handled = 0;
        while turns.left() > 0 {
            handle(turns, clocks, message);
            handled += 1;
        }
        (handled, turns.is_round_over(clocks.1))
    }

    #[test]
    fn long_messages_shorten_turn() {
        let virtual_clock = VirtualClock::new();
        let clock = Clock::simulated(virtual_clock.clone());
        let clocks = (&*virtual_clock, &clock);
        let mut turns = Turns::default();
        let mut round = |message_us| {
            turns.begin_round(clock.now());
            turn(&mut turns, clocks, Duration::from_micros(message_us))
        };
        assert_eq!(round(1), (TURN_MESSAGES, false));
        // Short messages are timed in groups, so the first long one after them is detected late.
        assert_eq!(round(80), (UNTIMED, true));
        assert_eq!(round(80), (1, false));
        assert_eq!(round(200), (1, true));
        assert_eq!(round(10), (6, false));
    }
}
