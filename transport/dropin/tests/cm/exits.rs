//! The library disconnects the peers of a process that exits with open connections.

use super::lab::*;
use std::net::SocketAddrV4;
use trunkline_dropin::abi::*;
use trunkline_dropin::cm::*;
use trunkline_testkit::same_test;

/// Environment variable with the address of the exiting process's peer.
const PEER: &str = "TRUNKLINE_TEST_PEER";

#[test]
fn exiting_disconnects_peers() {
    if let Ok(peer) = std::env::var(PEER) {
        let channel = Channel::new();
        let peer: SocketAddrV4 = peer.parse().unwrap();
        let (first_address, second_address) = (address(), address());
        let connected = channel.resolved(first_address, peer, RDMA_PS_TCP);
        create_qp(connected);
        connect(connected, &mut with(b"first")).unwrap();
        channel.expect(RDMA_CM_EVENT_ESTABLISHED);
        let second = channel.resolved(second_address, peer, RDMA_PS_TCP);
        create_qp(second);
        connect(second, &mut with(b"second")).unwrap();
        assert_eq!(
            channel.expect(RDMA_CM_EVENT_REJECTED).status,
            28,
            "the parent rejects the second request"
        );
        std::process::exit(7);
    }
    let channel = Channel::new();
    let (listener, at) = channel.listener(address(), RDMA_PS_TCP);
    let mut child =
        same_test(module_path!(), "exiting_disconnects_peers").env(PEER, at.to_string()).spawn().unwrap();
    let connected = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    create_qp(connected);
    accept(connected, &mut with(b"")).unwrap();
    channel.expect(RDMA_CM_EVENT_ESTABLISHED);
    let rejected = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
    // SAFETY: the id is not destroyed yet.
    call(|| unsafe { rdma_reject(rejected, std::ptr::null(), 0) }).unwrap();
    assert_eq!(channel.expect(RDMA_CM_EVENT_DISCONNECTED).id, connected);
    assert_eq!(child.wait().unwrap().code(), Some(7));
    destroy_all(&[connected, rejected, listener]);
}
