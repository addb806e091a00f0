//! A peer that does not receive. It neither grants credit nor fetches large replies.

use super::service::{ECHO, GATHER, HANG, METHODS, TALK};
use super::{Peer, World};
use crate::node::Node;
use crate::server::Service;
use crate::status::reason::Reason;
use crate::wire::frame::{Header, RepliedBy, RequestHeader, StreamHeader, StreamPart};
use crate::wire::name::{MethodName, ServiceName, Streams};
use bytes::Bytes;
use std::time::Duration;
use trunkline_transport::Limit;

static SIZES: ServiceName =
    ServiceName { name: "sizes", version: 1, oldest: 1, codec: 0, codec_name: "bincode", hash: 0x512e };
/// Replies with a body whose size in KiB is the first byte of the request's body.
static SIZED: MethodName = MethodName {
    service: &SIZES,
    name: "sized",
    hash: 100,
    one_way: false,
    idempotent: false,
    streams: Streams::Neither,
    shapes: None,
};
/// A one-way method that never ends.
const HANG_UNHEARD: &MethodName = &METHODS[5];
/// Maximum charge for a reply and its line in addition to the bytes of the reply.
const OVERHEAD: usize = 4 << 10;
const WAITING: &str = "bytes of replies that wait";

fn sizes() -> Service {
    Service::new(&SIZES, |_, methods| {
        methods.add(&SIZED, |request| async move {
            let replier = request.replier();
            let kib = request.into_body().first().copied().unwrap_or(0);
            replier.bytes(Bytes::from(vec![0x5a; usize::from(kib) << 10]))
        });
        Ok(())
    })
}

/// Sends a request and lets it arrive.
fn ask(world: &mut World, node: &Node, peer: &Peer, method: &MethodName, call: u64, body: &[u8]) {
    let (one_way, opens, method_ref) = (method.one_way, method.streams.any(), method.into());
    let header = RequestHeader { call, one_way, opens, method_ref, metadata: 0 };
    peer.send(node.local_address(), &Header::Request(header), &[], body);
    world.wait(Duration::from_micros(100));
}

/// Sends a stream frame.
fn send(world: &mut World, node: &Node, peer: &Peer, call: u64, part: StreamPart) {
    let header = Header::Stream(StreamHeader { call, from_caller: true, part });
    let item: &[u8] = if matches!(part, StreamPart::Data { .. }) { b"item" } else { &[] };
    peer.send(node.local_address(), &header, &[], item);
    world.wait(Duration::from_micros(100));
}

/// Returns the number of used units of a budget.
fn used(world: &World, node: &Node, name: &str) -> usize {
    let ledger = world.ledger(node);
    let budget = ledger.budgets.into_iter().chain(ledger.driver.budgets).find(|budget| budget.name == name);
    let budget = budget.expect("it is kept");
    assert_eq!(budget.used, budget.counted);
    budget.used.into_values().sum()
}

/// Returns the call of each reply that has arrived. For a refusal, also returns the reason, and true if the handler may have
/// run.
fn replied(peer: &Peer) -> Vec<(u64, Option<(Reason, bool)>)> {
    let replies = peer.frames().into_iter().filter_map(|(_, header, _)| match header {
        Header::Reply { call, by: RepliedBy::Node { reason: Some(reason), ran }, .. } => {
            Some((call, Some((reason, ran))))
        }
        Header::Reply { call, code: 0, .. } => Some((call, None)),
        _ => None,
    });
    replies.collect()
}

