//! Detection of lost large packets by the side that sends or READs them.

use super::*;
use crate::engine::responder::ResponderState;
use crate::engine::testing::Script;
use trunkline_verbs::{CompletionFlags, Mtu};

/// Two QPs and the path between them, which drops packets.
struct Path {
    rig: Rig,
    responder: ResponderState,
    script: Script,
}

impl Path {
    fn new(retry_count: u8) -> Self {
        let wide = |qp_type| QpAttributes { path_mtu: Mtu::Mtu1024, retry_count, ..attributes(qp_type) };
        let mut responder = ResponderState::new(PEER);
        for state in [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend] {
            responder.modify(&QpAttributes { state, ..wide(QpType::XrcTgt) });
        }
        let rig = Rig::with(&wide(QpType::XrcIni), Tuning::default());
        Self { rig, responder, script: Script::default() }
    }

    /// Runs both sides until neither has a running timer, or until `until`. `passes` decides by a packet's payload whether
    /// the packet is delivered.
    fn run(&mut self, until: Time, mut passes: impl FnMut(usize) -> bool) {
        let mut out = Vec::new();
        while self.rig.now < until {
            let mut is_idle = true;
            while self.rig.requester.poll_transmit(self.rig.now, &self.rig.ram, &mut out).is_some() {
                let packet = Packet::parse(&out).expect("well formed");
                if passes(packet.payload.len()) {
                    self.responder.handle_request(&packet, &mut self.script);
                }
                out.clear();
                is_idle = false;
            }
            while self.responder.poll_transmit(&mut self.script, &mut out).is_some() {
                let packet = Packet::parse(&out).expect("well formed");
                if passes(packet.payload.len()) {
                    self.rig.hear(&packet);
                }
                out.clear();
                is_idle = false;
            }
            if is_idle && self.rig.requester.next_timeout().is_none() {
                return;
            }
            if is_idle {
                self.rig.wait();
            }
        }
    }

    /// Returns the status of the first completion, and true if it reports lost large packets.
    fn outcome(&mut self) -> Option<(CompletionStatus, bool)> {
        let completion = self.rig.requester.poll_completion()?;
        Some((completion.status, completion.flags.contains(CompletionFlags::LARGE_PACKETS_LOST)))
    }
}

const NEVER: Time = Time(u64::MAX);

#[test]
fn loss_of_large_packets_is_named_despite_later_packets() {
    for retry_count in 2..=7 {
        for operation in [
            SendOperation::Send,
            SendOperation::RdmaWrite(remote(64)),
            SendOperation::RdmaRead(remote(0x4000)),
        ] {
            for (length, behind) in [(4096, 0), (4096, 3), (3000, 0), (1024, 1), (700, 0), (257, 2)] {
                let mut path = Path::new(retry_count);
                path.rig.post(1, operation, length);
                (0..behind).for_each(|wr_id| path.rig.send(2 + wr_id));
                path.run(NEVER, |payload| payload <= 256);
                let outcome = path.outcome();
                assert_eq!(outcome, Some((S::RetryExceeded, true)), "{operation:?} {length} {retry_count}");
            }
        }
    }
}

#[test]
fn packet_of_at_most_smallest_mtu_is_not_too_large() {
    for operation in [SendOperation::Send, SendOperation::RdmaRead(remote(0x4000))] {
        let mut path = Path::new(6);
        path.rig.post(1, operation, 256);
        path.run(NEVER, |payload| payload < 256);
        assert_eq!(path.outcome(), Some((S::RetryExceeded, false)), "{operation:?}");
    }
}

/// Random numbers below a limit.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// One packet in a hundred is lost at random, and the peer dies at a random time. A dead peer does not answer timeouts, so a
/// wrong result would require that a packet is lost about ten times in a row before the death.
#[test]
fn death_after_losses_is_not_attributed_to_mtu() {
    for seed in 0..500 {
        let mut dice = Dice(seed);
        let retry_count = u8::try_from(2 + dice.below(6)).expect("at most 7");
        let mut path = Path::new(retry_count);
        for wr_id in 0..20 {
            let operation = if dice.below(2) == 0 {
                SendOperation::RdmaRead(remote(0x4000))
            } else {
                SendOperation::Send
            };
            path.rig.post(wr_id, operation, u32::try_from(dice.below(4096)).expect("small"));
        }
        let death = Time(dice.below(20 * MS));
        path.run(death, |_| dice.below(100) > 0);
        path.run(NEVER, |_| false);
        while let Some((status, is_named)) = path.outcome() {
            assert!(!is_named, "seed {seed}: {status:?}");
        }
    }
}

/// The peer dies after it has answered this number of timeouts.
#[test]
fn large_packet_loss_is_named_only_after_two_answered_timeouts() {
    for (answered, is_named) in [(0, false), (1, false), (2, true), (6, true)] {
        let mut path = Path::new(6);
        path.rig.post(1, SendOperation::Send, 1024);
        path.run(Time(TIMEOUT * answered + MS / 2), |payload| payload < 1024);
        path.run(NEVER, |_| false);
        assert_eq!(path.outcome(), Some((S::RetryExceeded, is_named)), "{answered}");
    }
}

#[test]
fn forged_acknowledgements_do_not_answer_timeouts() {
    let mut path = Path::new(6);
    path.rig.post(1, SendOperation::Send, 1024);
    for timeout in 0..4 {
        path.run(Time(TIMEOUT * timeout + MS / 2), |_| false);
        path.rig.hear(&answer(Operation::ACKNOWLEDGE, 40, Syndrome::ACK, &[]));
    }
    path.run(NEVER, |_| false);
    assert_eq!(path.outcome(), Some((S::RetryExceeded, false)));
}

#[test]
fn rnr_nak_excludes_large_packet_loss() {
    let mut path = Path::new(6);
    path.rig.post(1, SendOperation::Send, 1024);
    path.run(Time(TIMEOUT * 4), |payload| payload < 1024);
    let not_ready = Syndrome::Rnr { timer: RnrTimer(1) };
    path.rig.hear(&answer(Operation::ACKNOWLEDGE, 100, not_ready, &[]));
    path.run(NEVER, |_| false);
    assert_eq!(path.outcome(), Some((S::RetryExceeded, false)));
}
