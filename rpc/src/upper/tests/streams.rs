//! Streams, frame by frame.

use super::{Given, PORT, call, frame, number, request, sent, server, success};
use crate::call::{Opened, Response, StreamWait, Wait as _, no_items, outgoing};
use crate::codec::{Bincode, Coding, EncodeValue as _};
use crate::node::budgets::Limits;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::stream::{ItemBuffer, Streaming, channel};
use crate::upper::fake::{ECHO, FEED, GATHER, HANG, LIMIT, Rig, TALK};
use crate::wire::frame::{By, Header, RequestHeader, StreamHeader, StreamPart};
use crate::wire::metadata::MetadataBytes;
use crate::wire::name::MethodName;
use bytes::Bytes;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use trunkline_transport::{
    Exhausted, Limit, Origin, PeerDown, PeerEvent, SendError, SendOutcome, SessionNumber, Token, Upper as _,
};
use trunkline_verbs::{Time, VerbsError};

const CALL: u64 = 7;

/// Returns the answer of a carrier with a full queue.
fn full() -> SendError {
    SendError::QueueFull(Exhausted::Peer { name: "queued bytes", limit: LIMIT })
}

fn data(number: u16) -> StreamPart {
    StreamPart::Data { number }
}

fn stream(call: u64, from_caller: bool, part: StreamPart, item: &[u8]) -> Vec<u8> {
    frame(Header::Stream(StreamHeader { call, from_caller, part }), &[], item)
}

/// Opens a stream as a peer does, with this body.
fn open(rig: &mut Rig, method: &MethodName, body: &[u8]) {
    rig.message(server(), frame(Header::Request(request(method, CALL)), &[], body));
    rig.run();
}

/// Sends a frame of the caller.
fn from_caller(rig: &mut Rig, part: StreamPart, item: &[u8]) {
    rig.message(server(), stream(CALL, true, part, item));
}

/// Returns the parts that were sent, with the bytes of items.
fn parts(rig: &mut Rig) -> Vec<(StreamPart, usize)> {
    let part = |(given, header): (Given, Header)| match header {
        Header::Stream(StreamHeader { part, .. }) => Some((part, given.bytes.len().saturating_sub(16))),
        _ => None,
    };
    sent(rig).into_iter().filter_map(part).collect()
}

/// Returns the code and the origin of the reply that was sent last.
fn reply(rig: &mut Rig) -> Option<(u8, By)> {
    sent(rig).into_iter().rev().find_map(|(_, header)| match header {
        Header::Reply { code, by, .. } => Some((code, by)),
        _ => None,
    })
}

fn broken() -> Option<(u8, By)> {
    Some((Code::Internal.number(), By::Node { reason: Some(Reason::OtherProtocol), ran: true }))
}

fn charged(rig: &Rig) -> usize {
    let ledger = rig.poller.ledger();
    for budget in &ledger.budgets {
        assert_eq!(budget.used, budget.counted, "{}", budget.name);
    }
    ledger.budgets.iter().flat_map(|budget| budget.used.values()).sum()
}

#[test]
fn a_handlers_stream_is_accepted_sent_ended_and_replied_to_in_this_order() {
    let mut rig = Rig::new();
    open(&mut rig, FEED, &[3, 1]);
    assert_eq!(rig.poller.sizes().1, 1, "it ends when its items have left");
    rig.run();
    let frames = sent(&mut rig);
    let kinds = frames.iter().map(|(given, _)| given.bytes[0]).collect::<Vec<_>>();
    assert_eq!(kinds, [0x31, 0x21, 0x21, 0x21, 0x33, 0x30]);
    let header =
        Header::Stream(StreamHeader { call: CALL, from_caller: false, part: StreamPart::End { items: 3 } });
    assert_eq!(frames[4].1, header);
    assert!(frames.iter().all(|(given, _)| given.session == Some(SessionNumber(1))));
    assert_eq!((rig.poller.sizes(), charged(&rig)), ((0, 0), 0));
}

/// Bytes that make the window the largest one, after 64 items of 100 bytes.
const LARGEST_BYTES: u32 = (4 << 20) - (16 << 10) + 6400;

#[test]
fn a_writer_stops_at_the_window_of_items_and_of_bytes() {
    for (hundreds, first, window, next) in [
        (1, 64, (1 << 19, 3), 3),
        (100, 2, (10_000, 64), 1),
        (0, 64, (0, 5), 5),
        (1, 64, (LARGEST_BYTES, 4096), 4096),
    ] {
        let mut rig = Rig::new();
        open(&mut rig, FEED, &[255, hundreds]);
        let count = |rig: &mut Rig| {
            (0..40).for_each(|_| rig.run());
            parts(rig).into_iter().filter(|(part, _)| matches!(part, StreamPart::Data { .. })).count()
        };
        assert_eq!(count(&mut rig), first, "items of {hundreds} hundred bytes");
        let (bytes, items) = window;
        from_caller(&mut rig, StreamPart::Window { bytes, items }, &[]);
        assert_eq!(count(&mut rig), next, "after {window:?}");
    }
}

#[test]
fn items_wait_for_room_in_the_queue_and_keep_their_order() {
    let mut rig = Rig::new();
    rig.message(server(), frame(Header::Request(request(FEED, CALL)), &[], &[3, 1]));
    rig.carrier.refusal = Some(full());
    (0..3).for_each(|_| rig.run());
    assert!(sent(&mut rig).is_empty());
    assert_eq!(rig.poller.next_timer(), Some(rig.carrier.now + Duration::from_millis(1)));
    rig.carrier.refusal = None;
    rig.carrier.wait(Duration::from_millis(1));
    (0..3).for_each(|_| rig.run());
    let kinds = sent(&mut rig).iter().map(|(given, _)| given.bytes[0]).collect::<Vec<_>>();
    assert_eq!(kinds, [0x31, 0x21, 0x21, 0x21, 0x33, 0x30]);
    assert_eq!((rig.poller.sizes(), rig.poller.next_timer()), ((0, 0), None));
}

