//! Admission without room: waiting calls, refused calls, and the order in which they leave.

use super::{FULL, LONG, PORT, failed, reply, sent, server, status};
use crate::call::{AdmissionClass, Outcome};
use crate::node::budgets::Limits;
use crate::status::Code;
use crate::status::reason::Reason;
use crate::upper::fake::{ECHO, HANG, Rig};
use std::time::Duration;
use trunkline_machine::rings::cell::Getter;
use trunkline_transport::{Limit, Origin, PeerDown, PeerEvent, SendError, Token, Turn, Upper as _};

const OTHER: u16 = 18;
const SHORT: Duration = Duration::from_millis(100);
const MS: Duration = Duration::from_millis(1);

/// Creates a node that may have `per_peer` calls under way to one peer, one of them by handlers.
pub(super) fn rig(per_peer: usize) -> Rig {
    let calls = Limit { per_peer, in_all: per_peer.max(100) };
    Rig::with_limits(Limits { calls, ..Limits::default() })
}

fn submit(rig: &mut Rig, port: u16, entry: AdmissionClass) -> Getter<Outcome> {
    let getter = rig.submit_with(port, ECHO, LONG, false, entry);
    rig.run();
    getter
}

pub(super) fn waits(getter: &mut Getter<Outcome>) -> bool {
    getter.try_take().is_none()
}

/// Returns the tokens of messages sent since the last time.
pub(super) fn tokens(rig: &mut Rig) -> Vec<Token> {
    sent(rig).into_iter().map(|(given, _)| given.token).collect()
}

#[test]
fn calls_wait_in_line_and_leave_when_others_have_ended() {
    let mut rig = rig(3);
    let mut calls = [(); 5].map(|()| submit(&mut rig, PORT, AdmissionClass::Waits));
    let first = tokens(&mut rig);
    assert_eq!(first.len(), 2);
    assert!(calls.iter_mut().all(waits) && !rig.poller.is_ready());
    assert!(rig.poller.next_timer() <= Some(rig.carrier.now + MS), "room may come from another poller");
    rig.message(server(), reply(first[1]));
    assert!(rig.poller.is_ready(), "there is room");
    rig.run();
    let next = tokens(&mut rig);
    assert_eq!((next.len(), waits(&mut calls[0]), waits(&mut calls[1])), (1, true, false));
    for token in [first[0], next[0]] {
        rig.message(server(), reply(token));
    }
    rig.run();
    let last = tokens(&mut rig);
    assert_eq!(last.len(), 2);
    last.into_iter().for_each(|token| rig.message(server(), reply(token)));
    assert!([0, 2, 3, 4].iter().all(|&at: &usize| !waits(&mut calls[at])));
    rig.run();
    assert_eq!((rig.poller.sizes(), rig.poller.next_timer()), ((0, 0), None));
}

#[test]
fn room_that_comes_from_elsewhere_is_found_within_a_millisecond() {
    let mut rig = rig(3);
    rig.carrier.refusal = Some(SendError::QueueFull(FULL));
    let mut call = submit(&mut rig, PORT, AdmissionClass::Waits);
    rig.carrier.refusal = None;
    rig.carrier.wait(MS / 2);
    rig.run();
    assert!(tokens(&mut rig).is_empty(), "it does not look all the time");
    rig.carrier.wait(MS / 2);
    rig.run();
    let message = sent(&mut rig).pop().expect("it leaves");
    assert!(message.0.bytes.ends_with(b"\x07body"), "it is whole: {:?}", message.0.bytes);
    rig.message(server(), reply(message.0.token));
    assert!(!waits(&mut call));
}

