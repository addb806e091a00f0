//! Method numbers: first use, and expiry with the session.

use super::{HANG_UNHEARD, LONG, PORT, call, failed, frame, number, other, request, sent, server, status};
use crate::node::budgets::Limits;
use crate::server::Service;
use crate::status::Code;
use crate::status::reason::Reason;
use crate::upper::fake::{ECHO, HANG, METHODS, Rig};
use crate::wire::frame::{Asked, By, Header, RequestHeader};
use crate::wire::metadata::MetadataBytes;
use std::time::Duration;
use trunkline_transport::{Limit, Origin, PeerDown, PeerEvent, SendOutcome, SessionNumber, Turn};
use trunkline_verbs::Clock;

fn up(rig: &mut Rig) {
    rig.peer(server().peer, PeerEvent::Up { session: SessionNumber(1), epoch: 1, pollers: 2 });
}

/// Returns the next call's name for `ECHO`, and the session that it is bound to.
fn asked(rig: &mut Rig) -> (Asked, Option<SessionNumber>) {
    let _call = call(rig, ECHO);
    let (given, header) = sent(rig).pop().expect("a request");
    let Header::Request(RequestHeader { asked, .. }) = header else { panic!("a request") };
    (asked, given.session)
}

fn by_hash() -> (Asked, Option<SessionNumber>) {
    (Asked::from(ECHO), None)
}

fn by_number() -> (Asked, Option<SessionNumber>) {
    (Asked::Number(0), Some(server().session))
}

/// Creates a rig that has learned a peer's number of `ECHO` from a reply.
fn taught() -> Rig {
    let mut rig = Rig::new();
    up(&mut rig);
    let (_getter, token) = call(&mut rig, ECHO);
    let reply = Header::Reply {
        call: token.0,
        code: 0,
        by: By::Handler,
        number: number(ECHO),
        metadata: MetadataBytes::default(),
    };
    rig.message(server(), frame(reply, &[], &[]));
    rig
}

#[test]
fn a_number_is_used_from_the_first_reply_to_the_end_of_the_session() {
    let mut rig = Rig::new();
    up(&mut rig);
    assert_eq!(asked(&mut rig), by_hash());
    let mut rig = taught();
    assert_eq!(asked(&mut rig), by_number());
    rig.peer(other(99), PeerEvent::Down { cause: PeerDown::Died });
    assert_eq!(asked(&mut rig), by_number());
    rig.peer(server().peer, PeerEvent::Down { cause: PeerDown::Died });
    assert_eq!(asked(&mut rig), by_hash());
    up(&mut rig);
    assert_eq!(asked(&mut rig), by_hash());
    // A late number belongs to a session that is over.
    rig.peer(server().peer, PeerEvent::Down { cause: PeerDown::Died });
    rig.message(server(), frame(Header::Number { call: 1, number: number(ECHO).unwrap() }, &[], &[]));
    assert_eq!(asked(&mut rig), by_hash());
}

#[test]
fn a_call_made_when_its_numbers_session_has_ended_goes_by_hash_unless_it_is_ordered() {
    let mut rig = taught();
    rig.carrier.sessions_are_over = true;
    assert_eq!(asked(&mut rig), by_hash());
    rig.order = Some(Turn::new(0));
    let mut refused = rig.submit(PORT, ECHO, LONG, false);
    rig.run();
    assert!(sent(&mut rig).is_empty(), "it must not follow others into the next session");
    let status = status(&mut refused);
    assert!(status.code() == Code::Aborted && !status.may_have_run(), "{status}");
    rig.order = None;
    rig.carrier.sessions_are_over = false;
    assert_eq!(asked(&mut rig), by_number());
}

#[test]
fn a_number_of_another_session_takes_the_place_of_the_last() {
    let mut rig = taught();
    let next = Origin { session: SessionNumber(2), ..server() };
    let mut moved = number(ECHO).unwrap();
    moved.number = 7;
    rig.message(next, frame(Header::Number { call: 1, number: moved }, &[], &[]));
    assert_eq!(asked(&mut rig), (Asked::Number(7), Some(next.session)));
}

