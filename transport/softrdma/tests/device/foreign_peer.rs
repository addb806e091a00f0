//! A sender that is not our device: its packets have IPv4 identifications that must be derived from the ICRC.

use crate::common::by_hand::{ByHand, FIRST_PSN};
use crate::common::node::{BOUND, Node};
use std::time::Instant;
use trunkline_verbs::{Completion, Psn};

/// A bare sender on the network, and a device that is connected to it.
struct Setup {
    hands: ByHand,
    psn: Psn,
}

impl Setup {
    fn new() -> Self {
        Self { hands: ByHand::new(0xd000), psn: Psn::new(FIRST_PSN) }
    }

    fn node(&self) -> &Node {
        &self.hands.node
    }

    /// Sends the packet at the present PSN and waits until the device has received it. Returns whether a
    /// receive completed, in which case the PSN advances.
    fn send(&mut self, identification: u16) -> bool {
        let before = self.node().counter("packets_received");
        self.hands.send(self.psn, false, |headers| headers.v4_identification = identification);
        let until = Instant::now() + BOUND;
        while self.node().counter("packets_received") == before {
            assert!(Instant::now() < until, "the packet was never received");
            std::thread::yield_now();
        }
        let mut one = [Completion::default()];
        let taken = self.node().cq.poll(&mut one) == 1;
        if taken {
            self.psn = self.psn.plus(1);
        }
        taken
    }
}

#[test]
fn a_foreign_peer_is_accepted_from_its_third_packet_on() {
    let mut setup = Setup::new();
    assert!(!setup.send(500));
    assert!(!setup.send(501));
    assert!(setup.send(502), "{:#?}", setup.node().device_counters());
    assert!(setup.send(503));
    assert_eq!(setup.node().counter("drop_unproven_identification"), 2);
    assert!(!setup.send(40_000), "far from its last packet");
    assert!(setup.send(504));
}

#[test]
fn no_identification_is_derived_for_a_peer_of_our_own_device() {
    let mut setup = Setup::new();
    assert!(setup.send(0));
    for identification in 700..710 {
        assert!(!setup.send(identification));
    }
    assert!(setup.node().counter("drop_bad_icrc") >= 10);
    assert!(setup.send(0));
}
