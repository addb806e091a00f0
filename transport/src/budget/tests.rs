use super::share::Room;
use super::{Budget, Exhausted, Leaves, Limit, NodeBudgets, NodeLimits, Share, Shares};
use crate::PeerKey;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

const A: PeerKey = peer(1, 1);
const B: PeerKey = peer(2, 1);

const fn peer(host: u8, port: u16) -> PeerKey {
    PeerKey::new(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)), port))
}

fn budget(name: &'static str, limit: Limit, pollers: u16) -> Arc<Budget> {
    Budget::new(name, limit, pollers, &Arc::default())
}

fn taken(share: &mut Share, peer: PeerKey) -> usize {
    (0..).take_while(|_| share.take(peer, 1).is_ok()).count()
}

#[test]
fn peer_at_its_limit_leaves_remaining_units_to_other_peers() {
    let budget = budget("things", Limit { per_peer: 4, in_all: 6 }, 1);
    let mut share = Share::new(&budget, 0);
    assert_eq!(taken(&mut share, A), 4);
    assert_eq!(share.take(A, 1), Err(Exhausted::Peer { name: "things", limit: 4 }));
    assert_eq!(taken(&mut share, B), 2);
    let refusal = share.take(B, 1).unwrap_err();
    assert_eq!(refusal, Exhausted::All { name: "things", limit: 6 });
    assert_eq!(refusal.to_string(), "all peers' budget of things (6) is used up");
    let report = budget.report();
    assert_eq!((report.used, report.refused_to_peer, report.refused_to_all), (6, 2, 2));
    share.put_back(A, 3);
    assert_eq!(taken(&mut share, B), 2, "B may use as much as A");
    assert_eq!((share.used_by(A), share.used_by(B)), (1, 4));
    assert_eq!(taken(&mut share, A), 1);
}

#[test]
fn limit_is_never_exceeded_and_is_usable_to_seven_eighths() {
    for (limit, pollers) in [(1, 1), (7, 3), (1000, 1), (1000, 4), (65_536, 32)] {
        let budget = budget("things", Limit { per_peer: limit, in_all: limit }, pollers);
        let mut shares = (0..pollers).map(|poller| Share::new(&budget, poller)).collect::<Vec<_>>();
        // Each poller uses some units and returns them, and so keeps a portion.
        for share in &mut shares {
            while share.take(A, 1).is_ok() {}
            share.put_back(A, share.used_by(A));
        }
        let last = shares.len() - 1;
        let most = taken(&mut shares[last], A);
        assert!(most <= limit && most >= limit - limit / 8, "{most} of {limit}");
        let rest = shares[..last].iter_mut().map(|share| taken(share, A)).sum::<usize>();
        assert_eq!(most + rest, limit, "what others kept is theirs to use");
    }
}

proptest! {
    /// With the cache, single units are taken and refused as without it, and count as used by the peer that
    /// took them.
    #[test]
    fn cache_does_not_change_outcomes(
        per_peer in 1_usize..2000,
        steps in proptest::collection::vec((0..8_u8, 0..2_usize, 0..2_usize, 1..60_usize), 1..120),
    ) {
        let limit = Limit { per_peer, in_all: per_peer * 3 / 2 };
        let [budget, plain_budget] = [(); 2].map(|()| budget("things", limit, 1));
        let (mut share, mut plain) = (Share::new(&budget, 0), Share::new(&plain_budget, 0));
        let mut used = [[0; 2]; 2];
        for (what, which, leaves, times) in steps {
            let (peer, uses) = ([A, B][which], &mut used[which][leaves]);
            let leaves = [Leaves::Nothing, Leaves::Eighth][leaves];
            for _ in 0..times {
                match what {
                    0..5 => {
                        let taken = share.take_one(peer, leaves);
                        prop_assert_eq!(taken, plain.take_leaving(peer, 1, leaves));
                        *uses += usize::from(taken.is_ok());
                    }
                    5..7 if *uses > 0 => {
                        *uses -= 1;
                        share.put_back_one(peer, leaves);
                        plain.put_back(peer, 1);
                    }
                    7 => {
                        share.leave(peer);
                        plain.leave(peer);
                    }
                    _ => {}
                }
            }
            share.settle_cache();
            prop_assert_eq!([A, B].map(|peer| share.used_by(peer)), used.map(|of| of[0] + of[1]));
            prop_assert_eq!(budget.report().used, plain_budget.report().used);
            prop_assert_eq!(share.ledger(BTreeMap::new()).used, plain.ledger(BTreeMap::new()).used);
        }
    }
}

