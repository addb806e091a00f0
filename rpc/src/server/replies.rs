//! Replies that wait for room in the message queue, behind other replies to the same peer.
//!
//! The queue belongs to the dispatcher. Only large replies, and replies that end a stream without a deadline, wait. Replies
//! to a peer are sent in the order in which their handlers ended. A separate budget limits the replies held for peers that
//! do not fetch them.
//!
//! A [`Line`] contains a peer's replies and their indexes. It is visited at its first deadline and when it is time to check
//! for room. The pause between checks doubles while the peer has no room. One turn takes at most [`TURN`] replies from all
//! lines, and frees at most as many replies to lost peers. The memory of a reply is charged until it is freed.

use super::caller::{Caller, Key};
use crate::codec::block;
use crate::wire::frame::{Encoded, Header};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::time::Duration;
use trunkline_transport::budget::Share;
use trunkline_transport::ledger::BudgetLedger;
use trunkline_transport::{Body, EAGER_BYTES, Exhausted, PeerKey, PollerIndex, SessionNumber};
use trunkline_verbs::Time;

/// Time until the first check for room.
const PAUSE: Duration = Duration::from_millis(1);
/// Maximum time between two checks for room.
const LONGEST_PAUSE: Duration = Duration::from_millis(64);

/// Maximum number of replies taken from lines in one turn, and of replies to lost peers freed in one turn.
const TURN: usize = 256;

/// Maximum number of replies taken in one visit, so that lines are visited in turn.
const VISIT: usize = 16;

/// Size of the reference counts of shared bytes, in bytes.
const COUNTS: usize = 64;

/// The encoded part of a reply, and its body.
pub(super) type Parts = (Encoded, Body);

/// Returns true if the peer fetches the reply by RDMA READ, unless the header specifies otherwise.
#[inline]
pub(super) fn is_large((encoded, body): &Parts) -> bool {
    encoded.len() + body.len() > EAGER_BYTES
}

/// Returns the heap memory of a leaf and of an inner node of a B-tree with elements of type `T`. In the standard library, a
/// node holds up to eleven elements.
fn nodes<T>() -> (usize, usize) {
    let bytes = 11 * size_of::<T>() + 2 * size_of::<usize>();
    (block(bytes), block(bytes + 12 * size_of::<usize>()))
}

/// Returns the maximum heap memory of a B-tree per element of type `T`, without the root.
fn in_tree<T>() -> usize {
    let (leaf, parent) = nodes::<T>();
    // Each node holds at least five elements, and each parent has at least five leaves.
    (5 * leaf + parent).div_ceil(6 * 5)
}

/// The key of a reply's caller within a line.
type CallerKey = (SessionNumber, PollerIndex, u64);

/// A waiting reply.
#[derive(Debug)]
pub(super) struct WaitingReply {
    pub(super) caller: Caller,
    pub(super) header: Header,
    pub(super) parts: Parts,
    /// Number of bytes charged to the peer. The charge continues after the parts are sent.
    bytes: usize,
    /// Position in the line. Replies at lower positions have waited longer.
    place: u64,
}

impl WaitingReply {
    pub(super) fn new(caller: Caller, header: Header, parts: Parts) -> Self {
        let (encoded, body) = &parts;
        let shared = if body.is_empty() { 0 } else { block(body.len()) + COUNTS };
        let indexed = in_tree::<(u64, Box<Self>)>() + in_tree::<(CallerKey, u64)>();
        let of_deadline = caller.deadline.map_or(0, |_| in_tree::<(Time, u64)>());
        let bytes = block(size_of::<Self>()) + block(encoded.capacity()) + shared + indexed + of_deadline;
        Self { caller, header, parts, bytes, place: 0 }
    }

    fn peer(&self) -> PeerKey {
        self.caller.key.peer
    }

    fn caller_key(&self) -> CallerKey {
        let Key { session, poller, call, .. } = self.caller.key;
        (session, poller, call)
    }
}

/// The waiting replies to one peer.
#[derive(Debug)]
struct Line {
    /// Replies by position.
    replies: BTreeMap<u64, Box<WaitingReply>>,
    /// Positions of replies by caller. A caller has several if its peer reused a number.
    by_caller: BTreeSet<(CallerKey, u64)>,
    /// Positions of replies by deadline.
    by_deadline: BTreeSet<(Time, u64)>,
    /// Time of the next check for room.
    next_try: Time,
    /// Time from a check without room to the next check.
    pause: Duration,
    /// Time of the last visit.
    visited: Time,
    /// Sequence number of the last reply taken from this line. Of the due lines, the one with the lowest number is visited
    /// first.
    served: u64,
    /// Position in the queue of lines to visit.
    due: Option<(Time, u64)>,
}

