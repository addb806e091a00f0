//! Sessions of a balanced channel with its servers, delays caused by dead servers, and hedged calls.

use super::addresses::{Rig, options, silent};
use super::service::{ECHO, FEED, METHODS};
use super::{Peer, World, poll};
use crate::call::no_items;
use crate::node::Node;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::wire::frame::{Header, MethodRef, RepliedBy, RequestHeader};
use crate::wire::metadata::MetadataBytes;
use crate::wire::name::MethodName;
use crate::{Balance, Channel, Policy, ServerList, Target};
use bytes::Bytes;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use trunkline_transport::{Connect, Origin};
use trunkline_verbs::Time;

const MS: Duration = Duration::from_millis(1);

#[test]
fn all_servers_are_kept_connected_without_call_unless_first_is_picked() {
    for (policy, keeps) in
        [(Policy::PickFirst, false), (Policy::RoundRobin, true), (Policy::PowerOfTwo, true)]
    {
        let mut rig = Rig::new();
        let peers = [rig.world.peer(), rig.world.peer()];
        let are_up = |rig: &mut Rig| {
            rig.world.wait(300 * MS);
            peers.each_ref().map(|peer| !peer.events().is_empty())
        };
        let addresses = peers.each_ref().map(|peer| peer.address());
        let list = ServerList::new("servers", [addresses[0]]);
        let named = rig.node.channel(Target::resolver(list.clone())).balanced(policy);
        assert_eq!(are_up(&mut rig), [false; 2]);
        rig.world.block_on(named.ready()).unwrap();
        assert_eq!(are_up(&mut rig), [true, false], "{policy:?}");
        list.set(addresses);
        assert_eq!(are_up(&mut rig), [false, keeps], "{policy:?}");

        let mut rig = Rig::new();
        let peers = [rig.world.peer(), rig.world.peer()];
        let listed = rig.node.channel(peers.each_ref().map(|peer| peer.address())).balanced(policy);
        rig.world.block_on(listed.ready()).unwrap();
        rig.world.wait(300 * MS);
        assert_eq!(peers.each_ref().map(|peer| !peer.events().is_empty()), [true, keeps], "{policy:?}");
    }
}

#[test]
fn silent_servers_do_not_delay_calls_to_other_servers() {
    let mut rig = Rig::new();
    let silent = (1..=100).map(|port| SocketAddr::new(silent().ip(), port)).collect::<Vec<_>>();
    let all = silent.iter().copied().chain([rig.peer.address()]);
    let channel = rig.node.channel(all.collect::<Vec<_>>()).balanced(Policy::RoundRobin);
    let options = options(Connect::FailFast);
    let begun = rig.world.now();
    let _call = channel.call(&options, ECHO, &(), Bytes::new());
    rig.world.until("the request", || rig.peer.frame());
    assert!(rig.world.now() - begun < 600 * MS);
    // A round over all addresses takes no longer than a round over two addresses.
    let channel = rig.node.channel(silent).balanced(Policy::RoundRobin);
    let begun = rig.world.now();
    let call = channel.call(&options, ECHO, &(), Bytes::new());
    let status = rig.world.block_on(call).unwrap_err();
    assert_eq!(status.reason(), Some(Reason::Unreachable), "{status}");
    assert!(rig.world.now() - begun < 6000 * MS);
}

#[test]
fn unsent_streams_survive_death_of_server() {
    for connect in [Connect::FailFast, Connect::Wait] {
        let mut world = World::new();
        let (node, other) = (world.node(|builder| builder), world.peer());
        let before = world.tasks.len();
        let first = world.peer_with(|options| options.srq_depth(16).srq_depth_limit(16));
        let balance = Balance::from(Policy::PickFirst).watch_health(false);
        let channel = node.channel([first.address(), other.address()]).balanced(balance);
        for peer in [&first, &other] {
            world.block_on(node.channel(peer.address()).ready()).unwrap();
        }
        first.hold(true);
        let options = options(connect);
        let open = || channel.open(&options, FEED, &(), Bytes::new(), no_items());
        let mut streams = (0..100).map(|_| open()).collect::<Vec<_>>();
        world.run();
        assert!(other.frame().is_none());
        world.tasks.truncate(before);
        // Further calls arrive before and after the node detects the failure.
        while other.lines[0].arrived.borrow().frames.is_empty() {
            streams.push(open());
            world.step(Time(u64::MAX));
        }
        streams.push(open());
        world.wait(100 * MS);
        let opened = streams.len();
        let lost = streams.into_iter().filter_map(|(call, _opened)| poll(Box::pin(call).as_mut()));
        let lost = lost.map(Result::unwrap_err).collect::<Vec<_>>();
        let arrived = other.lines[0].arrived.borrow().frames.len();
        assert!(arrived + lost.len() >= opened, "{arrived} of {opened} have moved on at once");
        assert!(!lost.is_empty() && lost.iter().all(Status::may_have_run), "{lost:?}");
    }
}

