//! Callers that violate the protocol with invalid requests, reused call numbers and stream frames, and windows of streams.

use super::service::{ECHO, FEED, GATHER, HANG, METHODS, TALK};
use super::{Frame, Peer, World, frame};
use crate::node::{Node, NodeBuilder};
use crate::server::Service;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::stream::{ItemBuffer, Stream};
use crate::wire::frame::{
    Header, Method, MethodRef, Number, RepliedBy, RequestHeader, StreamHeader, StreamPart,
};
use crate::wire::name::{MethodName, ServiceName, Streams};
use bytes::Bytes;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use trunkline_transport::{Limit, NodeOptions, PeerKey};

const HANG_UNHEARD: &MethodName = &METHODS[5];
const KEEP_UNHEARD: &MethodName = &METHODS[6];
/// Maximum message size of a node with little memory, in bytes.
const SMALL: usize = 64 << 10;

struct Caller {
    world: World,
    node: Node,
    peer: Peer,
}

impl Caller {
    fn new() -> Self {
        Self::with(|builder| builder, |options| options)
    }

    fn with(
        set: impl FnOnce(NodeBuilder) -> NodeBuilder,
        set_peer: impl FnOnce(NodeOptions) -> NodeOptions,
    ) -> Self {
        let mut world = World::new();
        let node = world.node(set);
        let peer = world.peer_with(set_peer);
        let mut caller = Self { world, node, peer };
        caller.is_answered();
        caller
    }

    /// Sends a frame from a poller of the peer.
    fn post(&self, by: usize, frame: &Frame) {
        self.peer.post(by, PeerKey::new(self.node.local_address()), None, frame);
    }

    fn request(&self, header: RequestHeader, body: &[u8]) {
        self.post(0, &frame(&Header::Request(header), &[], body));
    }

    fn part(&self, call: u64, part: StreamPart, item: &[u8]) {
        self.post(0, &stream(call, part, item));
    }

    fn cancel(&self, call: u64) {
        self.post(0, &frame(&Header::Cancel { call }, &[], &[]));
    }

    /// Waits until no more frames arrive. Returns the frames.
    fn frames(&mut self) -> Vec<(Header, Bytes)> {
        let mut all = Vec::new();
        loop {
            // A sender without room retries after some time.
            self.world.wait(Duration::from_millis(50));
            let frames = self.peer.frames();
            if frames.is_empty() {
                return all;
            }
            all.extend(frames.into_iter().map(|(_, header, bytes)| (header, bytes)));
        }
    }

    /// Returns the replies that arrive, with the numbers of their calls.
    fn replies(&mut self) -> Vec<(u64, u8, RepliedBy)> {
        let reply = |(header, _)| match header {
            Header::Reply { call, code, by, .. } => Some((call, code, by)),
            _ => None,
        };
        self.frames().into_iter().filter_map(reply).collect()
    }

    /// Returns the parts of streams that arrive, with the sizes of their items.
    fn parts(&mut self) -> Vec<(StreamPart, usize)> {
        let part = |(header, item): (_, Bytes)| match header {
            Header::Stream(StreamHeader { part, .. }) => Some((part, item.len())),
            _ => None,
        };
        self.frames().into_iter().filter_map(part).collect()
    }

    /// Returns the number of items that arrive.
    fn items(&mut self) -> usize {
        self.parts().iter().filter(|(part, _)| matches!(part, StreamPart::Data { .. })).count()
    }

    /// Returns the window grants that arrive, in bytes and items.
    fn windows(&mut self) -> Vec<(u32, u32)> {
        let window = |(part, _)| match part {
            StreamPart::Window { bytes, items } => Some((bytes, items)),
            _ => None,
        };
        self.parts().into_iter().filter_map(window).collect()
    }

    /// Returns the number of used units of a budget.
    fn used(&self, name: &str) -> u64 {
        let report = self.node.report();
        report.budgets.iter().find(|budget| budget.name == name).expect("there is one").used
    }

    /// Returns the number of running handlers and the number of charged bytes.
    fn charged(&self) -> (u64, u64) {
        (self.used("running handlers"), self.used("bytes of decoded arguments"))
    }

    fn counter(&self, name: &str) -> u64 {
        self.node.report().counter(name).expect("there is one")
    }