impl Line {
    fn new(next_try: Time) -> Self {
        Self {
            replies: BTreeMap::new(),
            by_caller: BTreeSet::new(),
            by_deadline: BTreeSet::new(),
            next_try,
            pause: PAUSE,
            visited: Time::default(),
            served: 0,
            due: None,
        }
    }

    /// Returns the maximum heap memory of a line, without the memory charged for its replies.
    fn cost() -> usize {
        let roots =
            [nodes::<(u64, Box<WaitingReply>)>(), nodes::<(CallerKey, u64)>(), nodes::<(Time, u64)>()];
        let roots = roots.into_iter().map(|(_, root)| root).sum::<usize>();
        in_tree::<(PeerKey, Self)>() + in_tree::<(Time, u64, PeerKey)>() + roots
    }

    fn bytes(&self) -> usize {
        Self::cost() + self.replies.values().map(|reply| reply.bytes).sum::<usize>()
    }

    fn index(&mut self, reply: &WaitingReply) {
        self.by_caller.insert((reply.caller_key(), reply.place));
        self.by_deadline.extend(reply.caller.deadline.map(|deadline| (deadline, reply.place)));
    }

    /// Removes a reply from the indexes.
    fn unindex(&mut self, reply: &WaitingReply) {
        self.by_caller.remove(&(reply.caller_key(), reply.place));
        if let Some(deadline) = reply.caller.deadline {
            self.by_deadline.remove(&(deadline, reply.place));
        }
    }

    fn remove(&mut self, place: u64) -> Option<Box<WaitingReply>> {
        let reply = self.replies.remove(&place)?;
        self.unindex(&reply);
        Some(reply)
    }

    /// Removes the reply with the earliest deadline if that deadline has passed.
    fn remove_late(&mut self, now: Time) -> Option<Box<WaitingReply>> {
        let (_, place) = *self.by_deadline.first().filter(|(deadline, _)| *deadline <= now)?;
        self.remove(place)
    }

    /// Returns the time of the next visit. Expired replies that a visit left are removed after visits to other lines.
    fn next_visit(&self) -> Time {
        let late = self.by_deadline.first().map(|(deadline, _)| (*deadline).max(self.visited));
        late.map_or(self.next_try, |late| late.min(self.next_try))
    }
}

/// The waiting replies of one poller.
#[derive(Debug)]
pub(super) struct WaitingReplies {
    /// Budget for the memory of replies and lines.
    budget: Share,
    /// Lines by peer. Empty lines are removed.
    lines: BTreeMap<PeerKey, Line>,
    /// Peers by the time of the next visit.
    due: BTreeSet<(Time, u64, PeerKey)>,
    /// Number of replies in `lines`.
    waiting: usize,
    /// Position of the next reply.
    next_place: u64,
    /// The peer being visited, and the number of replies that this visit may still take.
    visit: Option<(PeerKey, usize)>,
    /// Number of replies that this turn may still take.
    left_in_turn: usize,
    /// Number of replies taken from lines and not put back.
    served: u64,
    /// Peers of callers whose deadline passed in this turn.
    late: Vec<PeerKey>,
    /// Lines of lost peers to be freed, with the time since which the first line has waited.
    lost: VecDeque<(PeerKey, Line)>,
    lost_since: Time,
}

