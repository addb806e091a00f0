//! Ordered calls at the end of a session.

use super::addresses::options;
use super::service::{ECHO, HANG};
use super::{World, poll};
use crate::status::Code;
use crate::{Limit, NodeBuilder};
use bytes::Bytes;
use trunkline_transport::Connect;

/// Leaves room for one call of the test. The other units are reserved for calls from handlers.
fn with_room_for_one(builder: NodeBuilder) -> NodeBuilder {
    builder.call_limit(Limit { per_peer: 2, in_all: 2 })
}

#[test]
fn unsent_ordered_call_is_aborted_and_unordered_call_moves_to_next_server() {
    let mut world = World::new();
    let node = world.node(with_room_for_one);
    let (peer, successor) = (world.peer(), world.peer());
    let channel = node.channel([peer.address(), successor.address()]);
    let options = options(Connect::Wait);
    let held = channel.call(&options, HANG, &(), Bytes::new());
    world.until("the request", || peer.frame());
    let ordered_channel = channel.ordered();
    let ordered = ordered_channel.call(&options, ECHO, &(), Bytes::new());
    let mut other = Box::pin(channel.call(&options, ECHO, &(), Bytes::new()));
    world.run();
    assert!(peer.frame().is_none(), "both wait for room");
    peer.end();
    assert!(world.block_on(held).unwrap_err().may_have_run());
    let status = world.block_on(ordered).unwrap_err();
    assert_eq!((status.code(), status.may_have_run()), (Code::Aborted, false), "{status}");
    world.until("the request of the other", || successor.frame());
    assert!(poll(other.as_mut()).is_none());
}

#[test]
fn queued_ordered_calls_end_as_aborted_with_session() {
    for (is_ordered, code) in [(true, Code::Aborted), (false, Code::Unavailable)] {
        let mut world = World::new();
        let node = world.node(|builder| builder);
        let before = world.tasks.len();
        let peer = world.peer_with(|options| options.srq_depth(16).srq_depth_limit(16));
        let channel = node.channel(peer.address());
        let channel = if is_ordered { channel.ordered() } else { channel };
        world.block_on(channel.ready()).unwrap();
        peer.hold(true);
        let (options, body) = (options(Connect::FailFast), Bytes::from(vec![7; 100]));
        let calls = (0..100).map(|_| channel.call(&options, ECHO, &(), body.clone())).collect::<Vec<_>>();
        world.run();
        // The host of the peer fails.
        world.tasks.truncate(before);
        let ended = calls.into_iter().map(|call| world.block_on(call).unwrap_err()).collect::<Vec<_>>();
        let (left, queued) = ended.iter().partition::<Vec<_>, _>(|status| status.may_have_run());
        assert!(!left.is_empty() && !queued.is_empty());
        assert!(queued.iter().all(|status| status.code() == code), "{}", queued[0]);
    }
}