    /// Checks that a call gets a reply.
    fn is_answered(&mut self) {
        self.request(request(ECHO, 99), &[]);
        let (peer, mut replies) = (&self.peer, Vec::new());
        self.world.until("the reply", || {
            replies.extend(peer.frame());
            (!replies.is_empty()).then_some(())
        });
        assert!(matches!(replies[0].1, Header::Reply { call: 99, code: 0, by: RepliedBy::Handler, .. }));
    }
}

fn request(method: &MethodName, call: u64) -> RequestHeader {
    let (one_way, opens) = (method.one_way, method.streams.any());
    RequestHeader { call, one_way, opens, method_ref: method.into(), metadata: 0 }
}

/// Returns the number of a method on a node that serves [`own`] first.
fn numbered(method: &MethodName) -> MethodRef {
    let number = METHODS.iter().position(|other| other.hash == method.hash).expect("it has one");
    MethodRef::Number(u16::try_from(2 + number).expect("there are few"))
}

fn stream(call: u64, part: StreamPart, item: &[u8]) -> Frame {
    frame(&Header::Stream(StreamHeader { call, from_caller: true, part }), &[], item)
}

fn data(number: u16) -> StreamPart {
    StreamPart::Data { number }
}

/// Returns the reply that ends a call after its caller violated the protocol.
fn broken(call: u64) -> (u64, u8, RepliedBy) {
    (call, Code::Internal.number(), RepliedBy::Node { reason: Some(Reason::OtherProtocol), ran: true })
}

/// A service for handlers that panic, and for counting the items that a handler produces.
static SERVICE: ServiceName =
    ServiceName { name: "own", version: 2, oldest: 2, codec: 0, codec_name: "bincode", hash: 0x5e42 };
const METHOD: MethodName = MethodName {
    service: &SERVICE,
    name: "panic",
    hash: 20,
    one_way: true,
    idempotent: false,
    streams: Streams::Neither,
    shapes: None,
};
static PANIC: MethodName = METHOD;
/// Streams items of 20,000 bytes endlessly.
static COUNTED: MethodName =
    MethodName { name: "counted", hash: 21, one_way: false, streams: Streams::FromServer, ..METHOD };

/// Returns the service `own`, which adds each item that a handler produces to `made`.
fn own(made: Arc<AtomicU64>) -> Service {
    Service::new(&SERVICE, move |_, methods| {
        methods.add(&PANIC, |_| async { panic!("on purpose") });
        let made = Arc::clone(&made);
        methods.add(&COUNTED, move |request| {
            let items = Counted(Arc::clone(&made));
            async move {
                let (writer, replier) = (request.writer(), request.replier());
                writer.send(items, |item, buffer: &mut ItemBuffer| buffer.bytes(item)).await?;
                replier.end()
            }
        });
        Ok(())
    })
}

struct Counted(Arc<AtomicU64>);

impl Stream for Counted {
    type Item = Result<Bytes, Status>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Bytes::from_static(&[1; 20_000]))))
    }
}

/// Answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Echo,
    Refusal(Reason),
    Number,
    Nothing,
}