impl WaitingReplies {
    pub(super) fn new(budget: Share) -> Self {
        Self {
            budget,
            lines: BTreeMap::new(),
            due: BTreeSet::new(),
            waiting: 0,
            next_place: 0,
            visit: None,
            left_in_turn: 0,
            served: 0,
            late: Vec::new(),
            lost: VecDeque::new(),
            lost_since: Time::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns true if a reply to the peer is waiting.
    pub(super) fn has_any_to(&self, peer: PeerKey) -> bool {
        self.lines.contains_key(&peer)
    }

    /// Returns the time of the next turn that has work.
    pub(super) fn next_timer(&self) -> Option<Time> {
        let lost = (!self.lost.is_empty()).then_some(self.lost_since);
        self.due.first().map(|(at, ..)| *at).into_iter().chain(lost).min()
    }

    /// Adds a waiting reply, behind all other replies to its peer.
    ///
    /// # Errors
    /// Returns the exceeded limit and drops the reply.
    pub(super) fn add(&mut self, mut reply: WaitingReply, now: Time) -> Result<(), Exhausted> {
        let peer = reply.peer();
        let of_line = if self.has_any_to(peer) { 0 } else { Line::cost() };
        self.budget.take(peer, of_line + reply.bytes)?;
        reply.place = self.next_place;
        self.next_place += 1;
        self.waiting += 1;
        let line = self.lines.entry(peer).or_insert_with(|| Line::new(now + PAUSE));
        line.index(&reply);
        line.replies.insert(reply.place, Box::new(reply));
        self.schedule(peer);
        Ok(())
    }

    /// Begins a turn if there is work, and frees some replies to lost peers.
    pub(super) fn begin_turn(&mut self, now: Time) -> bool {
        if self.next_timer().is_none_or(|due| due > now) {
            return false;
        }
        self.free(TURN);
        self.left_in_turn = TURN;
        true
    }

    /// Takes the next reply to a peer that may have room, and drops replies whose deadline has passed. Put the reply back or
    /// report it with [`Self::left`] before taking the next one.
    pub(super) fn next(&mut self, now: Time) -> Option<Box<WaitingReply>> {
        loop {
            let (peer, left) = match self.visit {
                Some(visit) => visit,
                None if self.left_in_turn == 0 => return None,
                None => {
                    let &(_, _, peer) = self.due.first().filter(|(at, ..)| *at <= now)?;
                    (peer, VISIT)
                }
            };
            self.visit = Some((peer, left.saturating_sub(1)));
            let may_take = left.min(self.left_in_turn) > 0;
            let line = self.lines.get_mut(&peer).filter(|_| may_take);
            let Some(line) = line.filter(|line| !line.replies.is_empty()) else {
                self.end_visit(peer, now);
                continue;
            };
            if let Some(reply) = line.remove_late(now) {
                self.left_in_turn -= 1;
                self.served += 1;
                line.served = self.served;
                self.release(&reply);
                if self.late.last() != Some(&peer) {
                    self.late.push(peer);
                }
                continue;
            }
            if line.next_try > now {
                self.end_visit(peer, now);
                continue;
            }
            self.left_in_turn -= 1;
            return line.replies.pop_first().map(|(_, reply)| reply);
        }
    }

    /// Puts back a reply for which there is no room, and ends the visit to its peer. The pause doubles only if the limit of
    /// the peer is reached. Otherwise other peers may release room at any time.
    pub(super) fn put_back(&mut self, reply: Box<WaitingReply>, now: Time, full: Exhausted) {
        let peer = reply.peer();
        let Some(line) = self.lines.get_mut(&peer) else { return };
        line.replies.insert(reply.place, reply);
        line.next_try = now + line.pause;
        if matches!(full, Exhausted::Peer { .. }) {
            line.pause = (line.pause * 2).min(LONGEST_PAUSE);
        }
        self.end_visit(peer, now);
    }

    /// Removes a taken reply that was sent or given up.
    pub(super) fn left(&mut self, reply: &WaitingReply) {
        if let Some(line) = self.lines.get_mut(&reply.peer()) {
            line.unindex(reply);
            line.pause = PAUSE;
            self.served += 1;
            line.served = self.served;
        }
        self.release(reply);
    }

    /// Returns the peers of callers whose deadline passed in the last turn.
    pub(super) fn take_late(&mut self) -> Vec<PeerKey> {
        mem::take(&mut self.late)
    }

    /// Removes all waiting replies, and returns them in order per peer.
    pub(super) fn take_all(&mut self) -> Vec<WaitingReply> {
        let mut all = Vec::new();
        for peer in self.lines.keys().copied().collect::<Vec<_>>() {
            let Some(line) = self.lines.get_mut(&peer) else { continue };
            let places = line.replies.keys().copied().collect::<Vec<_>>();
            let taken = places.into_iter().filter_map(|place| line.remove(place)).map(|reply| *reply);
            let taken = taken.collect::<Vec<_>>();
            taken.iter().for_each(|reply| self.release(reply));
            all.extend(taken);
            self.schedule(peer);
        }
        all
    }

    /// Ends the visit to a peer. Its next visit follows the visits to other due peers.
    fn end_visit(&mut self, peer: PeerKey, now: Time) {
        self.visit = None;
        if let Some(line) = self.lines.get_mut(&peer) {
            (line.visited, line.next_try) = (now, line.next_try.max(now));
        }
        self.schedule(peer);
    }

    /// Updates the time of the next visit to a peer, or removes the peer's line if it is empty.
    fn schedule(&mut self, peer: PeerKey) {
        let Some(line) = self.lines.get_mut(&peer) else { return };
        let due = (!line.replies.is_empty()).then(|| (line.next_visit(), line.served));
        if line.due == due {
            return;
        }
        if let Some((at, served)) = line.due {
            self.due.remove(&(at, served, peer));
        }
        line.due = due;
        if let Some((at, served)) = due {
            self.due.insert((at, served, peer));
        } else {
            self.lines.remove(&peer);
            self.budget.put_back(peer, Line::cost());
        }
    }

    /// Releases the charge of a removed reply.
    fn release(&mut self, reply: &WaitingReply) {
        self.waiting -= 1;
        self.budget.put_back(reply.peer(), reply.bytes);
    }

    /// Drops the replies to a caller that no longer waits, without scanning other replies. Drops at most [`TURN`] replies,
    /// so some remain if the caller reused its number more often.
    pub(super) fn cancel(&mut self, caller: Key) {
        let Some(line) = self.lines.get_mut(&caller.peer) else { return };
        let key = (caller.session, caller.poller, caller.call);
        let places = line.by_caller.range((key, 0)..=(key, u64::MAX)).take(TURN);
        let places = places.map(|(_, place)| *place).collect::<Vec<_>>();
        let removed = places.into_iter().filter_map(|place| line.remove(place)).collect::<Vec<_>>();
        removed.iter().for_each(|reply| self.release(reply));
        self.schedule(caller.peer);
    }

    /// Drops all replies.
    pub(super) fn close(&mut self) {
        for peer in self.lines.keys().copied().collect::<Vec<_>>() {
            self.down(peer, Time::default());
        }
        self.free(usize::MAX);
    }

    /// Drops the replies to a lost peer. Their memory is freed in later turns.
    pub(super) fn down(&mut self, peer: PeerKey, now: Time) {
        if let Some(line) = self.lines.remove(&peer) {
            if let Some((at, served)) = line.due {
                self.due.remove(&(at, served, peer));
            }
            self.waiting -= line.replies.len();
            if self.lost.is_empty() {
                self.lost_since = now;
            }
            self.lost.push_back((peer, line));
        }
        self.budget.leave(peer);
    }

    /// Frees at most `most` replies to lost peers.
    fn free(&mut self, mut most: usize) {
        while let Some((peer, line)) = self.lost.front_mut() {
            while most > 0
                && let Some((_, reply)) = line.replies.pop_first()
            {
                // The order of these replies no longer matters.
                line.by_caller.pop_first();
                line.by_deadline.pop_first();
                self.budget.put_back(*peer, reply.bytes);
                most -= 1;
            }
            if !line.replies.is_empty() {
                return;
            }
            self.budget.put_back(*peer, Line::cost());
            self.lost.pop_front();
        }
    }

    /// Returns the charged bytes, and the actual bytes of replies and lines.
    pub(super) fn ledger(&self) -> BudgetLedger {
        let mut counted = BTreeMap::<PeerKey, usize>::new();
        let lost = self.lost.iter().map(|(peer, line)| (peer, line));
        for (peer, line) in self.lines.iter().chain(lost) {
            *counted.entry(*peer).or_default() += line.bytes();
        }
        self.budget.ledger(counted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::budgets::{Budgets, Limits};
    use crate::wire::frame::RepliedBy;
    use crate::wire::metadata::MetadataBytes;
    use std::sync::Arc;
    use trunkline_testkit::{CountingAllocator, runs_alone};
    use trunkline_transport::{Limit, Origin};

    #[global_allocator]
    static HEAP: CountingAllocator = CountingAllocator::new();

    const OF_PEER: Exhausted = Exhausted::Peer { name: "queued bytes", limit: 1 };
    const OF_ALL: Exhausted = Exhausted::All { name: "queued bytes", limit: 1 };

    fn replies() -> WaitingReplies {
        let limit = Limit { per_peer: 64 << 20, in_all: 256 << 20 };
        let limits = Limits { waiting_replies: limit, ..Limits::default() };
        WaitingReplies::new(Budgets::new(limits, 1, &Arc::default()).waiting_replies(PollerIndex(0)))
    }

    fn peer(number: u8) -> PeerKey {
        PeerKey::new(([127, 44, 0, number], 1).into())
    }

    /// Adds a small reply to a peer.
    fn add(replies: &mut WaitingReplies, peer: PeerKey, call: u64, deadline: Option<Time>, now: Time) {
        let origin = Origin { peer, poller: PollerIndex(0), session: SessionNumber(1) };
        let mut caller = Caller::of_one_way(Key::new(origin, call));
        caller.deadline = deadline;
        let metadata = MetadataBytes::default();
        let header = Header::Reply { call, code: 0, by: RepliedBy::Handler, number: None, metadata };
        let mut encoded = Encoded::default();
        encoded.buffer().extend([0x5a; 20]);
        replies.add(WaitingReply::new(caller, header, (encoded, Body::new())), now).expect("there is room");
    }

    /// Runs a turn in which the peers in `room` have room. Returns the peers of the replies that the turn takes.
    fn turn(replies: &mut WaitingReplies, now: Time, full: Exhausted, room: &[PeerKey]) -> Vec<PeerKey> {
        let mut seen = Vec::new();
        replies.begin_turn(now);
        while let Some(reply) = replies.next(now) {
            seen.push(reply.peer());
            if room.contains(&reply.peer()) {
                replies.left(&reply);
            } else {
                replies.put_back(reply, now, full);
            }
        }
        seen
    }

    fn ms(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    #[test]
    fn round_visits_only_peers_with_room() {
        let (mut replies, full, other) = (replies(), peer(1), peer(2));
        (0..1000).for_each(|call| add(&mut replies, full, call, None, ms(0)));
        let mut looked = Vec::new();
        for at in 1..=300 {
            add(&mut replies, other, at, None, ms(at - 1));
            let seen = turn(&mut replies, ms(at), OF_PEER, &[other]);
            assert_eq!(seen.iter().filter(|peer| **peer == other).count(), 1);
            looked.extend(seen.contains(&full).then_some(at));
            assert!(seen.len() <= 2, "one reply is enough to find that the peer has no room");
        }
        assert_eq!(looked, [1, 2, 4, 8, 16, 32, 64, 128, 192, 256]);
        assert_eq!(replies.next_timer(), Some(ms(320)));
        let looks = |replies: &mut WaitingReplies, at| turn(replies, ms(at), OF_PEER, &[]).len();
        assert_eq!((looks(&mut replies, 319), looks(&mut replies, 320)), (0, 1));
        replies.begin_turn(ms(384));
        let reply = replies.next(ms(384)).expect("its time has come");
        replies.left(&reply);
        let reply = replies.next(ms(384)).expect("there may be room for more");
        replies.put_back(reply, ms(384), OF_PEER);
        assert_eq!(replies.next_timer(), Some(ms(385)), "the peer takes replies again");
    }

    /// When the limit on all peers is reached, room goes to the peer that has waited longest.
    #[test]
    fn room_shared_by_all_peers_is_given_in_turn() {
        let (mut replies, mut served) = (replies(), Vec::new());
        let peers = [peer(1), peer(2), peer(3)];
        (0..30).for_each(|call| peers.iter().for_each(|peer| add(&mut replies, *peer, call, None, ms(0))));
        for at in 1..=9 {
            replies.begin_turn(ms(at));
            let first = replies.next(ms(at)).expect("a peer looks for room each time");
            served.push(first.peer());
            replies.left(&first);
            while let Some(reply) = replies.next(ms(at)) {
                replies.put_back(reply, ms(at), OF_ALL);
            }
        }
        assert_eq!(served, peers.repeat(3));
    }

    #[test]
    fn turn_is_bounded_and_shared() {
        let (mut replies, peers) = (replies(), [peer(1), peer(2)]);
        (0..2000).for_each(|call| add(&mut replies, peers[usize::from(call >= 1000)], call, None, ms(0)));
        let seen = turn(&mut replies, ms(1), OF_PEER, &peers);
        assert_eq!(seen.len(), TURN);
        assert!(seen.chunk_by(|one, next| one == next).all(|visit| visit.len() == VISIT));
        assert!(replies.next_timer() <= Some(ms(1)), "the rest has the next turn");
    }

    #[test]
    fn expired_replies_are_found_without_scanning_all() {
        let (mut replies, full) = (replies(), peer(1));
        (0..1000).for_each(|call| add(&mut replies, full, call, None, ms(0)));
        add(&mut replies, full, 1000, Some(Time(2_500_000)), ms(0));
        (1..=2).for_each(|at| _ = turn(&mut replies, ms(at), OF_PEER, &[]));
        assert_eq!(replies.next_timer(), Some(Time(2_500_000)));
        assert_eq!(turn(&mut replies, Time(2_500_000), OF_PEER, &[]), []);
        assert_eq!((replies.left_in_turn, replies.len()), (TURN - 1, 1000));
        assert_eq!((replies.take_late(), replies.next_timer()), (vec![full], Some(ms(4))));
    }

    /// Another peer is served between visits.
    #[test]
    fn late_replies_are_dropped_in_parts() {
        let (mut replies, late, other) = (replies(), peer(1), peer(2));
        (0..1000).for_each(|call| add(&mut replies, late, call, Some(ms(1)), ms(0)));
        (0..20).for_each(|call| add(&mut replies, other, call, None, ms(0)));
        assert_eq!(turn(&mut replies, ms(1), OF_PEER, &[other]).len(), 20);
        assert_eq!(replies.len(), 1020 - TURN);
        let turns = (0..).find(|_| {
            turn(&mut replies, ms(1), OF_PEER, &[]);
            replies.next_timer().is_none()
        });
        assert_eq!((turns, replies.len()), (Some(2), 0));
    }

    #[test]
    fn replies_to_lost_peer_are_freed_in_parts() {
        let (mut replies, lost, other) = (replies(), peer(1), peer(2));
        (0..1000).for_each(|call| add(&mut replies, lost, call, Some(ms(9)), ms(0)));
        add(&mut replies, other, 1, None, ms(0));
        replies.down(lost, Time(1));
        assert_eq!((replies.len(), replies.has_any_to(lost)), (1, false));
        for freed in [256, 512, 768, 1000] {
            assert_eq!(replies.next_timer(), Some(Time(1)), "the poller goes on");
            assert!(replies.begin_turn(Time(2)));
            let left = replies.lost.front().map_or(0, |(_, line)| line.replies.len());
            assert_eq!(left, 1000 - freed);
            let ledger = replies.ledger();
            assert_eq!(ledger.used, ledger.counted, "what is not freed is charged");
        }
        assert_eq!(replies.ledger().used.into_keys().collect::<Vec<_>>(), [other]);
        assert_eq!(replies.next_timer(), Some(ms(1)));
    }

    #[test]
    fn cancellation_drops_at_most_one_turn_of_replies() {
        let (mut replies, peer) = (replies(), peer(1));
        (0..1000).for_each(|_| add(&mut replies, peer, 7, None, ms(0)));
        let origin = Origin { peer, poller: PollerIndex(0), session: SessionNumber(1) };
        replies.cancel(Key::new(origin, 7));
        assert_eq!(replies.len(), 1000 - TURN);
    }

    #[test]
    fn charge_covers_memory_of_entry() {
        if !runs_alone(module_path!(), "charge_covers_memory_of_entry") {
            return;
        }
        // Peers with few and with many replies. Some replies have been removed from the middle.
        for (peers, calls, deadline) in
            [(200, 1, None), (200, 1, Some(ms(9))), (1, 50_000, None), (3, 9000, Some(ms(9)))]
        {
            let mut replies = replies();
            let idle = HEAP.in_use_bytes();
            for call in 0..calls {
                (0..peers).for_each(|of| add(&mut replies, peer(of), call, deadline, ms(0)));
            }
            let check = |replies: &WaitingReplies| {
                let memory = HEAP.in_use_bytes() - idle;
                let charged = replies.ledger().used.into_values().sum::<usize>();
                assert!(memory <= charged, "{memory} bytes for {charged} charged");
                assert!(charged < 2 * memory, "{memory} bytes for {charged} charged");
            };
            check(&replies);
            for call in (0..calls).filter(|call| call % 2 == 0) {
                let origin = Origin { peer: peer(0), poller: PollerIndex(0), session: SessionNumber(1) };
                replies.cancel(Key::new(origin, call));
            }
            check(&replies);
        }
    }
}
