//! A server sends DRAINED before its sessions end, once it has answered all calls that it has run.

use super::{HANG_UNHEARD, LONG, PORT, call, failed, frame, request, sent, server, status};
use crate::call::AdmissionClass;
use crate::client::routes::{Link, Target};
use crate::status::Code;
use crate::status::reason::Reason;
use crate::stub::no_items;
use crate::upper::fake::{ECHO, FEED, Given, HANG, Rig};
use crate::wire::frame::{By, Header, RequestHeader, StreamHeader, StreamPart};
use crate::wire::metadata::MetadataBytes;
use std::net::SocketAddr;
use std::time::Duration;
use trunkline_transport::{
    Awaited, Connect, Origin, PeerDown, PeerEvent, PollerIndex, SessionNumber, Toward, Upper as _,
};

/// Creates a node with a session to a server of this many pollers.
fn connected(pollers: u16) -> Rig {
    let mut rig = Rig::new();
    rig.peer(server().peer, PeerEvent::Up { session: SessionNumber(1), epoch: 1, pollers });
    rig
}

/// Returns the poller of the server that gets the first call, of two pollers.
fn asked() -> Origin {
    Origin { poller: PollerIndex(1), ..server() }
}

fn drained() -> Vec<u8> {
    frame(Header::Drained, &[], &[])
}

fn down() -> PeerEvent {
    PeerEvent::Down { cause: PeerDown::Closed }
}

/// Returns the pollers to which DRAINED was sent.
fn told(rig: &mut Rig) -> Vec<Toward> {
    let frames = sent(rig).into_iter().filter(|(_, header)| *header == Header::Drained);
    frames.map(|(given, _)| given.toward).collect()
}

#[test]
fn calls_that_a_server_did_not_take_have_not_run() {
    for is_delivered in [true, false] {
        let mut rig = connected(2);
        rig.carrier.leaves_through = Some(SessionNumber(1));
        rig.carrier.sessions_are_over = is_delivered;
        let (mut getter, token) = call(&mut rig, ECHO);
        rig.message(asked(), drained());
        if !is_delivered {
            rig.sent(token, failed(true));
        }
        rig.peer(server().peer, down());
        let status = status(&mut getter);
        let kind = (status.reason(), status.may_have_run());
        assert_eq!(kind, (Some(Reason::Draining), false), "{status}");
    }
}

#[test]
fn other_calls_may_have_run() {
    // Another poller, another peer, a session before, the frame of another session, a one-way call.
    let other = Origin { peer: super::other(99), ..asked() };
    for (from, reconnects, method) in [
        (Origin { poller: PollerIndex(0), ..asked() }, false, ECHO),
        (Origin { poller: PollerIndex(3), ..asked() }, false, ECHO),
        (other, false, ECHO),
        (asked(), true, ECHO),
        (Origin { session: SessionNumber(9), ..asked() }, false, ECHO),
        (asked(), false, HANG_UNHEARD),
    ] {
        let mut rig = connected(2);
        if reconnects {
            rig.message(from, drained());
            rig.peer(server().peer, down());
            rig.peer(server().peer, PeerEvent::Up { session: SessionNumber(2), epoch: 2, pollers: 2 });
        }
        let mut getter = rig.submit(PORT, method, LONG, method.one_way);
        rig.run();
        if !reconnects {
            rig.message(from, drained());
        }
        let token = rig.carrier.given.last().unwrap().token;
        rig.sent(token, failed(true));
        assert!(status(&mut getter).may_have_run(), "{from:?}");
    }
}

#[test]
fn a_drained_server_gets_no_calls_until_its_next_session() {
    let mut rig = connected(2);
    rig.message(Origin { poller: PollerIndex(0), ..asked() }, drained());
    for method in [ECHO, HANG_UNHEARD] {
        let mut getter = rig.submit(PORT, method, LONG, method.one_way);
        rig.run();
        let status = status(&mut getter);
        let kind = (status.reason(), status.may_have_run());
        assert_eq!(kind, (Some(Reason::Draining), false), "{status}");
    }
    assert!(rig.carrier.given.is_empty());
    rig.peer(server().peer, down());
    rig.peer(server().peer, PeerEvent::Up { session: SessionNumber(2), epoch: 2, pollers: 2 });
    let _getter = rig.submit(PORT, ECHO, LONG, false);
    rig.run();
    assert_eq!(rig.carrier.given.len(), 1);
}

