//! Event orders that a real transport cannot be made to produce.

mod admission;
mod arguments;
mod deadlines;
mod drained;
mod jobs;
mod metadata;
mod numbers;
mod replies;
mod routes;
mod streams;
mod turns;

use crate::call::Outcome;
use crate::node::budgets::Limits;
use crate::status::reason::{Origin as Ended, Reason};
use crate::status::{Code, Status};
use crate::upper::fake::{ECHO, FakeCarrier, Given, HANG, LIMIT, METHODS, Rig};
use crate::wire::frame::{By, Header, Number, RequestHeader};
use crate::wire::metadata::MetadataBytes;
use crate::wire::name::MethodName;
use std::time::Duration;
use trunkline_machine::rings::cell::Getter;
use trunkline_transport::{
    Exhausted, Limit, Origin, PeerDown, PeerEvent, PeerKey, PollerIndex, SendError, SendFailure, SendOutcome,
    SessionNumber, Token, Toward, Upper as _,
};
use trunkline_verbs::VerbsError;

/// Answer of a carrier with full queues.
const FULL: Exhausted = Exhausted::Peer { name: "queued messages", limit: 7 };

const PORT: u16 = 17;
const LONG: Duration = Duration::from_secs(10);

/// Returns the key of a peer with another port.
fn other(port: u16) -> PeerKey {
    PeerKey::new(([127, 0, 0, 1], port).into())
}

fn server() -> Origin {
    Origin {
        peer: FakeCarrier::key(([127, 0, 0, 1], PORT).into()),
        session: SessionNumber(1),
        poller: PollerIndex(0),
    }
}

fn call(rig: &mut Rig, method: &'static MethodName) -> (Getter<Outcome>, Token) {
    let getter = rig.submit(PORT, method, LONG, false);
    rig.run();
    (getter, rig.carrier.given.last().expect("it was sent").token)
}

fn frame(header: Header, encoded: &[u8], body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    header.emit(u32::try_from(encoded.len()).unwrap(), &mut bytes);
    bytes.extend_from_slice(encoded);
    bytes.extend_from_slice(body);
    bytes
}

fn reply(token: Token) -> Vec<u8> {
    frame(success(token), &[], b"answer")
}

/// Returns the header of a handler's successful reply.
fn success(token: Token) -> Header {
    Header::Reply {
        call: token.0,
        code: 0,
        by: By::Handler,
        number: None,
        metadata: MetadataBytes::default(),
    }
}

fn request(method: &MethodName, call: u64) -> RequestHeader {
    let opens = method.streams.any();
    RequestHeader { call, one_way: false, opens, asked: method.into(), time_left_us: 0, metadata: 0 }
}

/// The method `HANG` without a reply.
const HANG_UNHEARD: &MethodName = &METHODS[5];

/// Returns the number of a method at the fake service, which adds its methods in this order.
fn number(method: &MethodName) -> Option<Number> {
    let number = METHODS.iter().position(|other| other == method)?;
    let (schema, method) = (method.service.schema(), method.hash);
    Some(Number { number: u16::try_from(number).ok()?, schema, method })
}

fn failed(may_have_arrived: bool) -> SendOutcome {
    SendOutcome::Failed(SendFailure { may_have_arrived, cause: PeerDown::Died })
}

fn status(getter: &mut Getter<Outcome>) -> Status {
    getter.try_take().expect("it has ended").expect("with an outcome").expect_err("with a failure")
}

/// Returns the messages sent since the last time, with their headers.
fn sent(rig: &mut Rig) -> Vec<(Given, Header)> {
    let given = std::mem::take(&mut rig.carrier.given);
    given.into_iter().map(|given| (given.clone(), Header::parse(&given.bytes).unwrap().0)).collect()
}

