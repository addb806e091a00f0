//! Tests of a grantor with spenders, over a network with delays.

use super::{AHEAD, BASE, Grantor, PairId, Spender, on_wire};
use crate::PeerKey;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use trunkline_verbs::QpNumber;

/// A frame in flight, as the sender's backlog and, if the frame used no credit, the released position.
type ToGrantor = (u8, Option<u16>);

struct TestPair {
    id: PairId,
    /// True if the spender never releases credit and always reports a backlog.
    hoards: bool,
    spender: Spender,
    backlog: u16,
    there: VecDeque<ToGrantor>,
    back: VecDeque<u16>,
}

/// Encodes a backlog as in frames.
fn want(backlog: u16) -> u8 {
    u8::try_from(backlog).unwrap_or(u8::MAX)
}

struct World {
    grantor: Grantor,
    pairs: Vec<TestPair>,
    now: u64,
}

impl World {
    /// Creates a world in which each pair has a separate peer.
    fn new(depth: u32, pairs: usize) -> Self {
        Self::of_peers(depth, (0..).take(pairs))
    }

    /// Creates a world with one pair for each of `peers`.
    fn of_peers(depth: u32, peers: impl IntoIterator<Item = u32>) -> Self {
        let mut grantor = Grantor::new(depth);
        let pairs = (0..)
            .zip(peers)
            .map(|(number, peer)| TestPair {
                id: grantor.open(0, QpNumber::new(number), PeerKey::numbered(peer)).unwrap(),
                hoards: false,
                spender: Spender::new(0),
                backlog: 0,
                there: VecDeque::new(),
                back: VecDeque::new(),
            })
            .collect();
        Self { grantor, pairs, now: 0 }
    }

    fn send(&mut self, index: usize, most: u16) -> u32 {
        let pair = &mut self.pairs[index];
        let mut sent = 0;
        for _ in 0..most {
            if pair.backlog == 0 || !pair.spender.spend(self.now) {
                break;
            }
            pair.backlog -= 1;
            sent += 1;
            let want = if pair.hoards { u8::MAX } else { want(pair.backlog) };
            pair.there.push_back((want, None));
        }
        sent
    }

    fn arrive(&mut self, index: usize) {
        let pair = &mut self.pairs[index];
        if let Some((want, released)) = pair.there.pop_front() {
            self.grantor.apply_header(pair.id, self.now, want, released).unwrap();
        }
        self.grantor.grant(self.now);
        for pair in &mut self.pairs {
            if self.grantor.must_tell(pair.id) {
                pair.back.push_back(on_wire(self.grantor.tell(pair.id)));
            }
        }
    }

    fn learn(&mut self, index: usize) {
        let pair = &mut self.pairs[index];
        if let Some(grant) = pair.back.pop_front() {
            pair.spender.apply_grant(grant).unwrap();
        }
    }

    fn release(&mut self, index: usize) {
        let pair = &mut self.pairs[index];
        if !pair.hoards && pair.spender.release_idle(self.now) {
            pair.there.push_back((want(pair.backlog), Some(on_wire(pair.spender.released()))));
        }
    }

    /// Delivers everything in flight, in both directions.
    fn exchange(&mut self) {
        for index in 0..self.pairs.len() {
            while !self.pairs[index].there.is_empty() {
                self.arrive(index);
            }
        }
        for index in 0..self.pairs.len() {
            while !self.pairs[index].back.is_empty() {
                self.learn(index);
            }
        }
        self.check();
    }

    /// Lets these pairs send one after the other, so that each is active alone and takes all credit that it
    /// can.
    fn hoard(&mut self, pairs: Range<usize>) {
        for index in pairs {
            self.pairs[index].hoards = true;
            for _ in 0..20 {
                self.pairs[index].backlog = 1;
                self.send(index, 1);
                self.exchange();
            }
            self.now += 200;
        }
    }

    /// Returns the credits that the spenders of these pairs may use.
    fn available(&self, pairs: Range<usize>) -> u32 {
        self.pairs[pairs].iter().map(|pair| pair.spender.available()).sum()
    }

