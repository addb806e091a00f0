//! A queue of the calls to one peer that wait for room. Small calls, which are sent by SEND, and large calls, which the peer
//! fetches by RDMA READ, must not starve each other. Each kind has a part of the queue, in call order.
//!
//! The two parts take turns. If one part has no room, the other part continues, so a large call delays small calls by at
//! most one turn. While large calls wait, at most [`QUEUED`] small calls enter the message queue. Further small calls are
//! sent only if they need not be queued, until a large call is sent.
//!
//! Calls on an ordered channel keep their order across both parts. While a call on the channel waits among the large calls,
//! later calls on the channel wait there too. Large calls are not sent before earlier small calls on the same channel.

use super::statuses::Backpressure;
use crate::call::{AdmissionClass, Submission};
use std::collections::BTreeMap;
use trunkline_machine::mutant;
use trunkline_transport::{Leaves, PollerChoice};

/// Position of a waiting call. Older calls have lower positions.
pub(super) type Place = u64;

/// Maximum number of small calls queued ahead of a waiting large call. Their total size is at most 1 MiB.
const QUEUED: usize = 64;

/// A part of the queue, for small or large calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Small,
    Large,
}

const PARTS: [Part; 2] = [Part::Small, Part::Large];

impl Part {
    /// Returns the part for an unordered call.
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
    /// Limit that the first call waits for.
    why: Backpressure,
    /// Last round in which the part had no room; 0 if it may have room now.
    blocked_in: u64,
}

/// The calls to one peer.
#[derive(Debug)]
pub(super) struct PeerQueue {
    /// Waiting calls, indexed by [`Part`].
    parts: [Waiters; 2],
    turn: Part,
    /// Number of calls in each part, by ordered channel. Channels without calls are removed.
    ordered: BTreeMap<PollerChoice, [usize; 2]>,
    /// Number of small calls that may still be queued before a large call.
    may_be_queued: usize,
}

impl PeerQueue {
    /// Creates an empty queue. `why` is the limit that the first call waits for.
    pub(super) fn new(why: Backpressure) -> Self {
        let part = || Waiters { calls: BTreeMap::new(), why, blocked_in: 0 };
        Self { parts: [part(), part()], turn: Part::Small, ordered: BTreeMap::new(), may_be_queued: QUEUED }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.iter().all(|part| part.calls.is_empty())
    }

    /// Returns the small calls, then the large calls.
    pub(super) fn calls(&self) -> impl Iterator<Item = (Place, &Submission)> {
        self.parts.iter().flat_map(|part| part.calls.iter().map(|(place, call)| (*place, call)))
    }

    /// Returns the space in the message queue that a new call must leave, if the call need not wait.
    ///
    /// # Errors
    /// Returns the limit that the call waits for. A call made by a handler waits only behind calls of its ordered channel.
    pub(super) fn pass(&self, call: &Submission) -> Result<Leaves, Backpressure> {
        let own = Part::of(call);
        if let Some(of_channel) = call.order.and_then(|order| self.ordered.get(&order)) {
            let part = if of_channel[Part::Large as usize] > 0 { Part::Large } else { Part::Small };
            return Err(self.parts[part as usize].why);
        }
        if matches!(call.entry, AdmissionClass::Reserved | AdmissionClass::Exempt) {
            return Ok(call.leaves());
        }
        for part in PARTS {
            let Waiters { calls, why, .. } = &self.parts[part as usize];
            // If small calls wait for the limit on calls in flight, large calls wait too.
            let is_ahead = part == own || own == Part::Large || matches!(why, Backpressure::Calls(_));
            if is_ahead && !calls.is_empty() {
                return Err(*why);
            }
        }
        Ok(self.leaves(own, call))
    }

