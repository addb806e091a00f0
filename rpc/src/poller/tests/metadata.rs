//! Metadata in requests from a peer that breaks the rules or exceeds the limit, and the charge for it.

use super::service::{FEED, GATHER, HANG, TALK};
use super::{Peer, World};
use crate::node::Node;
use crate::node::budgets::ARGUMENTS;
use crate::status::Code;
use crate::status::reason::Reason;
use crate::wire::frame::{Header, RepliedBy, RequestHeader};
use crate::wire::metadata::{Metadata, TraceContext};
use crate::wire::name::MethodName;
use std::time::Duration;
use trunkline_transport::Limit;

/// Default limit on a call's metadata, in bytes.
const MOST: usize = 8192;
const TOO_LARGE: Refusal = Some((Code::ResourceExhausted, Reason::TooLarge));
const OVERLOADED: Refusal = Some((Code::ResourceExhausted, Reason::Overloaded));
const MALFORMED: Refusal = Some((Code::InvalidArgument, Reason::BadArguments));

/// The refusal of a call whose handler did not run; `None` if it runs.
type Refusal = Option<(Code, Reason)>;

/// Returns metadata of this size, in bytes.
pub(super) fn metadata(size: usize) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.append("k", &"v".repeat(size - 4)).unwrap();
    assert_eq!(metadata.size(), size);
    metadata
}

/// Returns metadata of this size, followed by a trace of maximum size.
fn traced(size: usize) -> Metadata {
    let mut metadata = metadata(size);
    let trace = TraceContext::new(1, 2, true).unwrap();
    trace.with_state(format!("k={}", "v".repeat(256))).put_into(&mut metadata);
    metadata
}

/// Makes a call with this metadata. Returns the refusal of the call.
fn ask(world: &mut World, node: &Node, peer: &Peer, method: &'static MethodName, block: &[u8]) -> Refusal {
    let header = RequestHeader {
        call: world.now().0,
        one_way: false,
        opens: method.streams.any(),
        method_ref: method.into(),
        metadata: u32::try_from(block.len()).unwrap(),
    };
    peer.send(node.local_address(), &Header::Request(header), &[], block);
    world.run();
    let (_, header, _) = peer.frame()?;
    match header {
        Header::Reply { code, by: RepliedBy::Node { reason: Some(reason), ran: false }, .. } => {
            Some((Code::from_number(code), reason))
        }
        other => panic!("{other:?} is no refusal"),
    }
}

/// Returns the number of running handlers, and the number of bytes charged for their metadata.
fn running(world: &World, node: &Node) -> (usize, usize) {
    let driver = world.ledger(node).driver;
    let budget = driver.budgets.into_iter().find(|budget| budget.name == ARGUMENTS).expect("it is kept");
    assert_eq!(budget.used, budget.counted);
    (driver.handlers, budget.used.into_values().sum())
}

#[test]
fn metadata_of_request_is_limited_checked_and_charged() {
    let mut world = World::new();
    let node = world.node(|builder| builder.decoded_bytes(Limit { per_peer: 64 << 10, in_all: 1 << 20 }));
    let peer = world.peer();
    let (full, beyond) = (metadata(MOST), metadata(MOST + 1));
    let traces = [MOST, MOST - 69, MOST + 1].map(traced);
    // The columns are method, metadata, refusal and charged bytes. If a trace does not fit, its state is dropped first, and
    // then the rest.
    let mut calls = vec![
        (HANG, full.block(), None, MOST),
        (HANG, beyond.block(), TOO_LARGE, 0),
        (HANG, traces[0].block(), None, MOST),
        (HANG, traces[1].block(), None, MOST),
        (HANG, traces[2].block(), TOO_LARGE, 0),
        (HANG, b"\x01\x01\0K1", MALFORMED, 0),
        (HANG, b"\x01\x01\0k\n", MALFORMED, 0),
        (HANG, b"\x01\xff\0k1", MALFORMED, 0),
        (HANG, b"\x01", MALFORMED, 0),
        // Streams do not leave a charge either.
        (FEED, &[0; 3], MALFORMED, 0),
        (GATHER, &[0; 3], MALFORMED, 0),
        (TALK, &[0; 3], MALFORMED, 0),
    ];
    calls.extend([(HANG, full.block(), None, MOST); 5]);
    calls.push((HANG, full.block(), OVERLOADED, 0));
    let mut expected = (0, 0);
    for (at, (method, block, refusal, charge)) in calls.into_iter().enumerate() {
        assert_eq!(ask(&mut world, &node, &peer, method, block), refusal, "call {at}");
        expected = (expected.0 + usize::from(refusal.is_none()), expected.1 + charge);
        assert_eq!(running(&world, &node), expected, "call {at}");
    }
    peer.end();
    world.wait(Duration::from_secs(2));
    assert_eq!(running(&world, &node), (0, 0), "the peer is down");
}
