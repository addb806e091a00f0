//! The responder's rules, one per test.

use super::saved::Saved;
use super::*;
use crate::engine::testing::{
    MTU, SRQ, Script, attributes, fetch_add, in_state, read_request, request, reth,
};
use crate::engine::{Placement, ReadOutcome};
use crate::wire::{Operation, Packet, RnrTimer, Syndrome};
use proptest::prelude::*;
use trunkline_verbs::{Access, QpType, SrqNumber};

type Answer = (Operation, u32, Option<(Syndrome, u32)>, usize);

struct Rig {
    state: ResponderState,
    target: Script,
}

impl Rig {
    fn new() -> Self {
        Self::with(&attributes(QpType::XrcTgt))
    }

    fn with(attributes: &QpAttributes) -> Self {
        let mut state = ResponderState::new(QpNumber::new(0x11));
        state.modify(&QpAttributes { state: QpState::Init, ..*attributes });
        state.modify(&QpAttributes { state: QpState::ReadyToReceive, ..*attributes });
        state.modify(attributes);
        Self { state, target: Script::default() }
    }

    fn take(&mut self, packet: &Packet<'_>) -> Handled {
        self.state.handle_request(packet, &mut self.target)
    }

    fn send(&mut self, psn: u32) -> Handled {
        self.take(&request(Operation::SEND_ONLY, psn, b"hi"))
    }

    /// Takes all pending responses. Returns their operation, PSN, syndrome and MSN, and payload length.
    fn answers(&mut self) -> Vec<Answer> {
        let mut all = Vec::new();
        let mut out = Vec::new();
        while let Some(sent) = self.state.poll_transmit(&mut self.target, &mut out) {
            let packet = Packet::parse(&out).expect("well formed");
            assert_eq!(packet.bth.destination, crate::engine::testing::PEER);
            assert_eq!(packet.bth.psn, sent.psn);
            assert!(packet.xrceth.is_none(), "contract rocev2 2.3");
            let aeth = packet.aeth.map(|aeth| (aeth.meaning(), aeth.msn));
            all.push((packet.bth.opcode.operation(), packet.bth.psn.get(), aeth, packet.payload.len()));
            out.clear();
        }
        assert!(!self.state.has_output());
        all
    }

    fn events(&mut self) -> Vec<ResponderEvent> {
        let has_event = self.state.has_event();
        let events: Vec<_> = std::iter::from_fn(|| self.state.poll_event()).collect();
        assert_eq!(has_event, !events.is_empty());
        events
    }

    /// Asserts that the packet is refused with this code, and that the QP fails.
    fn refuses(mut self, packet: &Packet<'_>, code: NakCode) {
        let before = self.target.asked.len();
        assert_eq!(self.take(packet), Handled::Refused);
        assert_eq!(self.answers(), [nak(packet.bth.psn.get(), code, self.state.msn)]);
        assert_eq!(self.events(), [ResponderEvent::Failed(code)]);
        assert!(self.state.is_failed());
        assert_eq!(self.target.asked.len(), before, "the target was not asked");
    }
}

fn ack(psn: u32, msn: u32) -> Answer {
    (Operation::ACKNOWLEDGE, psn, Some((Syndrome::ACK, msn)), 0)
}

fn nak(psn: u32, code: NakCode, msn: u32) -> Answer {
    (Operation::ACKNOWLEDGE, psn, Some((Syndrome::Nak(code), msn)), 0)
}

#[test]
fn final_ack_repeats_last_acknowledgement_only() {
    let mut rig = Rig::new();
    let mut out = Vec::new();
    assert_eq!(rig.state.final_ack(&mut out), None, "nothing was taken yet");
    rig.send(100);
    rig.send(101);
    assert_eq!(rig.answers(), [ack(101, 2)]);
    for _ in 0..2 {
        out.clear();
        rig.state.final_ack(&mut out).unwrap();
        let packet = Packet::parse(&out).unwrap();
        let aeth = packet.aeth.unwrap();
        assert_eq!((packet.bth.psn.get(), aeth.meaning(), aeth.msn), (101, Syndrome::ACK, 2));
    }
    assert_eq!(rig.answers(), [], "it owes nothing more than before");
    out.clear();
    // A READ is answered by its response alone.
    rig.take(&read_request(102, 0x1000, 10));
    rig.answers();
    assert_eq!(rig.state.final_ack(&mut out), None);
    rig.send(103);
    assert!(rig.state.final_ack(&mut out).is_some());
    out.clear();
    rig.state.modify(&in_state(QpType::XrcTgt, QpState::Error));
    assert_eq!(rig.state.final_ack(&mut out), None, "it has stopped");
    assert!(out.is_empty());
}