#[test]
fn a_call_that_waits_in_vain_ends_by_its_deadline() {
    let mut rig = rig(2);
    let _held = submit(&mut rig, PORT, AdmissionClass::Waits);
    let mut late = rig.submit_with(PORT, ECHO, SHORT, false, AdmissionClass::Waits);
    rig.run();
    rig.carrier.wait(SHORT);
    rig.run();
    let late = status(&mut late);
    assert_eq!((late.code(), late.reason()), (Code::DeadlineExceeded, Some(Reason::Expired)), "{late}");
    assert!(!late.may_have_run());
    for part in ["waited for room", "one peer's budget of calls under way (2)", "call_limit", "reserved"] {
        assert!(late.message().contains(part), "{late}");
    }

    rig.carrier.refusal = Some(SendError::QueueFull(FULL));
    let mut late = rig.submit_with(OTHER, ECHO, SHORT, false, AdmissionClass::Waits);
    rig.run();
    rig.carrier.wait(SHORT);
    rig.run();
    let late = status(&mut late);
    assert_eq!((late.code(), late.may_have_run()), (Code::DeadlineExceeded, false), "{late}");
    assert!(late.message().contains("; queued_messages raises it"), "{late}");
}

#[test]
fn who_only_tries_is_refused_at_once_also_while_others_wait() {
    let mut rig = rig(2);
    let _held = submit(&mut rig, PORT, AdmissionClass::Waits);
    let mut first = submit(&mut rig, PORT, AdmissionClass::Tries);
    let refused = status(&mut first);
    assert_eq!((refused.code(), refused.reason()), (Code::ResourceExhausted, Some(Reason::Overloaded)));
    assert!(!refused.may_have_run() && refused.message().contains("call_limit"), "{refused}");
    let mut waiting = submit(&mut rig, PORT, AdmissionClass::Waits);
    let token = tokens(&mut rig)[0];
    rig.message(server(), reply(token));
    // The waiting call is first.
    let mut second = submit(&mut rig, PORT, AdmissionClass::Tries);
    assert_eq!(status(&mut second).code(), Code::ResourceExhausted);
    assert!(waits(&mut waiting) && tokens(&mut rig).len() == 1);
}

#[test]
fn calls_of_handlers_have_a_share_that_no_others_use() {
    let mut rig = rig(3);
    let _held = [(); 3].map(|()| submit(&mut rig, PORT, AdmissionClass::Waits));
    let mut nested = submit(&mut rig, PORT, AdmissionClass::Reserved);
    assert!(waits(&mut nested) && tokens(&mut rig).len() == 3, "it overtakes what waits");
    let mut beyond = submit(&mut rig, PORT, AdmissionClass::Reserved);
    let beyond = status(&mut beyond);
    assert_eq!((beyond.code(), beyond.reason()), (Code::ResourceExhausted, Some(Reason::Overloaded)));
    assert_eq!(beyond.origin(), crate::Origin::Local);
    assert!(!beyond.may_have_run());
}

#[test]
fn a_limit_of_one_has_no_share_to_reserve() {
    let mut rig = rig(1);
    let mut outside = submit(&mut rig, PORT, AdmissionClass::Waits);
    assert!(waits(&mut outside) && tokens(&mut rig).len() == 1);
    let mut nested = submit(&mut rig, PORT, AdmissionClass::Reserved);
    assert_eq!(status(&mut nested).reason(), Some(Reason::Overloaded));
}

#[test]
fn a_peer_without_room_holds_up_no_other() {
    let mut rig = rig(2);
    let _blocked = [(); 3].map(|()| submit(&mut rig, PORT, AdmissionClass::Waits));
    tokens(&mut rig);
    let _others = [(); 2].map(|()| submit(&mut rig, OTHER, AdmissionClass::Waits));
    let token = tokens(&mut rig)[0];
    let other = Origin { peer: super::other(OTHER), ..server() };
    rig.message(other, reply(token));
    rig.run();
    assert_eq!(tokens(&mut rig).len(), 1, "the second one to the other peer");
}