#[test]
fn numbers_that_nobody_asked_for_are_not_kept() {
    let mut rig = Rig::new();
    up(&mut rig);
    rig.message(server(), frame(Header::Number { call: 1, number: number(ECHO).unwrap() }, &[], &[]));
    assert_eq!(asked(&mut rig), by_hash());
    // The schema of another version was not checked by the server.
    let mut newer = number(ECHO).unwrap();
    newer.schema.version += 1;
    rig.message(server(), frame(Header::Number { call: 1, number: newer }, &[], &[]));
    assert_eq!(asked(&mut rig), by_hash());
    rig.message(server(), frame(Header::Number { call: 1, number: number(ECHO).unwrap() }, &[], &[]));
    assert_eq!(asked(&mut rig), by_number());
}

#[test]
fn a_request_that_fails_or_is_refused_by_its_number_asks_again() {
    let mut rig = taught();
    let (_getter, token) = call(&mut rig, ECHO);
    rig.sent(token, failed(false));
    assert_eq!(asked(&mut rig), by_hash());

    let mut rig = taught();
    let (mut getter, token) = call(&mut rig, ECHO);
    let by = By::Node { reason: Some(Reason::NoMethod), ran: false };
    let refusal = Header::Reply {
        call: token.0,
        code: Code::Unimplemented.number(),
        by,
        number: None,
        metadata: MetadataBytes::default(),
    };
    rig.message(server(), frame(refusal, &[0; 5], &[]));
    let refused = status(&mut getter);
    assert_eq!((refused.reason(), refused.may_have_run()), (Some(Reason::NoMethod), false));
    assert_eq!(asked(&mut rig), by_hash());
}

#[test]
fn a_server_takes_its_numbers_and_no_others() {
    let mut rig = Rig::new();
    let numbered = |number, call| RequestHeader { asked: Asked::Number(number), ..request(ECHO, call) };
    rig.message(server(), frame(Header::Request(numbered(0, 1)), &[], b"body"));
    let [(given, header)] = sent(&mut rig).try_into().unwrap();
    assert_eq!(
        header,
        Header::Reply { call: 1, code: 0, by: By::Handler, number: None, metadata: MetadataBytes::default() }
    );
    assert!(given.bytes.ends_with(b"body"), "it is the echo");
    // The service has eight methods.
    for number in [8, 9, 0xfffe] {
        rig.message(server(), frame(Header::Request(numbered(number, 2)), &[], b"body"));
        let [(_, header)] = sent(&mut rig).try_into().unwrap();
        let by = By::Node { reason: Some(Reason::NoMethod), ran: false };
        assert_eq!(
            header,
            Header::Reply {
                call: 2,
                code: Code::Unimplemented.number(),
                by,
                number: None,
                metadata: MetadataBytes::default()
            }
        );
    }
    assert_eq!(rig.poller.sizes(), (0, 0));
}

#[test]
fn refusals_carry_the_number_of_a_method_that_there_is() {
    let mut rig = Rig::new();
    rig.inbox.lifecycle().begin_drain();
    let mut newer = request(HANG, 3);
    if let Asked::Method(method) = &mut newer.asked {
        method.schema.version += 1;
    }
    // A draining node reports no refusal of a one-way call.
    let one_way = RequestHeader { one_way: true, ..request(HANG_UNHEARD, 4) };
    for header in [request(HANG, 1), one_way, request(&METHODS[11], 2), newer] {
        rig.message(server(), frame(Header::Request(header), &[], &[]));
    }
    let numbers = sent(&mut rig).into_iter().map(|(_, header)| match header {
        Header::Reply { number, by: By::Node { ran: false, .. }, .. } => number,
        other => panic!("{other:?} is no refusal"),
    });
    assert_eq!(numbers.collect::<Vec<_>>(), [number(HANG), None, None]);
}