#[test]
fn first_message_is_acknowledged_with_msn_one_and_no_credits() {
    // contract rocev2 6.7, G12: `Syndrome::ACK` grants unlimited credits.
    let mut rig = Rig::new();
    assert_eq!(rig.send(100), Handled::Taken);
    assert_eq!(rig.answers(), [ack(100, 1)]);
}

#[test]
fn batch_gets_one_acknowledgement() {
    // contract rocev2 7.11
    let mut rig = Rig::new();
    for psn in 100..110 {
        rig.send(psn);
    }
    assert_eq!(rig.answers(), [ack(109, 10)]);
    assert_eq!(rig.answers(), []);
}

#[test]
fn packets_without_ack_request_are_not_acknowledged() {
    let mut rig = Rig::new();
    let mut packet = request(Operation::SEND_ONLY, 100, b"hi");
    packet.bth.ack_request = false;
    rig.take(&packet);
    assert_eq!(rig.answers(), []);
    assert_eq!(rig.send(101), Handled::Taken);
    assert_eq!(rig.answers(), [ack(101, 2)]);
}

#[test]
fn gap_gets_one_nak() {
    // contract rocev2 7.4
    let mut rig = Rig::new();
    for psn in [102, 103, 104] {
        assert_eq!(rig.send(psn), Handled::OutOfOrder);
    }
    assert_eq!(rig.answers(), [nak(100, NakCode::PSN_SEQUENCE, 0)]);
    assert_eq!(rig.send(105), Handled::OutOfOrder);
    assert_eq!(rig.answers(), []);
    // The gap is partly filled, and the next packet shows another gap.
    rig.send(100);
    assert_eq!(rig.answers(), [ack(100, 1)]);
    rig.send(102);
    assert_eq!(rig.answers(), [nak(101, NakCode::PSN_SEQUENCE, 1)]);
    assert_eq!(rig.target.asked.len(), 1);
}

#[test]
fn nak_names_first_missing_psn() {
    let mut rig = Rig::new();
    rig.send(101);
    rig.send(100);
    assert_eq!(rig.answers(), [nak(101, NakCode::PSN_SEQUENCE, 1)]);
}

#[test]
fn duplicates_are_acknowledged_and_not_executed() {
    // contract rocev2 7.5
    let mut rig = Rig::new();
    rig.send(100);
    rig.send(101);
    rig.answers();
    assert_eq!(rig.send(100), Handled::Duplicate);
    assert_eq!(rig.answers(), [ack(101, 2)]);
    assert_eq!(rig.target.asked.len(), 2);
}

#[test]
fn psn_sequence_continues_after_wrap() {
    let mut attributes = attributes(QpType::XrcTgt);
    attributes.rq_psn = Psn::new(0xff_ffff);
    let mut rig = Rig::with(&attributes);
    assert_eq!(rig.send(0), Handled::OutOfOrder);
    assert_eq!(rig.send(0xff_ffff), Handled::Taken);
    assert_eq!(rig.send(0), Handled::Taken);
    assert_eq!(rig.send(0xff_ffff), Handled::Duplicate);
    // The missing packet and the repeated ones have arrived, so the NAK is obsolete.
    assert_eq!(rig.answers(), [ack(0, 2)]);
}

#[test]
fn read_responses_follow_explicit_acknowledgement_in_packets() {
    // contract rocev2 7.13, 7.19
    let mut rig = Rig::new();
    let mut send = request(Operation::SEND_ONLY, 100, b"hi");
    send.bth.ack_request = false;
    rig.take(&send);
    rig.take(&read_request(101, 0x1000, 2 * MTU + 5));
    rig.send(104);
    assert_eq!(
        rig.answers(),
        [
            ack(100, 1),
            (Operation::READ_RESPONSE_FIRST, 101, Some((Syndrome::ACK, 2)), 256),
            (Operation::READ_RESPONSE_MIDDLE, 102, None, 256),
            (Operation::READ_RESPONSE_LAST, 103, Some((Syndrome::ACK, 2)), 5),
            ack(104, 3),
        ]
    );
}