#[test]
fn unserved_requests_are_refused_and_counted() {
    use Answer::{Echo, Nothing, Refusal};
    const COUNTERS: [&str; 4] = [
        "one_way_requests_not_served",
        "one_way_requests_failed",
        "requests_of_unknown_extension",
        "requests_refused_draining",
    ];
    let one = Limit { per_peer: 1, in_all: 1 };
    let mut caller =
        Caller::with(|builder| builder.handler_limit(one).serve(own(Arc::default())), |options| options);
    let bytes = |header: RequestHeader| frame(&Header::Request(header), &[], b"body");
    // An extension after METHOD, which has 28 bytes.
    let extended = |one_way, flags| {
        let mut frame = bytes(RequestHeader { one_way, ..request(ECHO, 1) });
        frame.bytes.splice(44..44, [200, flags, 1, 0, 7]);
        frame.bytes[12] += 5;
        frame
    };
    let flagged = |one_way| {
        let mut frame = bytes(RequestHeader { one_way, ..request(ECHO, 1) });
        frame.header.flags |= 0x80;
        frame
    };
    let asks = |method, method_ref| bytes(RequestHeader { method_ref, ..request(method, 1) });
    let told =
        |method, one_way, method_ref| bytes(RequestHeader { one_way, method_ref, ..request(method, 1) });
    let opened = |method, opens, method_ref| bytes(RequestHeader { opens, method_ref, ..request(method, 1) });
    let of_kind = |method: &'static MethodName, streams| match method.into() {
        MethodRef::Method(named) => MethodRef::Method(Method { streams, ..named }),
        number => number,
    };
    let refused = Refusal(Reason::NoMethod);
    let mut cases = vec![
        ("number", asks(ECHO, numbered(ECHO)), Echo, [0; 4]),
        ("number of no method", asks(ECHO, MethodRef::Number(13)), refused, [0; 4]),
        ("largest number", asks(ECHO, MethodRef::Number(0xfffe)), refused, [0; 4]),
        ("one-way, number of no method", told(ECHO, true, MethodRef::Number(13)), refused, [1, 0, 0, 0]),
        ("critical extension", extended(false, 1), Refusal(Reason::UnknownExtension), [0, 0, 1, 0]),
        ("one-way, critical extension", extended(true, 1), Nothing, [0, 1, 1, 0]),
        ("other extension", extended(false, 0), Echo, [0; 4]),
        ("unknown flag", flagged(false), Refusal(Reason::OtherProtocol), [0; 4]),
        ("one-way, unknown flag", flagged(true), Nothing, [0, 1, 0, 0]),
        ("other streams", opened(GATHER, true, of_kind(GATHER, Streams::Both)), refused, [0; 4]),
        ("bad arguments", bytes(request(KEEP_UNHEARD, 1)), Answer::Number, [0, 1, 0, 0]),
        ("panic", bytes(request(&PANIC, 1)), Answer::Number, [0, 1, 0, 0]),
    ];
    for named in [|method: &'static MethodName| method.into(), numbered] {
        cases.extend([
            ("one-way, method with a reply", told(HANG, true, named(HANG)), refused, [1, 0, 0, 0]),
            ("one-way method", told(HANG_UNHEARD, false, named(HANG_UNHEARD)), refused, [0; 4]),
            ("stream, unary method", opened(ECHO, true, named(ECHO)), refused, [0; 4]),
            ("no stream, streaming method", opened(FEED, false, named(FEED)), refused, [0; 4]),
            ("no stream, method with two", opened(TALK, false, named(TALK)), refused, [0; 4]),
        ]);
    }
    let limited = bytes(request(HANG_UNHEARD, 1)).within(Duration::from_secs(1));
    let late = cases.len();
    cases.extend([
        ("handler", limited, Answer::Number, [0; 4]),
        ("handler beyond the limit", bytes(request(HANG_UNHEARD, 1)), Answer::Number, [0, 1, 0, 0]),
    ]);
    let counters = |caller: &Caller| COUNTERS.map(|name| caller.counter(name));
    let ask = |caller: &mut Caller, bytes: &Frame| {
        let before = counters(caller);
        caller.post(0, bytes);
        let answers = caller.frames().into_iter().map(|(header, rest)| match header {
            Header::Reply { call: 1, code: 0, by: RepliedBy::Handler, .. } => {
                assert!(rest.ends_with(b"body"));
                Echo
            }
            Header::Reply {
                call: 1,
                code,
                by: RepliedBy::Node { reason: Some(reason), ran },
                number,
                ..
            } => {
                assert_eq!((code, ran, number), (Code::Unimplemented.number(), false, None));
                Refusal(reason)
            }
            Header::Number { call: 1, number: Number { .. } } => Answer::Number,
            other => panic!("{other:?} is no answer"),
        });
        let answers = answers.collect::<Vec<_>>();
        let after = counters(caller);
        (answers, [0, 1, 2, 3].map(|at| after[at] - before[at]))
    };
    let expected = |answer| if answer == Nothing { Vec::new() } else { vec![answer] };
    for (at, (what, bytes, answer, counted)) in cases.into_iter().enumerate() {
        assert_eq!(ask(&mut caller, &bytes), (expected(answer), counted), "{what}");
        assert_eq!(caller.charged(), (u64::from(at >= late), 0), "{what}");
    }
    let failed = caller.counter(COUNTERS[1]);
    caller.world.wait(Duration::from_secs(1));
    assert_eq!((caller.charged().0, caller.counter(COUNTERS[1])), (0, failed + 1), "its time is over");
    caller.node.begin_drain();
    let draining = ask(&mut caller, &told(HANG_UNHEARD, true, numbered(HANG_UNHEARD)));
    assert_eq!((draining, caller.charged().0), ((vec![], [0, 0, 0, 1]), 0), "the node drains");
}

