//! Packets that another program forges with the address of a QP's peer and correct checksums. They neither move
//! the QP's route nor cause an answer to the forger.

use crate::common::by_hand::{ByHand, FIRST_PSN};
use crate::common::node::{BOUND, bring_up_with, post};
use std::time::Instant;
use trunkline_roce::wire::{Aeth, NakCode, Opcode, Operation, Packet, ROCE_PORT, Reth, Service, Syndrome};
use trunkline_softrdma::link::{Link, ReceiveBatch};
use trunkline_verbs::{Completion, CompletionStatus, IoAddress, Psn, QpNumber, QpType, Rkey, SendOperation};

/// The port of the peer's process.
const PEER: u16 = 40_000;
/// The port of another program.
const FORGER: u16 = 50_000;

struct Setup {
    hands: ByHand,
    /// PSN that the QP expects.
    psn: Psn,
}

impl Setup {
    /// Creates a TGT that has received one message from its peer.
    fn new() -> Self {
        let mut setup = Self { hands: ByHand::new(PEER), psn: Psn::new(FIRST_PSN) };
        let message = setup.hands.message(setup.psn, true);
        setup.send(PEER, &message);
        assert_eq!(setup.answers(), [(PEER, FIRST_PSN, Syndrome::ACK)]);
        setup.psn = setup.psn.plus(1);
        setup
    }

    /// Sends a packet from a port, and waits until the device has handled it.
    fn send(&mut self, port: u16, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        self.send_bytes(port, bytes);
    }

    fn send_bytes(&mut self, port: u16, bytes: Vec<u8>) {
        let before = self.hands.node.counter("packets_received");
        self.hands.source.set_port(port);
        self.hands.send_bytes(bytes, |_| {});
        let until = Instant::now() + BOUND;
        while self.hands.node.counter("packets_received") == before {
            assert!(Instant::now() < until, "the packet was never received");
            self.hands.node.cq.poll(&mut [Completion::default(); 8]);
        }
    }

    /// Returns the destination port, PSN and syndrome of each answer of the device.
    fn answers(&mut self) -> Vec<(u16, u32, Syndrome)> {
        let mut batch = ReceiveBatch::new(64);
        self.hands.link.receive(&mut batch);
        let read = |datagram: trunkline_softrdma::link::Datagram<'_>| {
            let packet = Packet::parse(&datagram.bytes[..datagram.bytes.len() - 4]).unwrap();
            let meaning = packet.aeth.map_or(Syndrome::ACK, |aeth| aeth.meaning());
            (datagram.destination.port(), packet.bth.psn.get(), meaning)
        };
        batch.iter().map(read).collect()
    }
}

#[test]
fn duplicates_are_acknowledged_to_peer_without_moving_route() {
    let mut setup = Setup::new();
    let live = setup.psn;
    for back in [1, 2, 1000, 1 << 20, (1 << 23) - 1] {
        let forged = setup.hands.message(live.minus(back), true);
        setup.send(FORGER, &forged);
    }
    let answers = setup.answers();
    assert!(!answers.is_empty(), "duplicates are acknowledged");
    assert!(answers.iter().all(|(port, ..)| *port == PEER), "the forger saw {answers:x?}");
    let message = setup.hands.message(live, true);
    setup.send(PEER, &message);
    assert_eq!(setup.answers(), [(PEER, live.get(), Syndrome::ACK)]);
}