#[test]
fn a_reply_counts_only_from_the_peer_that_was_asked() {
    let mut rig = Rig::new();
    let (mut getter, token) = call(&mut rig, ECHO);
    rig.message(Origin { peer: other(99), ..server() }, reply(token));
    assert!(getter.try_take().is_none());
    assert_eq!(rig.poller.table.unmatched_replies, 1);
    // Another poller of the same peer may answer.
    rig.message(Origin { poller: PollerIndex(5), ..server() }, reply(token));
    let answer = getter.try_take().unwrap().unwrap().unwrap();
    assert_eq!(answer.bytes().unwrap(), "answer");
}

#[test]
fn late_and_double_replies_find_nothing() {
    let mut rig = Rig::new();
    let (mut getter, first) = call(&mut rig, ECHO);
    rig.message(server(), reply(first));
    rig.message(server(), reply(first));
    assert_eq!(rig.poller.table.unmatched_replies, 1);
    assert!(getter.try_take().unwrap().unwrap().is_ok());
    // The slot is reused, under another number.
    let (mut second, token) = call(&mut rig, ECHO);
    assert_ne!(token, first);
    assert_eq!(token.0 & 0xffff_ffff, first.0 & 0xffff_ffff, "the slot is the same");
    rig.message(server(), reply(first));
    rig.sent(first, failed(false));
    assert!(second.try_take().is_none(), "what belongs to the first does nothing to the second");
    rig.message(server(), reply(token));
    assert!(second.try_take().unwrap().unwrap().is_ok());
}

#[test]
fn a_reply_may_come_before_the_outcome_of_its_request() {
    let mut rig = Rig::new();
    let (mut getter, token) = call(&mut rig, ECHO);
    rig.message(server(), reply(token));
    rig.sent(token, SendOutcome::Delivered);
    rig.peer(server().peer, PeerEvent::Down { cause: PeerDown::Closed });
    assert!(getter.try_take().unwrap().unwrap().is_ok());
    assert_eq!(rig.poller.sizes(), (0, 0));
}

#[test]
fn a_failed_request_says_whether_it_may_have_run() {
    for may_have_arrived in [false, true] {
        let mut rig = Rig::new();
        let (mut getter, token) = call(&mut rig, ECHO);
        rig.sent(token, failed(may_have_arrived));
        let status = status(&mut getter);
        assert_eq!((status.code(), status.may_have_run()), (Code::Unavailable, may_have_arrived), "{status}");
        assert_eq!(rig.poller.next_timer(), None);
    }
    let causes = [
        (PeerDown::Deadline, Code::DeadlineExceeded),
        (PeerDown::ResourceExhausted, Code::ResourceExhausted),
        (PeerDown::NotRegistered(VerbsError::OutOfResources("keys")), Code::ResourceExhausted),
        (PeerDown::Refused("version"), Code::Unavailable),
    ];
    for (cause, code) in causes {
        let mut rig = Rig::new();
        let (mut getter, token) = call(&mut rig, ECHO);
        rig.sent(token, SendOutcome::Failed(SendFailure { may_have_arrived: false, cause }));
        assert_eq!(status(&mut getter).code(), code);
    }
}

#[test]
fn a_lost_peer_ends_the_calls_that_lie_there() {
    let mut rig = Rig::new();
    let (mut delivered, token) = call(&mut rig, ECHO);
    let (mut waiting, _) = call(&mut rig, ECHO);
    rig.sent(token, SendOutcome::Delivered);
    rig.peer(other(99), PeerEvent::Down { cause: PeerDown::Died });
    assert!(delivered.try_take().is_none(), "that was another");
    rig.peer(server().peer, PeerEvent::Down { cause: PeerDown::Died });
    let status = status(&mut delivered);
    assert_eq!((status.code(), status.may_have_run()), (Code::Unavailable, true));
    assert!(waiting.try_take().is_none(), "the carrier still has it and tells its outcome");
    assert_eq!(rig.poller.sizes(), (1, 0));
}

