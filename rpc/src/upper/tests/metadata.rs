//! Metadata from peers that break its rules or its limit, and the charge for it.

use super::{LONG, PORT, call, frame, reply, request, server, status};
use crate::node::budgets::Limits;
use crate::status::Code;
use crate::status::reason::Reason;
use crate::upper::fake::{ECHO, HANG, LIMIT, Rig};
use crate::wire::frame::{By, Header, RequestHeader};
use crate::wire::metadata::{Metadata, MetadataBytes, TraceContext};
use bytes::Bytes;
use trunkline_transport::{Limit, PeerDown, PeerEvent, Upper as _};

/// Returns metadata of this size, in bytes.
fn metadata(size: usize) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.append("k", &"v".repeat(size - 4)).unwrap();
    assert_eq!(metadata.size(), size);
    metadata
}

/// Returns a call of a method that never ends, with this metadata.
fn hang(call: u64, block: &[u8]) -> Vec<u8> {
    let metadata = u32::try_from(block.len()).unwrap();
    let header = Header::Request(RequestHeader { metadata, ..request(HANG, call) });
    let mut bytes = Vec::new();
    header.emit(0, &mut bytes);
    bytes.extend_from_slice(block);
    bytes
}

/// Returns the code and the reason of the last refusal, which says that the handler has not run.
fn refusal(rig: &mut Rig) -> (Code, Reason) {
    let given = rig.carrier.given.pop().expect("a reply");
    match Header::parse(&given.bytes).unwrap().0 {
        Header::Reply { code, by: By::Node { reason: Some(reason), ran: false }, .. } => {
            (Code::from_number(code), reason)
        }
        other => panic!("{other:?} is no refusal"),
    }
}

fn charged(rig: &Rig) -> usize {
    let budgets = rig.poller.ledger().budgets;
    let budget = budgets.into_iter().find(|budget| budget.name == "bytes of decoded arguments").unwrap();
    assert_eq!(budget.used, budget.counted);
    budget.used.get(&server().peer).copied().unwrap_or_default()
}

#[test]
fn metadata_of_a_request_is_bounded_checked_and_charged() {
    let decoded = Limit { per_peer: 64 << 10, in_all: 1 << 20 };
    let mut rig = Rig::with_limits(Limits { decoded, ..Limits::default() });
    rig.message(server(), hang(1, metadata(8192).block()));
    assert_eq!((rig.poller.sizes().1, charged(&rig)), (1, 8192), "the limit itself");
    rig.message(server(), hang(2, metadata(8193).block()));
    assert_eq!(refusal(&mut rig), (Code::ResourceExhausted, Reason::TooLarge));
    for bad in [&b"\x01\x01\0K1"[..], b"\x01\x01\0k\n", b"\x01\xff\0k1", b"\0\0\0", b"\x01"] {
        rig.message(server(), hang(2, bad));
        assert_eq!(refusal(&mut rig), (Code::InvalidArgument, Reason::BadArguments), "{bad:?}");
    }
    for call in 3..10 {
        rig.message(server(), hang(call, metadata(8192).block()));
    }
    assert_eq!((rig.poller.sizes().1, charged(&rig)), (8, 64 << 10));
    rig.message(server(), hang(10, metadata(8192).block()));
    assert_eq!(refusal(&mut rig), (Code::ResourceExhausted, Reason::Overloaded));
    rig.peer(server().peer, PeerEvent::Down { cause: PeerDown::Died });
    assert_eq!((rig.poller.sizes().1, charged(&rig)), (0, 0));
}

#[test]
fn a_trace_beyond_the_limit_of_a_request_is_left_out() {
    let mut rig = Rig::new();
    let trace = TraceContext::new(1, 2, true).unwrap().with_state(format!("k={}", "v".repeat(256)));
    let with_trace = |size| {
        let mut all = metadata(size);
        trace.put_into(&mut all);
        all
    };
    for (call, size, kept) in [(1, 8192, 8192), (2, 8192 - 69, 8192)] {
        let before = charged(&rig);
        rig.message(server(), hang(call, with_trace(size).block()));
        assert_eq!(charged(&rig) - before, kept, "{size}");
    }
    rig.message(server(), hang(3, with_trace(8193).block()));
    assert_eq!(refusal(&mut rig), (Code::ResourceExhausted, Reason::TooLarge));
}

