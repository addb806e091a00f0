use super::{Budget, Exhausted, Limit, Share};
use crate::PeerKey;

const A: PeerKey = PeerKey(1);
const B: PeerKey = PeerKey(2);

fn taken(share: &mut Share, peer: PeerKey) -> usize {
    (0..).take_while(|_| share.take(peer, 1).is_ok()).count()
}

#[test]
fn a_peer_at_its_limit_leaves_the_rest_to_others() {
    let budget = Budget::new("things", Limit { per_peer: 4, in_all: 6 }, 1);
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
fn a_limit_is_never_exceeded_and_nearly_all_of_it_can_be_used() {
    for (limit, pollers) in [(1, 1), (7, 3), (1000, 1), (1000, 4), (65_536, 32)] {
        let budget = Budget::new("things", Limit { per_peer: limit, in_all: limit }, pollers);
        let mut shares = (0..pollers).map(|poller| Share::new(&budget, poller)).collect::<Vec<_>>();
        // Each uses some and returns them, and so keeps a portion.
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

#[test]
fn nothing_is_left_of_a_peer_that_is_down() {
    let budget = Budget::new("bytes", Limit { per_peer: 100, in_all: 100 }, 2);
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
fn a_limit_of_nothing_is_refused_with_the_options_name() {
    let check = |per_peer, in_all| Limit { per_peer, in_all }.check("things", 2, "choose 2 or more");
    assert!(check(2, 2).is_ok());
    for (per_peer, in_all) in [(1, 9), (0, 0), (3, 2)] {
        let text = check(per_peer, in_all).unwrap_err().to_string();
        assert!(text.contains("things ="), "{text}");
    }
}