#[test]
fn a_one_way_call_ends_with_its_delivery_and_takes_no_reply() {
    let mut rig = Rig::new();
    let mut getter = rig.submit(PORT, ECHO, LONG, true);
    rig.run();
    let token = rig.carrier.given[0].token;
    rig.message(server(), reply(token));
    assert!(getter.try_take().is_none());
    rig.sent(token, SendOutcome::Delivered);
    assert!(getter.try_take().unwrap().unwrap().is_ok());
}

/// Each search goes through the whole queue. Calls that end together must cost only one.
#[test]
fn calls_that_end_in_the_queue_are_taken_out_of_it_by_one_search() {
    for expire in [false, true] {
        let mut rig = Rig::new();
        rig.carrier.holds_messages = true;
        let mut getters = (0..500).map(|_| call(&mut rig, ECHO).0).collect::<Vec<_>>();
        let (_kept, _) = call(&mut rig, HANG);
        if expire {
            rig.carrier.wait(LONG);
        } else {
            getters.clear();
            rig.inbox.ask_for_sweep();
        }
        rig.run();
        assert_eq!((rig.carrier.searches, rig.carrier.cancelled.len()), (1, 500 + usize::from(expire)));
        assert_eq!(rig.poller.sizes(), (usize::from(!expire), 0));
        let mut ended = getters.iter_mut().map(status);
        assert!(!ended.any(|status| status.may_have_run()));
    }
}

#[test]
fn giving_up_tells_the_poller_that_has_the_call() {
    let mut rig = Rig::new();
    rig.peer(server().peer, PeerEvent::Up { session: SessionNumber(1), epoch: 1, pollers: 3 });
    // The fake carrier gives the second call the turn 2.
    let (_first, _) = call(&mut rig, HANG);
    let (getter, token) = call(&mut rig, HANG);
    rig.sent(token, SendOutcome::Delivered);
    sent(&mut rig);
    drop(getter);
    rig.inbox.ask_for_sweep();
    assert!(rig.poller.is_ready());
    rig.run();
    assert!(!rig.poller.is_ready());
    assert!(rig.carrier.cancelled.is_empty(), "no queue is searched for what has arrived");
    let told: Vec<_> = sent(&mut rig).into_iter().map(|(given, header)| (given.toward, header)).collect();
    assert_eq!(told, [(Toward::Poller(PollerIndex(2)), Header::Cancel { call: token.0 })]);
    // The outcome of a message that has left still arrives.
    rig.sent(token, failed(true));
    assert_eq!(rig.poller.sizes(), (1, 0));
}

#[test]
fn a_call_that_is_dropped_in_the_queue_is_not_sent() {
    let mut rig = Rig::new();
    drop(rig.submit(PORT, ECHO, LONG, false));
    rig.run();
    assert!(rig.carrier.given.is_empty());
    assert_eq!(rig.poller.sizes(), (0, 0));
}

#[test]
fn a_call_that_has_not_left_ends_as_not_run_and_nobody_is_told() {
    let mut rig = Rig::new();
    rig.carrier.holds_messages = true;
    rig.peer(server().peer, PeerEvent::Up { session: SessionNumber(1), epoch: 1, pollers: 3 });
    let mut late = rig.submit(PORT, HANG, Duration::from_millis(5), false);
    let (given_up, _) = call(&mut rig, HANG);
    sent(&mut rig);
    drop(given_up);
    rig.inbox.ask_for_sweep();
    rig.carrier.wait(Duration::from_millis(5));
    rig.run();
    let status = status(&mut late);
    assert_eq!((status.code(), status.may_have_run()), (Code::DeadlineExceeded, false), "{status}");
    assert_eq!((status.origin(), status.reason()), (Ended::Local, Some(Reason::Expired)));
    assert!(sent(&mut rig).is_empty());
    assert_eq!(rig.poller.sizes(), (0, 0));
}

