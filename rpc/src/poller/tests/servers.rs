//! Servers of a balanced channel: which are kept connected, and which delay others.

use super::addresses::{Rig, options, silent};
use super::service::{ECHO, FEED};
use super::{World, poll};
use crate::call::no_items;
use crate::status::Status;
use crate::status::reason::Reason;
use crate::{Balance, Policy, ServerList, Target};
use bytes::Bytes;
use std::net::SocketAddr;
use std::time::Duration;
use trunkline_transport::Connect;
use trunkline_verbs::Time;

const MS: Duration = Duration::from_millis(1);

#[test]
fn all_servers_are_kept_connected_without_a_call_unless_the_first_is_picked() {
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
fn silent_servers_of_a_balanced_channel_do_not_delay_the_others() {
    let mut rig = Rig::new();
    let silent = (1..=100).map(|port| SocketAddr::new(silent().ip(), port)).collect::<Vec<_>>();
    let all = silent.iter().copied().chain([rig.peer.address()]);
    let channel = rig.node.channel(all.collect::<Vec<_>>()).balanced(Policy::RoundRobin);
    let options = options(Connect::FailFast);
    let begun = rig.world.now();
    let _call = channel.call(&options, ECHO, &(), Bytes::new());
    rig.world.until("the request", || rig.peer.frame());
    assert!(rig.world.now() - begun < 600 * MS);
    // A round with all of them takes no longer than one with two.
    let channel = rig.node.channel(silent).balanced(Policy::RoundRobin);
    let begun = rig.world.now();
    let call = channel.call(&options, ECHO, &(), Bytes::new());
    let status = rig.world.block_on(call).unwrap_err();
    assert_eq!(status.reason(), Some(Reason::Unreachable), "{status}");
    assert!(rig.world.now() - begun < 6000 * MS);
}

#[test]
fn streams_that_have_not_left_for_a_dead_server_do_not_fail() {
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
        // More come before and after the node knows of the death.
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