#[test]
fn peers_are_told_once_all_is_answered_and_later_ones_too() {
    let mut rig = connected(2);
    rig.poller.shutdown(&mut rig.carrier);
    assert_eq!(told(&mut rig), []);
    let all = [0, 1].map(|poller| Toward::Poller(PollerIndex(poller)));
    rig.poller.settled(&mut rig.carrier, server().peer);
    assert_eq!(told(&mut rig), all);
    rig.peer(super::other(99), PeerEvent::Up { session: SessionNumber(1), epoch: 1, pollers: 2 });
    assert_eq!(told(&mut rig), []);
    rig.poller.settled(&mut rig.carrier, super::other(99));
    assert_eq!(told(&mut rig), all);
}

#[test]
fn peer_has_ended_while_the_calls_of_others_run() {
    let mut rig = connected(2);
    rig.message(server(), frame(Header::Request(request(HANG, 1)), &[], &[]));
    rig.run();
    assert!(!rig.poller.has_ended(server().peer) && rig.poller.has_ended(super::other(99)));
}

/// Returns the refusal of a call by a server that drains.
fn refusal(call: u64) -> Vec<u8> {
    let by = By::Node { reason: Some(Reason::Draining), ran: false };
    let code = Code::Unavailable.number();
    frame(Header::Reply { call, code, by, number: None, metadata: MetadataBytes::default() }, &[], &[])
}

#[test]
fn call_that_waits_for_a_connection_outlives_the_drain_of_its_server() {
    // The server refuses the call, or has not taken it when it closes the session.
    for is_refused in [true, false] {
        let mut rig = connected(1);
        let link = Link::new(&rig.routes, Target::from(SocketAddr::from(([127, 0, 0, 1], PORT))));
        rig.carrier.leaves_through = Some(SessionNumber(1));
        rig.carrier.sessions_are_over = !is_refused;
        let mut first = rig.submit_by(&link, Connect::Wait, LONG);
        rig.run();
        let token = rig.carrier.given[0].token;
        rig.message(server(), if is_refused { refusal(token.0) } else { drained() });
        let mut second = rig.submit_by(&link, Connect::Wait, LONG);
        let mut late = rig.submit_by(&link, Connect::Wait, Duration::from_millis(1));
        let dropped = rig.submit_by(&link, Connect::Wait, LONG);
        rig.run();
        assert!(first.try_take().is_none() && second.try_take().is_none());
        drop(dropped);
        rig.inbox.ask_for_sweep();
        rig.carrier.wait(Duration::from_millis(1));
        rig.run();
        let expired = status(&mut late);
        assert_eq!((expired.code(), expired.may_have_run()), (Code::DeadlineExceeded, false), "{expired}");
        assert!(expired.message().contains("is shutting down"), "{expired}");
        assert_eq!(rig.carrier.given.len(), 1, "a server that drains is not asked again");
        rig.peer(server().peer, down());
        rig.peer(server().peer, PeerEvent::Up { session: SessionNumber(2), epoch: 2, pollers: 1 });
        rig.run();
        let given = std::mem::take(&mut rig.carrier.given);
        assert_eq!(given.len(), 3);
        let arguments = |given: &Given| given.bytes.last().copied();
        assert!(given.iter().all(|other| arguments(other) == arguments(&given[0])));
        let next = Origin { session: SessionNumber(2), ..server() };
        for given in &given[1..] {
            rig.message(next, super::reply(given.token));
        }
        assert!(first.try_take().unwrap().unwrap().is_ok() && second.try_take().unwrap().unwrap().is_ok());
        assert_eq!(rig.poller.sizes(), (0, 0));
    }
}

#[test]
fn stream_that_a_draining_server_refuses_is_opened_again() {
    let mut rig = connected(1);
    rig.carrier.leaves_through = Some(SessionNumber(1));
    let (_wait, _opened) = rig.open_with(PORT, FEED, no_items(), Connect::Wait);
    rig.run();
    let token = rig.carrier.given[0].token;
    rig.message(server(), refusal(token.0));
    rig.run();
    assert_eq!(rig.carrier.given.len(), 1);
    rig.peer(server().peer, down());
    rig.run();
    let given = sent(&mut rig);
    assert!(matches!(given[1].1, Header::Request(RequestHeader { opens: true, .. })), "{given:?}");
}