#[test]
fn a_one_way_request_that_is_not_served_is_counted_at_both_ends() {
    let mut rig = Rig::new();
    let one_way = |method| RequestHeader { one_way: true, ..request(method, 4) };
    let unknown = RequestHeader { asked: Asked::Number(9), ..one_way(ECHO) };
    // An unknown method, a method with a reply, and an unknown number.
    for header in [one_way(&METHODS[11]), one_way(ECHO), unknown] {
        rig.message(server(), frame(Header::Request(header), &[], &[]));
        let [(_, header)] = sent(&mut rig).try_into().unwrap();
        let by = By::Node { reason: Some(Reason::NoMethod), ran: false };
        assert_eq!(
            header,
            Header::Reply {
                call: 4,
                code: Code::Unimplemented.number(),
                by,
                number: None,
                metadata: MetadataBytes::default()
            }
        );
    }
    assert_eq!(rig.inbox.lifecycle().counters.not_served.count(), 3);
    // At the caller, whether or not the call is over.
    let mut rig = taught();
    let mut getter = rig.submit(PORT, HANG_UNHEARD, LONG, true);
    rig.run();
    let token = rig.carrier.given.last().expect("it was sent").token;
    let by = By::Node { reason: Some(Reason::NoMethod), ran: false };
    let refusal = Header::Reply {
        call: token.0,
        code: Code::Unimplemented.number(),
        by,
        number: None,
        metadata: MetadataBytes::default(),
    };
    rig.message(server(), frame(refusal, &[], &[]));
    assert!(getter.try_take().is_none(), "the call ends with its delivery");
    rig.sent(token, SendOutcome::Delivered);
    assert!(getter.try_take().unwrap().unwrap().is_ok());
    rig.message(server(), frame(refusal, &[], &[]));
    assert_eq!(rig.inbox.lifecycle().counters.not_served_by_peers.count(), 2);
    assert_eq!(asked(&mut rig), by_hash(), "its numbers are not trusted any more");
}

#[test]
fn a_one_way_request_that_fails_is_counted_at_the_server() {
    let handlers = Limit { per_peer: 1, in_all: 1 };
    let mut rig = Rig::with_limits(Limits { handlers, ..Limits::default() });
    let ask = |rig: &mut Rig, method, time_left_us, encoded: &[u8]| {
        let header = RequestHeader { one_way: true, time_left_us, ..request(method, 4) };
        rig.message(server(), frame(Header::Request(header), encoded, &[]));
        let replied = sent(rig).iter().any(|(_, header)| matches!(header, Header::Reply { .. }));
        assert!(!replied, "it has no reply");
        rig.inbox.lifecycle().counters.one_way_failed.count()
    };
    assert_eq!(ask(&mut rig, &METHODS[6], 0, &[9]), 1, "bad arguments");
    let mut unreadable =
        frame(Header::Request(RequestHeader { one_way: true, ..request(ECHO, 4) }), &[], &[]);
    unreadable[1] |= 0x80;
    rig.message(server(), unreadable);
    assert_eq!(rig.inbox.lifecycle().counters.one_way_failed.count(), 2, "unknown flags");
    assert_eq!(ask(&mut rig, HANG_UNHEARD, 1000, &[]), 2, "it runs");
    assert_eq!(ask(&mut rig, HANG_UNHEARD, 0, &[]), 3, "a limit of one handler");
    rig.carrier.wait(Duration::from_millis(1));
    rig.run();
    assert_eq!(rig.inbox.lifecycle().counters.one_way_failed.count(), 4, "its time is over");
    rig.inbox.lifecycle().begin_drain();
    assert_eq!(ask(&mut rig, HANG_UNHEARD, 0, &[]), 4, "refusals of a draining node have another counter");
    assert_eq!(
        (rig.inbox.lifecycle().counters.not_served.count(), rig.inbox.lifecycle().counters.refused.count()),
        (0, 1)
    );
    let panics = Service::new(HANG_UNHEARD.service, |_, methods| {
        methods.add(HANG_UNHEARD, |_| async { panic!("on purpose") });
        Ok(())
    });
    let mut rig = Rig::serving(panics, Clock::monotonic(), Limits::default(), None);
    assert_eq!(ask(&mut rig, HANG_UNHEARD, 0, &[]), 1, "a panic");
}

