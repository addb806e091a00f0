//! Lists of servers, in which one server drains while another one is slow to answer.

use super::drained::refusal;
use super::service::ECHO;
use super::{World, poll};
use crate::client::CallOptions;
use crate::wire::frame::{Header, RequestHeader};
use crate::{ServerList, Target};
use bytes::Bytes;
use std::pin::pin;
use std::time::Duration;
use trunkline_transport::Connect;

#[test]
fn call_moves_from_draining_server_to_connecting_server() {
    let cases = [(false, false), (false, true), (true, false), (true, true)];
    let connects = [Connect::FailFast, Connect::Wait];
    let cases = cases.into_iter().flat_map(|case| connects.map(|connect| (case, connect)));
    for ((is_name, refuses), connect) in cases {
        let mut world = World::new();
        let node = world.node(|builder| builder);
        let [draining, slow] = [world.peer(), world.peer()];
        slow.hold(true);
        let addresses = [draining.address(), slow.address()];
        let name = || Target::resolver(ServerList::new("servers", addresses));
        let channel = node.channel(if is_name { name() } else { Target::from(addresses) });
        let options = CallOptions::new().timeout(Duration::from_secs(60)).connect(connect);
        let make = || channel.call(&options, ECHO, &(), Bytes::from_static(b"body"));
        let _first = make();
        let (from, header, _) = world.until("the first request", || draining.frame());
        let Header::Request(RequestHeader { call, .. }) = header else { panic!("{header:?}") };
        let says_so = if refuses { refusal(call) } else { Header::Drained };
        draining.answer(0, from, &says_so, &[0; 5], &[]);
        world.run();
        let mut second = pin!(make());
        world.run();
        assert!(poll(second.as_mut()).is_none() && draining.frames().is_empty(), "{connect:?}");
        slow.hold(false);
        let (_, header, _) = world.until("the second request", || slow.frame());
        assert!(matches!(header, Header::Request(RequestHeader { .. })), "{connect:?}: {header:?}");
        assert!(draining.frames().is_empty(), "{connect:?}");
    }
}
