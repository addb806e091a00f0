//! Tests of librdmacm's functions in a network namespace whose routing table contains only loopback.

use super::lab::*;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ptr::null_mut;
use trunkline_dropin::abi::*;
use trunkline_dropin::cm::*;
use trunkline_testkit::is_in_network_namespace;

#[test]
fn peer_without_route_is_refused_at_once() {
    if !is_in_network_namespace(module_path!(), "peer_without_route_is_refused_at_once", "true") {
        return;
    }
    let channel = Channel::new();
    let id = channel.id(RDMA_PS_TCP);
    let nowhere = SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 7), 7);
    let mut source = c_address(Ipv4Addr::LOCALHOST, 0);
    let mut destination = c_address(*nowhere.ip(), nowhere.port());
    let destination = (&raw mut destination).cast();
    // SAFETY: the id is not destroyed yet, and the addresses are local.
    unsafe {
        let result = call(|| rdma_resolve_addr(id, null_mut(), destination, 2000));
        assert_eq!(result, Err(libc::ENETUNREACH));
        let result = call(|| rdma_resolve_addr(id, (&raw mut source).cast(), destination, 2000));
        assert_eq!(result, Err(libc::ENETUNREACH));
        // The id can still resolve another address.
        let mut here = c_address(Ipv4Addr::new(127, 3, 2, 1), 7);
        call(|| rdma_resolve_addr(id, null_mut(), (&raw mut here).cast(), 2000)).unwrap();
    }
    channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
    destroy(id);
}
