//! Servers that violate the protocol of streams.

use super::server::{Arrived, Server, error, next, success};
use super::service::{FEED, GATHER, HANG, TALK};
use super::{poll, with_metadata};
use crate::client::CallOptions;
use crate::status::Code;
use crate::status::reason::Reason;
use crate::wire::frame::{Header, StreamPart};
use crate::wire::metadata::MetadataBytes;
use bytes::Bytes;
use std::pin::Pin;
use std::time::Duration;
use trunkline_transport::Limit;

const RESET: StreamPart = StreamPart::Reset;
const ACCEPT: StreamPart = StreamPart::Accept;
const MORE: &[u8] = b"more";

fn data(number: u16) -> StreamPart {
    StreamPart::Data { number }
}

fn end(items: u64) -> StreamPart {
    StreamPart::End { items }
}

fn window(bytes: u32) -> StreamPart {
    StreamPart::Window { bytes, items: 1 }
}

/// Checks that exactly this call is cancelled and that its state is released.
fn assert_cancelled(server: &mut Server, request: Arrived, what: &str) {
    assert_eq!(server.cancelled(), [request.header.call], "{what}");
    server.assert_at_rest(what);
}

#[test]
fn protocol_error_in_stream_ends_call_and_cancels_handler() {
    let mut server = Server::new();
    let options = CallOptions::new();

    // Frames after the stream was accepted.
    for steps in [
        vec![(data(3), MORE)],
        vec![(end(1), b"")],
        (0..65).map(|number| (data(number), MORE)).collect::<Vec<_>>(),
        vec![(end(0), b""), (data(0), MORE)],
        vec![(end(0), b""), (end(0), b"")],
        vec![(end(0), MORE)],
        vec![(ACCEPT, b"")],
        vec![(end(0), b""), (ACCEPT, b"")],
        vec![(RESET, b"")],
        vec![(window(1), b"")],
    ] {
        let (request, mut items) = server.accepted(FEED, &options);
        steps.iter().for_each(|(part, item)| server.stream(request, *part, item));
        let what = format!("{:?}", steps.last());
        assert_cancelled(&mut server, request, &what);
        let status = error(&mut items);
        assert_eq!(status.reason(), Some(Reason::OtherProtocol), "{what}: {status}");
        assert_eq!(next(&mut items), Some(Ok(None)), "an error comes once");
    }

    // Frames before the stream was accepted.
    for (method, part, item) in [
        (FEED, data(0), MORE),
        (FEED, end(0), b""),
        (FEED, ACCEPT, MORE),
        (TALK, data(0), MORE),
        (GATHER, ACCEPT, b""),
        (GATHER, data(0), MORE),
        (GATHER, window(u32::MAX), b""),
        (GATHER, window(1), MORE),
        (GATHER, RESET, MORE),
    ] {
        let (mut wait, _opened) = server.open(method, &options);
        let request = server.request();
        server.stream(request, part, item);
        let what = format!("{method} {part:?}");
        assert_cancelled(&mut server, request, &what);
        let status = poll(Pin::new(&mut wait)).expect("it has ended").expect_err("by the breach");
        assert_eq!(status.reason(), Some(Reason::OtherProtocol), "{what}: {status}");
    }

    // Frames for a call without a stream.
    for part in [ACCEPT, data(0), end(0), RESET] {
        let mut call = server.call(HANG, options.clone(), Bytes::new());
        let request = server.request();
        server.stream(request, part, &[]);
        assert_cancelled(&mut server, request, &format!("{part:?} of a call without a stream"));
        let status = poll(Pin::new(&mut call)).expect("it has ended").expect_err("by the breach");
        let kind = (status.code(), status.reason(), status.may_have_run());
        assert_eq!(kind, (Code::Internal, Some(Reason::OtherProtocol), true), "{status}");
    }
}