    fn check(&self) {
        let ledger = self.grantor.ledger();
        assert!(ledger.outstanding <= ledger.capacity);
        let mut peers = BTreeMap::<_, (u32, u32)>::new();
        for pair in &self.pairs {
            let granting = self.grantor.positions(pair.id, QpNumber::new(0), 0).unwrap();
            assert!(granting.outstanding() >= BASE, "a pair lacks its base credit: {granting:?}");
            let (pairs, outstanding) = peers.entry(granting.peer).or_default();
            (*pairs, *outstanding) = (*pairs + 1, *outstanding + granting.outstanding());
        }
        for (pairs, outstanding) in peers.into_values() {
            let most = ledger.per_peer + pairs * BASE;
            assert!(outstanding <= most, "a peer has {outstanding} credits of {ledger:?}");
        }
        let usable: u32 = self.pairs.iter().map(|pair| pair.spender.available()).sum();
        let flying = self.pairs.iter().flat_map(|pair| &pair.there).filter(|frame| frame.1.is_none()).count();
        let flying = u32::try_from(flying).unwrap();
        assert!(usable + flying <= ledger.capacity, "{usable} usable and {flying} in flight");
    }
}

proptest! {
    #[test]
    fn grants_never_exceed_depth(
        depth in 16u32..200,
        pairs in 1usize..6,
        peers in 1u32..4,
        hoarders in 0usize..3,
        steps in proptest::collection::vec((0u8..5, 0usize..6, 1u16..40), 1..400),
    ) {
        let mut world = World::of_peers(depth, (0..).take(pairs).map(|pair| pair % peers));
        world.pairs.iter_mut().take(hoarders).for_each(|pair| pair.hoards = true);
        for (what, index, amount) in steps {
            let index = index % pairs;
            world.now += u64::from(amount);
            match what {
                0 => world.pairs[index].backlog = world.pairs[index].backlog.saturating_add(amount),
                1 => { world.send(index, amount); }
                2 => world.arrive(index),
                3 => world.learn(index),
                _ => world.release(index),
            }
            world.check();
        }
        // All waiting messages are delivered in the end, since hoarding must not starve or deadlock other pairs.
        let mut rounds = 0;
        while world.pairs.iter().any(|pair| pair.backlog > 0 || !pair.there.is_empty()) {
            world.now += 1;
            for index in 0..pairs {
                world.release(index);
                world.send(index, u16::MAX);
                while !world.pairs[index].there.is_empty() {
                    world.arrive(index);
                }
                while !world.pairs[index].back.is_empty() {
                    world.learn(index);
                }
                world.check();
            }
            rounds += 1;
            prop_assert!(rounds < 20_000, "stuck: {:?}", world.grantor);
        }
    }
}

#[test]
fn greedy_peer_does_not_starve_other_peers() {
    let mut world = World::new(64, 3);
    world.pairs[0].backlog = 20_000;
    let mut sent = [0; 3];
    for round in 0..200 {
        world.now += 1;
        if round >= 100 {
            world.pairs[1].backlog = 200;
            world.pairs[2].backlog = 200;
        }
        for (index, sent) in sent.iter_mut().enumerate() {
            let now = world.send(index, u16::MAX);
            if round >= 150 {
                *sent += now;
            }
            while !world.pairs[index].there.is_empty() {
                world.arrive(index);
            }
            while !world.pairs[index].back.is_empty() {
                world.learn(index);
            }
        }
    }
    let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
    assert!(most / 2 <= *least, "shares of the depth: {sent:?}");
}

#[test]
fn new_pair_gets_base_credit_beside_greedy_pairs() {
    let mut world = World::new(64, 1);
    world.pairs[0].backlog = 20_000;
    for _ in 0..20 {
        world.send(0, u16::MAX);
        while !world.pairs[0].there.is_empty() {
            world.arrive(0);
        }
        while !world.pairs[0].back.is_empty() {
            world.learn(0);
        }
    }
    let newcomers = (2..10)
        .filter_map(|target| world.grantor.open(0, QpNumber::new(target), PeerKey::numbered(target)))
        .count();
    assert_eq!(newcomers, 8);
}

#[test]
fn idle_grants_decay_to_base() {
    let mut world = World::new(64, 1);
    world.pairs[0].backlog = 30;
    for _ in 0..10 {
        world.send(0, u16::MAX);
        while !world.pairs[0].there.is_empty() {
            world.arrive(0);
        }
        while !world.pairs[0].back.is_empty() {
            world.learn(0);
        }
    }
    assert!(world.grantor.ledger().outstanding > BASE);
    world.now = world.pairs[0].spender.release_due_ms().unwrap();
    world.release(0);
    world.arrive(0);
    assert!(world.now <= 100);
    assert_eq!(world.pairs[0].spender.available(), BASE);
    assert_eq!(world.grantor.ledger().outstanding, BASE);
    assert!(world.pairs[0].back.is_empty(), "credit that was just given back is not granted again");
}