#[test]
fn large_replies_wait_in_order_within_limit() {
    let mut world = World::new();
    let queued = Limit { per_peer: 256 << 10, in_all: 2 << 20 };
    // The peer fetches one reply at a time.
    let large = Limit { per_peer: 1, in_all: 8 };
    let node = world.node(|builder| {
        builder.serve(sizes()).max_message_bytes(128 << 10).queued_bytes(queued).large_messages(large)
    });
    let peer = world.peer();
    ask(&mut world, &node, &peer, ECHO, 1, &[]);
    world.run();
    assert_eq!(replied(&peer), [(1, None)]);

    peer.hold(true);
    // Two replies fill the message queue, and two replies wait. The second waiting reply would have room, but is behind the
    // first.
    let mut charges = [0; 6];
    for (call, kib) in [(2, 100), (3, 100), (4, 120), (5, 40)] {
        ask(&mut world, &node, &peer, &SIZED, call, &[kib]);
        let call = usize::try_from(call).unwrap();
        charges[call] = used(&world, &node, WAITING) - charges[call - 1];
        let (least, most) = if call < 4 { (0, 0) } else { (usize::from(kib) << 10, OVERHEAD) };
        assert!((least..=least + most).contains(&charges[call]), "{} bytes for call {call}", charges[call]);
    }
    ask(&mut world, &node, &peer, &SIZED, 6, &[100]);
    ask(&mut world, &node, &peer, ECHO, 7, &[]);
    let waiting = |world: &World| (world.ledger(&node).driver.handlers, used(world, &node, WAITING));
    assert_eq!(waiting(&world), (2, charges[4] + charges[5]));

    // The peer fetches one reply, so that there is room for the next reply.
    peer.hold(false);
    world.until("a large reply", || (peer.lines[0].arrived.borrow().frames.len() == 3).then_some(()));
    peer.hold(true);
    world.wait(Duration::from_millis(200));
    let refused = (6, Some((Reason::Overloaded, true)));
    assert_eq!(replied(&peer), [refused, (7, None), (2, None)]);
    let (count, charge) = waiting(&world);
    assert!(
        count == 1 && charge < charges[4],
        "call 4 has left, call 5 waits: {charge} bytes of {charges:?}"
    );

    peer.hold(false);
    world.wait(Duration::from_millis(500));
    let mut others = replied(&peer);
    others.sort_unstable_by_key(|(call, _)| *call);
    assert_eq!(others, [3, 4, 5].map(|call| (call, None)));
    assert_eq!(waiting(&world), (0, 0));
}

#[test]
fn peer_without_reply_room_has_further_calls_refused_and_streams_paused() {
    let mut world = World::new();
    let node = world.node(|builder| builder.queued_messages(Limit { per_peer: 4, in_all: 64 }));
    let peer = world.peer_with(|options| options.srq_depth(16).srq_depth_limit(16));
    ask(&mut world, &node, &peer, GATHER, 1, &[]);
    ask(&mut world, &node, &peer, TALK, 2, &[]);
    world.run();
    assert_eq!(peer.frames().len(), 1, "TALK is accepted");

    peer.hold(true);
    let last = (3..100).find(|call| {
        ask(&mut world, &node, &peer, ECHO, *call, &[]);
        used(&world, &node, "queued messages") == 4
    });
    let last = last.expect("the credit is used up, and the queue of messages full");
    for (method, handlers) in [(HANG, 2), (HANG_UNHEARD, 3)] {
        ask(&mut world, &node, &peer, method, 100, &[]);
        assert_eq!(world.ledger(&node).driver.handlers, handlers, "{method}");
    }
    send(&mut world, &node, &peer, 1, StreamPart::End { items: 0 });
    assert!(used(&world, &node, WAITING) > 0, "a small reply to a stream waits, and is charged");
    (0..3).for_each(|number| send(&mut world, &node, &peer, 2, StreamPart::Data { number }));
    send(&mut world, &node, &peer, 2, StreamPart::End { items: 3 });

    peer.hold(false);
    world.wait(Duration::from_millis(500));
    let headers = peer.frames().into_iter().map(|(_, header, _)| header).collect::<Vec<_>>();
    let items = headers.iter().filter_map(|header| match header {
        Header::Stream(StreamHeader { call: 2, part, .. }) => Some(*part),
        Header::Reply { call: 2, .. } => Some(StreamPart::Reset),
        _ => None,
    });
    let data = [0, 1, 2].map(|number| StreamPart::Data { number });
    let expected = [&data[..], &[StreamPart::End { items: 3 }, StreamPart::Reset]].concat();
    assert_eq!(Vec::from_iter(items), expected, "the reply, here RESET, is last");
    let replies = headers.iter().filter_map(|header| match header {
        Header::Reply { call, code: 0, .. } if *call != 2 => Some(*call),
        Header::Reply { call, code, .. } if *code > 0 => panic!("{call} is refused"),
        _ => None,
    });
    assert_eq!(Vec::from_iter(replies), Vec::from_iter((3..=last).chain([1])));
    assert_eq!((used(&world, &node, WAITING), world.ledger(&node).driver.handlers), (0, 1));
}
