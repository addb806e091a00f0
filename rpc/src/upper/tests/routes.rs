//! Calls by routes: order and timing of the addresses tried, and the outcome of calls that wait.

use super::{FakeCarrier, sent, server, status};
use crate::call::Outcome;
use crate::client::routes::{Balanced, Link, Policy, Ready, Target, Tried};
use crate::status::Code;
use crate::status::reason::Reason;
use crate::upper::fake::{FEED, GATHER, Rig};
use crate::wire::frame::Header;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use trunkline_machine::rings::cell::Getter;
use trunkline_transport::{Connect, Origin, PeerDown, PeerEvent, PeerKey, SessionNumber, Upper as _};
use trunkline_verbs::{Clock, VirtualClock};

const LIMIT: Duration = Duration::from_secs(60);
const MS: Duration = Duration::from_millis(1);

fn at(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

fn key(port: u16) -> PeerKey {
    FakeCarrier::key(at(port))
}

fn link(rig: &Rig, ports: &[u16]) -> Arc<Link> {
    let addresses = ports.iter().map(|port| at(*port)).collect::<Vec<_>>();
    Link::new(&rig.routes, Target::from(addresses))
}

fn up(rig: &mut Rig, port: u16) {
    rig.carrier.up.insert(key(port));
    rig.peer(key(port), PeerEvent::Up { session: SessionNumber(1), epoch: 1, pollers: 1 });
    rig.run();
}

fn down(rig: &mut Rig, port: u16, cause: PeerDown) {
    rig.carrier.up.remove(&key(port));
    rig.peer(key(port), PeerEvent::Down { cause });
    rig.run();
}

fn submit(rig: &mut Rig, link: &Link, connect: Connect) -> Getter<Outcome> {
    let getter = rig.submit_by(link, connect, LIMIT);
    // The connector is told in the next turn.
    rig.run();
    rig.run();
    getter
}

fn waits(getter: &mut Getter<Outcome>) -> bool {
    getter.try_take().is_none()
}

#[test]
fn the_next_address_is_tried_when_the_last_has_failed_or_does_not_answer() {
    let mut rig = Rig::new();
    let link = link(&rig, &[1, 2, 3]);
    let mut call = submit(&mut rig, &link, Connect::FailFast);
    assert_eq!(rig.carrier.reached, [key(1)]);
    assert!(rig.poller.next_timer().is_some_and(|due| due <= rig.carrier.now + 500 * MS));
    rig.carrier.wait(499 * MS);
    rig.run();
    assert_eq!(rig.carrier.reached.len(), 1, "it may still answer");
    rig.carrier.wait(MS);
    rig.run();
    assert_eq!(rig.carrier.reached, [key(1), key(2)]);
    down(&mut rig, 2, PeerDown::NotListening);
    assert_eq!(rig.carrier.reached, [key(1), key(2), key(3)], "at once");
    assert!(waits(&mut call) && sent(&mut rig).is_empty());
    up(&mut rig, 1);
    let given = sent(&mut rig);
    assert_eq!((given.len(), given[0].0.peer), (1, key(1)), "the first one has answered after all");
}

#[test]
fn address_that_fails_is_reached_again_at_once_only_while_a_call_waits() {
    let mut rig = Rig::new();
    let link = link(&rig, &[1, 2]);
    let _fast = submit(&mut rig, &link, Connect::FailFast);
    down(&mut rig, 1, PeerDown::NotListening);
    assert_eq!((&*rig.carrier.reached, &*rig.carrier.waited_for), (&[key(1), key(2)][..], &[][..]));
    let mut patient = submit(&mut rig, &link, Connect::Wait);
    assert_eq!(rig.carrier.waited_for, [key(1)], "it has come in the round");
    down(&mut rig, 2, PeerDown::Unreachable);
    down(&mut rig, 1, PeerDown::NotListening);
    assert_eq!(rig.carrier.waited_for, [key(1), key(2), key(1)], "between two rounds too");
    assert!(waits(&mut patient));
    up(&mut rig, 2);
    assert_eq!(sent(&mut rig).len(), 1, "without another round");
    rig.carrier.waited_for.clear();
    down(&mut rig, 2, PeerDown::Died);
    down(&mut rig, 1, PeerDown::NotListening);
    assert_eq!(rig.carrier.waited_for, [], "no call waits");
}

#[test]
fn pause_after_a_failed_round_is_below_a_second_only_while_a_call_waits() {
    for (connect, longest) in [(Connect::Wait, 940 * MS), (Connect::FailFast, 1600 * MS)] {
        let mut rig = Rig::new();
        rig.carrier.away = Some(PeerDown::NotListening);
        let link = link(&rig, &[1, 2]);
        let mut pauses = Vec::new();
        let _patient = (connect == Connect::Wait).then(|| submit(&mut rig, &link, connect));
        for _ in 0..12 {
            let rounds = rig.carrier.reached.len();
            let begun = rig.carrier.now;
            if connect == Connect::FailFast {
                let _failed = submit(&mut rig, &link, connect);
            }
            while rig.carrier.reached.len() == rounds {
                rig.carrier.wait(10 * MS);
                let _failed = (connect == Connect::FailFast).then(|| submit(&mut rig, &link, connect));
                rig.run();
            }
            pauses.push(rig.carrier.now - begun);
        }
        let last = pauses[11];
        assert!((longest / 2 + 200 * MS..=longest + 20 * MS).contains(&last), "{connect:?}: {pauses:?}");
    }
}

#[test]
fn rounds_of_a_long_list_try_16_addresses_each_in_rotation() {
    let mut rig = Rig::new();
    rig.carrier.away = Some(PeerDown::NotListening);
    let link = link(&rig, &(1..=40).collect::<Vec<_>>());
    let mut call = submit(&mut rig, &link, Connect::Wait);
    for expected in [1..=16, 17..=32] {
        assert_eq!(std::mem::take(&mut rig.carrier.reached), expected.map(key).collect::<Vec<_>>());
        rig.carrier.wait(100 * MS);
        rig.run();
    }
    let rest = (33..=40).chain(1..=8).map(key).collect::<Vec<_>>();
    assert_eq!(std::mem::take(&mut rig.carrier.reached), rest);
    // After a session, the search begins at the first address again.
    up(&mut rig, 20);
    rig.carrier.wait(5000 * MS);
    rig.run();
    assert!(!waits(&mut call) || !sent(&mut rig).is_empty());
    down(&mut rig, 20, PeerDown::Died);
    let _second = submit(&mut rig, &link, Connect::Wait);
    assert_eq!(rig.carrier.reached[0], key(1));
}

#[test]
fn calls_fail_with_the_round_that_they_have_waited_for_unless_they_wait_for_any() {
    let mut rig = Rig::new();
    let link = link(&rig, &[1, 2]);
    let mut fast = submit(&mut rig, &link, Connect::FailFast);
    let mut patient = submit(&mut rig, &link, Connect::Wait);
    down(&mut rig, 1, PeerDown::NotListening);
    assert!(waits(&mut fast));
    down(&mut rig, 2, PeerDown::Unreachable);
    rig.run();
    let failed = status(&mut fast);
    assert_eq!((failed.code(), failed.reason()), (Code::Unavailable, Some(Reason::Unreachable)), "{failed}");
    assert!(!failed.may_have_run());
    for words in ["127.0.0.1:1: nobody listens", "127.0.0.1:2: the peer does not answer"] {
        assert!(failed.message().contains(words), "{failed}");
    }
    let refused = status(&mut submit(&mut rig, &link, Connect::FailFast));
    assert!(refused.causes()[0].starts_with("the next attempt to connect is due in "), "{refused}");
    assert!(waits(&mut patient));
    // Pauses double, and end.
    for _ in 0..12 {
        let before = rig.carrier.reached.len();
        rig.carrier.wait(1700 * MS);
        rig.run();
        assert!(rig.carrier.reached.len() > before, "another round begins");
        down(&mut rig, 1, PeerDown::NotListening);
        down(&mut rig, 2, PeerDown::NotListening);
        rig.run();
    }
    rig.carrier.wait(1700 * MS);
    rig.run();
    up(&mut rig, 1);
    assert_eq!(sent(&mut rig).len(), 1);
    // No call waits any more, so no server is sought.
    down(&mut rig, 1, PeerDown::Died);
    let before = rig.carrier.reached.len();
    rig.carrier.wait(5000 * MS);
    rig.run();
    assert_eq!(rig.carrier.reached.len(), before);
}

#[test]
fn a_call_that_waits_ends_by_its_deadline_and_one_that_is_dropped_leaves_nothing() {
    let mut rig = Rig::new();
    let link = link(&rig, &[1, 2]);
    let mut call = rig.submit_by(&link, Connect::Wait, 100 * MS);
    let dropped = rig.submit_by(&link, Connect::Wait, LIMIT);
    rig.run();
    assert_eq!(rig.poller.sizes(), (2, 0));
    drop(dropped);
    rig.inbox.ask_for_sweep();
    rig.run();
    assert_eq!(rig.poller.sizes(), (1, 0));
    rig.carrier.wait(100 * MS);
    rig.run();
    let late = status(&mut call);
    assert_eq!((late.code(), late.may_have_run()), (Code::DeadlineExceeded, false), "{late}");
    // It may not have got as far as an attempt to connect.
    assert!(late.message().contains("the first lookup of its target, or attempt to connect"), "{late}");
    assert_eq!(rig.poller.sizes(), (0, 0));
}

#[test]
fn a_call_does_not_follow_a_session_that_is_over_before_its_end_is_known() {
    let mut rig = Rig::new();
    let link = link(&rig, &[1, 2]);
    let _first = submit(&mut rig, &link, Connect::FailFast);
    up(&mut rig, 1);
    assert_eq!(sent(&mut rig).len(), 1);
    // The carrier knows already. A call that waited there would be tied to this address.
    rig.carrier.up.remove(&key(1));
    let mut second = submit(&mut rig, &link, Connect::Wait);
    assert!(waits(&mut second) && sent(&mut rig).is_empty());
    down(&mut rig, 1, PeerDown::NotListening);
    rig.carrier.wait(500 * MS);
    rig.run();
    up(&mut rig, 2);
    let given = sent(&mut rig);
    assert_eq!((given.len(), given[0].0.peer), (1, key(2)));
    assert_ne!(server().peer, key(2));
}

#[test]
fn an_attempt_that_never_ends_is_given_up() {
    let mut rig = Rig::new();
    let link = link(&rig, &[1, 2]);
    let mut call = submit(&mut rig, &link, Connect::FailFast);
    // No attempt reports an outcome, as when the device is absent.
    for _ in 0..40 {
        rig.carrier.wait(500 * MS);
        rig.run();
        rig.run();
    }
    let failed = status(&mut call);
    assert!(failed.message().matches("no session in time").count() == 2, "{failed}");
}

#[test]
fn ready_of_a_list_waits_in_its_pause_for_any_server() {
    // The clock stands still, so pauses never end for callers.
    let mut rig = Rig::with_clock(Clock::simulated(VirtualClock::new()));
    let link = link(&rig, &[1, 2]);
    let mut call = submit(&mut rig, &link, Connect::FailFast);
    for port in [1, 2] {
        down(&mut rig, port, PeerDown::NotListening);
    }
    assert_eq!(status(&mut call).reason(), Some(Reason::Unreachable));
    let mut context = Context::from_waker(Waker::noop());
    let mut ready = pin!(Ready::new(&link));
    assert!(ready.as_mut().poll(&mut context).is_pending(), "the next round decides");
    // Rounds that find each address in its own pause decide nothing.
    (rig.carrier.away, rig.carrier.away_for) = (Some(PeerDown::NotListening), 1000 * MS);
    for _ in 0..3 {
        rig.carrier.wait(1700 * MS);
        rig.run();
        assert!(ready.as_mut().poll(&mut context).is_pending());
    }
    rig.carrier.away = None;
    rig.carrier.wait(1700 * MS);
    rig.run();
    rig.run();
    // An address that has failed in this round may come up because another channel tries it too.
    down(&mut rig, 1, PeerDown::NotListening);
    up(&mut rig, 1);
    assert_eq!(ready.as_mut().poll(&mut context), Poll::Ready(Ok(())));
}

/// Otherwise it would wait as long as other channels make the attempts.
#[test]
fn ready_of_a_list_fails_once_others_have_tried_each_address() {
    let clock = VirtualClock::new();
    let mut rig = Rig::with_clock(Clock::simulated(Arc::clone(&clock)));
    let link = link(&rig, &[1, 2]);
    let mut context = Context::from_waker(Waker::noop());
    let mut ready = pin!(Ready::new(&link));
    (rig.carrier.away, rig.carrier.away_for) = (Some(PeerDown::NotListening), 1000 * MS);
    clock.set(rig.carrier.now);
    assert!(ready.as_mut().poll(&mut context).is_pending());
    let began = rig.carrier.now;
    let failed = std::iter::repeat_with(|| {
        rig.carrier.wait(1700 * MS);
        clock.set(rig.carrier.now);
        rig.run();
        rig.run();
        ready.as_mut().poll(&mut context)
    });
    let Some(Poll::Ready(Err(status))) = failed.take(10).find(Poll::is_ready) else { panic!("it waits") };
    assert_eq!(status.reason(), Some(Reason::Unreachable), "{status}");
    assert!(rig.carrier.now >= began + 10_000 * MS, "others may not have tried yet");
}

#[test]
fn ready_of_a_list_fails_with_a_round_that_has_tried_an_address() {
    let mut rig = Rig::with_clock(Clock::simulated(VirtualClock::new()));
    let link = link(&rig, &[1, 2]);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..2 {
        let mut ready = pin!(Ready::new(&link));
        assert!(ready.as_mut().poll(&mut context).is_pending());
        rig.carrier.wait(1700 * MS);
        rig.run();
        rig.run();
        for port in [1, 2] {
            down(&mut rig, port, PeerDown::NotListening);
        }
        let Poll::Ready(Err(status)) = ready.as_mut().poll(&mut context) else { panic!("it waits") };
        assert_eq!(status.reason(), Some(Reason::Unreachable), "{status}");
    }
}

#[test]
fn call_moves_from_a_draining_server_of_a_list_to_one_that_comes_up() {
    for connect in [Connect::FailFast, Connect::Wait] {
        let mut rig = Rig::new();
        let link = link(&rig, &[1, 2]);
        let _first = submit(&mut rig, &link, Connect::Wait);
        up(&mut rig, 1);
        assert_eq!(sent(&mut rig).len(), 1);
        rig.message(Origin { peer: key(1), ..server() }, super::frame(Header::Drained, &[], &[]));
        let mut call = submit(&mut rig, &link, connect);
        assert!(waits(&mut call) && sent(&mut rig).is_empty(), "{connect:?}");
        up(&mut rig, 2);
        let given = sent(&mut rig);
        assert_eq!((given.len(), given[0].0.peer), (1, key(2)), "{connect:?}");
    }
}

#[test]
fn call_waits_for_the_next_session_of_a_list_whose_servers_drain() {
    let mut rig = Rig::new();
    let link = link(&rig, &[1, 2]);
    let _first = submit(&mut rig, &link, Connect::Wait);
    up(&mut rig, 1);
    up(&mut rig, 2);
    sent(&mut rig);
    for port in [1, 2] {
        rig.message(Origin { peer: key(port), ..server() }, super::frame(Header::Drained, &[], &[]));
    }
    let mut call = submit(&mut rig, &link, Connect::Wait);
    let failed = status(&mut submit(&mut rig, &link, Connect::FailFast));
    assert_eq!((failed.reason(), failed.may_have_run()), (Some(Reason::Draining), false), "{failed}");
    rig.carrier.wait(1700 * MS);
    rig.run();
    assert!(waits(&mut call) && sent(&mut rig).is_empty());
    down(&mut rig, 1, PeerDown::Closed);
    up(&mut rig, 1);
    rig.run();
    let given = sent(&mut rig);
    assert_eq!((given.len(), given[0].0.peer), (1, key(1)));
}

#[test]
fn chosen_server_that_is_dead_by_then_delays_no_call_that_another_can_take() {
    for connect in [Connect::FailFast, Connect::Wait] {
        for opens in [false, true] {
            let mut rig = Rig::new();
            up(&mut rig, 1);
            up(&mut rig, 2);
            let link = link(&rig, &[1, 2]);
            let balanced = Balanced::new(&link, Policy::PickFirst.into()).unwrap();
            let chosen = balanced.choose(&mut Tried::new(connect), rig.carrier.now).unwrap();
            assert_eq!(chosen.to.0, key(1));
            // Handed over before its poller learns of the death.
            let stream = opens.then(|| rig.open_chosen(&chosen, FEED, connect));
            let call = (!opens).then(|| rig.submit_chosen(&chosen, connect));
            rig.carrier.up.remove(&key(1));
            rig.peer(key(1), PeerEvent::Down { cause: PeerDown::Died });
            (0..3).for_each(|_| rig.run());
            let given = sent(&mut rig);
            assert_eq!((given.len(), given[0].0.peer), (1, key(2)), "{connect:?} {opens}");
            drop((stream, call));
        }
    }
}

#[test]
fn request_that_waits_for_a_dead_server_is_sent_to_another() {
    for (opens, connect) in [(false, Connect::Wait), (true, Connect::Wait), (true, Connect::FailFast)] {
        let mut rig = Rig::new();
        rig.carrier.holds_messages = true;
        up(&mut rig, 1);
        up(&mut rig, 2);
        let link = link(&rig, &[1, 2]);
        let balanced = Balanced::new(&link, Policy::PickFirst.into()).unwrap();
        let chosen = balanced.choose(&mut Tried::new(connect), rig.carrier.now).unwrap();
        let stream = opens.then(|| rig.open_chosen(&chosen, GATHER, connect));
        let call = (!opens).then(|| rig.submit_chosen(&chosen, connect));
        rig.run();
        let given = sent(&mut rig);
        assert_eq!((given.len(), given[0].0.peer), (1, key(1)));
        rig.carrier.up.remove(&key(1));
        rig.peer(key(1), PeerEvent::Down { cause: PeerDown::Died });
        (0..3).for_each(|_| rig.run());
        let given = sent(&mut rig);
        assert_eq!((given.len(), given[0].0.peer), (1, key(2)), "{connect:?} {opens}");
        drop((stream, call));
    }
}

#[test]
fn call_that_waits_goes_to_the_first_server_that_comes_up() {
    for is_paused in [false, true] {
        let mut rig = Rig::new();
        let link = link(&rig, &[1, 2, 3]);
        let balanced = Balanced::new(&link, Policy::PickFirst.into()).unwrap();
        let chosen = balanced.choose(&mut Tried::new(Connect::Wait), rig.carrier.now).unwrap();
        let _call = rig.submit_chosen(&chosen, Connect::Wait);
        (0..3).for_each(|_| rig.run());
        assert_eq!(rig.carrier.reached, [key(1)]);
        if is_paused {
            [1, 2, 3].into_iter().for_each(|port| down(&mut rig, port, PeerDown::NotListening));
        }
        up(&mut rig, 3);
        (0..3).for_each(|_| rig.run());
        let given = sent(&mut rig);
        assert_eq!((given.len(), given[0].0.peer), (1, key(3)), "{is_paused}");
    }
}