#[test]
fn reused_numbers_and_foreign_cancels_do_not_affect_other_calls() {
    let queued = Limit { per_peer: 8 * SMALL, in_all: 16 * SMALL };
    let mut caller = Caller::with(
        |builder| builder.max_message_bytes(SMALL).queued_bytes(queued),
        |options| options.pollers(2).max_message_bytes(SMALL).rendezvous_bytes(2 * SMALL),
    );
    let other = caller.world.peer();
    // Only the poller that made a call can cancel it.
    (0..3).for_each(|_| caller.request(request(HANG, 8), &[]));
    let cancel = frame(&Header::Cancel { call: 8 }, &[], &[]);
    let is_answered = frame(&Header::Request(request(ECHO, 99)), &[], &[]);
    for (peer, by) in [(&other, 0), (&caller.peer, 1)] {
        for bytes in [&cancel, &is_answered] {
            peer.post(by, PeerKey::new(caller.node.local_address()), None, bytes);
        }
        caller.world.until("the reply", || peer.frame());
        assert_eq!(caller.node.report().budgets[0].used, 3);
    }
    caller.cancel(8);
    assert_eq!((caller.frames().len(), caller.charged().0), (0, 2), "one of equal numbers");
    // Reusing a number ends the stream with this number.
    let opens = |method, call, body: &[u8]| frame(&Header::Request(request(method, call)), &[], body);
    for (method, body) in [(GATHER, &[0][..]), (FEED, &[255, 1]), (TALK, &[]), (HANG, &[])] {
        caller.post(0, &opens(method, 9, body));
        caller.frames();
        caller.post(0, &opens(GATHER, 9, &[0]));
        assert_eq!((caller.replies(), caller.charged()), (vec![broken(9)], (2, 0)), "{method}");
    }
    caller.post(0, &opens(GATHER, 9, &[0]));
    caller.post(0, &opens(HANG, 9, &[]));
    assert_eq!(
        (caller.replies(), caller.charged()),
        (vec![broken(9)], (3, 0)),
        "the later call has no stream"
    );
    caller.cancel(9);
    // CANCEL drops waiting replies with its number. The replies wait because the peer has no memory for them.
    let body = vec![7; SMALL / 2];
    let waiting = |caller: &Caller| caller.used("bytes of replies that wait");
    let echo = |caller: &mut Caller, by, call| {
        caller.post(by, &opens(ECHO, call, &body));
        caller.world.wait(Duration::from_millis(20));
        waiting(caller)
    };
    assert!((100..140).any(|call| echo(&mut caller, 0, call) > 0), "a reply waits");
    let calls = [(0, 1), (0, 2), (0, 3), (0, 2), (0, 4), (1, 2)];
    let with = calls.map(|(by, call)| echo(&mut caller, by, call));
    assert!(with.is_sorted_by(|earlier, later| earlier < later), "all replies wait: {with:?}");
    [2, 3, 77].into_iter().for_each(|call| caller.cancel(call));
    caller.world.run();
    assert_eq!(waiting(&caller), with[2], "three of the six");
    let mut replied = Vec::new();
    let Caller { world, peer, .. } = &mut caller;
    world.until("the replies", || {
        let calls = peer.frames().into_iter().filter_map(|(_, header, _)| match header {
            Header::Reply { call: call @ ..100, code: 0, .. } => Some(call),
            _ => None,
        });
        replied.extend(calls);
        (replied.len() == 3).then_some(())
    });
    replied.sort_unstable();
    assert_eq!(replied, [1, 2, 4]);
    // All calls of a peer end when its session ends.
    assert_eq!(caller.charged().0, 2);
    caller.peer.end();
    let node = &caller.node;
    let is_over = || node.report().budgets.iter().all(|budget| budget.used == 0).then_some(());
    caller.world.until("the end", is_over);
}