#[test]
fn state_of_lost_peer_is_removed() {
    let budget = budget("bytes", Limit { per_peer: 100, in_all: 100 }, 2);
    let mut shares = [Share::new(&budget, 0), Share::new(&budget, 1)];
    shares[0].take(A, 60).unwrap();
    shares[1].take(A, 30).unwrap();
    assert!(shares[1].take(A, 30).is_err(), "both count for the same peer");
    for share in &mut shares {
        share.leave(A);
    }
    shares[1].put_back(A, 30);
    assert!(shares[1].take(B, 41).is_err(), "60 are still in use");
    shares[0].put_back(A, 60);
    drop(shares);
    assert_eq!(budget.report().used, 0);
    let mut share = Share::new(&budget, 0);
    share.take(B, 100).unwrap();
    share.leave(B);
    share.take(A, 1).unwrap_err();
    share.put_back(B, 100);
    share.take(A, 100).unwrap();
}

#[test]
fn limit_zero_is_refused_with_name_of_option() {
    let check =
        |per_peer, in_all| Limit { per_peer, in_all }.check("things", 2..=usize::MAX, "choose 2 or more");
    assert!(check(2, 2).is_ok());
    for (per_peer, in_all) in [(1, 9), (0, 0), (3, 2)] {
        let text = check(per_peer, in_all).unwrap_err().to_string();
        assert!(text.contains("things ="), "{text}");
    }
}

/// 1024 units in total, 256 per peer, 512 per host. 128 of the 1024 are set aside, 16 of them per host.
const CUT_UP: Limit = Limit { per_peer: 256, in_all: 1024 };

#[test]
fn host_at_its_limit_leaves_half_to_other_hosts() {
    for pollers in [1, 3] {
        let budget = budget("things", CUT_UP, pollers);
        let mut shares = (0..pollers).map(|poller| Share::new(&budget, poller)).collect::<Vec<_>>();
        // The ports of one address are one host, on every poller.
        let mut of_ports = |port: u16| taken(&mut shares[usize::from(port % pollers)], peer(1, port));
        assert_eq!((1..=4).map(&mut of_ports).sum::<usize>(), 512);
        let refusal = shares[0].take(peer(1, 3), 1).unwrap_err();
        assert_eq!(refusal, Exhausted::Host { name: "things", limit: 512 });
        assert_eq!(refusal.to_string(), "one host's budget of things (512) is used up");
        assert_eq!(taken(&mut shares[0], peer(2, 1)), 256, "another host is not concerned");
        assert!(budget.report().refused_to_host > 0);
        for share in &mut shares {
            for port in 1..=4 {
                share.put_back(peer(1, port), share.used_by(peer(1, port)));
                share.leave(peer(1, port));
            }
        }
        assert_eq!(budget.report().used, 256);
        assert_eq!(taken(&mut shares[0], peer(1, 7)), 256, "and what the host put back it may use again");
    }
}

#[test]
fn exhausted_budget_leaves_set_aside_units_to_each_new_host() {
    let budget = budget("things", CUT_UP, 1);
    let mut share = Share::new(&budget, 0);
    let general =
        [taken(&mut share, peer(1, 1)), taken(&mut share, peer(1, 2)), taken(&mut share, peer(2, 1))];
    assert_eq!(general, [256; 3]);
    // The remaining general units, and then each host's part of the units set aside.
    assert_eq!(taken(&mut share, peer(3, 1)), 128 + 16);
    assert_eq!(share.take(peer(3, 2), 1), Err(Exhausted::All { name: "things", limit: 1024 }));
    for host in 4..=10 {
        assert_eq!(taken(&mut share, peer(host, 1)), 16, "host {host}");
    }
    assert_eq!((budget.report().used, taken(&mut share, peer(11, 1))), (1024, 0));
    // Units that were set aside are put back first.
    share.put_back(peer(3, 1), 16);
    assert_eq!(taken(&mut share, peer(11, 1)), 16);
    share.put_back(peer(3, 1), 128);
    assert_eq!(taken(&mut share, peer(2, 2)), 128);
    drop(share);
    assert_eq!(budget.report().used, 0);
    assert_eq!(taken(&mut Share::new(&budget, 0), peer(9, 9)), 256);
}

#[test]
fn units_still_held_count_when_peer_returns() {
    let budget = budget("things", Limit { per_peer: 4, in_all: 64 }, 2);
    let mut shares = [Share::new(&budget, 0), Share::new(&budget, 1)];
    assert_eq!(taken(&mut shares[0], A), 4);
    shares.iter_mut().for_each(|share| share.leave(A));
    // The peer returns later on any poller, with the same address and therefore the same key.
    assert_eq!([taken(&mut shares[0], A), taken(&mut shares[1], A)], [0, 0]);
    shares[0].put_back(A, 3);
    shares[0].leave(A);
    assert_eq!(taken(&mut shares[1], A), 3);
}