/// Otherwise the items of two servers would come as those of one stream.
#[test]
fn stream_that_a_server_has_accepted_is_not_opened_again() {
    for is_accepted in [false, true] {
        let mut rig = connected(1);
        rig.carrier.leaves_through = Some(SessionNumber(1));
        let (_wait, _opened) = rig.open_with(PORT, FEED, no_items(), Connect::Wait);
        rig.run();
        let call = rig.carrier.given[0].token.0;
        if is_accepted {
            let accept = Header::Stream(StreamHeader { call, from_caller: false, part: StreamPart::Accept });
            rig.message(server(), frame(accept, &[], &[]));
        }
        rig.message(server(), refusal(call));
        rig.run();
        assert_eq!(rig.poller.sizes().0, usize::from(!is_accepted));
    }
}

/// Without probes, a peer that vanishes while it drains keeps its session here for ever.
#[test]
fn server_that_drains_is_probed_until_its_session_ends() {
    let mut rig = connected(1);
    let awaited = |rig: &Rig| rig.poller.awaited().get(&server().peer).copied();
    assert_eq!(awaited(&rig), None);
    rig.message(server(), drained());
    assert_eq!(awaited(&rig), Some(Awaited::Interest));
    let _held = rig.submit_waiting(PORT, LONG, AdmissionClass::Waits);
    rig.run();
    assert_eq!(awaited(&rig), Some(Awaited::Reply));
    rig.peer(server().peer, down());
    assert_eq!(awaited(&rig), None);
}

/// The server drains and never ends its session.
#[test]
fn calls_that_do_not_wait_for_room_are_held_up_to_a_limit() {
    const MOST: usize = 65_536;
    let mut rig = connected(1);
    rig.message(server(), drained());
    let mut held = Vec::new();
    while held.len() < MOST {
        held.extend((0..128).map(|_| rig.submit_waiting(PORT, LONG, AdmissionClass::Tries)));
        rig.run();
    }
    let [mut refused, mut nested, mut waits] =
        [AdmissionClass::Tries, AdmissionClass::Reserved, AdmissionClass::Waits]
            .map(|entry| rig.submit_waiting(PORT, LONG, entry));
    rig.run();
    assert_eq!(rig.poller.sizes().0, MOST + 1);
    for refused in [&mut refused, &mut nested] {
        let status = status(refused);
        let kind = (status.code(), status.reason(), status.may_have_run());
        assert_eq!(kind, (Code::ResourceExhausted, Some(Reason::Overloaded), false), "{status}");
    }
    assert!(waits.try_take().is_none());
    // Their deadlines end them all.
    rig.carrier.wait(LONG);
    rig.run();
    assert_eq!(rig.poller.sizes().0, 0);
}

#[test]
fn draining_server_is_known_to_drain_in_this_session() {
    let drains = |rig: &Rig| rig.routes.session(server().peer).map(|session| session.drains);
    for says_so in [drained(), refusal(77)] {
        let mut rig = connected(2);
        rig.message(Origin { session: SessionNumber(9), ..asked() }, says_so.clone());
        assert_eq!(drains(&rig), Some(false));
        rig.message(asked(), says_so);
        assert_eq!(drains(&rig), Some(true));
        rig.peer(server().peer, down());
        assert_eq!(drains(&rig), None);
        rig.peer(server().peer, PeerEvent::Up { session: SessionNumber(2), epoch: 2, pollers: 2 });
        assert_eq!(drains(&rig), Some(false));
    }
}

#[test]
fn peer_whose_call_had_no_reply_is_not_told() {
    let mut rig = connected(2);
    let late = RequestHeader { time_left_us: 1000, ..request(HANG, 1) };
    rig.message(server(), frame(Header::Request(late), &[], &[]));
    rig.carrier.wait(Duration::from_millis(1));
    rig.run();
    assert_eq!(rig.poller.sizes(), (0, 0));
    rig.poller.settled(&mut rig.carrier, server().peer);
    assert_eq!(told(&mut rig), []);
    // DRAINED has no effect on the next session.
    rig.peer(server().peer, down());
    rig.peer(server().peer, PeerEvent::Up { session: SessionNumber(1), epoch: 1, pollers: 2 });
    rig.poller.settled(&mut rig.carrier, server().peer);
    assert_eq!(told(&mut rig).len(), 2);
}