/// A method whose calls are hedged.
pub(super) static HEDGED: MethodName =
    MethodName { name: "hedged", hash: 30, idempotent: true, ..METHODS[0] };
pub(super) static HEDGED_ONE_WAY: MethodName =
    MethodName { name: "hedged", hash: 31, idempotent: true, one_way: true, ..METHODS[0] };

/// A node with a channel that hedges calls after 10 ms, and two servers for which the test answers. The first server gets
/// each call.
struct Hedging {
    world: World,
    node: Node,
    servers: [Peer; 2],
    channel: Channel,
}

impl Hedging {
    fn new(retry_budget: u32) -> Self {
        let mut world = World::new();
        let node = world.node(|builder| builder);
        let servers = [(); 2].map(|()| world.peer_with(|options| options.srq_depth(16).srq_depth_limit(16)));
        let balance = Balance::from(Policy::PickFirst).watch_health(false);
        let balance = balance.hedge_after(10 * MS).retry_budget(retry_budget, 0);
        let addresses = servers.each_ref().map(Peer::address);
        for address in addresses {
            world.block_on(node.channel(address).ready()).unwrap();
        }
        let channel = node.channel(addresses).balanced(balance);
        Self { world, node, servers, channel }
    }

    /// Returns the next request that reaches a server.
    fn request(&mut self, server: usize) -> (Origin, u64) {
        let peer = &self.servers[server];
        let (from, header, _) = self.world.until("the request", || peer.frame());
        let Header::Request(RequestHeader { call, .. }) = header else { panic!("{header:?}") };
        (from, call)
    }

    /// Polls a call and returns its two requests.
    fn hedge<T>(&mut self, mut call: Pin<&mut impl Future<Output = T>>) -> [(Origin, u64); 2] {
        let first = self.request(0);
        self.world.wait(11 * MS);
        assert!(poll(call.as_mut()).is_none());
        [first, self.request(1)]
    }

    fn answer(&mut self, server: usize, (to, call): (Origin, u64), code: u8, by: RepliedBy) {
        let header = Header::Reply { call, code, by, number: None, metadata: MetadataBytes::default() };
        self.servers[server].answer(0, to, &header, &[0; 5][..5 * usize::from(code > 0)], &[]);
        self.world.run();
    }

    fn counters(&self) -> [u64; 2] {
        let report = self.node.report();
        ["hedged_calls", "hedges_won"].map(|name| report.counter(name).expect("there is one"))
    }
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn hedged_call_returns_first_answer_and_cancels_other_attempt() {
    for winner in [0, 1] {
        let mut rig = Hedging::new(10);
        let (channel, options, wakes) = (rig.channel.clone(), options(Connect::FailFast), Arc::default());
        let mut call = Box::pin(channel.call(&options, &HEDGED, &(), Bytes::new()));
        let waker = Waker::from(Arc::<Wakes>::clone(&wakes));
        assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        rig.world.wait(9 * MS);
        assert_eq!((wakes.0.load(Ordering::Relaxed), rig.counters()), (0, [0, 0]));
        rig.world.wait(2 * MS);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "the timer wakes the caller");
        let requests = rig.hedge(call.as_mut());
        rig.answer(winner, requests[winner], 0, RepliedBy::Handler);
        assert!(poll(call.as_mut()).is_some_and(|outcome| outcome.is_ok()));
        rig.world.run();
        let (loser, (_, number)) = (&rig.servers[1 - winner], requests[1 - winner]);
        let (_, header, _) = loser.frame().expect("it is cancelled at once");
        assert_eq!(header, Header::Cancel { call: number });
        assert_eq!(rig.counters(), [1, winner as u64]);
        let called = rig.node.report().called;
        let [row] = &called[..] else { panic!("{called:?}") };
        assert_eq!((row.calls, row.running, row.failed.len()), (1, 0, 0), "{row:?}");
    }
}

