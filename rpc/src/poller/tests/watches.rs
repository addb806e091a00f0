//! Health reported by the servers of a balanced channel, which determines the servers that get calls.

use super::addresses::{Rig, options};
use super::service::ECHO;
use super::{Peer, World};
use crate::node::Node;
use crate::status::Code;
use crate::wire::frame::{Header, RepliedBy, RequestHeader, StreamHeader, StreamPart};
use crate::wire::metadata::MetadataBytes;
use crate::{Balance, Channel, Policy};
use bytes::Bytes;
use std::time::Duration;
use trunkline_transport::{Connect, Limit, Origin};

const MS: Duration = Duration::from_millis(1);
/// Items of a watch, as encoded by the codec.
const SERVING: &[u8] = &[0];
const NOT_SERVING: &[u8] = &[1];
const UNKNOWN: &[u8] = &[2];

/// A watch that has arrived at a peer.
#[derive(Debug, Clone, Copy)]
struct Arrived {
    from: Origin,
    call: u64,
}

/// Takes the frames at a peer. Returns the watches that start, and the number of other calls.
fn arrived(peer: &Peer) -> (Vec<Arrived>, usize) {
    let requests = peer.frames().into_iter().filter_map(|(from, header, _)| match header {
        Header::Request(RequestHeader { call, opens, .. }) => Some((opens, Arrived { from, call })),
        _ => None,
    });
    let (watches, calls): (Vec<_>, Vec<_>) = requests.partition(|(opens, _)| *opens);
    (watches.into_iter().map(|(_, watch)| watch).collect(), calls.len())
}

fn part(peer: &Peer, watch: Arrived, part: StreamPart, item: &[u8]) {
    let header = StreamHeader { call: watch.call, from_caller: false, part };
    peer.answer(0, watch.from, &Header::Stream(header), &[], item);
}

/// Answers a watch with statuses.
fn report(peer: &Peer, watch: Arrived, statuses: &[&[u8]]) {
    part(peer, watch, StreamPart::Accept, &[]);
    for (number, status) in (0..).zip(statuses) {
        part(peer, watch, StreamPart::Data { number }, status);
    }
}

fn end(peer: &Peer, watch: Arrived, code: u8) {
    let (by, metadata) = (RepliedBy::Handler, MetadataBytes::default());
    let header = Header::Reply { call: watch.call, code, by, number: None, metadata };
    // A status without text or causes.
    let encoded: &[u8] = if code == 0 { &[] } else { &[0; 5] };
    peer.answer(0, watch.from, &header, encoded, &[]);
}

/// Makes calls and drops them. Returns the number of calls at each peer.
fn calls<const N: usize>(world: &mut World, channel: &Channel, peers: [&Peer; N]) -> [usize; N] {
    let options = options(Connect::FailFast);
    let calls = [(); 20].map(|()| channel.call(&options, ECHO, &(), Bytes::new()));
    world.run();
    drop(calls);
    peers.map(|peer| arrived(peer).1)
}

/// Starts a node with a channel to connected peers. Also returns the peers' watches.
fn watched<const N: usize>(
    world: &mut World,
    balance: impl Into<Balance>,
) -> (Node, Channel, [Peer; N], [Arrived; N]) {
    let node = world.node(|builder| builder);
    let peers = [(); N].map(|()| world.peer());
    let addresses = peers.each_ref().map(Peer::address);
    for address in addresses {
        world.block_on(node.channel(address).ready()).unwrap();
    }
    let channel = node.channel(addresses.to_vec()).balanced(balance);
    let call = channel.call(&options(Connect::FailFast), ECHO, &(), Bytes::new());
    world.run();
    drop(call);
    let watches = peers.each_ref().map(|peer| arrived(peer).0[0]);
    (node, channel, peers, watches)
}

fn states(node: &Node) -> Vec<&'static str> {
    node.report().servers.iter().map(|server| server.state).collect()
}

