//! A sender that is not of our kind: its packets carry identifications that have to be solved for.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

mod common;

use common::node::{BOUND, Node, bring_up_with};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;
use trunkline_softrdma::device::{LinkChoice, SoftOptions};
use trunkline_softrdma::link::{Hub, InProcessLink, Link, SendBatch};
use trunkline_softrdma::wire::{IpUdp, Opcode, Operation, Packet, ROCE_PORT, Service, icrc};
use trunkline_verbs::{Completion, Psn, QpNumber, QpType, QueuePair};

/// A bare sender on the network, and a device that is connected to it.
struct Setup {
    node: Node,
    tgt: Arc<dyn QueuePair>,
    link: InProcessLink,
    source: IpAddr,
    psn: Psn,
}

const FIRST_PSN: u32 = 0xff_fff0;

impl Setup {
    fn new() -> Self {
        let hub = Hub::new();
        let options = SoftOptions { link: LinkChoice::InProcess(Arc::clone(&hub)), ..common::udp() };
        let node = Node::open(options, 4096);
        let tgt = node.qp(QpType::XrcTgt);
        let source = common::address();
        bring_up_with(&*tgt, source, QpNumber::new(0x4711));
        let mut link = hub.link().unwrap();
        link.open(source).unwrap();
        for wr_id in 0..64 {
            node.receive(wr_id, 0, 64);
        }
        Self { node, tgt, link, source, psn: Psn::new(FIRST_PSN) }
    }

    /// Sends the packet at the present PSN; waits until the device has seen it. Answers whether a
    /// receive completed, in which case the PSN moves on.
    fn send(&mut self, identification: u16) -> bool {
        let opcode = Opcode::new(Service::XRC, Operation::SEND_ONLY);
        let mut packet = Packet::new(opcode, self.tgt.number(), self.psn, b"from elsewhere!!");
        packet.xrceth = Some((0, self.node.srq.number().unwrap()));
        let source = SocketAddr::new(self.source, 0xd000);
        let destination = SocketAddr::new(self.node.address, ROCE_PORT);
        let headers = IpUdp { v4_identification: identification, ..IpUdp::new(source, destination) };
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        icrc::append(&headers, &mut bytes);
        let before = self.node.counter("packets_received");
        let mut batch = SendBatch::new();
        batch.push_with(source, destination, |out| out.extend_from_slice(&bytes));
        self.link.send(&mut batch, Instant::now());
        let until = Instant::now() + BOUND;
        while self.node.counter("packets_received") == before {
            assert!(Instant::now() < until, "the packet was never received");
            std::thread::yield_now();
        }
        let mut one = [Completion::default()];
        let taken = self.node.cq.poll(&mut one) == 1;
        if taken {
            self.psn = self.psn.plus(1);
        }
        taken
    }
}

#[test]
fn a_foreign_peer_is_believed_from_its_third_packet_on() {
    let mut setup = Setup::new();
    assert!(!setup.send(500));
    assert!(!setup.send(501));
    assert!(setup.send(502), "{:#?}", setup.node.device_counters());
    assert!(setup.send(503));
    assert_eq!(setup.node.counter("drop_unproven_identification"), 2);
    assert!(!setup.send(40_000), "far from its last packet");
    assert!(setup.send(504));
}

#[test]
fn nothing_is_solved_for_a_peer_of_our_kind() {
    let mut setup = Setup::new();
    assert!(setup.send(0));
    for identification in 700..710 {
        assert!(!setup.send(identification));
    }
    assert!(setup.node.counter("drop_bad_icrc") >= 10);
    assert!(setup.send(0));
}
