//! Grantor and spenders against each other, over a network that delays.

use super::{BASE, Grantor, PairId, Spender};
use proptest::prelude::*;
use std::collections::VecDeque;
use trunkline_verbs::QpNumber;

/// A frame on its way: want, released, whether it used a credit.
type ToGrantor = (u16, u32, bool);

struct Pair {
    id: PairId,
    spender: Spender,
    backlog: u16,
    there: VecDeque<ToGrantor>,
    back: VecDeque<u32>,
}

struct World {
    grantor: Grantor,
    pairs: Vec<Pair>,
    now: u64,
}

impl World {
    fn new(depth: u32, pairs: usize) -> Self {
        let mut grantor = Grantor::new(depth);
        let pairs = (0..pairs)
            .map(|_| Pair {
                id: grantor.open(0, QpNumber::new(1)).unwrap(),
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
            pair.there.push_back((pair.backlog, pair.spender.released(), true));
        }
        sent
    }

    fn arrive(&mut self, index: usize) {
        let pair = &mut self.pairs[index];
        if let Some((want, released, used)) = pair.there.pop_front() {
            self.grantor.hear(pair.id, self.now, want, released, used).unwrap();
        }
        self.grantor.grant(self.now);
        for pair in &mut self.pairs {
            if self.grantor.must_tell(pair.id) {
                pair.back.push_back(self.grantor.tell(pair.id));
            }
        }
    }

    fn learn(&mut self, index: usize) {
        let pair = &mut self.pairs[index];
        if let Some(grant) = pair.back.pop_front() {
            pair.spender.hear(grant).unwrap();
        }
    }

    fn release(&mut self, index: usize) {
        let pair = &mut self.pairs[index];
        if pair.backlog == 0 && pair.spender.release_idle(self.now) {
            pair.there.push_back((0, pair.spender.released(), false));
        }
    }

    fn check(&self) {
        assert!(self.grantor.outstanding() <= self.grantor.capacity());
        let usable: u32 = self.pairs.iter().map(|pair| pair.spender.available()).sum();
        let flying = self.pairs.iter().flat_map(|pair| &pair.there).filter(|frame| frame.2).count();
        let flying = u32::try_from(flying).unwrap();
        assert!(usable + flying <= self.grantor.capacity(), "{usable} usable and {flying} in flight");
    }
}

proptest! {
    #[test]
    fn grants_never_exceed_the_depth(
        depth in 8u32..200,
        pairs in 1usize..6,
        steps in proptest::collection::vec((0u8..5, 0usize..6, 1u16..40), 1..400),
    ) {
        let mut world = World::new(depth, pairs);
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
        // Everything that waits gets through in the end: nobody is starved or deadlocked, at the
        // latest when those that hold credit and have no use for it have given it back.
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
fn a_greedy_peer_does_not_starve_the_others() {
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
fn a_new_pair_finds_room_beside_greedy_ones() {
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
    let newcomers = (2..10).filter_map(|target| world.grantor.open(0, QpNumber::new(target))).count();
    assert_eq!(newcomers, 8);
}

#[test]
fn idle_grants_decay_to_the_base() {
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
    assert!(world.grantor.outstanding() > BASE);
    world.now = world.pairs[0].spender.release_due_ms().unwrap();
    world.release(0);
    world.arrive(0);
    assert!(world.now <= 100);
    assert_eq!(world.pairs[0].spender.available(), BASE);
    assert_eq!(world.grantor.outstanding(), BASE);
    assert!(world.pairs[0].back.is_empty(), "credit that was just given back is not granted again");
}

#[test]
fn a_peer_that_cheats_is_found_out() {
    let mut grantor = Grantor::new(16);
    let id = grantor.open(0, QpNumber::new(1)).unwrap();
    grantor.hear(id, 0, 0, 0, true).unwrap();
    assert!(grantor.hear(id, 0, 0, 0, true).is_err());
    assert!(grantor.hear(id, 0, 0, 5, false).is_err());
    let mut spender = Spender::new(0);
    assert!(spender.hear(super::START).is_err(), "a step backwards");
    assert!(spender.hear(u32::MAX / 2).is_err());
}

#[test]
fn positions_survive_the_wrap() {
    let mut grantor = Grantor::new(64);
    let id = grantor.open(0, QpNumber::new(1)).unwrap();
    let mut spender = Spender::new(0);
    for _ in 0..3_000 {
        assert!(spender.spend(0));
        grantor.hear(id, 0, 0, 0, true).unwrap();
        grantor.grant(0);
        spender.hear(grantor.tell(id)).unwrap();
    }
}

#[test]
fn credit_that_was_not_told_yet_is_not_used() {
    let mut grantor = Grantor::new(64);
    let id = grantor.open(0, QpNumber::new(1)).unwrap();
    grantor.hear(id, 0, 0, 0, true).unwrap();
    grantor.grant(0);
    assert!(grantor.outstanding() > 0, "granted, but the frame that says so has not left");
    assert!(grantor.hear(id, 0, 0, 0, true).is_err(), "used by guessing");
    assert!(grantor.hear(id, 0, 0, 1, false).is_err(), "given back by guessing");
    assert!(grantor.must_tell(id));
    grantor.tell(id);
    grantor.hear(id, 0, 0, 1, true).unwrap();
}

#[test]
fn credit_frames_that_answer_nothing_are_bounded() {
    let mut flooded = Spender::new(0);
    let heard = (0..10_000).take_while(|_| flooded.hear_credit_frame(0).is_ok()).count();
    assert!((1..=100).contains(&heard), "{heard} at once");
    assert!(flooded.hear_credit_frame(50).is_ok(), "time passed");
    let (mut busy, mut grant) = (Spender::new(0), super::START.wrapping_add(BASE));
    for _ in 0..10_000 {
        assert!(busy.spend(0));
        grant = grant.wrapping_add(1);
        busy.hear(grant).unwrap();
        assert!(busy.hear_credit_frame(0).is_ok(), "each message may be answered by one");
    }
}

#[test]
fn who_joins_finds_room_while_an_srq_can_become_deeper() {
    let mut grantor = Grantor::new(64);
    let mut depth = 64;
    for number in 0..1000 {
        if grantor.is_crowded() {
            grantor.deepen(depth);
            depth *= 2;
        }
        let pair = grantor.open(0, QpNumber::new(number)).expect("room for one more");
        // Each is busy at once and wants all that there is.
        grantor.hear(pair, 0, u16::MAX, 0, true).unwrap();
        grantor.grant(0);
        grantor.tell(pair);
        assert!(grantor.outstanding() <= grantor.capacity() && grantor.capacity() < depth);
    }
    assert_eq!(depth, 4096, "a thousand pairs take half of 2048 and more");
}
