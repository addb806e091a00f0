//! Lists of servers, one of which drains while another is slow to answer.

use super::service::ECHO;
use super::{World, poll};
use crate::client::CallOptions;
use crate::wire::frame::{Header, RequestHeader};
use bytes::Bytes;
use std::pin::pin;
use std::time::Duration;
use trunkline_transport::Connect;

#[test]
fn call_leaves_a_draining_server_of_a_list_for_one_that_is_being_connected() {
    for connect in [Connect::FailFast, Connect::Wait] {
        let mut world = World::new();
        let node = world.node(|builder| builder);
        let [draining, slow] = [world.peer(), world.peer()];
        slow.hold(true);
        let channel = node.channel([draining.address(), slow.address()]);
        let options = CallOptions::new().timeout(Duration::from_secs(60)).connect(connect);
        let make = || channel.call(&options, ECHO, &(), Bytes::from_static(b"body"));
        let _first = make();
        let (from, ..) = world.until("the first request", || draining.frame());
        draining.answer(0, from, &Header::Drained, &[], &[]);
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