#[test]
fn a_dropped_call_leaves_the_line() {
    let mut rig = rig(2);
    let _held = submit(&mut rig, PORT, AdmissionClass::Waits);
    let dropped = submit(&mut rig, PORT, AdmissionClass::Waits);
    let mut last = rig.submit_with(PORT, HANG, LONG, false, AdmissionClass::Waits);
    rig.run();
    assert_eq!(rig.poller.sizes().0, 3);
    drop(dropped);
    rig.inbox.ask_for_sweep();
    rig.run();
    rig.carrier.wait(MS);
    rig.run();
    assert_eq!(rig.poller.sizes().0, 2, "it is found with nobody's end");
    let token = tokens(&mut rig)[0];
    rig.message(server(), reply(token));
    rig.run();
    assert!(waits(&mut last) && tokens(&mut rig).len() == 1);
}

#[test]
fn ordered_calls_are_not_overtaken_by_those_of_handlers() {
    let mut rig = rig(3);
    let ordered = |rig: &mut Rig, entry, order| {
        let getter = rig.submit_ordered(PORT, LONG, entry, Some(Turn::new(order)));
        rig.run();
        getter
    };
    let _held = [(); 3].map(|()| ordered(&mut rig, AdmissionClass::Waits, 7));
    assert_eq!(tokens(&mut rig).len(), 2);
    let mut nested = ordered(&mut rig, AdmissionClass::Reserved, 7);
    assert_eq!(status(&mut nested).reason(), Some(Reason::Overloaded), "one of its channel waits");
    let mut nested = ordered(&mut rig, AdmissionClass::Reserved, 8);
    assert!(waits(&mut nested) && tokens(&mut rig).len() == 1);
}

#[test]
fn ordered_calls_that_wait_do_not_follow_others_to_another_session() {
    let mut rig = rig(2);
    let _held = submit(&mut rig, PORT, AdmissionClass::Waits);
    let mut ordered = rig.submit_ordered(PORT, LONG, AdmissionClass::Waits, Some(Turn::new(1)));
    let mut other = rig.submit_ordered(PORT, LONG, AdmissionClass::Waits, None);
    rig.run();
    let token = tokens(&mut rig)[0];
    rig.sent(token, failed(true));
    rig.peer(server().peer, PeerEvent::Down { cause: PeerDown::Died });
    let aborted = status(&mut ordered);
    assert_eq!((aborted.code(), aborted.may_have_run()), (Code::Aborted, false), "{aborted}");
    rig.run();
    assert!(waits(&mut other) && tokens(&mut rig).len() == 1);
}

#[test]
fn a_shutdown_ends_what_waits() {
    let mut rig = rig(2);
    let _held = submit(&mut rig, PORT, AdmissionClass::Waits);
    let mut waiting = submit(&mut rig, PORT, AdmissionClass::Waits);
    rig.poller.shutdown(&mut rig.carrier);
    let ended = status(&mut waiting);
    assert_eq!((ended.code(), ended.reason()), (Code::Unavailable, Some(Reason::Draining)), "{ended}");
    assert!(!ended.may_have_run());
}

#[test]
fn the_end_of_a_poller_ends_what_waits_as_not_run() {
    let mut rig = rig(2);
    let _held = submit(&mut rig, PORT, AdmissionClass::Waits);
    let mut waiting = submit(&mut rig, PORT, AdmissionClass::Waits);
    drop(rig);
    assert!(!status(&mut waiting).may_have_run());
}

#[test]
fn a_long_line_leaves_over_several_turns() {
    let mut rig = rig(1000);
    rig.carrier.refusal = Some(SendError::QueueFull(FULL));
    let _calls = (0..400).map(|_| submit(&mut rig, PORT, AdmissionClass::Waits)).collect::<Vec<_>>();
    rig.carrier.refusal = None;
    rig.carrier.wait(MS);
    rig.run();
    assert!(rig.poller.is_ready() && tokens(&mut rig).len() < 400, "messages must not wait for all of them");
    rig.run();
    assert!(!rig.poller.is_ready());
}