#[test]
fn an_item_that_is_larger_than_any_message_ends_the_call_with_a_status() {
    let mut rig = Rig::new();
    open(&mut rig, TALK, &[]);
    rig.carrier.refusal = Some(SendError::TooLarge { bytes: 9, limit: 8 });
    from_caller(&mut rig, data(0), b"item");
    rig.run();
    rig.carrier.refusal = None;
    rig.run();
    let by = By::Node { reason: Some(Reason::TooLarge), ran: true };
    assert_eq!(reply(&mut rig), Some((Code::ResourceExhausted.number(), by)));
}

const NOT_REGISTERED: PeerDown = PeerDown::NotRegistered(VerbsError::OutOfResources("keys"));

/// This holds while the handler runs, and after it has ended.
#[test]
fn an_item_of_a_handler_that_is_not_sent_ends_the_call_with_its_cause() {
    for items in [255, 1] {
        let mut rig = Rig::new();
        open(&mut rig, FEED, &[items, 1]);
        (0..3).for_each(|_| rig.run());
        assert_eq!(rig.poller.sizes().1, usize::from(items == 255));
        let item = sent(&mut rig).into_iter().find(|(given, _)| given.bytes[0] == 0x21).expect("an item").0;
        rig.not_sent(server(), &item.bytes[..16], NOT_REGISTERED);
        let (given, header) = sent(&mut rig).pop().expect("a reply");
        let Header::Reply { call: CALL, code, by, .. } = header else { panic!("{header:?}") };
        let of_cause = By::Node { reason: Some(Reason::Overloaded), ran: true };
        assert_eq!((code, by), (Code::ResourceExhausted.number(), of_cause));
        let text = String::from_utf8_lossy(&given.bytes);
        assert!(text.contains(&NOT_REGISTERED.to_string()), "{text}");
        assert!(!given.ordered, "items and an end that follow would be taken for a breach of the protocol");
        rig.run();
        assert_eq!((sent(&mut rig), rig.poller.sizes(), charged(&rig)), (vec![], (0, 0), 0));
    }
}

#[test]
fn an_item_of_a_caller_that_is_not_sent_ends_the_call_with_its_cause() {
    let mut rig = Rig::new();
    rig.carrier.leaves_through = Some(SessionNumber(1));
    rig.peer(server().peer, PeerEvent::Up { session: SessionNumber(1), epoch: 1, pollers: 1 });
    let (sender, receiver) = channel::<Bytes>(4);
    sender.try_send(Bytes::from_static(b"one")).unwrap();
    let items = outgoing(receiver, |item: Bytes, buffer: &mut ItemBuffer| buffer.bytes(item));
    let (mut wait, _opened) = rig.open(PORT, GATHER, items);
    (0..3).for_each(|_| rig.run());
    let item = rig.carrier.given.last().expect("an item").clone();
    assert_eq!(parts(&mut rig), [(data(0), 3)]);
    rig.not_sent(Origin { peer: super::other(99), ..server() }, &item.bytes[..16], NOT_REGISTERED);
    assert!(poll(&mut wait).is_pending(), "that was another peer's");
    rig.not_sent(server(), &item.bytes[..16], NOT_REGISTERED);
    rig.run();
    let Poll::Ready(Err(status)) = poll(&mut wait) else { panic!("the call goes on") };
    assert_eq!((status.code(), status.reason()), (Code::ResourceExhausted, Some(Reason::Overloaded)));
    assert!(status.to_string().contains(&NOT_REGISTERED.to_string()), "{status}");
    let cancels = sent(&mut rig).into_iter().filter(|(_, header)| matches!(header, Header::Cancel { .. }));
    assert_eq!((cancels.count(), rig.poller.sizes()), (1, (0, 0)), "the server is told");
}

#[test]
fn a_callers_items_reach_the_handler_once_and_in_order() {
    let mut rig = Rig::new();
    open(&mut rig, GATHER, &[]);
    for number in 0..3 {
        from_caller(&mut rig, data(number), b"item");
    }
    rig.run();
    from_caller(&mut rig, StreamPart::End { items: 3 }, &[]);
    rig.run();
    let (given, header) = sent(&mut rig).pop().unwrap();
    assert_eq!(
        header,
        Header::Reply {
            call: CALL,
            code: 0,
            by: By::Handler,
            number: number(GATHER),
            metadata: MetadataBytes::default()
        }
    );
    assert_eq!(given.bytes.last(), Some(&3));
    assert_eq!(charged(&rig), 0);
}