#[test]
fn empty_read_is_one_packet() {
    let mut rig = Rig::new();
    rig.take(&read_request(100, 0, 0));
    assert_eq!(rig.answers(), [(Operation::READ_RESPONSE_ONLY, 100, Some((Syndrome::ACK, 1)), 0)]);
    assert_eq!(rig.state.expected(), Psn::new(101));
}

#[test]
fn repeated_read_restarts_at_requested_packet() {
    // contract rocev2 7.5, 7.13
    let mut rig = Rig::new();
    rig.take(&read_request(100, 0x1000, 3 * MTU));
    rig.answers();
    let again = read_request(101, 0x1000 + u64::from(MTU), 2 * MTU);
    assert_eq!(rig.take(&again), Handled::Duplicate);
    let operations: Vec<_> = rig.answers().into_iter().map(|(operation, psn, ..)| (operation, psn)).collect();
    assert_eq!(operations, [(Operation::READ_RESPONSE_FIRST, 101), (Operation::READ_RESPONSE_LAST, 102)]);
    // Requests for other ranges are not answered.
    for wrong in [
        read_request(101, 0x1000, 2 * MTU),
        read_request(101, 0x1000 + u64::from(MTU), 3 * MTU),
        read_request(99, 0x1000, MTU),
    ] {
        assert_eq!(rig.take(&wrong), Handled::Duplicate);
        assert_eq!(rig.answers(), []);
    }
    assert_eq!(rig.state.counters().dropped_duplicate, 3);
    assert_eq!(rig.target.asked.len(), 1);
}

#[test]
fn duplicate_read_within_unfinished_response_keeps_rest_of_response() {
    // contract rocev2 7.24
    let mut rig = Rig::new();
    rig.take(&read_request(100, 0x1000, 4 * MTU));
    let mut out = Vec::new();
    for _ in 0..2 {
        rig.state.poll_transmit(&mut rig.target, &mut out);
    }
    rig.take(&read_request(100, 0x1000, MTU));
    let psns: Vec<_> = rig.answers().into_iter().map(|(_, psn, ..)| psn).collect();
    assert_eq!(psns, [100, 101, 102, 103]);
    // Two simultaneous repeats get one response.
    rig.take(&read_request(101, 0x1000 + u64::from(MTU), MTU));
    rig.take(&read_request(103, 0x1000 + 3 * u64::from(MTU), MTU));
    let psns: Vec<_> = rig.answers().into_iter().map(|(_, psn, ..)| psn).collect();
    assert_eq!(psns, [101, 102, 103]);
}

#[test]
fn read_waits_for_its_bytes() {
    let mut rig = Rig::new();
    rig.take(&read_request(100, 0, 10));
    rig.target.reads.push_back(ReadOutcome::Later);
    let mut out = vec![1];
    assert_eq!(rig.state.poll_transmit(&mut rig.target, &mut out), None);
    assert_eq!(out, [1]);
    assert!(rig.state.has_output());
    assert_eq!(rig.answers().len(), 1);
}

#[test]
fn read_of_deregistered_memory_is_refused() {
    let mut rig = Rig::new();
    rig.take(&read_request(100, 0, 2 * MTU));
    rig.target.reads.extend([ReadOutcome::Read, ReadOutcome::Nak(NakCode::REMOTE_ACCESS)]);
    let answers = rig.answers();
    assert_eq!(answers[0].0, Operation::READ_RESPONSE_FIRST);
    assert_eq!(answers[1..], [nak(101, NakCode::REMOTE_ACCESS, 1)]);
    assert_eq!(rig.events(), [ResponderEvent::Failed(NakCode::REMOTE_ACCESS)]);
}

#[test]
fn duplicate_read_of_deregistered_memory_is_dropped() {
    // The requester received the response, and its program has freed the memory since.
    let mut rig = Rig::new();
    rig.take(&read_request(100, 0x1000, MTU));
    assert_eq!(rig.answers().len(), 1);
    rig.send(101);
    rig.answers();
    rig.target.reads.push_back(ReadOutcome::Nak(NakCode::REMOTE_ACCESS));
    assert_eq!(rig.take(&read_request(100, 0x1000, MTU)), Handled::Duplicate);
    assert_eq!((rig.answers(), rig.events()), (vec![], vec![]));
    assert_eq!(rig.send(102), Handled::Taken);
}

