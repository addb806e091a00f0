//! A process that ends without a word to its peers: the library says it.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

mod common;

use common::*;
use std::net::SocketAddrV4;
use std::process::Command;
use trunkline_dropin::abi::*;
use trunkline_dropin::cm::*;

/// Where the process that ends finds its peer.
const PEER: &str = "TRUNKLINE_TEST_PEER";

#[test]
fn who_exits_with_open_connections_has_said_goodbye() {
    if let Ok(peer) = std::env::var(PEER) {
        let channel = Channel::new();
        let peer: SocketAddrV4 = peer.parse().unwrap();
        let (first, second) = (address(), address());
        let joined = channel.resolved(first, peer, RDMA_PS_TCP);
        create_qp(joined);
        connect(joined, &mut with(b"first")).unwrap();
        channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        let asking = channel.resolved(second, peer, RDMA_PS_TCP);
        create_qp(asking);
        connect(asking, &mut with(b"second")).unwrap();
        assert_eq!(channel.expect(RDMA_CM_EVENT_REJECTED).status, 28, "now go");
        std::process::exit(7);
    }
    let channel = Channel::new();
    let (listener, at) = channel.listener(address(), RDMA_PS_TCP);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "who_exits_with_open_connections_has_said_goodbye", "--nocapture"])
        .env(PEER, at.to_string())
        .spawn()
        .unwrap();
    let joined = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    create_qp(joined);
    accept(joined, &mut with(b"")).unwrap();
    channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    let refused = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    // SAFETY: the id lives.
    call(|| unsafe { rdma_reject(refused, std::ptr::null(), 0) }).unwrap();
    assert_eq!(channel.expect(RDMA_CM_EVENT_DISCONNECTED).id, joined);
    assert_eq!(child.wait().unwrap().code(), Some(7));
    end(&[joined, refused, listener]);
}