#[test]
fn not_serving_server_gets_calls_only_if_no_server_serves() {
    for policy in [Policy::PickFirst, Policy::RoundRobin, Policy::PowerOfTwo] {
        let mut world = World::new();
        let (node, channel, peers, watches) = watched(&mut world, policy);
        let [one, other] = &peers;
        report(one, watches[0], &[NOT_SERVING]);
        report(other, watches[1], &[SERVING]);
        world.run();
        assert_eq!(states(&node), ["not serving", "up"]);
        assert_eq!(calls(&mut world, &channel, [one, other]), [0, 20], "{policy:?}");
        part(other, watches[1], StreamPart::Data { number: 1 }, NOT_SERVING);
        world.wait(20 * MS);
        assert!(calls(&mut world, &channel, [one, other])[0] > 0, "{policy:?}: all do not serve");
        part(one, watches[0], StreamPart::Data { number: 1 }, UNKNOWN);
        world.wait(20 * MS);
        assert_eq!(calls(&mut world, &channel, [one, other]), [20, 0], "{policy:?}: unknown is serving");
        let unwatched = node.channel(peers.each_ref().map(Peer::address));
        let unwatched = unwatched.balanced(Balance::from(Policy::RoundRobin).watch_health(false));
        assert_eq!(calls(&mut world, &unwatched, [one, other]), [10, 10]);
    }
}

#[test]
fn next_server_is_connected_if_first_is_not_serving() {
    let mut world = World::new();
    let node = world.node(|builder| builder);
    let (one, other) = (world.peer(), world.peer());
    let channel = node.channel([one.address(), other.address()]).balanced(Policy::PickFirst);
    let call = channel.call(&options(Connect::FailFast), ECHO, &(), Bytes::new());
    world.run();
    drop(call);
    report(&one, arrived(&one).0[0], &[NOT_SERVING]);
    world.wait(300 * MS);
    assert_eq!(states(&node), ["not serving", "connecting"]);
    assert_eq!(calls(&mut world, &channel, [&one, &other]), [20, 0], "it is the only one");
    world.wait(300 * MS);
    assert_eq!(calls(&mut world, &channel, [&one, &other]), [0, 20]);
}

#[test]
fn watch_does_not_count_towards_call_limit() {
    let mut world = World::new();
    let limit = Limit { per_peer: 1, in_all: 1 };
    let node = world.node(|builder| builder.call_limit(limit));
    let peers = [world.peer(), world.peer()];
    let channel = node.channel(peers.each_ref().map(Peer::address)).balanced(Policy::RoundRobin);
    world.block_on(channel.ready()).unwrap();
    world.wait(300 * MS);
    let call = channel.call(&options(Connect::FailFast), ECHO, &(), Bytes::new());
    world.run();
    let arrived = peers.each_ref().map(arrived);
    assert_eq!(arrived.each_ref().map(|(watches, _)| watches.len()), [1, 1]);
    assert_eq!(arrived.map(|(_, calls)| calls).iter().sum::<usize>(), 1);
    assert_eq!(calls_under_way(&node), 1);
    drop(call);
    world.run();
    assert_eq!(calls_under_way(&node), 0);
}

fn calls_under_way(node: &Node) -> u64 {
    node.report().budgets.into_iter().find(|budget| budget.name == "calls under way").unwrap().used
}

#[test]
fn refused_watch_is_not_repeated_in_same_session() {
    for code in [Code::Unimplemented, Code::PermissionDenied, Code::Unauthenticated] {
        let mut world = World::new();
        let (node, channel, [peer, _other], [watch, _]) = watched(&mut world, Policy::RoundRobin);
        end(&peer, watch, code.number());
        world.wait(100_000 * MS);
        assert_eq!((arrived(&peer).0.len(), states(&node)), (0, vec!["up"; 2]), "{code:?}");
        drop(channel);
    }
}