#[test]
fn atomic_results_are_replayed_without_second_execution() {
    // contract rocev2 7.5, 7.6
    let mut rig = Rig::new();
    rig.take(&fetch_add(100, 8));
    rig.take(&fetch_add(101, 8));
    let result = |psn| (Operation::ATOMIC_ACKNOWLEDGE, psn, Some((Syndrome::ACK, psn - 99)), 0);
    assert_eq!(rig.answers(), [result(100), result(101)]);
    assert_eq!(rig.take(&fetch_add(100, 8)), Handled::Duplicate);
    assert_eq!(rig.answers(), [result(100)]);
    assert_eq!((rig.target.word, rig.target.asked.len()), (10, 2));
    // Two results are saved, so the third replaces the first.
    rig.take(&fetch_add(102, 8));
    rig.answers();
    rig.take(&fetch_add(100, 8));
    assert_eq!(rig.answers(), []);
    rig.take(&fetch_add(101, 8));
    assert_eq!(rig.answers(), [result(101)]);
    assert_eq!(rig.target.word, 15);
}

#[test]
fn reads_beyond_max_dest_rd_atomic_are_refused() {
    let mut rig = Rig::new();
    for psn in [100, 101] {
        rig.take(&read_request(psn, 0, 1));
    }
    assert_eq!(rig.take(&read_request(102, 0, 1)), Handled::Refused);
    let answers = rig.answers();
    assert_eq!(answers.len(), 3);
    assert_eq!(answers[2], nak(102, NakCode::INVALID_REQUEST, 2));
    let none = QpAttributes { max_dest_rd_atomic: 0, ..attributes(QpType::XrcTgt) };
    Rig::with(&none).refuses(&fetch_add(100, 8), NakCode::INVALID_REQUEST);
}

#[test]
fn responder_keeps_negotiated_number_of_reads() {
    // contract rocev2 7.6
    for depth in [1, 16, 128] {
        let mut rig = Rig::with(&QpAttributes { max_dest_rd_atomic: depth, ..attributes(QpType::XrcTgt) });
        let reads = 100..100 + u32::from(depth);
        for psn in reads.clone() {
            assert_eq!(rig.take(&read_request(psn, u64::from(psn), 1)), Handled::Taken);
        }
        assert_eq!(rig.answers().len(), usize::from(depth));
        for psn in reads.clone() {
            assert_eq!(rig.take(&read_request(psn, u64::from(psn), 1)), Handled::Duplicate);
        }
        let again = rig.answers();
        assert!(again.iter().map(|(_, psn, ..)| *psn).eq(reads), "depth {depth}: {again:?}");
    }
}

#[test]
fn memory_for_saved_reads_follows_negotiated_depth() {
    let room = |depth| {
        let attributes = QpAttributes { max_dest_rd_atomic: depth, ..attributes(QpType::XrcTgt) };
        Rig::with(&attributes).state.saved.capacity()
    };
    assert_eq!((room(0), room(1), room(128)), (0, 1, 128));
    assert_eq!(room(255), 128, "no more than the most");
}

#[test]
fn missing_receive_gets_one_rnr_nak_and_later_packets_are_not_answered() {
    // contract rocev2 7.10, G9
    let mut rig = Rig::new();
    rig.target.answers.push_back(Placement::Rnr);
    assert_eq!(rig.send(100), Handled::Refused);
    assert_eq!(rig.send(101), Handled::OutOfOrder);
    let rnr = (Operation::ACKNOWLEDGE, 100, Some((Syndrome::Rnr { timer: RnrTimer(12) }, 0)), 0);
    assert_eq!(rig.answers(), [rnr]);
    assert_eq!(rig.send(102), Handled::OutOfOrder);
    assert_eq!(rig.answers(), []);
    assert_eq!(rig.send(100), Handled::Taken);
    assert_eq!(rig.answers(), [ack(100, 1)]);
    assert!(!rig.state.is_failed());
}