#[test]
fn invalid_credit_positions_are_refused() {
    let mut grantor = Grantor::new(16);
    let id = grantor.open(0, QpNumber::new(1), PeerKey::numbered(1)).unwrap();
    grantor.apply_header(id, 0, 0, None).unwrap();
    assert!(grantor.apply_header(id, 0, 0, None).is_err());
    assert!(grantor.apply_header(id, 0, 0, Some(5)).is_err());
    let mut spender = Spender::new(0);
    assert!(spender.apply_grant(on_wire(super::START)).is_err(), "a step backwards");
    assert!(spender.apply_grant(on_wire(super::START).wrapping_add(1 << 15).wrapping_add(2)).is_err());
}

#[test]
fn credit_positions_continue_after_wrap() {
    let mut grantor = Grantor::new(64);
    let id = grantor.open(0, QpNumber::new(1), PeerKey::numbered(1)).unwrap();
    let mut spender = Spender::new(0);
    for _ in 0..70_000 {
        assert!(spender.spend(0));
        grantor.apply_header(id, 0, 0, None).unwrap();
        grantor.grant(0);
        spender.apply_grant(on_wire(grantor.tell(id))).unwrap();
    }
    for now_ms in (0..70_000).map(|turn| turn * 200) {
        assert!(spender.spend(now_ms));
        grantor.apply_header(id, now_ms, 9, None).unwrap();
        grantor.grant(now_ms);
        spender.apply_grant(on_wire(grantor.tell(id))).unwrap();
        assert!(spender.release_idle(now_ms + 100), "more than the base was granted");
        grantor.apply_header(id, now_ms + 100, 0, Some(on_wire(spender.released()))).unwrap();
    }
    assert!(spender.released() > 2 * 65_536 && grantor.ledger().outstanding == BASE);
}

#[test]
fn unannounced_credit_is_not_used() {
    let mut grantor = Grantor::new(64);
    let id = grantor.open(0, QpNumber::new(1), PeerKey::numbered(1)).unwrap();
    grantor.apply_header(id, 0, 0, None).unwrap();
    grantor.grant(0);
    assert!(grantor.ledger().outstanding > BASE, "granted, but the frame that says so has not left");
    assert!(grantor.apply_header(id, 0, 0, None).is_err(), "used by guessing");
    assert!(grantor.apply_header(id, 0, 0, Some(1)).is_err(), "given back by guessing");
    assert!(grantor.must_tell(id));
    grantor.tell(id);
    grantor.apply_header(id, 0, 0, Some(1)).unwrap();
    grantor.apply_header(id, 0, 0, None).unwrap();
}

#[test]
fn unsolicited_credit_frames_are_bounded() {
    let mut flooded = Spender::new(0);
    let accepted = (0..10_000).take_while(|_| flooded.apply_credit_frame(0).is_ok()).count();
    assert!((1..=100).contains(&accepted), "{accepted} at once");
    assert!(flooded.apply_credit_frame(50).is_ok(), "time passed");
    let (mut busy, mut grant) = (Spender::new(0), super::START.wrapping_add(BASE));
    for _ in 0..10_000 {
        assert!(busy.spend(0));
        grant = grant.wrapping_add(1);
        busy.apply_grant(on_wire(grant)).unwrap();
        assert!(busy.apply_credit_frame(0).is_ok(), "each message may be answered by one");
    }
}

#[test]
fn new_pair_gets_credit_while_srq_can_grow() {
    let mut grantor = Grantor::new(64);
    let mut depth = 64;
    for number in 0..1000 {
        if grantor.is_crowded() {
            grantor.deepen(depth);
            depth *= 2;
        }
        let pair =
            grantor.open(0, QpNumber::new(number), PeerKey::numbered(number)).expect("room for one more");
        // Each pair becomes busy and reports the largest backlog.
        grantor.apply_header(pair, 0, u8::MAX, None).unwrap();
        grantor.grant(0);
        grantor.tell(pair);
        let ledger = grantor.ledger();
        assert!(ledger.outstanding <= ledger.capacity && ledger.capacity < depth);
    }
    assert_eq!(depth, 4096, "a thousand pairs take half of 2048 and more");
}

#[test]
fn pair_regains_base_credit_despite_other_holders() {
    // Two peers with four pairs each, and an honest peer.
    let mut world = World::of_peers(512, [1, 1, 1, 1, 2, 2, 2, 2, 3]);
    world.hoard(0..8);
    assert!(world.available(0..8) > 300, "all that is granted to anybody");
    world.pairs[8].backlog = 1000;
    for _ in 0..1000 {
        assert_eq!(world.send(8, 1), 1, "it has no credit");
        world.exchange();
    }
}