#[test]
fn stream_finishes_only_with_end_and_empty_successful_reply() {
    let mut server = Server::new();
    let options = CallOptions::new();
    let metadata = MetadataBytes { initial: 0, trailing: 5 };
    // Metadata does not count as a value.
    for (metadata, encoded, body, is_good) in [
        (MetadataBytes::default(), &b""[..], &b""[..], true),
        (metadata, b"\x01\x01\0kv", b"", true),
        (MetadataBytes::default(), b"1", b"", false),
        (MetadataBytes::default(), b"", b"1", false),
    ] {
        let (request, mut items) = server.accepted(FEED, &options);
        server.stream(request, data(0), b"item");
        server.stream(request, end(1), &[]);
        server.world.run();
        assert_eq!(next(&mut items), Some(Ok(Some(Bytes::from_static(b"item")))));
        assert!(next(&mut items).is_none(), "the reply may be a failure");
        let Header::Reply { call, code, by, number, .. } = success(request) else { unreachable!() };
        let header = Header::Reply { call, code, by, number, metadata };
        let (block, encoded) = encoded.split_at(metadata.sum());
        let answer = with_metadata(&header, block, encoded, body);
        server.peer.post(request.line, request.from.peer, Some(request.from), &answer);
        server.world.run();
        if is_good {
            assert_eq!(next(&mut items), Some(Ok(None)));
        } else {
            let status = error(&mut items);
            assert_eq!((status.code(), status.reason()), (Code::Internal, Some(Reason::OtherProtocol)));
        }
        assert_eq!(next(&mut items), Some(Ok(None)), "an end comes again, and an error once");
        assert!(server.cancelled().is_empty(), "the server has ended it");
        server.assert_at_rest("the end of a stream");
    }

    let (request, mut items) = server.accepted(FEED, &options);
    server.answer(request, &success(request), &[], &[]);
    server.world.run();
    let status = error(&mut items);
    assert_eq!(status.reason(), Some(Reason::OtherProtocol), "no end came: {status}");
    server.assert_at_rest("a reply before the end");
}

#[test]
fn reply_without_accept_contains_only_item_of_stream() {
    let mut server = Server::new();
    let large = [7; 40_000];
    for (metadata, encoded, body) in [
        (MetadataBytes::default(), &b"item"[..], &b""[..]),
        (MetadataBytes { initial: 5, trailing: 5 }, b"\x01\x01\0ka\x01\x01\0kbi", b"tem"),
        (MetadataBytes::default(), b"", &large),
    ] {
        let (wait, opened) = server.open(FEED, &CallOptions::new());
        let request = server.request();
        let Header::Reply { call, code, by, number, .. } = success(request) else { unreachable!() };
        let header = Header::Reply { call, code, by, number, metadata };
        let (block, encoded) = encoded.split_at(metadata.sum());
        let answer = with_metadata(&header, block, encoded, body);
        server.peer.post(request.line, request.from.peer, Some(request.from), &answer);
        server.world.block_on(wait).expect("it was accepted");
        let mut items = opened.bytes(|bytes| bytes);
        assert_eq!(next(&mut items), Some(Ok(Some(Bytes::from([encoded, body].concat())))));
        assert_eq!(next(&mut items), Some(Ok(None)));
        let received = [items.initial_metadata(), items.trailing_metadata()].map(|metadata| metadata.size());
        assert_eq!(received, [metadata.initial, metadata.trailing].map(|size| size as usize));
        assert!(server.cancelled().is_empty(), "the server has ended it");
        server.assert_at_rest("the end of a stream");
    }
}

#[test]
fn stream_cancellations_wait_for_room() {
    const STREAMS: usize = 40;
    // There are more calls than the peer has granted credit for. Each of them is too large for a bundle.
    const CALLS: usize = 1000;
    let limit = Limit { per_peer: 16, in_all: 64 };
    let mut server = Server::with(1, |builder| builder.queued_messages(limit));
    let options = CallOptions::new();
    let streams = (0..STREAMS).map(|_| server.accepted(FEED, &options)).collect::<Vec<_>>();
    let mut expected = streams.iter().map(|(request, _)| request.header.call).collect::<Vec<_>>();
    server.peer.hold(true);
    let body = Bytes::from(vec![0; 2048]);
    let calls = (0..CALLS).map(|_| server.call(HANG, options.clone(), body.clone())).collect::<Vec<_>>();
    server.world.wait(Duration::from_millis(20));
    drop(streams);
    server.world.wait(Duration::from_millis(20));
    server.peer.hold(false);
    server.world.wait(Duration::from_millis(200));
    let mut cancelled = server.cancelled();
    cancelled.sort_unstable();
    expected.sort_unstable();
    assert_eq!(cancelled, expected, "one for each stream");
    drop(calls);
    server.world.wait(Duration::from_millis(200));
    server.assert_at_rest("cancelled streams");
}