#[test]
fn a_trace_is_left_out_of_a_request_that_is_too_large() {
    let mut all = metadata(100);
    TraceContext::new(1, 2, true).unwrap().with_state("k=1".to_owned()).put_into(&mut all);
    let (mut without_state, none) = (all.clone(), metadata(100));
    without_state.remove("tracestate");
    for with_body in [false, true] {
        let mut rig = Rig::new();
        let mut attempt = |arguments: usize| {
            rig.body = if with_body { vec![8; 1000].into() } else { Bytes::new() };
            let mut getter = rig.submit_with_metadata(PORT, &all, arguments - rig.body.len());
            rig.run();
            let Some(given) = rig.carrier.given.pop() else { return Err(status(&mut getter)) };
            let (Header::Request(header), encoded) = Header::parse(&given.bytes).unwrap() else { panic!() };
            let [range, _] = MetadataBytes::of_request(header.metadata).before(encoded.start);
            assert_eq!(given.bytes.len() - encoded.start, arguments);
            Ok((given.bytes.len(), Metadata::parse(&given.bytes[range]).unwrap()))
        };
        let others = attempt(5000).unwrap().0 - 5000;
        let full = LIMIT - others;
        let kept = |metadata: &Metadata| LIMIT - all.size() + metadata.size();
        for (excess, expected) in [
            (0, &all),
            (1, &without_state),
            (all.size() - without_state.size(), &without_state),
            (all.size() - without_state.size() + 1, &none),
            (all.size() - none.size(), &none),
        ] {
            let (bytes, metadata) = attempt(full + excess).unwrap();
            assert_eq!((bytes, metadata.block()), (kept(expected) + excess, expected.block()), "{excess}");
        }
        let refused = attempt(full + all.size() - none.size() + 1).unwrap_err();
        assert_eq!((refused.reason(), refused.may_have_run()), (Some(Reason::TooLarge), false), "{refused}");
    }
}

#[test]
fn metadata_of_a_reply_is_bounded_and_checked() {
    for (block, expected) in [
        (metadata(8192).block(), None),
        (metadata(8193).block(), Some((Code::ResourceExhausted, Reason::TooLarge))),
        (&b"\x01\x01\0K1"[..], Some((Code::Internal, Reason::BadReply))),
    ] {
        for code in [0, 5] {
            let mut rig = Rig::new();
            let (mut getter, token) = call(&mut rig, ECHO);
            let metadata = MetadataBytes { initial: 0, trailing: u32::try_from(block.len()).unwrap() };
            let header = Header::Reply { call: token.0, code, by: By::Handler, number: None, metadata };
            let texts = [0; 5];
            let mut bytes = Vec::new();
            header.emit(5, &mut bytes);
            bytes.extend_from_slice(block);
            bytes.extend_from_slice(&texts);
            rig.message(server(), bytes);
            match (expected, code) {
                (None, 0) => {
                    let response = getter.try_take().expect("an outcome").unwrap().unwrap();
                    assert_eq!(response.metadata().trailing.size(), block.len());
                    assert!(!format!("{response:?}").contains("vvv"), "a value in the Debug output");
                }
                (None, _) => assert_eq!(status(&mut getter).metadata().size(), block.len()),
                (Some((code, reason)), _) => {
                    let status = status(&mut getter);
                    assert_eq!((status.code(), status.reason()), (code, Some(reason)));
                    assert!(status.may_have_run());
                }
            }
        }
    }
}

#[test]
fn calls_without_metadata_have_no_byte_of_it() {
    let mut rig = Rig::new();
    let (_getter, token) = call(&mut rig, ECHO);
    let without = rig.carrier.given.last().expect("a request").bytes.len();
    assert_eq!(without, 32 + 28 + 1 + 4, "header, METHOD, encoded part, body");
    rig.message(server(), reply(token));
    let _getter = rig.submit(PORT, ECHO, LONG, false);
    rig.message(server(), frame(Header::Request(request(ECHO, 1)), &[], b"body"));
    let given = rig.carrier.given.pop().expect("a reply");
    assert_eq!(given.bytes.len(), 24 + 20 + b"body".len(), "header, NUMBER, body");
}
