//! Messages of all sizes between two nodes, over UDP and in process, with and without faults.

use crate::common::{ECHO, SIZES, TestNode, bad_network, fresh_address, over_udp, pattern};
use bytes::Bytes;
use std::sync::Arc;
use trunkline_softrdma::device::{LinkChoice, SoftOptions};
use trunkline_softrdma::link::Hub;
use trunkline_transport::{NodeOptions, SendOutcome};

#[test]
fn every_size_comes_back_over_udp() {
    let server = TestNode::start(over_udp(), 1);
    let mut client = TestNode::start(over_udp(), 1);
    client.echoes(&server, &SIZES);
    let report = client.report();
    // With the feature rdma-core and on the drop-in libraries a loopback address is that of a NIC.
    let of = (report.provider, report.link.as_str());
    assert!([("softrdma", "udp"), ("rdma-core", "ethernet")].contains(&of), "{of:?}");
    assert_eq!((report.ini, report.tgt, report.srqs), (1, 1, 1));
    assert_eq!(report.rnr + server.report().rnr, 0);
}

#[test]
fn every_size_comes_back_in_process() {
    let hub = Arc::new(Hub::default());
    let options = || {
        let device = SoftOptions { link: LinkChoice::InProcess(Arc::clone(&hub)), ..SoftOptions::default() };
        NodeOptions::new().listen(fresh_address()).device(device)
    };
    let server = TestNode::start(options(), 1);
    let mut client = TestNode::start(options(), 1);
    client.echoes(&server, &SIZES);
}

#[test]
fn ipv6_carries_messages_too() {
    let hub = Arc::new(Hub::default());
    let options = |address: &str| {
        let device = SoftOptions { link: LinkChoice::InProcess(Arc::clone(&hub)), ..SoftOptions::default() };
        NodeOptions::new().listen(address.parse().unwrap()).device(device).allow_unauthenticated(true)
    };
    let server = TestNode::start(options("[fd00::1]:7471"), 2);
    let mut client = TestNode::start(options("[fd00::2]:7471"), 1);
    client.echoes(&server, &[10, 100_000]);
}

#[test]
fn the_largest_message_fits() {
    let server = TestNode::start(over_udp(), 1);
    let mut client = TestNode::start(over_udp(), 1);
    client.echoes(&server, &[64 << 20]);
}

#[test]
fn a_registered_buffer_is_sent_without_a_copy() {
    let server = TestNode::start(over_udp(), 1);
    let mut client = TestNode::start(over_udp(), 1);
    let peer = client.connect(0, server.address);
    let mut buffer = client.node.as_ref().unwrap().buffer(300_000).unwrap();
    let expected = pattern(300_000, 1);
    buffer.copy_from_slice(&expected);
    let body = buffer.freeze();
    for slice in [0..300_000, 5..200_005] {
        client.send(0, peer, &[ECHO], body.slice(slice.clone()), 1);
        let (_, answer) = client.message();
        assert!(answer.slice(1..) == expected.slice(slice));
        assert_eq!(client.outcome(1), SendOutcome::Delivered);
    }
}

#[test]
fn nothing_is_lost_on_a_bad_network() {
    let device = SoftOptions { faults: bad_network(), ..SoftOptions::default() };
    let server = TestNode::start(over_udp(), 1);
    let mut client = TestNode::start(over_udp().device(device), 1);
    client.crowd_of_echoes(0, &server, 500);
    assert!(client.report().retransmits + server.report().retransmits > 0);
}

#[test]
fn a_flood_one_way_meets_no_rnr() {
    let mut server = TestNode::start(over_udp().srq_depth(32), 1);
    let mut client = TestNode::start(over_udp(), 1);
    let peer = client.connect(0, server.address);
    for token in 0..5000 {
        client.send(0, peer, b"x", Bytes::from_static(&[9; 64]), token);
    }
    for token in 0..5000 {
        assert_eq!(client.outcome(token), SendOutcome::Delivered);
        server.message();
    }
    assert_eq!(client.report().rnr + server.report().rnr, 0);
}