#[test]
fn ended_watch_counts_as_serving_and_is_repeated_after_growing_pauses() {
    let mut world = World::new();
    let (node, _channel, [peer, _other], [watch, _]) = watched(&mut world, Policy::RoundRobin);
    report(&peer, watch, &[NOT_SERVING]);
    world.run();
    assert_eq!(states(&node), ["not serving", "up"]);
    end(&peer, watch, Code::Internal.number());
    world.wait(20 * MS);
    assert_eq!(states(&node), ["up"; 2]);
    let (begun, mut times) = (world.now(), Vec::new());
    for _ in 0..10 {
        let watch = world.until("the next watch", || arrived(&peer).0.pop());
        times.push(world.now().since(begun) / 1_000_000_000);
        report(&peer, watch, &[NOT_SERVING]);
        part(&peer, watch, StreamPart::End { items: 1 }, &[]);
        end(&peer, watch, 0);
    }
    let pauses = times.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>();
    assert!(times[0] <= 1 && pauses[0] >= 2 && pauses[1] >= 4 && pauses[8] >= 30, "{times:?}");
    assert!(pauses[8] <= 38, "{times:?}");
}

#[test]
fn health_changes_of_server_are_rate_limited() {
    let mut world = World::new();
    let (node, _channel, [peer, _other], [watch, _]) = watched(&mut world, Policy::RoundRobin);
    let changes = [NOT_SERVING, SERVING].repeat(30);
    report(&peer, watch, &changes);
    let (until, mut seen) = (world.now() + 205 * MS, vec!["up"]);
    while world.now() < until {
        world.step(until);
        let state = states(&node)[0];
        if seen.last() != Some(&state) {
            seen.push(state);
        }
    }
    assert!((15..=22).contains(&seen.len()), "{}", seen.len());
    world.wait(1000 * MS);
    assert_eq!(states(&node)[0], "up");
}

#[test]
fn watch_ends_with_last_channel_and_does_not_connect() {
    let mut rig = Rig::new();
    let other = rig.world.peer();
    for peer in [&rig.peer, &other] {
        rig.world.block_on(rig.node.channel(peer.address()).ready()).unwrap();
    }
    let servers = [rig.peer.address(), other.address()];
    let channels = [(); 2].map(|()| rig.node.channel(servers).balanced(Policy::PickFirst));
    let mut begun = 0;
    for channel in &channels {
        let _call = channel.call(&options(Connect::FailFast), ECHO, &(), Bytes::new());
        rig.world.run();
        begun += arrived(&other).0.len();
    }
    assert_eq!(begun, 1, "channels share it");
    let cancels = |peer: &Peer| {
        peer.frames().iter().filter(|(_, header, _)| matches!(header, Header::Cancel { .. })).count()
    };
    let [first, last] = channels;
    drop(first);
    rig.world.run();
    assert_eq!(cancels(&other), 0);
    drop(last);
    rig.world.run();
    assert_eq!(cancels(&other), 1);

    let channel = rig.node.channel(servers).balanced(Policy::PickFirst);
    let call = channel.call(&options(Connect::FailFast), ECHO, &(), Bytes::new());
    rig.world.run();
    assert_eq!(arrived(&other).0.len(), 1);
    drop(call);
    rig.dials.take_addresses();
    other.end();
    rig.world.wait(100_000 * MS);
    let dials = rig.dials.take_addresses();
    assert!(!dials.contains(&other.address()), "{dials:?}");
}

#[test]
fn watch_does_not_delay_shutdown_of_its_node() {
    let mut world = World::new();
    let (node, channel, [peer, _other], [watch, _]) = watched(&mut world, Policy::RoundRobin);
    report(&peer, watch, &[NOT_SERVING]);
    world.run();
    node.begin_shutdown(Duration::from_secs(60));
    world.wait(1000 * MS);
    assert!(node.is_ended());
    drop(channel);
}