#[test]
fn hedges_use_retry_budget_and_require_idempotent_method() {
    let mut rig = Hedging::new(2);
    let (channel, options) = (rig.channel.clone(), options(Connect::FailFast));
    let calls = [ECHO, ECHO, ECHO, &HEDGED, &HEDGED, &HEDGED, &HEDGED];
    let call = |method| Box::pin(channel.call(&options, method, &(), Bytes::new()));
    let mut calls = calls.into_iter().map(call).collect::<Vec<_>>();
    for _ in 0..100 {
        rig.world.wait(MS);
        calls.retain_mut(|call| poll(call.as_mut()).is_none());
    }
    let hashes = |peer: &Peer| {
        let hash = |header| match header {
            Header::Request(RequestHeader { method_ref: MethodRef::Method(method), .. }) => method.method,
            other => panic!("{other:?}"),
        };
        let mut hashes = peer.frames().into_iter().map(|(_, header, _)| hash(header)).collect::<Vec<_>>();
        hashes.sort_unstable();
        hashes
    };
    assert_eq!(hashes(&rig.servers[0]), [1, 1, 1, 30, 30, 30, 30]);
    assert_eq!((hashes(&rig.servers[1]), rig.counters()), (vec![30, 30], [2, 0]));
    drop(calls);
    rig.world.run();
    assert_eq!(rig.servers.each_ref().map(|server| server.frames().len()), [7, 2], "all are cancelled");
    let calls = rig.node.report().called.iter().map(|row| row.calls).sum::<u64>();
    assert_eq!(calls, 7, "a dropped call counts once");
}

#[test]
fn unsent_one_way_calls_are_not_hedged() {
    let mut rig = Hedging::new(100);
    rig.servers[0].hold(true);
    let (channel, options) = (rig.channel.clone(), options(Connect::FailFast));
    let send = |_| Box::pin(channel.send(&options, &HEDGED_ONE_WAY, &(), Bytes::new()));
    let mut calls = (0..100).map(send).collect::<Vec<_>>();
    for _ in 0..30 {
        rig.world.wait(MS);
        calls.retain_mut(|call| poll(call.as_mut()).is_none());
    }
    assert!(!calls.is_empty() && rig.servers[1].frames().is_empty());
    assert_eq!(rig.counters(), [0, 0]);
}

#[test]
fn hedged_call_outlives_failure_of_one_attempt_and_ends_with_answer_of_handler() {
    let overloaded = RepliedBy::Node { reason: Some(Reason::Overloaded), ran: false };
    let refusal = Code::ResourceExhausted.number();
    let refused = Some((refusal, overloaded));
    let failure = Some((Code::Internal.number(), RepliedBy::Handler));
    for (failed, answer) in [(0, None), (1, None), (0, refused), (1, refused), (0, failure), (1, failure)] {
        // The hedge uses up the budget.
        let mut rig = Hedging::new(1);
        let (channel, options) = (rig.channel.clone(), options(Connect::FailFast));
        let mut call = Box::pin(channel.call(&options, &HEDGED, &(), Bytes::new()));
        let requests = rig.hedge(call.as_mut());
        if let Some((code, by)) = answer {
            rig.answer(failed, requests[failed], code, by);
        } else {
            rig.servers[failed].end();
            rig.world.run();
        }
        assert!(poll(call.as_mut()).is_none(), "the other attempt is in progress");
        rig.answer(1 - failed, requests[1 - failed], Code::NotFound.number(), RepliedBy::Handler);
        let status = poll(call.as_mut()).expect("a handler has answered").unwrap_err();
        assert_eq!(status.code(), Code::NotFound, "{status}");
        assert_eq!(rig.counters(), [1, 1 - failed as u64]);
    }
    let mut rig = Hedging::new(1);
    let (channel, options) = (rig.channel.clone(), options(Connect::FailFast));
    let mut call = Box::pin(channel.call(&options, &HEDGED, &(), Bytes::new()));
    let requests = rig.hedge(call.as_mut());
    for server in [0, 1] {
        assert!(poll(call.as_mut()).is_none());
        rig.answer(server, requests[server], refusal, overloaded);
    }
    let status = poll(call.as_mut()).expect("both have failed").unwrap_err();
    assert_eq!((status.reason(), status.may_have_run()), (Some(Reason::Overloaded), false), "{status}");
}

#[test]
fn moved_call_is_not_hedged_at_tried_server() {
    let mut rig = Hedging::new(10);
    let (channel, options) = (rig.channel.clone(), options(Connect::FailFast));
    let mut call = Box::pin(channel.call(&options, &HEDGED, &(), Bytes::new()));
    rig.request(0);
    rig.servers[0].end();
    rig.world.run();
    assert!(poll(call.as_mut()).is_none());
    rig.request(1);
    for _ in 0..100 {
        rig.world.wait(MS);
        assert!(poll(call.as_mut()).is_none());
    }
    assert_eq!((rig.servers[1].frames().len(), rig.counters()), (0, [0, 0]));
}
