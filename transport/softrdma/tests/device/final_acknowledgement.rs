//! A QP that stops repeats its last acknowledgement. Otherwise a lost acknowledgement would leave its peer's request
//! unanswered, since a receiver of the last message may exit immediately.

use crate::common::by_hand::{ByHand, FIRST_PSN};
use crate::common::node::BOUND;
use std::time::Instant;
use trunkline_roce::wire::{Opcode, Operation, Packet, ROCE_PORT, Service, Syndrome};
use trunkline_softrdma::link::{Link, ReceiveBatch};
use trunkline_verbs::{Psn, QpModify, QpState};

/// A peer whose packets the test builds, so that only the test requests acknowledgements.
struct Setup(ByHand);

impl Setup {
    fn new() -> Self {
        Self(ByHand::new(ROCE_PORT))
    }

    /// Sends one message, and receives its acknowledgement.
    fn exchange(&mut self) {
        self.0.send(Psn::new(FIRST_PSN), true, |_| {});
        assert_eq!(self.0.node.completion().wr_id, 0);
        let until = Instant::now() + BOUND;
        let mut came = 0;
        while came == 0 {
            assert!(Instant::now() < until, "no acknowledgement");
            came = self.acknowledgements();
        }
        assert_eq!(came, 1);
    }

    /// Returns the number of waiting acknowledgements of the message. Fails if any other packet is waiting.
    fn acknowledgements(&mut self) -> usize {
        let mut batch = ReceiveBatch::new(64);
        self.0.link.receive(&mut batch);
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
        self.0.tgt.modify(&QpModify { state: Some(state), ..QpModify::default() }).unwrap();
    }
}

#[test]
fn stopping_qp_repeats_last_acknowledgement() {
    for end in ["destroyed", "reset", "in error"] {
        let mut setup = Setup::new();
        setup.exchange();
        match end {
            "destroyed" => setup.0.tgt.destroy().unwrap(),
            "reset" => setup.change(QpState::Reset),
            _ => setup.change(QpState::Error),
        }
        // The copies are sent before the call returns.
        assert_eq!(setup.acknowledgements(), 3, "{end}");
        let _destroyed_before = setup.0.tgt.destroy();
        assert_eq!(setup.acknowledgements(), 0, "{end}: once is enough");
    }
}

#[test]
fn qp_without_received_packets_stops_silently() {
    let mut setup = Setup::new();
    setup.0.tgt.destroy().unwrap();
    assert_eq!(setup.acknowledgements(), 0);
}