#[test]
fn a_deadline_ends_a_call_once_and_frees_its_timer() {
    let mut rig = Rig::new();
    let mut getter = rig.submit(PORT, HANG, Duration::from_millis(5), false);
    rig.run();
    assert_eq!(rig.poller.next_timer(), Some(rig.carrier.now + Duration::from_millis(5)));
    rig.carrier.wait(Duration::from_millis(5));
    rig.run();
    assert_eq!(status(&mut getter).code(), Code::DeadlineExceeded);
    assert_eq!(rig.poller.next_timer(), None);
}

#[test]
fn a_call_that_ends_while_connecting_names_why_there_is_no_connection() {
    let causes = [
        (Some(PeerDown::NotListening), "no connection yet: nobody listens on that port at the peer"),
        (None, "no connection yet: the first attempt to connect was not answered in time"),
    ];
    for (away, words) in causes {
        let by_timer = |rig: &mut Rig| {
            let mut getter = rig.submit(PORT, HANG, Duration::from_millis(5), false);
            rig.run();
            rig.carrier.wait(Duration::from_millis(5));
            rig.run();
            status(&mut getter)
        };
        let by_outcome = |rig: &mut Rig| {
            let (mut getter, token) = call(rig, ECHO);
            let outcome = SendFailure { may_have_arrived: false, cause: PeerDown::Deadline };
            rig.sent(token, SendOutcome::Failed(outcome));
            status(&mut getter)
        };
        for ends in [&by_timer as &dyn Fn(&mut Rig) -> _, &by_outcome] {
            let mut rig = Rig::new();
            (rig.carrier.holds_messages, rig.carrier.away) = (true, away);
            let status = ends(&mut rig);
            let kind = (status.code(), status.reason(), status.may_have_run());
            assert_eq!(kind, (Code::DeadlineExceeded, Some(Reason::Expired), false), "{status}");
            assert!(status.message().ends_with(words), "{status}");
        }
    }
}

#[test]
fn the_time_until_the_next_attempt_is_a_cause_and_not_in_the_message() {
    let [soon, later] = [40, 1300].map(|ms| {
        let mut rig = Rig::new();
        let due_in = Duration::from_millis(ms);
        rig.carrier.refusal = Some(SendError::BackingOff { cause: PeerDown::NotListening, due_in });
        let mut getter = rig.submit(PORT, ECHO, LONG, false);
        rig.run();
        status(&mut getter)
    });
    assert_eq!(soon.message(), later.message());
    let cause = |due_in| {
        format!("the next attempt to connect is due in {due_in}; calls with Connect::Wait wait for it")
    };
    assert_eq!(soon.causes(), [cause("40.0ms")]);
    assert_eq!(later.causes(), [cause("1.3s")]);
}

#[test]
fn what_the_carrier_refuses_has_not_run() {
    let refusals = [
        (SendError::QueueFull(FULL), Code::ResourceExhausted),
        (SendError::NoPeer, Code::Unavailable),
        (SendError::BackingOff { cause: PeerDown::Unreachable, due_in: LONG }, Code::Unavailable),
        (SendError::TooLarge { bytes: 5, limit: 4 }, Code::ResourceExhausted),
    ];
    for (refusal, code) in refusals {
        let mut rig = Rig::new();
        rig.carrier.refusal = Some(refusal);
        let mut getter = rig.submit(PORT, ECHO, LONG, false);
        rig.run();
        let status = status(&mut getter);
        assert_eq!((status.code(), status.may_have_run()), (code, false), "{status}");
        assert_eq!((rig.poller.sizes(), rig.poller.next_timer()), ((0, 0), None));
    }
}