#[test]
fn requests_after_small_gap_are_refused_only_from_port_of_peer() {
    let mut setup = Setup::new();
    let later = setup.hands.message(setup.psn.plus(5), true);
    setup.send(FORGER, &later);
    let mut with_wrong_pad = Vec::new();
    later.emit(&mut with_wrong_pad);
    with_wrong_pad.push(0);
    setup.send_bytes(FORGER, with_wrong_pad);
    let guessed = setup.hands.message(setup.psn.plus(1 << 15), true);
    setup.send(PEER, &guessed);
    assert_eq!(setup.answers(), []);
    setup.send(PEER, &later);
    let refusal = Syndrome::Nak(NakCode::PSN_SEQUENCE);
    assert_eq!(setup.answers(), [(PEER, setup.psn.get(), refusal)]);
    let earlier = setup.hands.message(setup.psn.minus(5), true);
    setup.send(FORGER, &earlier);
    let answers = setup.answers();
    assert!(!answers.is_empty());
    assert!(answers.iter().all(|(port, ..)| *port == PEER), "the forger saw {answers:x?}");
}

#[test]
fn refused_request_with_expected_psn_does_not_move_route() {
    let mut setup = Setup::new();
    let read = Opcode::new(Service::XRC, Operation::READ_REQUEST);
    let mut forged = Packet::new(read, setup.hands.tgt.number(), setup.psn, &[]);
    forged.xrceth = Some((0, setup.hands.node.srq.number().unwrap()));
    forged.reth = Some(Reth { address: IoAddress(0x1000), rkey: Rkey(0x1234), length: 64 });
    setup.send(FORGER, &forged);
    let answers = setup.answers();
    assert!(matches!(answers[..], [(PEER, _, Syndrome::Nak(_))]), "{answers:x?}");
}

#[test]
fn acknowledgements_follow_source_port_of_peer() {
    let mut setup = Setup::new();
    for port in [41_000, ROCE_PORT, PEER] {
        let message = setup.hands.message(setup.psn, true);
        setup.send(port, &message);
        assert_eq!(setup.answers(), [(port, setup.psn.get(), Syndrome::ACK)]);
        setup.psn = setup.psn.plus(1);
    }
}

/// Builds an acknowledgement to a QP of its packet with this PSN.
fn acknowledgement(to: QpNumber, psn: Psn) -> Packet<'static> {
    let mut packet = Packet::new(Opcode::new(Service::XRC, Operation::ACKNOWLEDGE), to, psn, &[]);
    packet.aeth = Some(Aeth::new(Syndrome::ACK, 1));
    packet
}

#[test]
fn only_answers_to_outstanding_requests_move_route() {
    let mut setup = Setup::new();
    let ini = setup.hands.node.qp(QpType::XrcIni);
    bring_up_with(&*ini, setup.hands.source.ip(), QpNumber::new(0x4711));
    let request = |setup: &mut Setup| -> (u16, Psn) {
        let node = &setup.hands.node;
        let remote = node.remote(0);
        post(&*ini, SendOperation::RdmaWrite(remote), &[node.sge(0, 16)], &*node.srq);
        let until = Instant::now() + BOUND;
        loop {
            assert!(Instant::now() < until, "no request");
            if let Some((port, psn, _)) = setup.answers().first() {
                return (*port, Psn::new(*psn));
            }
        }
    };
    while setup.hands.node.cq.poll(&mut [Completion::default(); 8]) > 0 {}
    let (port, psn) = request(&mut setup);
    assert_eq!(port, ROCE_PORT, "nothing is known yet");
    setup.hands.source.set_port(PEER);
    setup.hands.send_packet(&acknowledgement(ini.number(), psn), |_| {});
    assert_eq!(setup.hands.node.completion().status, CompletionStatus::Success);

    for forged in [psn, psn.minus(100), psn.plus(1), psn.plus(100), psn.plus(1 << 22)] {
        setup.send(FORGER, &acknowledgement(ini.number(), forged));
    }
    setup.answers();
    let (port, psn) = request(&mut setup);
    assert_eq!(port, PEER);
    for forged in [psn.minus(1), psn.plus(1)] {
        setup.send(FORGER, &acknowledgement(ini.number(), forged));
    }
    assert_eq!(setup.hands.node.cq.poll(&mut [Completion::default()]), 0, "nothing was acknowledged");
    setup.send(PEER, &acknowledgement(ini.number(), psn));
}