#[test]
fn a_caller_that_breaks_the_protocol_loses_its_stream_and_nothing_else() {
    type Step = (StreamPart, usize);
    let beyond = (0..66).map(|number| (data(number), 1)).collect::<Vec<Step>>();
    let bytes = (0..4).map(|number| (data(number), 16 << 10)).collect::<Vec<Step>>();
    let end = StreamPart::End { items: 0 };
    let window = |bytes, items| StreamPart::Window { bytes, items };
    let cases: [(&MethodName, Vec<Step>); 22] = [
        (GATHER, vec![(data(1), 1)]),
        (GATHER, vec![(data(0), 1), (data(0), 1)]),
        (GATHER, vec![(StreamPart::End { items: 1 }, 0)]),
        (FEED, vec![(data(0), 1)]),
        (FEED, vec![(StreamPart::End { items: 0 }, 0)]),
        (GATHER, beyond),
        (GATHER, bytes),
        (GATHER, vec![(end, 0), (data(0), 1)]),
        (GATHER, vec![(end, 0), (end, 0)]),
        (GATHER, vec![(end, 1)]),
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
    for (method, steps) in cases {
        let mut rig = Rig::new();
        // The handler takes no items, or sends without an end.
        open(&mut rig, method, if method == FEED { &[255, 1] } else { &[0] });
        rig.run();
        sent(&mut rig);
        for (part, bytes) in &steps {
            from_caller(&mut rig, *part, &vec![1; *bytes]);
        }
        assert_eq!(reply(&mut rig), broken(), "{method} {:?}", steps.last());
        assert_eq!((rig.poller.sizes(), charged(&rig)), ((0, 0), 0));
        // A late frame has no effect.
        from_caller(&mut rig, data(9), &[]);
        assert!(sent(&mut rig).is_empty());
        rig.message(server(), frame(Header::Request(request(ECHO, 9)), &[], &[]));
        assert_eq!(reply(&mut rig), Some((0, By::Handler)));
    }
}

#[test]
fn a_stream_whose_number_is_used_twice_ends_by_one_reply_and_leaves_nothing() {
    let replies = |rig: &mut Rig| {
        let headers = sent(rig).into_iter().filter_map(|(_, header)| match header {
            Header::Reply { call: CALL, code, by, .. } => Some((code, by)),
            _ => None,
        });
        headers.collect::<Vec<_>>()
    };
    for (method, body) in [(GATHER, &[0][..]), (FEED, &[255, 1]), (TALK, &[]), (HANG, &[])] {
        let mut rig = Rig::new();
        open(&mut rig, method, body);
        replies(&mut rig);
        rig.message(server(), frame(Header::Request(request(GATHER, CALL)), &[], &[0]));
        assert_eq!(replies(&mut rig), Vec::from_iter(broken()), "{method}");
        assert_eq!((rig.poller.sizes(), charged(&rig)), ((0, 0), 0), "{method}");
    }
    let mut rig = Rig::new();
    open(&mut rig, GATHER, &[0]);
    rig.message(server(), frame(Header::Request(request(HANG, CALL)), &[], &[]));
    assert_eq!(replies(&mut rig), Vec::from_iter(broken()));
    assert_eq!((rig.poller.sizes(), charged(&rig)), ((0, 1), 1), "the later call has no stream");
    rig.message(server(), frame(Header::Cancel { call: CALL }, &[], &[]));
    assert_eq!((rig.poller.sizes(), charged(&rig)), ((0, 0), 0));
}

#[test]
fn a_reader_gives_its_window_back_when_half_is_consumed_and_a_stopped_one_does_not() {
    let mut rig = Rig::new();
    open(&mut rig, GATHER, &[40]);
    for number in 0..31 {
        from_caller(&mut rig, data(number), b"item");
    }
    rig.run();
    assert!(parts(&mut rig).is_empty(), "less than a half");
    from_caller(&mut rig, data(31), b"item");
    rig.run();
    // The consumed part of the window, and its growth to twice the size.
    let window = StreamPart::Window { bytes: 32 * 4 + (16 << 10), items: 32 + 64 };
    assert_eq!(parts(&mut rig), [(window, 8)]);
    assert_eq!(charged(&rig), 1 + (32 << 10), "the handler and the window");
    for number in 32..128 {
        from_caller(&mut rig, data(number), b"item");
    }
    rig.run();
    assert!(parts(&mut rig).is_empty(), "the reader takes 40 and no more");
    assert_eq!(reply(&mut rig), None);
    from_caller(&mut rig, data(128), b"item");
    from_caller(&mut rig, data(129), b"item");
    assert_eq!(rig.poller.sizes(), (0, 1));
    let rest = (130..).take_while(|number| {
        from_caller(&mut rig, data(*number), b"item");
        rig.poller.sizes().1 > 0
    });
    assert_eq!(130 + rest.count(), 64 + 32 + 64, "the window ends here");
    assert_eq!(charged(&rig), 0);
}

/// Lets the handler consume items of these bytes. Returns the windows that were returned to the writer, in bytes and items.
fn windows_for(items: &[usize]) -> Vec<(u32, u32)> {
    let mut rig = Rig::new();
    open(&mut rig, GATHER, &[255]);
    let mut windows = Vec::new();
    for (number, bytes) in (0..).zip(items) {
        from_caller(&mut rig, data(number), &vec![1; *bytes]);
        rig.run();
        windows.extend(parts(&mut rig).into_iter().filter_map(|(part, _)| match part {
            StreamPart::Window { bytes, items } => Some((bytes, items)),
            _ => None,
        }));
    }
    windows
}

#[test]
fn a_window_grows_until_it_has_room_for_four_of_the_largest_items_or_for_a_mebibyte() {
    const KIB: usize = 1 << 10;
    for (item, most) in
        [(100 * KIB, 1024), (256 * KIB, 1024), (300 * KIB, 2048), (1024 * KIB, 4096), (2048 * KIB, 4096)]
    {
        let windows = windows_for(&[item; 20]);
        let given = windows.iter().map(|(bytes, _)| *bytes as usize).sum::<usize>();
        assert_eq!(16 * KIB + given - 20 * item, most * KIB, "the window after 20 items of {item} bytes");
        let items = windows.iter().map(|(_, items)| *items).sum::<u32>();
        assert_eq!(64 + items - 20, 4096, "items of {item} bytes");
    }
}

#[test]
fn a_large_item_is_given_back_before_half_of_a_large_window_is_consumed() {
    let size = 256 << 10;
    let windows = windows_for(&[size; 12]);
    assert_eq!(windows.len(), 12, "one for each item: {windows:?}");
    assert_eq!(windows.last(), Some(&(256 << 10, 1)));
}

#[test]
fn a_stream_waits_for_room_once_however_often_it_changes() {
    let mut rig = Rig::new();
    open(&mut rig, GATHER, &[200]);
    rig.carrier.refusal = Some(full());
    for number in 0..60 {
        from_caller(&mut rig, data(number), b"item");
        rig.run();
    }
    assert_eq!(rig.poller.unsent.len(), 1);
    rig.carrier.refusal = None;
    rig.carrier.wait(Duration::from_millis(1));
    rig.run();
    assert_eq!((rig.poller.unsent.len(), parts(&mut rig).len(), rig.poller.next_timer()), (0, 1, None));
}

#[test]
fn streams_of_peer_without_room_are_tried_few_at_a_time_and_seldom() {
    const STREAMS: usize = 100;
    let mut rig = Rig::new();
    let calls = || 0..STREAMS as u64;
    for call in calls() {
        let header = Header::Request(RequestHeader { call, ..request(GATHER, CALL) });
        rig.message(server(), frame(header, &[], &[200]));
        rig.run();
    }
    rig.carrier.refusal = Some(full());
    // The handlers consume more than half of their windows, and so have credit to grant.
    for (call, number) in calls().flat_map(|call| (0..40).map(move |number| (call, number))) {
        rig.message(server(), stream(call, true, data(number), b"item"));
    }
    rig.run();
    assert_eq!((rig.poller.unsent.len(), rig.carrier.refused), (STREAMS, 1), "one is tried");
    for _ in 0..100 {
        rig.carrier.wait(Duration::from_millis(1));
        rig.run();
    }
    // After 1, 3, 7, 15, 31 and 63 ms.
    assert_eq!((rig.poller.unsent.len(), rig.carrier.refused), (STREAMS, 1 + 6 * 16));
    rig.carrier.refusal = None;
    rig.carrier.wait(Duration::from_millis(64));
    rig.run();
    assert_eq!((rig.poller.unsent.len(), rig.poller.next_timer()), (0, None));
}

#[test]
fn streams_are_refused_beyond_the_budget_of_their_peer() {
    let limit = Limit { per_peer: 64 << 10, in_all: 1 << 20 };
    let mut rig = Rig::with_limits(Limits { decoded: limit, ..Limits::default() });
    for call in 0..5 {
        rig.message(server(), frame(Header::Request(request(GATHER, call)), &[], &[]));
    }
    let by = By::Node { reason: Some(Reason::Overloaded), ran: false };
    assert_eq!(reply(&mut rig), Some((Code::ResourceExhausted.number(), by)));
    assert_eq!(rig.poller.sizes().1, 4);
    rig.peer(server().peer, PeerEvent::Down { cause: PeerDown::Died });
    assert_eq!((rig.poller.sizes().1, charged(&rig)), (0, 0));
}

#[test]
fn an_item_beyond_the_window_is_charged_until_it_is_consumed() {
    const KIB: usize = 1 << 10;
    let limit = Limit { per_peer: 64 * KIB, in_all: 1 << 20 };
    let mut rig = Rig::with_limits(Limits { decoded: limit, ..Limits::default() });
    open(&mut rig, GATHER, &[]);
    from_caller(&mut rig, data(0), &[1; 40 * KIB]);
    assert_eq!(charged(&rig), 1 + 40 * KIB, "the handler, the window and the rest of the item");
    rig.message(server(), frame(Header::Request(request(GATHER, 8)), &[], &[0]));
    rig.message(server(), stream(8, true, data(0), &[1; 48 * KIB]));
    let by = By::Node { reason: Some(Reason::Overloaded), ran: true };
    assert_eq!(reply(&mut rig), Some((Code::ResourceExhausted.number(), by)));
    assert_eq!(charged(&rig), 1 + 40 * KIB, "the other stream is over");
    rig.run();
    assert_eq!(charged(&rig), 1 + 16 * KIB, "the window, which has not doubled beside the item");
    from_caller(&mut rig, data(1), &[1; 40 * KIB]);
    assert_eq!(charged(&rig), 1 + 40 * KIB);
    rig.message(server(), frame(Header::Cancel { call: CALL }, &[], &[]));
    assert_eq!((rig.poller.sizes(), charged(&rig)), ((0, 0), 0));
}

#[test]
fn a_peer_that_takes_no_items_holds_one_batch_of_them_here_and_is_charged_for_it() {
    let mut rig = Rig::new();
    open(&mut rig, FEED, &[255, 1]);
    (0..3).for_each(|_| rig.run());
    assert_eq!((parts(&mut rig).len(), charged(&rig)), (65, 1 + (16 << 10)));
    rig.carrier.refusal = Some(full());
    from_caller(&mut rig, StreamPart::Window { bytes: LARGEST_BYTES, items: 4096 }, &[]);
    (0..5).for_each(|_| rig.run());
    rig.carrier.refusal = None;
    rig.carrier.wait(Duration::from_millis(1));
    rig.run();
    assert_eq!(parts(&mut rig).len(), (16_usize << 10).div_ceil(100));
}

#[test]
fn a_stream_whose_metadata_is_refused_leaves_no_charge() {
    let mut rig = Rig::new();
    for method in [FEED, GATHER, TALK] {
        let header = RequestHeader { metadata: 3, ..request(method, CALL) };
        let mut bytes = Vec::new();
        Header::Request(header).emit(0, &mut bytes);
        bytes.extend([0; 3]);
        rig.message(server(), bytes);
        let by = By::Node { reason: Some(Reason::BadArguments), ran: false };
        assert_eq!(reply(&mut rig), Some((Code::InvalidArgument.number(), by)));
        assert_eq!((rig.poller.sizes(), charged(&rig)), ((0, 0), 0), "{method}");
    }
}

#[test]
fn the_reply_of_a_stream_without_a_deadline_waits_for_room() {
    let mut rig = Rig::new();
    open(&mut rig, GATHER, &[]);
    rig.carrier.refusal = Some(full());
    from_caller(&mut rig, StreamPart::End { items: 0 }, &[]);
    // A refused stream: there is no room for its reply.
    rig.message(server(), frame(Header::Request(request(FEED, 8)), &[], &[]));
    (0..3).for_each(|_| rig.run());
    assert!(sent(&mut rig).is_empty());
    assert!(charged(&rig) > 0, "waiting replies are charged, however small");
    rig.carrier.refusal = None;
    rig.carrier.wait(Duration::from_millis(1));
    rig.run();
    let replied = sent(&mut rig).into_iter().filter_map(|(_, header)| match header {
        Header::Reply { call, code, .. } => Some((call, code)),
        _ => None,
    });
    let expected = [(8, Code::ResourceExhausted.number()), (CALL, 0)];
    assert_eq!(replied.collect::<Vec<_>>(), expected);
    assert_eq!((rig.poller.sizes(), charged(&rig)), ((0, 0), 0));
}

#[test]
fn a_cancelled_stream_leaves_nothing_and_sends_no_reset() {
    let mut rig = Rig::new();
    open(&mut rig, GATHER, &[]);
    from_caller(&mut rig, data(0), b"item");
    let text = frame(Header::Cancel { call: CALL }, &[], &[]);
    rig.message(server(), text);
    rig.run();
    assert!(parts(&mut rig).is_empty(), "the call is over");
    assert_eq!((rig.poller.sizes(), charged(&rig)), ((0, 0), 0));
}

#[test]
fn requests_of_another_kind_than_the_method_are_refused() {
    let mut rig = Rig::new();
    let plain = |method: &MethodName, opens| RequestHeader { opens, ..request(method, CALL) };
    let by = By::Node { reason: Some(Reason::NoMethod), ran: false };
    let refused = Some((Code::Unimplemented.number(), by));
    for (method, opens) in [(ECHO, true), (FEED, false), (TALK, false)] {
        rig.message(server(), frame(Header::Request(plain(method, opens)), &[], &[]));
        assert_eq!(reply(&mut rig), refused, "{method}");
        let asked = crate::wire::frame::Asked::Number(number(method).unwrap().number);
        let header = RequestHeader { asked, ..plain(method, opens) };
        rig.message(server(), frame(Header::Request(header), &[], &[]));
        assert_eq!(reply(&mut rig), refused, "{method} by its number");
    }
    assert_eq!(rig.poller.sizes(), (0, 0));
}

/// Returns the successful reply to a call whose server has sent its stream.
fn end_of_call(call: u64) -> Vec<u8> {
    frame(success(Token(call)), &[], &[])
}

/// Opens a client's stream of bytes that its server accepts. Returns the call's number, and the reader.
fn accepted(rig: &mut Rig) -> (u64, Streaming<Bytes>) {
    let (call, opened) = opened(rig);
    (call, opened.bytes(|bytes| bytes))
}

/// Opens a client's stream that its server accepts. Returns the call's number, and the stream.
fn opened(rig: &mut Rig) -> (u64, Opened) {
    rig.carrier.leaves_through = Some(SessionNumber(1));
    rig.peer(server().peer, PeerEvent::Up { session: SessionNumber(1), epoch: 1, pollers: 1 });
    let (mut wait, opened) = rig.open(PORT, FEED, no_items());
    rig.run();
    let Token(call) = rig.carrier.given.last().unwrap().token;
    assert!(poll(&mut wait).is_pending());
    rig.message(server(), stream(call, false, StreamPart::Accept, &[]));
    assert!(matches!(poll(&mut wait), Poll::Ready(Ok(_))));
    sent(rig);
    (call, opened)
}

fn poll(wait: &mut StreamWait) -> Poll<Result<Response, Status>> {
    wait.poll(&mut Context::from_waker(Waker::noop()))
}

/// Returns the next item or the end, if it has come.
fn next<T>(items: &mut Streaming<T>) -> Poll<Result<Option<T>, Status>> {
    pin!(items.message()).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_stream_has_finished_only_with_its_end_and_a_good_reply() {
    let mut rig = Rig::new();
    let (call, mut items) = accepted(&mut rig);
    rig.message(server(), stream(call, false, data(0), b"item"));
    assert_eq!(next(&mut items), Poll::Ready(Ok(Some(Bytes::from_static(b"item")))));
    rig.message(server(), stream(call, false, StreamPart::End { items: 1 }, &[]));
    assert!(next(&mut items).is_pending(), "the reply may be a failure");
    rig.message(server(), end_of_call(call));
    assert_eq!(next(&mut items), Poll::Ready(Ok(None)));
    assert_eq!(next(&mut items), Poll::Ready(Ok(None)));

    let (call, mut items) = accepted(&mut rig);
    rig.message(server(), end_of_call(call));
    let Poll::Ready(Err(status)) = next(&mut items) else { panic!("no end came") };
    assert_eq!(status.reason(), Some(Reason::OtherProtocol), "{status}");
    assert_eq!(next(&mut items), Poll::Ready(Ok(None)), "an error comes once");
    assert_eq!(rig.poller.sizes(), (0, 0));
}

#[test]
fn the_reply_after_a_servers_stream_has_no_value() {
    for (encoded, body) in [(&b"1"[..], &b""[..]), (b"", b"1")] {
        let mut rig = Rig::new();
        let (call, mut items) = accepted(&mut rig);
        rig.message(server(), stream(call, false, StreamPart::End { items: 0 }, &[]));
        rig.message(server(), frame(success(Token(call)), encoded, body));
        let Poll::Ready(Err(status)) = next(&mut items) else {
            panic!("{encoded:?} and {body:?} are ignored")
        };
        assert_eq!(
            (status.code(), status.reason()),
            (Code::Internal, Some(Reason::OtherProtocol)),
            "{status}"
        );
        assert_eq!((rig.poller.sizes(), charged(&rig)), ((0, 0), 0));
    }
    // Metadata does not count as a value.
    let mut rig = Rig::new();
    let (call, mut items) = accepted(&mut rig);
    rig.message(server(), stream(call, false, StreamPart::End { items: 0 }, &[]));
    let metadata = MetadataBytes { initial: 0, trailing: 5 };
    let header = Header::Reply { call, code: 0, by: By::Handler, number: None, metadata };
    let mut bytes = Vec::new();
    header.emit(0, &mut bytes);
    bytes.extend(b"\x01\x01\0kv");
    rig.message(server(), bytes);
    assert_eq!(next(&mut items), Poll::Ready(Ok(None)));
}

#[test]
fn a_lost_session_is_an_error_after_the_items_that_came_and_says_how_many() {
    let mut rig = Rig::new();
    let (call, mut items) = accepted(&mut rig);
    for number in 0..2 {
        rig.message(server(), stream(call, false, data(number), b"item"));
    }
    rig.message(server(), stream(call, false, StreamPart::End { items: 2 }, &[]));
    rig.carrier.sessions_are_over = true;
    rig.peer(server().peer, PeerEvent::Down { cause: PeerDown::Died });
    assert!(matches!(next(&mut items), Poll::Ready(Ok(Some(_)))));
    assert!(matches!(next(&mut items), Poll::Ready(Ok(Some(_)))));
    let Poll::Ready(Err(status)) = next(&mut items) else { panic!("its session is lost") };
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.to_string().contains("2 items of the stream were delivered"), "{status}");
}

#[test]
fn dropping_a_clients_stream_cancels_its_call_and_a_finished_one_does_not() {
    let mut rig = Rig::new();
    let (call, items) = accepted(&mut rig);
    drop(items);
    rig.run();
    let headers = sent(&mut rig).into_iter().map(|(_, header)| header).collect::<Vec<_>>();
    assert_eq!(headers, [Header::Cancel { call }]);
    let (call, mut items) = accepted(&mut rig);
    rig.message(server(), stream(call, false, StreamPart::End { items: 0 }, &[]));
    rig.message(server(), end_of_call(call));
    assert_eq!(next(&mut items), Poll::Ready(Ok(None)));
    drop(items);
    rig.run();
    assert!(sent(&mut rig).is_empty());
    let (wait, _opened) = rig.open(PORT, FEED, no_items());
    rig.run();
    drop(wait);
    sent(&mut rig);
    rig.run();
    assert!(matches!(sent(&mut rig)[..], [(_, Header::Cancel { .. })]), "before it was accepted");
    assert_eq!(rig.poller.sizes(), (0, 0));
}

#[test]
fn a_cancellation_without_room_is_sent_later() {
    let mut rig = Rig::new();
    let (call, items) = accepted(&mut rig);
    drop(items);
    rig.carrier.refusal = Some(full());
    rig.run();
    rig.carrier.refusal = None;
    assert!(rig.poller.next_timer().is_some());
    rig.carrier.wait(Duration::from_millis(1));
    rig.run();
    assert!(matches!(sent(&mut rig)[..], [(_, Header::Cancel { call: of })] if of == call));
    assert_eq!(rig.poller.next_timer(), None);
}

#[test]
fn a_server_that_breaks_the_protocol_loses_the_stream_and_its_handler_is_cancelled() {
    let item = |number| (data(number), &b"item"[..]);
    let end = |items| (StreamPart::End { items }, &b""[..]);
    let accept = (StreamPart::Accept, &b""[..]);
    for steps in [
        vec![item(3)],
        vec![end(1)],
        (0..65).map(item).collect::<Vec<_>>(),
        vec![end(0), item(0)],
        vec![end(0), end(0)],
        vec![(StreamPart::End { items: 0 }, b"more")],
        vec![accept],
        vec![end(0), accept],
        vec![(StreamPart::Reset, b"")],
        vec![(StreamPart::Window { bytes: 1, items: 1 }, b"")],
    ] {
        let mut rig = Rig::new();
        let (call, mut items) = accepted(&mut rig);
        for (part, item) in steps {
            rig.message(server(), stream(call, false, part, item));
        }
        let cancels =
            sent(&mut rig).into_iter().filter(|(_, header)| *header == Header::Cancel { call }).count();
        assert_eq!(cancels, 1);
        let end = (0..66).find_map(|_| match next(&mut items) {
            Poll::Ready(Err(status)) => Some(status),
            _ => None,
        });
        assert_eq!(end.and_then(|status| status.reason()), Some(Reason::OtherProtocol));
        assert_eq!(rig.poller.sizes(), (0, 0));
    }
}

#[test]
fn a_server_that_breaks_the_protocol_before_its_stream_exists_loses_the_call() {
    for (method, part, item) in [
        (FEED, data(0), &b"item"[..]),
        (FEED, StreamPart::End { items: 0 }, b""),
        (FEED, StreamPart::Accept, b"no metadata"),
        (TALK, data(0), b"item"),
        (GATHER, StreamPart::Accept, b""),
        (GATHER, data(0), b"item"),
        (GATHER, StreamPart::Window { bytes: u32::MAX, items: 0 }, b""),
        (GATHER, StreamPart::Window { bytes: 1, items: 1 }, b"more"),
        (GATHER, StreamPart::Reset, b"more"),
    ] {
        let mut rig = Rig::new();
        rig.carrier.leaves_through = Some(SessionNumber(1));
        rig.peer(server().peer, PeerEvent::Up { session: SessionNumber(1), epoch: 1, pollers: 1 });
        let (mut wait, _opened) = rig.open(PORT, method, no_items());
        rig.run();
        let (request, _) = sent(&mut rig).pop().unwrap();
        let Token(call) = request.token;
        rig.message(server(), stream(call, false, part, item));
        assert!(matches!(sent(&mut rig)[..], [(_, Header::Cancel { call: of })] if of == call));
        let Poll::Ready(Err(status)) = poll(&mut wait) else { panic!("{method} goes on after {part:?}") };
        assert_eq!(status.reason(), Some(Reason::OtherProtocol), "{status}");
        assert_eq!(rig.poller.sizes(), (0, 0));
    }
}

#[test]
fn a_frame_of_a_stream_ends_a_call_without_one() {
    for part in [StreamPart::Accept, data(0), StreamPart::End { items: 0 }, StreamPart::Reset] {
        let mut rig = Rig::new();
        rig.peer(server().peer, PeerEvent::Up { session: SessionNumber(1), epoch: 1, pollers: 1 });
        let (mut getter, token) = call(&mut rig, HANG);
        rig.sent(token, SendOutcome::Delivered);
        sent(&mut rig);
        rig.message(server(), stream(token.0, false, part, &[]));
        let status = super::status(&mut getter);
        let kind = (status.code(), status.reason(), status.may_have_run());
        assert_eq!(kind, (Code::Internal, Some(Reason::OtherProtocol), true), "{status}");
        assert!(matches!(sent(&mut rig)[..], [(_, Header::Cancel { call })] if call == token.0));
        assert_eq!(rig.poller.sizes(), (0, 0));
    }
}

#[test]
fn the_items_of_a_server_are_charged_to_it_beyond_the_first_window() {
    const KIB: usize = 1 << 10;
    let limit = Limit { per_peer: 64 * KIB, in_all: 1 << 20 };
    let mut rig = Rig::with_limits(Limits { decoded: limit, ..Limits::default() });
    let (call, mut items) = accepted(&mut rig);
    assert_eq!(charged(&rig), 1, "the call");
    let mut numbers = 0..;
    let mut item = |rig: &mut Rig, bytes: usize| {
        let number = numbers.next().unwrap();
        rig.message(server(), stream(call, false, data(number), &vec![1; bytes]));
    };
    item(&mut rig, 40 * KIB);
    assert_eq!(charged(&rig), 1 + 24 * KIB, "the rest of the item");
    assert!(matches!(next(&mut items), Poll::Ready(Ok(Some(_)))));
    assert!(next(&mut items).is_pending());
    rig.run();
    assert_eq!(charged(&rig), 1 + 16 * KIB, "the window, which has doubled");
    for _ in 0..3 {
        item(&mut rig, 16 * KIB);
        item(&mut rig, 16 * KIB);
        while matches!(next(&mut items), Poll::Ready(Ok(Some(_)))) {}
        rig.run();
        assert_eq!(charged(&rig), 1 + 16 * KIB, "three eighths of the budget stay free");
    }
    item(&mut rig, 31 * KIB);
    item(&mut rig, 64 * KIB);
    let mut taken = std::iter::repeat_with(|| next(&mut items)).take(3);
    let end = taken.find_map(|item| if let Poll::Ready(Err(status)) = item { Some(status) } else { None });
    let end = end.unwrap();
    assert_eq!((end.code(), end.reason()), (Code::ResourceExhausted, Some(Reason::Overloaded)), "{end}");
    assert_eq!((rig.poller.sizes(), charged(&rig)), ((0, 0), 0));

    let (call, _items) = accepted(&mut rig);
    rig.message(server(), stream(call, false, data(0), &[1; 40 * KIB]));
    rig.carrier.sessions_are_over = true;
    rig.peer(server().peer, PeerEvent::Down { cause: PeerDown::Died });
    assert_eq!((rig.poller.sizes(), charged(&rig)), ((0, 0), 0), "a lost session leaves no charge");
}

#[test]
fn an_item_is_decoded_when_it_is_taken_and_within_the_budget_of_one_peer() {
    let limit = Limit { per_peer: 64 << 10, in_all: 1 << 20 };
    let mut rig = Rig::with_limits(Limits { decoded: limit, ..Limits::default() });
    let (call, opened) = opened(&mut rig);
    let mut items = opened.items(Coding::<Bincode, Vec<u64>>::decoder());
    // Zeros take one byte each, and eight when they are decoded.
    for (number, zeros) in [(0, 4000), (1, 4000), (2, 9000)] {
        let mut item = Vec::new();
        Coding::<Bincode, Vec<u64>>::of(&vec![0; zeros]).encode(&mut item).unwrap();
        rig.message(server(), stream(call, false, data(number), &item));
    }
    for _ in 0..2 {
        let Poll::Ready(Ok(Some(numbers))) = next(&mut items) else { panic!("one alone has room") };
        assert_eq!(numbers.len(), 4000);
    }
    let Poll::Ready(Err(status)) = next(&mut items) else { panic!("it takes more than the budget") };
    let kind = (status.code(), status.reason());
    assert_eq!(kind, (Code::ResourceExhausted, Some(Reason::TooLarge)), "{status}");
    rig.run();
    assert_eq!((rig.poller.sizes(), charged(&rig)), ((0, 0), 0));
}

/// Limit of idle time of streams in tests.
const IDLE: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// Lets time pass, and runs the poller.
fn wait(rig: &mut Rig, time: Duration) {
    rig.carrier.wait(time);
    rig.run();
}

#[test]
fn a_stream_on_which_nothing_arrives_ends_after_its_idle_timeout() {
    let mut rig = Rig::new();
    rig.stream_limits = (Time::MAX, Some(IDLE));
    let (call, mut items) = accepted(&mut rig);
    for number in 0..3 {
        wait(&mut rig, IDLE - MS);
        rig.message(server(), stream(call, false, data(number), b"item"));
        assert!(matches!(next(&mut items), Poll::Ready(Ok(Some(_)))));
    }
    wait(&mut rig, IDLE - MS);
    assert!(next(&mut items).is_pending());
    wait(&mut rig, MS);
    let Poll::Ready(Err(status)) = next(&mut items) else { panic!("it goes on") };
    assert_eq!((status.code(), status.reason()), (Code::DeadlineExceeded, Some(Reason::Expired)));
    assert!(status.message().contains("idle_timeout of 1s"), "{status}");
    assert!(status.to_string().contains("3 items of the stream were delivered"), "{status}");
    assert!(matches!(sent(&mut rig)[..], [(_, Header::Cancel { call: of })] if of == call));
    assert_eq!((rig.poller.sizes(), rig.poller.next_timer()), ((0, 0), None));
}

#[test]
fn a_stream_whose_reader_takes_nothing_is_not_idle() {
    let mut rig = Rig::new();
    rig.stream_limits = (Time::MAX, Some(IDLE));
    let (call, mut items) = accepted(&mut rig);
    for number in 0..64 {
        rig.message(server(), stream(call, false, data(number), b"item"));
    }
    (0..10).for_each(|_| wait(&mut rig, IDLE));
    let taken = (0..).take_while(|_| matches!(next(&mut items), Poll::Ready(Ok(Some(_)))));
    assert_eq!(taken.count(), 64);
    rig.run();
    assert!(matches!(parts(&mut rig)[..], [(StreamPart::Window { .. }, 8)]));
    (0..2).for_each(|_| wait(&mut rig, IDLE));
    assert!(matches!(next(&mut items), Poll::Ready(Err(_))), "now the server sends nothing");
}

#[test]
fn idle_time_begins_when_the_server_may_send() {
    // The request waits before it leaves.
    let mut rig = Rig::new();
    rig.stream_limits = (Time::MAX, Some(IDLE));
    rig.peer(server().peer, PeerEvent::Up { session: SessionNumber(1), epoch: 1, pollers: 1 });
    let (mut request, _opened) = rig.open(PORT, FEED, no_items());
    rig.run();
    let token = rig.carrier.given.last().unwrap().token;
    wait(&mut rig, IDLE);
    wait(&mut rig, IDLE - MS);
    rig.sent(token, SendOutcome::Delivered);
    wait(&mut rig, IDLE - MS);
    assert!(poll(&mut request).is_pending());
    wait(&mut rig, MS);
    assert!(matches!(poll(&mut request), Poll::Ready(Err(_))));

    // The reader makes room just before the next look at the timer.
    let mut rig = Rig::new();
    rig.stream_limits = (Time::MAX, Some(IDLE));
    let (call, mut items) = accepted(&mut rig);
    (0..64).for_each(|number| rig.message(server(), stream(call, false, data(number), b"item")));
    wait(&mut rig, IDLE);
    wait(&mut rig, IDLE - MS);
    (0..64).for_each(|_| assert!(matches!(next(&mut items), Poll::Ready(Ok(Some(_))))));
    assert!(next(&mut items).is_pending());
    rig.run();
    wait(&mut rig, IDLE - MS);
    assert!(next(&mut items).is_pending());
    wait(&mut rig, MS);
    assert!(matches!(next(&mut items), Poll::Ready(Err(_))));
}

#[test]
fn a_server_that_ends_its_items_and_sends_no_reply_is_idle() {
    let mut rig = Rig::new();
    rig.stream_limits = (Time::MAX, Some(IDLE));
    let (call, mut items) = accepted(&mut rig);
    (0..64).for_each(|number| rig.message(server(), stream(call, false, data(number), b"item")));
    rig.message(server(), stream(call, false, StreamPart::End { items: 64 }, &[]));
    (0..64).for_each(|_| assert!(matches!(next(&mut items), Poll::Ready(Ok(Some(_))))));
    (0..2).for_each(|_| wait(&mut rig, IDLE));
    let Poll::Ready(Err(status)) = next(&mut items) else { panic!("it waits for ever") };
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

#[test]
fn a_deadline_ends_a_stream_that_is_not_idle_and_an_end_leaves_no_timer() {
    let mut rig = Rig::new();
    rig.stream_limits = (rig.carrier.now + IDLE * 2, Some(IDLE));
    let (call, mut items) = accepted(&mut rig);
    for number in 0..2 {
        wait(&mut rig, IDLE - MS);
        rig.message(server(), stream(call, false, data(number), b"item"));
        assert!(matches!(next(&mut items), Poll::Ready(Ok(Some(_)))));
    }
    assert_eq!(rig.poller.sizes(), (1, 0));
    wait(&mut rig, MS * 2);
    let Poll::Ready(Err(status)) = next(&mut items) else { panic!("its deadline has passed") };
    assert!(status.message().contains("no answer in time"), "{status}");

    rig.stream_limits = (Time::MAX, Some(IDLE));
    let (call, mut items) = accepted(&mut rig);
    assert!(rig.poller.next_timer().is_some());
    rig.message(server(), stream(call, false, StreamPart::End { items: 0 }, &[]));
    rig.message(server(), end_of_call(call));
    assert_eq!(next(&mut items), Poll::Ready(Ok(None)));
    assert_eq!((rig.poller.sizes(), rig.poller.next_timer()), ((0, 0), None));
}

#[test]
fn a_callers_items_follow_its_request_once_that_has_left() {
    let mut rig = Rig::new();
    rig.peer(server().peer, PeerEvent::Up { session: SessionNumber(1), epoch: 1, pollers: 1 });
    let (sender, receiver) = channel::<Bytes>(4);
    sender.try_send(Bytes::from_static(b"one")).unwrap();
    let items = outgoing(receiver, |item: Bytes, buffer: &mut ItemBuffer| buffer.bytes(item));
    let (mut wait, _opened) = rig.open(PORT, GATHER, items);
    (0..3).for_each(|_| rig.run());
    let token = rig.carrier.given.last().unwrap().token;
    assert!(matches!(sent(&mut rig)[..], [(_, Header::Request(_))]), "the request waits to be sent");
    rig.sent(token, SendOutcome::Delivered);
    (0..3).for_each(|_| rig.run());
    assert_eq!(parts(&mut rig), [(data(0), 3)]);
    sender.finish();
    (0..3).for_each(|_| rig.run());
    assert_eq!(parts(&mut rig), [(StreamPart::End { items: 1 }, 8)]);
    rig.message(server(), super::reply(token));
    assert!(matches!(poll(&mut wait), Poll::Ready(Ok(_))));
    assert_eq!(rig.poller.sizes(), (0, 0));
}

#[test]
fn a_caller_stops_when_its_reader_is_gone_or_its_call_is_over() {
    for is_reset in [true, false] {
        let mut rig = Rig::new();
        rig.carrier.leaves_through = Some(SessionNumber(1));
        rig.peer(server().peer, PeerEvent::Up { session: SessionNumber(1), epoch: 1, pollers: 1 });
        let (sender, receiver) = channel::<Bytes>(4);
        let items = outgoing(receiver, |item: Bytes, buffer: &mut ItemBuffer| buffer.bytes(item));
        let (_wait, _opened) = rig.open(PORT, GATHER, items);
        (0..3).for_each(|_| rig.run());
        let token = rig.carrier.given.last().unwrap().token;
        assert!(!sender.is_closed());
        if is_reset {
            rig.message(server(), stream(token.0, false, StreamPart::Reset, &[]));
        } else {
            rig.message(server(), super::reply(token));
        }
        (0..3).for_each(|_| rig.run());
        assert!(sender.is_closed(), "the stream that was passed in is dropped");
    }
}

#[test]
fn unary_calls_are_as_before_next_to_streams() {
    let mut rig = Rig::new();
    let (_stream_call, _items) = accepted(&mut rig);
    let (mut getter, token) = call(&mut rig, ECHO);
    rig.message(server(), super::reply(token));
    assert!(getter.try_take().unwrap().unwrap().is_ok());
}