#[test]
fn both_tables_are_bounded() {
    let [two, three] = [2, 3].map(|limit| Limit { per_peer: limit, in_all: limit });
    let mut rig = Rig::with_limits(Limits { handlers: two, calls: three, ..Limits::default() });
    let mut getters: Vec<_> = (0..3).map(|_| rig.submit(PORT, HANG, LONG, false)).collect();
    rig.run();
    assert!(getters[..2].iter_mut().all(|getter| getter.try_take().is_none()));
    let refused = status(&mut getters[2]);
    assert_eq!((refused.code(), refused.may_have_run()), (Code::ResourceExhausted, false));
    assert!(refused.message().contains("budget of calls under way (3)"), "{refused}");

    sent(&mut rig);
    for number in 0..3 {
        rig.message(server(), frame(Header::Request(request(HANG, number)), &[], &[]));
    }
    assert_eq!(rig.poller.sizes(), (2, 2));
    let answers: Vec<_> = sent(&mut rig).into_iter().map(|(_, header)| header).collect();
    let code = Code::ResourceExhausted.number();
    let by = By::Node { reason: Some(Reason::Overloaded), ran: false };
    assert_eq!(
        answers,
        [Header::Reply { call: 2, code, by, number: number(HANG), metadata: MetadataBytes::default() }]
    );
    // The first ends; there is room again.
    rig.message(server(), frame(Header::Cancel { call: 0 }, &[], &[]));
    rig.message(server(), frame(Header::Request(request(HANG, 3)), &[], &[]));
    assert_eq!(rig.poller.sizes(), (2, 2));
    assert!(sent(&mut rig).is_empty());
}

#[test]
fn a_peer_that_holds_handlers_leaves_some_to_others() {
    let mut rig = Rig::new();
    let [greedy, honest] = [1, 2].map(|peer| Origin { peer: other(peer), ..server() });
    for number in 0..70_000 {
        rig.message(greedy, frame(Header::Request(request(HANG, number)), &[], &[]));
    }
    let (refusal, _) = sent(&mut rig).pop().expect("the last one is refused");
    let text = String::from_utf8_lossy(&refusal.bytes).into_owned();
    assert!(text.contains("one peer's budget of running handlers (16384) is used up"), "{text}");
    let running = rig.poller.sizes().1;
    rig.message(honest, frame(Header::Request(request(HANG, 1)), &[], &[]));
    assert_eq!((rig.poller.sizes().1, sent(&mut rig).len()), (running + 1, 0), "the honest one runs");
    // The units of the greedy peer are free again when it is down.
    rig.peer(greedy.peer, PeerEvent::Down { cause: PeerDown::Died });
    assert_eq!(rig.poller.sizes().1, 1);
    rig.message(greedy, frame(Header::Request(request(HANG, 1)), &[], &[]));
    assert_eq!((rig.poller.sizes().1, sent(&mut rig).len()), (2, 0));
}

#[test]
fn who_takes_no_replies_runs_no_more_calls() {
    let mut rig = Rig::new();
    rig.carrier.refusal = Some(SendError::QueueFull(FULL));
    rig.message(server(), frame(Header::Request(request(HANG, 1)), &[], &[]));
    assert_eq!(rig.poller.sizes().1, 0, "its reply would have no room");
    let one_way = RequestHeader { one_way: true, ..request(HANG_UNHEARD, 2) };
    rig.message(server(), frame(Header::Request(one_way), &[], &[]));
    assert_eq!(rig.poller.sizes().1, 1, "a one-way call has no reply");
    assert!(sent(&mut rig).is_empty());
}

#[test]
fn servers_that_do_not_reply_leave_calls_to_those_of_other_hosts() {
    let calls = Limit { per_peer: 3, in_all: 8 };
    let mut rig = Rig::with_limits(Limits { calls, ..Limits::default() });
    let mut getters: Vec<_> =
        [PORT, PORT, PORT, 18, 18].map(|port| rig.submit(port, HANG, LONG, false)).into_iter().collect();
    rig.run();
    let texts: Vec<_> = [2, 4].map(|at| status(&mut getters[at]).to_string()).into_iter().collect();
    assert!(texts[0].contains("one peer's budget of calls under way (3)"), "{texts:?}");
    assert!(texts[1].contains("one host's budget of calls under way (4)"), "{texts:?}");
    assert!([0, 1, 3].iter().all(|&at: &usize| getters[at].try_take().is_none()));
}

