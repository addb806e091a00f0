//! A QP that stops repeats its last acknowledgement: who has the last message may go, and its peer
//! shall not be left with a request that nobody answers.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

mod common;

use common::node::{BOUND, Node, bring_up_with};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use trunkline_softrdma::device::{LinkChoice, SoftOptions};
use trunkline_softrdma::link::{Hub, InProcessLink, Link, ReceiveBatch, SendBatch};
use trunkline_softrdma::wire::{IpUdp, Opcode, Operation, Packet, ROCE_PORT, Service, Syndrome, icrc};
use trunkline_verbs::{Psn, QpModify, QpNumber, QpState, QpType, QueuePair};

/// What every QP of these tests starts at.
const FIRST_PSN: u32 = 0xff_fff0;

/// A peer made by hand, so that no acknowledgement is asked for but by the test.
struct Setup {
    node: Node,
    tgt: Arc<dyn QueuePair>,
    link: InProcessLink,
    source: SocketAddr,
}

impl Setup {
    fn new() -> Self {
        let hub = Hub::new();
        let options = SoftOptions { link: LinkChoice::InProcess(Arc::clone(&hub)), ..common::udp() };
        let node = Node::open(options, 4096);
        let tgt = node.qp(QpType::XrcTgt);
        let source = SocketAddr::new(common::address(), ROCE_PORT);
        bring_up_with(&*tgt, source.ip(), QpNumber::new(0x4711));
        let mut link = hub.link().unwrap();
        link.open(source.ip()).unwrap();
        node.receive(1, 0, 64);
        Self { node, tgt, link, source }
    }

    /// Sends one message and takes its acknowledgement.
    fn exchange(&mut self) {
        let opcode = Opcode::new(Service::XRC, Operation::SEND_ONLY);
        let mut packet = Packet::new(opcode, self.tgt.number(), Psn::new(FIRST_PSN), b"the last one");
        packet.xrceth = Some((0, self.node.srq.number().unwrap()));
        packet.bth.ack_request = true;
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        let destination = SocketAddr::new(self.node.address, ROCE_PORT);
        icrc::append(&IpUdp::new(self.source, destination), &mut bytes);
        let mut batch = SendBatch::new();
        batch.push_with(self.source, destination, |out| out.extend_from_slice(&bytes));
        self.link.send(&mut batch, Instant::now());
        assert_eq!(self.node.completion().wr_id, 1);
        let until = Instant::now() + BOUND;
        let mut came = 0;
        while came == 0 {
            assert!(Instant::now() < until, "no acknowledgement");
            came = self.acknowledgements();
        }
        assert_eq!(came, 1);
    }

    /// How many acknowledgements of the message wait; nothing else does.
    fn acknowledgements(&mut self) -> usize {
        let mut batch = ReceiveBatch::new(64);
        self.link.receive(&mut batch);
        for datagram in batch.iter() {
            let body = &datagram.bytes[..datagram.bytes.len() - 4];
            let packet = Packet::parse(body).unwrap();
            let aeth = packet.aeth.unwrap();
            assert_eq!(packet.bth.opcode, Opcode::new(Service::XRC, Operation::ACKNOWLEDGE));
            assert_eq!((packet.bth.psn.get(), aeth.meaning(), aeth.msn), (FIRST_PSN, Syndrome::ACK, 1));
        }
        batch.iter().count()
    }

    fn change(&self, state: QpState) {
        self.tgt.modify(&QpModify { state: Some(state), ..QpModify::default() }).unwrap();
    }
}

#[test]
fn a_qp_that_stops_repeats_its_last_acknowledgement() {
    for end in ["destroyed", "reset", "in error"] {
        let mut setup = Setup::new();
        setup.exchange();
        match end {
            "destroyed" => setup.tgt.destroy().unwrap(),
            "reset" => setup.change(QpState::Reset),
            _ => setup.change(QpState::Error),
        }
        // They have left when the call is over.
        assert_eq!(setup.acknowledgements(), 3, "{end}");
        let _destroyed_before = setup.tgt.destroy();
        assert_eq!(setup.acknowledgements(), 0, "{end}: once is enough");
    }
}

#[test]
fn a_qp_that_took_nothing_goes_without_a_word() {
    let mut setup = Setup::new();
    setup.tgt.destroy().unwrap();
    assert_eq!(setup.acknowledgements(), 0);
}