#[test]
fn fatal_nak_is_repeated_for_repeated_request() {
    // contract rocev2 7.8, G7
    let mut rig = Rig::new();
    rig.send(100);
    rig.target.answers.push_back(Placement::Nak(NakCode::INVALID_RD_REQUEST));
    assert_eq!(rig.send(101), Handled::Refused);
    let refusal = nak(101, NakCode::INVALID_RD_REQUEST, 1);
    assert_eq!(rig.answers(), [refusal]);
    rig.state.modify(&in_state(QpType::XrcTgt, QpState::Error));
    assert_eq!(rig.send(102), Handled::Dropped);
    assert_eq!(rig.answers(), []);
    assert_eq!(rig.send(101), Handled::Dropped);
    assert_eq!(rig.answers(), [refusal]);
    assert_eq!(rig.events(), [ResponderEvent::Failed(NakCode::INVALID_RD_REQUEST)]);
    assert_eq!(rig.target.asked.len(), 2);
}

#[test]
fn packets_after_modify_to_error_are_dropped_silently() {
    // contract I2
    let mut rig = Rig::new();
    rig.send(100);
    rig.state.modify(&in_state(QpType::XrcTgt, QpState::Error));
    assert_eq!(rig.send(101), Handled::Dropped);
    assert_eq!(rig.answers(), []);
    assert_eq!(rig.events(), []);
    assert_eq!(rig.state.counters().dropped_state, 1);
}

#[test]
fn messages_follow_opcode_sequence() {
    // contract rocev2 7.7
    let full = [0; MTU as usize];
    Rig::new().refuses(&request(Operation::SEND_MIDDLE, 100, &full), NakCode::INVALID_REQUEST);
    Rig::new().refuses(&request(Operation::WRITE_LAST, 100, b"x"), NakCode::INVALID_REQUEST);
    let begun = || {
        let mut rig = Rig::new();
        rig.take(&request(Operation::SEND_FIRST, 100, &full));
        assert!(rig.state.message_in_progress());
        rig
    };
    begun().refuses(&request(Operation::SEND_ONLY, 101, b"x"), NakCode::INVALID_REQUEST);
    begun().refuses(&request(Operation::WRITE_MIDDLE, 101, &full), NakCode::INVALID_REQUEST);
    begun().refuses(&read_request(101, 0, 1), NakCode::INVALID_REQUEST);
    let mut rig = begun();
    rig.take(&request(Operation::SEND_LAST, 101, b"x"));
    assert_eq!(rig.answers(), [ack(101, 1)]);
    assert!(!rig.state.message_in_progress());
}

#[test]
fn srq_may_not_change_inside_message() {
    // contract G11
    let full = [0; MTU as usize];
    let mut rig = Rig::new();
    rig.take(&request(Operation::SEND_FIRST, 100, &full));
    let mut other = request(Operation::SEND_LAST, 101, b"x");
    other.xrceth = Some((0, SrqNumber::new(SRQ.get() + 1)));
    rig.answers();
    rig.refuses(&other, NakCode::INVALID_REQUEST);
}

#[test]
fn payload_lengths_contrary_to_opcode_or_reth_are_refused() {
    // contract rocev2 3.1, 7.9
    let full = [0; MTU as usize];
    let long = [0; MTU as usize + 1];
    Rig::new().refuses(&request(Operation::SEND_ONLY, 100, &long), NakCode::INVALID_REQUEST);
    Rig::new().refuses(&request(Operation::SEND_FIRST, 100, b"short"), NakCode::INVALID_REQUEST);
    let mut write = request(Operation::WRITE_ONLY, 100, b"four");
    write.reth = reth(0, 5);
    Rig::new().refuses(&write, NakCode::INVALID_REQUEST);
    write = request(Operation::WRITE_FIRST, 100, &full);
    write.reth = reth(0, MTU);
    Rig::new().refuses(&write, NakCode::INVALID_REQUEST);
    write.reth = reth(0, u32::MAX);
    Rig::new().refuses(&write, NakCode::INVALID_REQUEST);
    Rig::new().refuses(&read_request(100, 0, u32::MAX), NakCode::INVALID_REQUEST);
    let mut rig = Rig::new();
    rig.state.limit_message(MTU);
    rig.take(&request(Operation::SEND_FIRST, 100, &full));
    rig.answers();
    rig.refuses(&request(Operation::SEND_LAST, 101, b"x"), NakCode::INVALID_REQUEST);
}