#[test]
fn the_queue_into_a_poller_is_bounded() {
    let rig = Rig::new();
    let mut getters: Vec<_> = (0..5000).map(|_| rig.submit(PORT, HANG, LONG, false)).collect();
    // A refused request was dropped, and its waiter is told.
    let refused = getters.iter_mut().filter_map(Getter::try_take).filter(Result::is_err).count();
    assert_eq!(refused, 5000 - 4096);
}

#[test]
fn a_request_is_answered_to_the_one_who_asked() {
    let mut rig = Rig::new();
    let from = Origin { peer: other(4), session: SessionNumber(1), poller: PollerIndex(6) };
    rig.message(from, frame(Header::Request(request(ECHO, 8)), &[], b"body"));
    let [(given, header)] = sent(&mut rig).try_into().unwrap();
    let (to, session) = ((given.peer, given.toward), given.session);
    assert_eq!((to, session), ((from.peer, Toward::Poller(from.poller)), Some(from.session)));
    assert_eq!(
        header,
        Header::Reply {
            call: 8,
            code: 0,
            by: By::Handler,
            number: number(ECHO),
            metadata: MetadataBytes::default()
        }
    );
    assert!(given.bytes.ends_with(b"body"));
}

#[test]
fn only_the_caller_itself_can_cancel() {
    let mut rig = Rig::new();
    rig.message(server(), frame(Header::Request(request(HANG, 8)), &[], &[]));
    let cancel = frame(Header::Cancel { call: 8 }, &[], &[]);
    rig.message(Origin { peer: other(99), ..server() }, cancel.clone());
    rig.message(Origin { poller: PollerIndex(7), ..server() }, cancel.clone());
    assert_eq!(rig.poller.sizes(), (0, 1));
    rig.message(server(), cancel);
    assert_eq!(rig.poller.sizes(), (0, 0));
}

#[test]
fn a_number_that_is_used_twice_confuses_its_user_only() {
    let mut rig = Rig::new();
    let header = request(HANG, 8);
    for _ in 0..3 {
        rig.message(server(), frame(Header::Request(header), &[], &[]));
    }
    rig.message(server(), frame(Header::Cancel { call: 8 }, &[], &[]));
    assert_eq!(rig.poller.sizes(), (0, 2));
    rig.peer(server().peer, PeerEvent::Down { cause: PeerDown::Died });
    assert_eq!(rig.poller.sizes(), (0, 0), "with the peer everything of it ends");
}

#[test]
fn a_lost_peer_ends_its_requests_but_not_what_it_only_told() {
    let mut rig = Rig::new();
    rig.message(server(), frame(Header::Request(request(HANG, 1)), &[], &[]));
    rig.message(
        server(),
        frame(Header::Request(RequestHeader { one_way: true, ..request(HANG_UNHEARD, 2) }), &[], &[]),
    );
    sent(&mut rig);
    rig.peer(server().peer, PeerEvent::Down { cause: PeerDown::Died });
    assert_eq!(rig.poller.sizes(), (0, 1));
    assert!(sent(&mut rig).is_empty());
}