#[test]
fn breach_of_stream_protocol_ends_only_its_stream() {
    type Step = (StreamPart, usize);
    let beyond = (0..66).map(|number| (data(number), 1)).collect::<Vec<Step>>();
    let bytes = (0..4).map(|number| (data(number), 16 << 10)).collect::<Vec<Step>>();
    let end = |items| StreamPart::End { items };
    let window = |bytes, items| StreamPart::Window { bytes, items };
    let cases: [(&MethodName, Vec<Step>); 22] = [
        (GATHER, vec![(data(1), 1)]),
        (GATHER, vec![(data(0), 1), (data(0), 1)]),
        (GATHER, vec![(end(1), 0)]),
        (FEED, vec![(data(0), 1)]),
        (FEED, vec![(end(0), 0)]),
        (GATHER, beyond),
        (GATHER, bytes),
        (GATHER, vec![(end(0), 0), (data(0), 1)]),
        (GATHER, vec![(end(0), 0), (end(0), 0)]),
        (GATHER, vec![(end(0), 1)]),
        (GATHER, vec![(window(1, 1), 0)]),
        (GATHER, vec![(StreamPart::Reset, 0)]),
        (GATHER, vec![(StreamPart::Accept, 0)]),
        (TALK, vec![(StreamPart::Accept, 0)]),
        (FEED, vec![(window(u32::MAX, 0), 0)]),
        (FEED, vec![(window(0, 4097), 0)]),
        (FEED, vec![(window(LARGEST_BYTES, 0), 0), (window(1, 0), 0)]),
        (FEED, vec![(window(1, 1), 1)]),
        (FEED, vec![(StreamPart::Reset, 1)]),
        (HANG, vec![(data(0), 1)]),
        (HANG, vec![(window(1, 1), 0)]),
        (HANG, vec![(StreamPart::Accept, 0)]),
    ];
    let mut caller = Caller::new();
    for (call, (method, steps)) in (1..).zip(cases) {
        // The handler takes no items, or sends items endlessly.
        caller.request(request(method, call), if method == FEED { &[255, 1] } else { &[0] });
        assert_eq!((caller.replies(), caller.charged().0), (vec![], 1));
        steps.iter().for_each(|(part, bytes)| caller.part(call, *part, &vec![1; *bytes]));
        let what = format!("{method} {:?}", steps.last());
        assert_eq!((caller.replies(), caller.charged()), (vec![broken(call)], (0, 0)), "{what}");
        caller.part(call, data(9), &[]);
        assert_eq!(caller.frames(), [], "{what}: a late frame has no effect");
        caller.is_answered();
    }
}

/// Number of bytes that increases the window to its maximum, after 64 items of 100 bytes.
const LARGEST_BYTES: u32 = (4 << 20) - (16 << 10) + 6400;

#[test]
fn stream_of_one_item_that_is_ready_is_sent_in_reply() {
    let mut caller = Caller::new();
    for (call, (items, hundreds)) in (1..).zip([(1, 1), (1, 255), (1, 0), (0, 1), (2, 1)]) {
        caller.request(request(FEED, call), &[items, hundreds]);
        let frames = caller.frames();
        let (Header::Reply { code, .. }, value) = frames.last().expect("a reply") else {
            panic!("{frames:?}")
        };
        let size = usize::from(hundreds) * 100;
        let is_whole = items == 1 && size > 0;
        let parts = if is_whole { 0 } else { 2 + usize::from(items) };
        let expected = (0, if is_whole { size } else { 0 }, parts + 1);
        assert_eq!((*code, value.len(), frames.len()), expected, "{items} items of {size} bytes");
        assert_eq!(caller.charged(), (0, 0));
    }
    caller.is_answered();
}