#[test]
fn replies_keep_set_aside_room_after_general_units_are_used_up() {
    let limits = NodeLimits { queued_messages: CUT_UP, ..NodeLimits::default() };
    let mut shares = Shares::new(&NodeBudgets::new(limits, 1, &Arc::default()), 0);
    let mut fill = |peer| (0..).take_while(|_| shares.queue(peer, 1, Leaves::Nothing).is_ok()).count();
    assert_eq!([1, 2, 3, 4].map(|host| fill(peer(host, 1))), [256, 256, 256, 128 + 16]);
    let all = Exhausted::All { name: "queued messages", limit: 1024 };
    assert_eq!(shares.has_reply_room(peer(4, 1)), Err(all), "it takes no replies");
    let of_peer = Exhausted::Peer { name: "queued messages", limit: 256 };
    assert_eq!(shares.has_reply_room(peer(1, 1)), Err(of_peer));
    // This peer READs its replies late.
    for queued in 0..16 {
        let room = shares.has_reply_room(peer(5, 1));
        assert_eq!(room, if queued <= 8 { Ok(()) } else { Err(all) }, "{queued} are queued");
        shares.queue(peer(5, 1), 1, Leaves::Nothing).unwrap();
    }
}

/// With default limits, two replies of the largest size leave room for replies to small calls.
#[test]
fn two_largest_replies_leave_room_for_small_replies() {
    let mut shares = Shares::new(&NodeBudgets::new(NodeLimits::default(), 1, &Arc::default()), 0);
    for _ in 0..2 {
        shares.queue(A, 60 << 20, Leaves::Nothing).unwrap();
    }
    assert_eq!(shares.has_reply_room(A), Ok(()));
    shares.queue(A, 7 << 20, Leaves::Nothing).unwrap();
    let of_peer = Exhausted::Peer { name: "queued bytes", limit: 128 << 20 };
    assert_eq!(shares.has_reply_room(A), Err(of_peer), "the rest is for refusals");
}

#[test]
fn part_of_every_limit_above_one_is_left() {
    let of =
        |limit| [Leaves::Eighth, Leaves::Quarter, Leaves::ThreeEighths].map(|leaves| leaves.limit(limit, 1));
    assert_eq!(of(0), [0, 0, 0]);
    assert_eq!(of(1), [1, 1, 1]);
    assert_eq!(of(2), [1, 1, 1]);
    assert_eq!(of(8), [7, 6, 5]);
    assert_eq!(of(65_536), [57_344, 49_152, 40_960]);
    assert_eq!([Leaves::Nothing, Leaves::All].map(|leaves| leaves.limit(8, 1)), [8, 0]);
}

#[test]
fn use_larger_than_its_portion_is_admitted_alone() {
    assert_eq!(Leaves::Quarter.limit(64, 60), 60);
    assert_eq!(Leaves::Quarter.limit(64, 100), 64);
    assert_eq!(Leaves::ThreeEighths.limit(64, 40), 40);
    assert_eq!(Leaves::ThreeEighths.limit(64, 41), 49, "next to an eighth of small ones");
    assert_eq!(Leaves::ThreeEighths.limit(64, 60), 64);
}

#[test]
fn units_left_by_one_use_are_available_to_other_uses() {
    let budget = budget("things", Limit { per_peer: 8, in_all: 16 }, 1);
    let mut share = Share::new(&budget, 0);
    let taken =
        |share: &mut Share, leaves| (0..).take_while(|_| share.take_leaving(A, 1, leaves).is_ok()).count();
    assert_eq!(taken(&mut share, Leaves::Quarter), 6);
    assert_eq!(share.take_leaving(A, 1, Leaves::Quarter), Err(Exhausted::Peer { name: "things", limit: 8 }));
    assert_eq!(taken(&mut share, Leaves::Eighth), 1);
    assert_eq!(taken(&mut share, Leaves::Nothing), 1);
    share.put_back(A, 2);
    assert_eq!(taken(&mut share, Leaves::Quarter), 0, "as much is in use as it may bring it to");
    share.put_back(A, 1);
    assert_eq!(taken(&mut share, Leaves::Quarter), 1);
}

#[test]
fn units_reserved_by_pollers_count_as_free() {
    // The limit is large enough for portions, so the poller keeps some of the units that it has put back.
    let budget = budget("things", Limit { per_peer: 1024, in_all: 1024 }, 1);
    let mut share = Share::new(&budget, 0);
    assert_eq!(taken(&mut share, A), 1024);
    share.put_back(A, 100);
    assert!(share.take_leaving(A, 1, Leaves::Eighth).is_err(), "100 of 128 are free");
    share.put_back(A, 29);
    assert!(share.take_leaving(A, 1, Leaves::Eighth).is_ok());
    assert!(share.take_leaving(A, 1, Leaves::Eighth).is_err());
    assert_eq!(taken(&mut share, A), 128);
}

