//! Replies of a server that does not keep to the rules.

use super::World;
use super::service::ECHO;
use crate::wire::frame::{By, Header, RequestHeader};
use crate::wire::metadata::MetadataBytes;

#[test]
fn a_caller_is_answered() {
    let mut world = World::new();
    let node = world.node(|builder| builder);
    let peer = world.peer();
    let request = RequestHeader {
        call: 7,
        one_way: false,
        opens: false,
        asked: ECHO.into(),
        time_left_us: 0,
        metadata: 0,
    };
    peer.send(node.local_address(), &Header::Request(request), &[], b"body");
    let (_, header, body) = world.until("the reply", || peer.frame());
    let Header::Reply { call: 7, code: 0, by: By::Handler, metadata: MetadataBytes { .. }, .. } = header
    else {
        panic!("{header:?}")
    };
    assert_eq!(body, "body");
}