#[test]
fn rights_of_qp_are_checked_before_target() {
    // contract E5, G4
    let none = QpAttributes { access: Access::empty(), ..attributes(QpType::XrcTgt) };
    let mut write = request(Operation::WRITE_ONLY, 100, b"four");
    write.reth = reth(0, 4);
    for packet in [write, read_request(100, 0, 1), fetch_add(100, 8)] {
        Rig::with(&none).refuses(&packet, NakCode::INVALID_REQUEST);
    }
    let mut rig = Rig::with(&none);
    rig.send(100);
    assert_eq!(rig.answers(), [ack(100, 1)]);
}

#[test]
fn misaligned_atomics_and_invalidation_are_refused() {
    // contract rocev2 7.9
    Rig::new().refuses(&fetch_add(100, 12), NakCode::INVALID_REQUEST);
    let mut invalidate = request(Operation::SEND_ONLY_INV, 100, b"x");
    invalidate.invalidate = Some(trunkline_verbs::Rkey(1));
    Rig::new().refuses(&invalidate, NakCode::INVALID_REQUEST);
}

#[test]
fn malformed_requests_are_refused_in_sequence_only() {
    let bth = |psn| request(Operation::SEND_FIRST, psn, b"").bth;
    let mut rig = Rig::new();
    rig.send(100);
    assert_eq!(rig.state.handle_malformed(&bth(100)), Handled::Duplicate);
    assert_eq!(rig.answers(), [ack(100, 1)]);
    assert_eq!(rig.state.handle_malformed(&bth(105)), Handled::OutOfOrder);
    assert!(!rig.state.is_failed());
    assert_eq!(rig.state.handle_malformed(&bth(101)), Handled::Refused);
    assert_eq!(rig.events(), [ResponderEvent::Failed(NakCode::INVALID_REQUEST)]);
}

#[test]
fn deferred_placement_blocks_later_packets() {
    let mut rig = Rig::new();
    rig.target.answers.push_back(Placement::Later);
    assert_eq!(rig.send(100), Handled::Waiting);
    assert!(rig.state.is_waiting());
    assert_eq!(rig.send(101), Handled::Busy);
    assert_eq!(rig.answers(), []);
    assert_eq!(rig.state.answer(Placement::Later), Handled::Dropped);
    assert!(rig.state.is_waiting());
    assert_eq!(rig.state.answer(Placement::Placed), Handled::Taken);
    assert_eq!(rig.state.answer(Placement::Rnr), Handled::Dropped, "none waits any more");
    assert_eq!(rig.answers(), [ack(100, 1)]);
    assert_eq!(rig.send(101), Handled::Taken);
    assert_eq!(rig.answers(), [ack(101, 2)]);
}

#[test]
fn deferred_atomic_returns_its_value() {
    let mut rig = Rig::new();
    rig.target.answers.push_back(Placement::Later);
    rig.take(&fetch_add(100, 8));
    assert_eq!(rig.state.answer(Placement::Atomic(77)), Handled::Taken);
    let mut out = Vec::new();
    rig.state.poll_transmit(&mut rig.target, &mut out).expect("an answer");
    assert_eq!(Packet::parse(&out).expect("well formed").atomic_ack, Some(77));
}

#[test]
fn deferred_refusal_is_not_proof_of_peer() {
    let mut rig = Rig::new();
    rig.target.answers.push_back(Placement::Later);
    rig.send(100);
    let refused = rig.state.answer(Placement::Nak(NakCode::REMOTE_ACCESS));
    assert_eq!(refused, Handled::Refused);
    assert!(refused.is_in_sequence() && !refused.is_proof());
    assert!(!Handled::Duplicate.is_in_sequence() && !Handled::Duplicate.is_proof());
}

#[test]
fn placement_after_qp_error_is_ignored() {
    let mut rig = Rig::new();
    rig.target.answers.push_back(Placement::Later);
    rig.send(100);
    rig.state.modify(&in_state(QpType::XrcTgt, QpState::Error));
    assert!(!rig.state.is_waiting());
    assert_eq!(rig.state.answer(Placement::Placed), Handled::Dropped);
    assert_eq!(rig.answers(), []);
    assert_eq!(rig.state.expected(), Psn::new(100));
}

#[test]
fn packets_dropped_by_policy_are_unanswered() {
    // contract G7
    let mut rig = Rig::new();
    rig.target.answers.push_back(Placement::Drop);
    rig.send(100);
    rig.send(101);
    assert_eq!(rig.answers(), []);
    assert_eq!(rig.state.counters().dropped_policy, 1);
    assert_eq!(rig.events(), []);
}