    pub(super) fn push(&mut self, place: Place, call: Submission, why: Backpressure) {
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

    /// Takes the first call of the current part, or of the other part if the current part has no turn.
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

    /// Puts back a call that has no room. Its part gets no further turn in this round.
    pub(super) fn put_back(
        &mut self,
        part: Part,
        place: Place,
        call: Submission,
        why: Backpressure,
        round: u64,
    ) {
        let is_large_ones_turn = self.leaves(part, &call) == Leaves::All;
        let waiters = &mut self.parts[part as usize];
        waiters.calls.insert(place, call);
        waiters.blocked_in = round;
        waiters.why = why;
        if is_large_ones_turn {
            self.parts[Part::Small as usize].why = self.parts[Part::Large as usize].why;
        }
        if matches!(why, Backpressure::Calls(_)) {
            self.parts[part.other() as usize].blocked_in = round;
        }
    }

    /// Records that a call of a part was sent or queued. The other part has the next turn.
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

    /// Records that a call of an ordered channel was removed from its part.
    pub(super) fn left_order(&mut self, part: Part, order: PollerChoice) {
        let Some(of_channel) = self.ordered.get_mut(&order) else { return };
        of_channel[part as usize] -= 1;
        if *of_channel == [0, 0] {
            self.ordered.remove(&order);
        }
    }

    /// Removes a call from its part. Returns it with the limit that it waited for.
    pub(super) fn remove(&mut self, place: Place) -> Option<(Part, Submission, Backpressure)> {
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

    /// Returns true if the first large call must wait for a small call of its ordered channel.
    fn large_wait_for_order(&self) -> bool {
        let first = self.parts[Part::Large as usize].calls.first_key_value();
        let of_channel = first.and_then(|(_, call)| self.ordered.get(&call.order?));
        of_channel.is_some_and(|of_channel| of_channel[Part::Small as usize] > 0)
    }

    fn large_wait_for_room(&self) -> bool {
        !self.parts[Part::Large as usize].calls.is_empty() && !self.large_wait_for_order()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::waiting::Waiting;
    use super::*;
    use crate::call::{Completion, LocalCell};
    use crate::client::routes::id::ExpectedId;
    use crate::poller::tests::service::ECHO;
    use crate::wire::frame::Encoded;
    use bytes::Bytes;
    use std::rc::Rc;
    use trunkline_testkit::Random;
    use trunkline_transport::{Connect, EAGER_BYTES, Exhausted, PeerKey};
    use trunkline_verbs::Time;

    pub(in crate::client) const PEER: PeerKey = crate::call::NOWHERE;
    const FULL: Exhausted = Exhausted::Peer { name: "things", limit: 8 };

    /// Returns a call whose arguments begin with its number.
    pub(in crate::client) fn call(number: u32, is_large: bool, entry: AdmissionClass) -> Submission {
        let mut encoded = Encoded::default();
        encoded.buffer().extend_from_slice(&number.to_le_bytes());
        let body = Bytes::from(vec![0; if is_large { EAGER_BYTES } else { 0 }]);
        Submission {
            server: PEER,
            route: None,
            expected: ExpectedId::ADDRESS,
            method: ECHO,
            one_way: false,
            encoded,
            metadata: 0,
            body: body.into(),
            deadline: Time(1),
            connect: Connect::Wait,
            order: None,
            nested: false,
            entry,
            completion: Some(Completion::from(Rc::<LocalCell>::default())),
        }
    }

    fn number(call: &Submission) -> u32 {
        u32::from_le_bytes(call.encoded.part()[..4].try_into().unwrap())
    }

    /// Size (true for large), ordered channel and class of a call.
    type Made = (bool, Option<u32>, AdmissionClass);

    /// Queued calls to one peer, and the available room.
    struct Line {
        waiting: Waiting,
        /// Number of further calls that may be in flight.
        calls: usize,
        /// Number of further large calls for which the message queue has room.
        large: usize,
        /// False if messages are sent at once.
        is_queued: bool,
        made: u32,
        /// Numbers of the sent calls.
        left: Vec<u32>,
    }

    impl Line {
        fn new(calls: usize, large: usize) -> Self {
            Self { waiting: Waiting::default(), calls, large, is_queued: true, made: 0, left: Vec::new() }
        }

        fn attempt(&mut self, call: &Submission, leaves: Leaves) -> Result<bool, Backpressure> {
            let is_large = call.is_large();
            if self.calls == 0 {
                return Err(Backpressure::Calls(FULL));
            }
            if (self.is_queued && leaves == Leaves::All) || (is_large && self.large == 0) {
                return Err(Backpressure::Queue(FULL));
            }
            self.calls -= 1;
            self.large -= usize::from(is_large);
            self.left.push(number(call));
            Ok(self.is_queued)
        }

        /// Makes a call. Returns false if it is refused.
        fn make(&mut self, is_large: bool, entry: AdmissionClass, order: Option<u32>) -> bool {
            let call = Submission { order: order.map(PollerChoice::new), ..call(self.made, is_large, entry) };
            self.made += 1;
            match self.waiting.pass(PEER, &call).and_then(|leaves| self.attempt(&call, leaves)) {
                Ok(is_queued) => self.waiting.passed(PEER, Part::of(&call), is_queued),
                Err(why) if entry == AdmissionClass::Waits => self.waiting.push(PEER, call, why, Time(0)),
                Err(_) => return false,
            }
            true
        }

        fn wait(&mut self, count: usize, is_large: bool) {
            assert!((0..count).all(|_| self.make(is_large, AdmissionClass::Waits, None)));
        }

        /// Checks for room. Returns the numbers of the calls sent since the last check.
        fn look(&mut self) -> Vec<u32> {
            self.waiting.there_is_room();
            self.waiting.begin_round(Time(0));
            while let Some((seat, call, leaves)) = self.waiting.next() {
                match self.attempt(&call, leaves) {
                    Ok(is_queued) => self.waiting.leave(seat, Some(is_queued)),
                    Err(why) => self.waiting.put_back(seat, call, why),
                }
            }
            self.waiting.end_round();
            std::mem::take(&mut self.left)
        }
    }

    #[test]
    fn calls_wait_only_behind_calls_of_same_size_and_channel() {
        use AdmissionClass::{Reserved, Tries, Waits};
        let mut line = Line::new(100, 0);
        assert!(line.make(true, Waits, None) && line.make(true, Waits, Some(7)));
        line.large = 1;
        for (is_large, entry, order, leaves) in [
            (true, Tries, None, false),
            (false, Tries, None, true),
            (false, Reserved, Some(7), false),
            (false, Reserved, Some(8), true),
            (true, Reserved, None, true),
        ] {
            assert_eq!(line.make(is_large, entry, order), leaves, "{is_large}, {entry:?}, {order:?}");
        }
        line.large = 2;
        assert_eq!(line.look(), [3, 5, 6, 0, 1]);
        let mut line = Line::new(0, 1);
        line.wait(1, true);
        line.calls = 1;
        assert!(!line.make(false, Tries, None), "small calls wait for the same limit");
    }

    #[test]
    fn queued_small_calls_are_bounded_while_large_calls_wait() {
        let mut line = Line::new(1000, 0);
        line.wait(3, true);
        line.wait(3 * QUEUED, false);
        assert_eq!(line.look().len(), QUEUED, "more would keep the queue from becoming empty enough");
        line.is_queued = false;
        assert_eq!(line.look().len(), 2 * QUEUED, "they need not be queued");
        line.is_queued = true;
        line.wait(3 * QUEUED, false);
        assert_eq!(line.look().len(), 0);
        line.large = 1;
        assert_eq!(line.look().len(), 1 + QUEUED, "a large one has left");
        line.large = 2;
        assert_eq!(line.look().len(), 2 + 2 * QUEUED, "no large one waits any more");
    }

    #[test]
    fn small_and_large_calls_alternate_under_call_limit() {
        let mut line = Line::new(0, 100);
        line.wait(5, true);
        line.wait(5, false);
        let left = std::iter::repeat_with(|| {
            line.calls = 1;
            line.look()
        });
        assert_eq!(left.take(10).flatten().collect::<Vec<_>>(), [5, 0, 6, 1, 7, 2, 8, 3, 9, 4]);
    }

    #[test]
    fn calls_keep_order_within_size_and_channel() {
        for seed in 0..200 {
            let (mut random, mut line) = (Random(seed), Line::new(0, 0));
            let (mut made, mut left, mut refused) = (Vec::<Made>::new(), Vec::new(), 0);
            for _ in 0..60 {
                line.calls = if random.one_in(3) { 0 } else { 100 };
                line.large = random.below(4).saturating_sub(2);
                line.is_queued = random.one_in(2);
                let (is_large, order) = (random.one_in(2), random.pick(&[None, None, Some(0), Some(1)]));
                let entry = if random.one_in(8) { AdmissionClass::Reserved } else { AdmissionClass::Waits };
                made.push((is_large, *order, entry));
                refused += usize::from(!line.make(is_large, entry, *order));
                if random.one_in(3) {
                    left.extend(line.look());
                }
            }
            (line.calls, line.large, line.is_queued) = (100, 100, true);
            left.extend(line.look());
            assert_eq!((left.len() + refused, line.waiting.is_empty()), (60, true), "{seed}");
            let is_sorted = |which: &dyn Fn(&Made) -> bool| {
                left.iter().filter(|number| which(&made[**number as usize])).is_sorted()
            };
            for is_large in [false, true] {
                let alone = (is_large, None, AdmissionClass::Waits);
                assert!(is_sorted(&|call| *call == alone), "{seed}, {is_large}: {left:?}");
            }
            for channel in [0, 1] {
                assert!(is_sorted(&|(_, order, _)| *order == Some(channel)), "{seed}, {channel}: {left:?}");
            }
        }
    }
}