#[test]
fn unknown_critical_extensions_are_answered_by_their_number() {
    let mut rig = Rig::new();
    let with_extension = |one_way, flags| {
        let mut bytes = frame(Header::Request(RequestHeader { one_way, ..request(ECHO, 1) }), &[], b"body");
        // After METHOD, which has 28 bytes.
        bytes.splice(60..60, [200, flags, 1, 0, 7]);
        bytes[24] += 5;
        bytes
    };
    rig.message(server(), with_extension(false, 1));
    let [(given, header)] = sent(&mut rig).try_into().unwrap();
    let by = By::Node { reason: Some(Reason::UnknownExtension), ran: false };
    assert_eq!(
        header,
        Header::Reply {
            call: 1,
            code: Code::Unimplemented.number(),
            by,
            number: None,
            metadata: MetadataBytes::default()
        }
    );
    let text = String::from_utf8_lossy(&given.bytes).into_owned();
    assert!(text.contains("extension 200 is unknown and critical"), "{text}");
    assert_eq!(rig.inbox.lifecycle().counters.unknown_extensions.count(), 1);
    rig.message(server(), with_extension(true, 1));
    assert!(sent(&mut rig).is_empty(), "nobody waits for an answer");
    assert_eq!(rig.inbox.lifecycle().counters.unknown_extensions.count(), 2);
    // An extension that is not critical is ignored.
    rig.message(server(), with_extension(false, 0));
    let [(given, _)] = sent(&mut rig).try_into().unwrap();
    assert!(given.bytes.ends_with(b"body"));
    assert_eq!(rig.inbox.lifecycle().counters.unknown_extensions.count(), 2);
}

#[test]
fn a_reply_that_cannot_be_read_ends_its_call() {
    let mut rig = Rig::new();
    let (mut getter, token) = call(&mut rig, ECHO);
    let reply = Header::Reply {
        call: token.0,
        code: 0,
        by: By::Handler,
        number: None,
        metadata: MetadataBytes::default(),
    };
    let mut bytes = frame(reply, &[], b"answer");
    bytes.splice(24..24, [200, 1, 0, 0]);
    bytes[20] = 4;
    rig.message(Origin { peer: other(99), ..server() }, bytes.clone());
    assert!(getter.try_take().is_none(), "that was another");
    rig.message(server(), bytes);
    let status = status(&mut getter);
    assert_eq!((status.reason(), status.may_have_run()), (Some(Reason::UnknownExtension), true), "{status}");
    assert!(status.message().contains("extension 200"), "{status}");
}

#[test]
fn a_call_of_the_other_kind_starts_no_handler() {
    let mut rig = Rig::new();
    rig.message(server(), frame(Header::Request(request(HANG, 1)), &[], &[]));
    let by_number = |method| Asked::Number(number(method).unwrap().number);
    for asked in [HANG.into(), by_number(HANG)] {
        let header = RequestHeader { one_way: true, asked, ..request(HANG, 2) };
        rig.message(server(), frame(Header::Request(header), &[], &[]));
    }
    assert_eq!(rig.poller.sizes().1, 1, "it would outlive its session");
    for asked in [HANG_UNHEARD.into(), by_number(HANG_UNHEARD)] {
        let header = RequestHeader { asked, ..request(HANG_UNHEARD, 3) };
        rig.message(server(), frame(Header::Request(header), &[], &[]));
    }
    assert_eq!(rig.poller.sizes().1, 1);
    let refused = sent(&mut rig).into_iter().map(|(_, header)| match header {
        Header::Reply { call, by: By::Node { reason, ran: false }, .. } => (call, reason),
        other => panic!("{other:?} is no refusal"),
    });
    assert_eq!(refused.collect::<Vec<_>>(), [2, 2, 3, 3].map(|call| (call, Some(Reason::NoMethod))));
}