/// Units of a leaving peer are not kept reserved. When the peer takes units again, it is no longer leaving. Its units
/// then stay reserved after they are put back, and are not available to the other poller.
#[test]
fn peer_taking_units_again_stops_leaving() {
    for peer in [A, A.at(0)] {
        let budget = budget("things", CUT_UP, 2);
        let [mut share, mut other] = [0, 1].map(|poller| Share::new(&budget, poller));
        share.take(peer, 58).unwrap();
        share.leave(peer);
        share.put_back(peer, 4);
        share.take(peer, 1).unwrap();
        share.put_back(peer, 55);
        assert!(taken(&mut other, peer) < 256);
        share.leave(peer);
        assert!(other.take(peer, 1).is_ok());
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Take(usize, Leaves),
    PutBack(usize),
    Check(Room),
    Leave,
}

fn step() -> impl Strategy<Value = Step> {
    let leaves = prop_oneof![Just(Leaves::Nothing), Just(Leaves::Eighth), Just(Leaves::Quarter)];
    prop_oneof![
        6 => (prop_oneof![1..20_usize, 1..200_usize], leaves).prop_map(|(units, leaves)| Step::Take(units, leaves)),
        4 => (1..100_usize).prop_map(Step::PutBack),
        1 => (1..100_usize, 0..100_usize)
            .prop_map(|(of_all, more)| Step::Check(Room { of_peer: of_all + more, of_all })),
        1 => Just(Step::Leave),
    ]
}

/// Returns the number of units that the peer uses after a step.
fn outcome(share: &mut Share, peer: PeerKey, step: Step, taken: usize) -> Result<usize, Exhausted> {
    match step {
        Step::Take(units, leaves) => share.take_leaving(peer, units, leaves).map(|()| taken + units),
        Step::PutBack(units) => {
            share.put_back(peer, units.min(taken));
            Ok(taken - units.min(taken))
        }
        Step::Check(room) => share.check(peer, room).map(|()| taken),
        Step::Leave => {
            share.leave(peer);
            Ok(taken)
        }
    }
}

proptest! {
    /// Two pollers, and six peers on two hosts. Without hints in the keys, every step follows the full rules. With
    /// hints, most steps take the fast path.
    #[test]
    fn fast_path_agrees_with_full_rules(
        steps in proptest::collection::vec((0..2_usize, 0..6_usize, step()), 1..300),
    ) {
        let budgets = [budget("things", CUT_UP, 2), budget("things", CUT_UP, 2)];
        let mut shares = budgets.each_ref().map(|budget| [0, 1].map(|poller| Share::new(budget, poller)));
        let mut taken = BTreeMap::<_, usize>::new();
        for (poller, number, step) in steps {
            let unknown = peer(u8::try_from(number % 2).unwrap(), u16::try_from(number).unwrap());
            let known = unknown.at(number);
            let units = taken.entry((poller, number)).or_default();
            let [counted, by_rules] = &mut shares;
            let outcomes = [
                outcome(&mut counted[poller], known, step, *units),
                outcome(&mut by_rules[poller], unknown, step, *units),
            ];
            prop_assert_eq!(outcomes[0], outcomes[1], "{:?} of {}", step, number);
            *units = outcomes[0].unwrap_or(*units);
            prop_assert_eq!(counted[poller].used_by(unknown), *units);
            prop_assert_eq!(budgets[0].report(), budgets[1].report());
            prop_assert_eq!(budgets[0].report().used, taken.values().sum::<usize>() as u64);
        }
    }
}

#[test]
fn message_and_its_bytes_are_charged_together() {
    let queued_bytes = Limit { per_peer: 3, in_all: 3 };
    for peer in [A, A.at(0)] {
        let budgets =
            NodeBudgets::new(NodeLimits { queued_bytes, ..NodeLimits::default() }, 1, &Arc::default());
        let used = || budgets.report().map(|budget| budget.used).take(2).collect::<Vec<_>>();
        let mut shares = Shares::new(&budgets, 0);
        shares.queue(peer, 2, Leaves::Nothing).unwrap();
        let refusal = shares.queue(peer, 2, Leaves::Nothing).unwrap_err();
        assert_eq!((refusal, used()), (Exhausted::Peer { name: "queued bytes", limit: 3 }, vec![1, 2]));
        shares.pinned(peer);
        shares.leave(peer);
        assert_eq!(used(), [0, 2]);
        shares.finish(peer, 2);
        assert_eq!(used(), [0, 0]);
        shares.queue(B, 3, Leaves::Nothing).unwrap();
    }
}
