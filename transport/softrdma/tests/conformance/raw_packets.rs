//! Items of the XRC contract that only raw packets can check: the responses of a TGT on the wire.

use crate::common;
use crate::common::node::{BOUND, Node, bring_up_with};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;
use trunkline_roce::wire::{IpUdp, NakCode, Opcode, Operation, Packet, ROCE_PORT, Service, Syndrome, icrc};
use trunkline_softrdma::device::{LinkChoice, SoftOptions};
use trunkline_softrdma::link::{Hub, InProcessLink, Link, ReceiveBatch, SendBatch};
use trunkline_verbs::{Psn, QpNumber, QpState, QpType, QueuePair, SrqNumber, Time};

/// The PSN that a TGT expects first after `bring_up_with`.
const FIRST_PSN: u32 = 0xff_fff0;
const OWN_QP: u32 = 0x4711;

/// A peer that builds its packets itself, connected to a TGT of a device.
struct Peer {
    node: Node,
    tgt: Arc<dyn QueuePair>,
    link: InProcessLink,
    here: SocketAddr,
    there: SocketAddr,
}

impl Peer {
    fn new() -> Self {
        let hub = Hub::new();
        let options = SoftOptions { link: LinkChoice::InProcess(Arc::clone(&hub)), ..common::udp() };
        let node = Node::open(options, 16_384);
        let address: IpAddr = common::address();
        let mut link = hub.link().unwrap();
        link.open(address).unwrap();
        let tgt = node.qp(QpType::XrcTgt);
        bring_up_with(&*tgt, address, QpNumber::new(OWN_QP));
        let here = SocketAddr::new(address, ROCE_PORT);
        let there = SocketAddr::new(node.address, ROCE_PORT);
        Self { node, tgt, link, here, there }
    }

    fn send(&mut self, mut bytes: Vec<u8>) {
        icrc::append(&IpUdp::new(self.here, self.there), &mut bytes);
        let mut batch = SendBatch::new();
        batch.push_with(self.here, self.there, |out| out.extend_from_slice(&bytes));
        self.link.send(&mut batch, Time(0));
    }

    /// A request to the TGT, the `index`-th one.
    fn request<'a>(&self, operation: Operation, index: u32, srq: SrqNumber, payload: &'a [u8]) -> Packet<'a> {
        let psn = Psn::new(FIRST_PSN).plus(index);
        let mut packet = Packet::new(Opcode::new(Service::XRC, operation), self.tgt.number(), psn, payload);
        packet.xrceth = Some((0, srq));
        packet.bth.ack_request = true;
        packet
    }

    fn send_packet(&mut self, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        self.send(bytes);
    }

    /// The syndrome byte of the next response, and its PSN.
    fn answer(&mut self) -> (u8, Psn) {
        let until = Instant::now() + BOUND;
        let mut batch = ReceiveBatch::new(8);
        loop {
            if self.link.receive(&mut batch) > 0 {
                let datagram = batch.iter().next().expect("one was received");
                let body = &datagram.bytes[..datagram.bytes.len() - 4];
                let packet = Packet::parse(body).expect("an answer");
                assert_eq!(packet.bth.destination, QpNumber::new(OWN_QP));
                assert_eq!(packet.bth.opcode.service(), Service::XRC);
                assert!(packet.xrceth.is_none(), "responses have no XRCETH");
                return (packet.aeth.expect("an acknowledgement").syndrome, packet.bth.psn);
            }
            assert!(Instant::now() < until, "no answer: {:#?}", self.node.device_counters());
            std::thread::yield_now();
        }
    }

    fn refused_as_invalid(&mut self, index: u32) {
        let nak = Syndrome::Nak(NakCode::INVALID_REQUEST).byte();
        assert_eq!(nak, 0x61);
        assert_eq!(self.answer(), (nak, Psn::new(FIRST_PSN).plus(index)));
        assert_eq!(self.tgt.query().unwrap().state, QpState::Error);
    }
}

#[test]
fn g11_an_srq_number_that_changes_inside_a_message_is_an_invalid_request() {
    let mut peer = Peer::new();
    let srq = peer.node.srq.number().unwrap();
    let xrcd = Arc::clone(&peer.node.xrcd);
    let kind = trunkline_verbs::SrqKind::Xrc { xrcd, cq: Arc::clone(&peer.node.cq) };
    let init =
        trunkline_verbs::SrqInit { pd: Arc::clone(&peer.node.pd), kind, max_wr: 4, max_sge: 1, context: 0 };
    let other = trunkline_verbs::Device::create_srq(&*peer.node.device, init).unwrap();
    peer.node.receive(1, 0, 4096);
    let payload = [7; 1024];
    let mut first = peer.request(Operation::SEND_FIRST, 0, srq, &payload);
    first.bth.ack_request = false;
    peer.send_packet(&first);
    let last = peer.request(Operation::SEND_LAST, 1, other.number().unwrap(), &payload);
    peer.send_packet(&last);
    peer.refused_as_invalid(1);
}

#[test]
fn g12_acknowledgements_of_a_tgt_grant_no_credits() {
    let mut peer = Peer::new();
    let srq = peer.node.srq.number().unwrap();
    peer.node.receive(1, 0, 64);
    let only = peer.request(Operation::SEND_ONLY, 0, srq, b"four");
    peer.send_packet(&only);
    assert_eq!(peer.answer(), (0x1f, Psn::new(FIRST_PSN)), "an ACK without a credit limit");
}

#[test]
fn rocev2_7_9_a_request_that_breaks_its_opcode_s_rule_on_lengths_is_refused() {
    // contract rocev2 7.9: a wrong pad, a length that is not the MTU, an empty payload where bytes are
    // required.
    let rules: [(Operation, &[u8]); 3] =
        [(Operation::SEND_FIRST, &[1; 100]), (Operation::SEND_LAST, &[]), (Operation::SEND_MIDDLE, &[])];
    for (operation, payload) in rules {
        let mut peer = Peer::new();
        let srq = peer.node.srq.number().unwrap();
        peer.node.receive(1, 0, 4096);
        let packet = peer.request(operation, 0, srq, payload);
        peer.send_packet(&packet);
        peer.refused_as_invalid(0);
        assert_eq!(peer.node.counter("drop_malformed"), 1);
        let mut none = [trunkline_verbs::Completion::default()];
        assert_eq!(peer.node.cq.poll(&mut none), 0, "the receive is left to others");
    }
}

#[test]
fn rocev2_7_9_a_malformed_packet_out_of_sequence_ends_nothing() {
    let mut peer = Peer::new();
    let srq = peer.node.srq.number().unwrap();
    peer.node.receive(1, 0, 4096);
    let early = peer.request(Operation::SEND_LAST, 5, srq, &[]);
    peer.send_packet(&early);
    let sequence = Syndrome::Nak(NakCode::PSN_SEQUENCE).byte();
    assert_eq!(peer.answer(), (sequence, Psn::new(FIRST_PSN)));
    assert_eq!(peer.tgt.query().unwrap().state, QpState::ReadyToSend);
    let only = peer.request(Operation::SEND_ONLY, 0, srq, b"four");
    peer.send_packet(&only);
    assert_eq!(peer.answer().1, Psn::new(FIRST_PSN));
}