#[test]
fn first_packet_in_rtr_raises_communication_established() {
    // contract rocev2 7.15, H3
    let mut rig = Rig::with(&in_state(QpType::XrcTgt, QpState::ReadyToReceive));
    assert_eq!(rig.events(), []);
    rig.send(100);
    rig.send(101);
    assert_eq!(rig.events(), [ResponderEvent::CommunicationEstablished]);
    let mut rig = Rig::new();
    rig.send(100);
    assert_eq!(rig.events(), []);
}

#[test]
fn packets_of_other_services_and_acknowledgements_are_dropped() {
    // contract rocev2 2.4
    let mut rig = Rig::with(&attributes(QpType::Rc));
    assert_eq!(rig.send(100), Handled::Dropped);
    assert_eq!(Rig::new().take(&crate::engine::testing::ack(100)), Handled::Dropped);
    assert_eq!(rig.state.counters().dropped_opcode, 1);
}

#[test]
fn packets_before_rtr_are_dropped() {
    let mut rig = Rig::with(&in_state(QpType::XrcTgt, QpState::Init));
    assert_eq!(rig.send(100), Handled::Dropped);
    assert_eq!(rig.answers(), []);
}

#[test]
fn reset_clears_all_state_except_counters() {
    let mut rig = Rig::new();
    rig.send(100);
    rig.state.modify(&in_state(QpType::XrcTgt, QpState::Reset));
    assert!(!rig.state.has_output());
    rig.state.modify(&in_state(QpType::XrcTgt, QpState::Init));
    rig.state.modify(&attributes(QpType::XrcTgt));
    assert_eq!(rig.state.expected(), Psn::new(100));
    assert_eq!(rig.state.counters().packets, 1);
}

proptest! {
    /// Neither a partly written state of another process nor packets of a hostile peer cause a panic.
    #[test]
    fn random_bytes_do_not_panic(
        small in proptest::array::uniform32(any::<u8>()),
        words in proptest::array::uniform32(any::<u32>()),
        packets in proptest::collection::vec((0_u8..0x20, 0_u32..40, 0_u32..600, any::<u32>()), 1..20),
    ) {
        let mut rig = Rig::new();
        let state = &mut rig.state;
        (state.phase, state.events, state.nak_sent, state.ack_due) = (small[0] % 4, small[1], small[2], small[3]);
        state.saved.set_depth(small[4] % 20);
        (state.mtu, state.msn, state.acked, state.max_message) = (words[0], words[1], words[2], words[3]);
        state.counters.packets = u64::MAX;
        state.message = Message { kind: small[7] % 4, srq: words[4] % 2 * SRQ.get(), received: words[5], address: u64::MAX, rkey: 9, length: words[6] };
        state.pending = Pending { active: small[8] & 1, operation: small[9], ack_request: small[10], psn: words[7], srq: 1, payload: words[8], address: 0, rkey: 0, length: words[9] };
        state.refusal = Refusal { due: small[11], syndrome: small[12], psn: words[10] };
        for index in 0..usize::from(small[5] % 16) {
            state.saved.keep(Saved {
                is_atomic: small[16 + index] & 1 != 0,
                is_active: small[15 - index] & 1 != 0,
                is_replay: small[index] & 1 != 0,
                first_psn: words[index],
                psns: words[31 - index],
                msn: words[16],
                srq: 1,
                rkey: 9,
                address: u64::MAX,
                length: words[17],
                start: words[18],
                next: words[19 + index % 8],
                end: words[28],
                old: 1,
            });
        }
        for (operation, psn, length, word) in packets {
            rig.state.answer(if word & 1 == 0 { Placement::Placed } else { Placement::Atomic(1) });
            let payload = vec![0; usize::try_from(length).expect("small")];
            let mut packet = request(Operation(operation), 90 + psn, &payload);
            packet.reth = reth(u64::from(word), word);
            packet.atomic = fetch_add(0, u64::from(word) & !7).atomic;
            rig.take(&packet);
            let mut out = Vec::new();
            for _ in 0..4 {
                rig.state.poll_transmit(&mut rig.target, &mut out);
            }
            rig.state.poll_event();
        }
    }
}