#[test]
fn what_does_not_fit_or_is_none_is_answered_or_dropped() {
    let mut rig = Rig::new();
    rig.message(server(), &b"nonsense"[..]);
    rig.message(server(), &b""[..]);
    assert!(sent(&mut rig).is_empty());
    // The reply is as long as the request, but the details of its error are too long.
    let header = Header::Request(request(&METHODS[3], 1));
    rig.message(server(), frame(header, &[], &vec![0; LIMIT]));
    let [(given, header)] = sent(&mut rig).try_into().unwrap();
    let code = Code::ResourceExhausted.number();
    let by = By::Node { reason: Some(Reason::TooLarge), ran: true };
    assert_eq!(
        header,
        Header::Reply { call: 1, code, by, number: number(&METHODS[3]), metadata: MetadataBytes::default() }
    );
    assert!(String::from_utf8_lossy(&given.bytes).contains(&LIMIT.to_string()));
    // A one-way call reports nothing, however it ends.
    let methods = || METHODS.iter().filter(|method| !method.streams.any());
    for method in methods() {
        let header = RequestHeader { one_way: true, ..request(method, 1) };
        rig.message(server(), frame(Header::Request(header), &[], &[]));
    }
    // Only numbers of one-way methods, and refusals of methods not served as one-way, are reported.
    let (code, by) = (Code::Unimplemented.number(), By::Node { reason: Some(Reason::NoMethod), ran: false });
    let answers = methods().map(|method| match number(method).filter(|_| method.one_way) {
        Some(number) => Header::Number { call: 1, number },
        None => Header::Reply { call: 1, code, by, number: None, metadata: MetadataBytes::default() },
    });
    assert!(sent(&mut rig).into_iter().map(|(_, header)| header).eq(answers));
}

#[test]
fn a_poller_that_ends_without_a_shutdown_ends_its_calls() {
    let mut rig = Rig::new();
    let (mut getter, _) = call(&mut rig, HANG);
    let mut queued = rig.submit(PORT, HANG, LONG, false);
    drop(rig.poller);
    let status = status(&mut getter);
    assert_eq!((status.code(), status.may_have_run()), (Code::Unavailable, true), "it was sent");
    assert!(queued.try_take().unwrap().is_err(), "the stub says that the node has shut down");
}

#[test]
fn a_request_that_has_arrived_is_refused_once_draining_has_begun() {
    let mut rig = Rig::new();
    let running = request(HANG, 1);
    rig.message(server(), frame(Header::Request(running), &[], b""));
    assert_eq!(rig.poller.sizes(), (0, 1));
    rig.inbox.lifecycle().begin_drain();
    assert!(!rig.poller.is_ready(), "a handler runs");
    // It was queued by the transport when draining began.
    rig.message(server(), frame(Header::Request(request(ECHO, 2)), &[], b"late"));
    let [(_, Header::Reply { call: 2, code, by, .. })] = sent(&mut rig)[..] else { panic!("one refusal") };
    let refused = By::Node { reason: Some(Reason::Draining), ran: false };
    assert_eq!((Code::from_number(code), by), (Code::Unavailable, refused));
    rig.run();
    assert!(!rig.inbox.lifecycle().is_drained());
    rig.message(server(), frame(Header::Cancel { call: 1 }, &[], b""));
    assert!(rig.poller.is_ready(), "the end of the last handler is to be reported");
    rig.run();
    assert!(rig.inbox.lifecycle().is_drained() && !rig.poller.is_ready());
    assert_eq!(rig.inbox.lifecycle().counters.refused.count(), 1);
}

#[test]
fn a_shutdown_ends_calls_from_outside_and_lets_those_of_handlers_go_on() {
    let mut rig = Rig::new();
    let (mut outside, _) = call(&mut rig, ECHO);
    let (mut nested, token) = {
        let getter = rig.submit_as(PORT, ECHO, LONG, false, true);
        rig.run();
        (getter, rig.carrier.given.last().expect("it was sent").token)
    };
    rig.poller.shutdown(&mut rig.carrier);
    assert_eq!(status(&mut outside).code(), Code::Unavailable);
    assert!(nested.try_take().is_none(), "a handler waits for it");
    let mut late = rig.submit(PORT, ECHO, LONG, false);
    let mut late_nested = rig.submit_as(PORT, ECHO, LONG, false, true);
    rig.run();
    let refused = status(&mut late);
    assert_eq!((refused.code(), refused.may_have_run()), (Code::Unavailable, false), "{refused}");
    assert!(late_nested.try_take().is_none(), "a handler waits for it");
    rig.message(server(), reply(token));
    assert!(nested.try_take().unwrap().unwrap().is_ok());
    drop(rig);
    assert_eq!(status(&mut late_nested).code(), Code::Unavailable, "the poller has ended");
}