#[test]
fn writers_stop_at_their_window() {
    let made = Arc::new(AtomicU64::new(0));
    let queued = Limit { per_peer: 4 * SMALL, in_all: 8 * SMALL };
    let mut caller = Caller::with(
        |builder| builder.serve(own(Arc::clone(&made))).max_message_bytes(SMALL).queued_bytes(queued),
        |options| options,
    );
    // A writer stops when the window is used up in either items or bytes.
    for (call, hundreds, first, window, next) in [
        (1, 1, 64, (1 << 19, 3), 3),
        (2, 100, 2, (10_000, 64), 1),
        (3, 0, 64, (0, 5), 5),
        (4, 1, 64, (LARGEST_BYTES, 4096), 4096),
    ] {
        caller.request(request(FEED, call), &[255, hundreds]);
        assert_eq!(caller.items(), first, "items of {hundreds} hundred bytes");
        let (bytes, items) = window;
        caller.part(call, StreamPart::Window { bytes, items }, &[]);
        assert_eq!(caller.items(), next, "after {window:?}");
        caller.cancel(call);
    }
    // A held peer does not fetch items. The handler produces one batch more than the queue can hold.
    caller.request(request(&COUNTED, 5), &[]);
    assert_eq!(caller.items(), 1);
    caller.part(5, StreamPart::Window { bytes: 4 << 20, items: 4000 }, &[]);
    caller.world.until("more items", || (made.load(Ordering::Relaxed) > 1).then_some(()));
    caller.peer.hold(true);
    caller.world.wait(Duration::from_millis(100));
    let queued = caller.used("queued bytes");
    let held = made.load(Ordering::Relaxed);
    assert_eq!(held, 1 + queued / 20_000 + 1);
    assert_eq!(caller.charged(), (1, 16 << 10));
    caller.peer.hold(false);
    assert_eq!(1 + caller.items(), ((4_usize << 20) + (16 << 10)).div_ceil(20_000));
}

#[test]
fn readers_grant_consumed_window() {
    let mut caller = Caller::new();
    let send = |caller: &Caller, call, numbers: std::ops::Range<u16>| {
        numbers.for_each(|number| caller.part(call, data(number), b"item"));
    };
    // The reader stops after 40 items.
    caller.request(request(GATHER, 1), &[40]);
    send(&caller, 1, 0..31);
    assert_eq!(caller.frames(), [], "less than a half");
    send(&caller, 1, 31..32);
    // The reader grants the consumed part of the window, and doubles the window.
    assert_eq!(caller.windows(), [(32 * 4 + (16 << 10), 32 + 64)]);
    assert_eq!(caller.charged(), (1, 32 << 10));
    send(&caller, 1, 32..160);
    assert_eq!((caller.frames(), caller.charged().0), (vec![], 1), "it is stopped");
    send(&caller, 1, 160..161);
    assert_eq!((caller.replies(), caller.charged()), (vec![broken(1)], (0, 0)), "the window ends here");
    // Windows grow to one mebibyte, or to four of the largest items.
    const KIB: usize = 1 << 10;
    for (call, item, most) in [
        (2, 100 * KIB, 1024),
        (3, 256 * KIB, 1024),
        (4, 300 * KIB, 2048),
        (5, 1024 * KIB, 4096),
        (6, 2048 * KIB, 4096),
    ] {
        caller.request(request(GATHER, call), &[255]);
        let windows = (0..20).map(|number| {
            caller.part(call, data(number), &vec![1; item]);
            caller.windows()
        });
        let windows = windows.collect::<Vec<_>>();
        let all = windows.iter().flatten();
        let (bytes, items) =
            all.fold((0, 0), |(bytes, items), more| (bytes + more.0 as usize, items + more.1));
        assert_eq!(16 * KIB + bytes - 20 * item, most * KIB, "the window after 20 items of {item} bytes");
        assert_eq!(64 + items - 20, 4096, "items of {item} bytes");
        // Each large item is granted again at once, regardless of the size of the window.
        if item >= 256 * KIB {
            assert!(windows.iter().all(|windows| windows.len() == 1), "{windows:?}");
        }
        caller.cancel(call);
    }
}

#[test]
fn handlers_of_lost_peer_or_expired_calls_do_not_all_end_in_one_turn() {
    for time_left in [None, Some(Duration::from_secs(1))] {
        let mut caller = Caller::new();
        for call in 0..200 {
            let request = frame(&Header::Request(request(HANG, call)), &[], &[]);
            caller.post(0, &Frame { time_left, ..request });
        }
        assert!(caller.frames().is_empty());
        let running = |caller: &Caller| caller.world.ledger(&caller.node).driver.handlers;
        assert_eq!(running(&caller), 200);
        if time_left.is_none() {
            caller.peer.end();
        }
        let (mut left, end) = (200, caller.world.now() + Duration::from_secs(2));
        while left > 0 {
            caller.world.step(end);
            let now = running(&caller);
            assert!(left - now <= 64, "{left} to {now}");
            left = now;
            assert!(caller.world.now() < end, "{left} run on");
        }
        assert_eq!(caller.charged(), (0, 0));
    }
}