#[test]
fn peer_with_many_pairs_leaves_half_of_credit_to_other_peers() {
    let mut world = World::of_peers(512, [1, 1, 1, 1, 1, 1, 1, 1, 2]);
    world.hoard(0..8);
    let (held, ledger) = (world.available(0..8), world.grantor.ledger());
    assert!(held <= ledger.per_peer + 8 && held >= ledger.per_peer / 2, "{held} of {ledger:?}");
    world.pairs[8].backlog = 2000;
    for _ in 0..4 {
        world.now += 1;
        world.send(8, u16::MAX);
        world.exchange();
    }
    let rest = world.grantor.positions(world.pairs[8].id, QpNumber::new(8), 0).unwrap().outstanding();
    assert!(rest >= ledger.per_peer - 8, "{rest} are left to the others of {ledger:?}");
}

/// Lets honest pairs send without pause for `over_ms`. Returns the pairs that were found to hoard.
fn hoarding_while_busy(world: &mut World, busy: Range<usize>, over_ms: u64) -> Vec<QpNumber> {
    let mut found = Vec::new();
    let until = world.now + over_ms;
    while world.now < until {
        world.now += 5;
        for busy in busy.clone() {
            world.pairs[busy].backlog = 50;
            world.send(busy, u16::MAX);
        }
        world.exchange();
        (0..world.pairs.len()).for_each(|index| world.release(index));
        world.exchange();
        found.extend(world.grantor.take_hoarding());
    }
    found
}

#[test]
fn hoarder_of_scarce_credit_is_detected() {
    let mut world = World::of_peers(256, [1, 1, 2, 2, 3]);
    world.hoard(0..4);
    // A peer that is stopped for ten seconds is not reported either.
    assert_eq!(hoarding_while_busy(&mut world, 4..5, 12_000), []);
    let found = hoarding_while_busy(&mut world, 4..5, 8_000);
    assert!(!found.is_empty() && found.iter().all(|target| target.get() < 4), "{found:?}");
}

#[test]
fn hoarder_is_detected_despite_pause_of_shortage() {
    // The honest pairs together need more than the hoarding peer leaves, but not while they pause.
    let mut world = World::of_peers(256, [1, 1, 2, 3, 4, 5]);
    world.hoard(0..2);
    assert_eq!(hoarding_while_busy(&mut world, 2..6, 12_000), []);
    for _ in 0..20 {
        world.now += 50;
        (2..6).for_each(|index| world.release(index));
        world.exchange();
        world.grantor.grant(world.now);
    }
    let found = hoarding_while_busy(&mut world, 2..6, 8_000);
    assert!(!found.is_empty() && found.iter().all(|target| target.get() < 2), "{found:?}");
}

/// Two peers send continuously to a slower poller, and idle pairs hold the rest of the credit.
#[test]
fn credit_of_waiting_received_messages_is_in_use() {
    let mut world = World::new(512, 60);
    for _ in 0..4000 {
        world.now += 5;
        for index in 0..2 {
            world.pairs[index].backlog = 1000;
            let sent = world.send(index, 1000);
            let id = world.pairs[index].id;
            (0..sent).for_each(|_| world.grantor.wait(id).unwrap());
            for _ in 0..16.min(world.pairs[index].there.len()) {
                world.grantor.waited(id);
                world.arrive(index);
            }
            // A reply carries the position.
            let grant = on_wire(world.grantor.tell(id));
            world.pairs[index].back.push_back(grant);
            while !world.pairs[index].back.is_empty() {
                world.learn(index);
            }
        }
        assert_eq!(world.grantor.take_hoarding().count(), 0, "after {} ms", world.now);
    }
}

#[test]
fn unused_credit_may_be_kept_without_shortage() {
    let mut world = World::of_peers(256, [1, 1, 3]);
    world.hoard(0..2);
    assert_eq!(hoarding_while_busy(&mut world, 2..3, 60_000), []);
    let mut silent = World::of_peers(256, [1, 2]);
    silent.hoard(0..2);
    silent.now += 60_000;
    silent.hoard(0..1);
    assert_eq!(silent.grantor.take_hoarding().count(), 0, "nobody had anything to send meanwhile");
}

#[test]
fn busy_pair_releases_unused_credit() {
    let mut world = World::new(512, 1);
    world.pairs[0].backlog = 200;
    for _ in 0..3 {
        world.send(0, 1);
        world.exchange();
    }
    assert!(world.available(0..1) > 100);
    // The other messages were cancelled, and a new message follows every few milliseconds.
    for _ in 0..60 {
        world.now += 5;
        world.pairs[0].backlog = 1;
        assert_eq!(world.send(0, 1), 1);
        world.release(0);
        world.exchange();
    }
    assert!(world.available(0..1) <= BASE + AHEAD, "{} are left", world.available(0..1));
}
