//! READ responses that are lost, or arrive out of order.

use super::*;

/// Returns a requester that has requested a READ of `packets` as one piece.
fn reading(packets: u32) -> Rig {
    let mut rig = Rig::new();
    rig.post(1, SendOperation::RdmaRead(remote(0x4000)), packets * MTU);
    assert_eq!(rig.reads(), [(100, 0, packets)]);
    rig
}

impl Rig {
    /// Answers a request for this response only.
    fn hear_repeat(&mut self, psn: u32) -> Response {
        let bytes = [u8::try_from(psn % 256).expect("a byte"); MTU as usize];
        self.hear(&response(Operation::READ_RESPONSE_ONLY, psn, &bytes))
    }

    fn missing(&self) -> u32 {
        self.requester.in_flight().responses
    }

    fn check_memory(&self, packets: u32) {
        for packet in 0..packets {
            let at = 1000 + packet as usize * 256;
            let value = u8::try_from((100 + packet) % 256).expect("a byte");
            assert!(self.ram.0[at..at + 256].iter().all(|byte| *byte == value), "packet {packet}");
        }
    }
}

#[test]
fn one_lost_response_is_requested_alone_after_three_later_ones() {
    let mut rig = reading(16);
    rig.hear_piece(100, 100..105, 116);
    rig.hear_piece(100, 106..108, 116);
    assert_eq!((rig.reads(), rig.missing()), (vec![], 9));
    assert!(!rig.requester.take_signals().lost_responses);
    rig.hear_piece(100, 108..109, 116);
    assert_eq!((rig.reads(), rig.missing()), (vec![(105, 5 * 256, 1)], 8));
    assert!(rig.requester.take_signals().lost_responses);
    rig.hear_piece(100, 109..116, 116);
    assert_eq!((rig.reads(), rig.completions(), rig.missing()), (vec![], vec![], 1));
    let signals = rig.requester.take_signals();
    assert_eq!((signals.acknowledged.responses, signals.lost_responses), (7, false));
    rig.hear_repeat(105);
    assert_eq!((rig.completions(), rig.missing()), (vec![(1, S::Success)], 0));
    assert_eq!(rig.requester.in_flight().requests, 0);
    assert_eq!((rig.requester.counters().retransmits, rig.requester.next_timeout()), (1, None));
    rig.check_memory(16);
}

#[test]
fn responses_in_another_order_are_not_requested_again() {
    let mut rig = reading(8);
    rig.hear_piece(100, 100..101, 108);
    rig.hear_piece(100, 103..104, 108);
    rig.hear_piece(100, 102..103, 108);
    assert_eq!(rig.reads(), []);
    rig.hear_piece(100, 101..102, 108);
    rig.hear_piece(100, 106..108, 108);
    rig.hear_piece(100, 104..106, 108);
    assert_eq!((rig.reads(), rig.completions()), (vec![], vec![(1, S::Success)]));
    rig.check_memory(8);
}

#[test]
fn late_responses_are_given_more_time_until_repeats_are_needed_again() {
    let mut rig = reading(64);
    let late = |rig: &mut Rig, first: u32, by: u32| {
        rig.hear_piece(100, first + 1..first + 1 + by, 164);
        let repeats = rig.reads().len();
        rig.hear_piece(100, first..first + 1, 164);
        (0..repeats).for_each(|_| assert_eq!(rig.hear_repeat(first), Response::Stale));
        repeats
    };
    assert_eq!(late(&mut rig, 100, 3), 1);
    assert_eq!(late(&mut rig, 104, 6), 1);
    assert_eq!((late(&mut rig, 111, 11), rig.missing()), (0, 41));
    // A packet is lost, and its repeat arrives once.
    for first in (123..).step_by(2).take(16) {
        rig.hear_piece(100, first + 1..first + 2, 164);
        rig.wait();
        assert_eq!(rig.reads().len(), 1);
        rig.hear_repeat(first);
    }
    assert_eq!((late(&mut rig, 155, 3), rig.completions()), (1, vec![]));
}

#[test]
fn silence_after_gap_retransmits_missing_read() {
    let mut rig = reading(4);
    rig.hear_piece(100, 100..102, 104);
    rig.hear_piece(100, 103..104, 104);
    assert_eq!(rig.reads(), []);
    assert_eq!(rig.wait(), MS / 4);
    assert_eq!(rig.reads(), [(102, 2 * 256, 1)]);
    rig.hear_repeat(102);
    assert_eq!((rig.completions(), rig.requester.counters().probes), (vec![(1, S::Success)], 0));
}

#[test]
fn gaps_of_one_piece_are_requested_one_after_another() {
    let mut rig = reading(12);
    for psns in [100..102, 103..104, 106..112] {
        rig.hear_piece(100, psns, 112);
    }
    assert_eq!(rig.reads(), [(102, 2 * 256, 1)], "the kernel could not repeat it after the second one");
    rig.hear_repeat(102);
    assert_eq!(rig.reads(), [(104, 4 * 256, 2)]);
    rig.hear_piece(104, 104..106, 106);
    assert_eq!(rig.completions(), [(1, S::Success)]);
    rig.check_memory(12);
}

#[test]
fn gaps_of_several_pieces_are_requested_together_and_cost_one_retry() {
    let tuning = Tuning { read_piece: 4, read_window: 12, ..Tuning::default() };
    for (retry_count, packets) in [(1, 2), (0, 0)] {
        let attributes = QpAttributes { retry_count, max_rd_atomic: 16, ..attributes(QpType::XrcIni) };
        let mut rig = Rig::with(&attributes, tuning);
        rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 12 * MTU);
        rig.flush();
        rig.hear_piece(100, 100..101, 104);
        rig.hear_piece(100, 102..103, 104);
        // The last response of one piece and the first response of the next piece.
        rig.hear_piece(104, 105..108, 108);
        rig.hear_piece(108, 108..112, 112);
        // At most one range per piece.
        assert_eq!(rig.reads(), [(101, 256, 1), (104, 4 * 256, 1)][..packets]);
        let failed = rig.completions();
        assert_eq!(failed.first().map(|(_, status)| *status), (packets == 0).then_some(S::RetryExceeded));
        let losses = rig.requester.counters().implied_losses;
        assert_eq!(losses, u64::from(packets > 0), "the losses of one round trip are one event");
    }
}

#[test]
fn later_reads_are_kept_and_completed_in_order() {
    let mut rig = Rig::new();
    rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 2 * MTU);
    rig.send(2);
    rig.try_post(3, SendOperation::RdmaRead(remote(0x4000)), &[sge(9000, 2 * MTU)], SendFlags::SIGNALED)
        .expect("room");
    assert_eq!(rig.psns(), [100, 102, 103]);
    rig.hear_piece(100, 101..102, 102);
    rig.hear_piece(103, 103..105, 105);
    assert_eq!((rig.completions(), rig.missing()), (vec![], 1));
    assert_eq!(rig.reads(), [(100, 0, 1)]);
    rig.hear_repeat(100);
    assert_eq!(rig.completions(), [(1, S::Success), (2, S::Success), (3, S::Success)]);
    assert_eq!(rig.requester.in_flight(), InFlight::default());
    assert_eq!((rig.ram.0[9000], rig.ram.0[9000 + 256]), (103, 104));
}

#[test]
fn acknowledgement_beyond_gap_applies_when_gap_is_filled() {
    let mut rig = reading(2);
    rig.send(2);
    rig.flush();
    rig.hear(&ack(102));
    assert_eq!(rig.completions(), []);
    rig.hear_piece(100, 100..102, 102);
    assert_eq!(rig.completions(), [(1, S::Success), (2, S::Success)]);
}

#[test]
fn duplicates_beyond_gap_are_ignored() {
    let mut rig = reading(16);
    rig.hear_piece(100, 101..103, 116);
    let missing = rig.missing();
    assert_eq!(rig.hear(&response(Operation::READ_RESPONSE_MIDDLE, 101, &[7; 256])), Response::Stale);
    assert_eq!(rig.hear(&response(Operation::READ_RESPONSE_ONLY, 116, &[7; 256])), Response::Unexpected);
    assert_eq!((rig.reads(), rig.missing(), rig.requester.state()), (vec![], missing, QpState::ReadyToSend));
    rig.hear_piece(100, 100..101, 116);
    rig.hear_piece(100, 103..116, 116);
    assert_eq!(rig.completions(), [(1, S::Success)]);
    rig.check_memory(16);
}

#[test]
fn responses_of_another_form_beyond_gap_are_fatal() {
    // contract rocev2 7.27
    for (operation, psn, length) in [
        (Operation::READ_RESPONSE_MIDDLE, 102, 255),
        (Operation::READ_RESPONSE_MIDDLE, 102, 257),
        (Operation::READ_RESPONSE_LAST, 102, 256),
        (Operation::READ_RESPONSE_MIDDLE, 107, 256),
        (Operation::READ_RESPONSE_LAST, 107, 100),
        (Operation::READ_RESPONSE_ONLY, 102, 0),
    ] {
        let mut rig = reading(8);
        let before = rig.ram.0.clone();
        assert_eq!(rig.hear(&response(operation, psn, &vec![7; length])), Response::Unexpected);
        assert_eq!(rig.completions(), [(1, S::BadResponse)], "{operation:?} {psn} {length}");
        assert_eq!(rig.ram.0, before);
    }
}

#[test]
fn lost_read_repeat_is_probed() {
    let mut rig = reading(16);
    rig.hear_piece(100, 100..102, 116);
    rig.hear_piece(100, 104..116, 116);
    assert_eq!(rig.reads(), [(102, 2 * 256, 2)]);
    assert_eq!((rig.wait(), rig.reads()), (MS / 4, vec![]), "the range is under way");
    assert_eq!((rig.wait(), rig.reads()), (3 * MS / 4, vec![(102, 2 * 256, 1)]));
    rig.hear_repeat(102);
    assert_eq!(rig.reads(), [(103, 3 * 256, 1)], "the answer to the probe came alone");
    rig.hear_repeat(103);
    assert_eq!(rig.completions(), [(1, S::Success)]);
}

#[test]
fn probe_answered_alone_repeats_missing_read_packets() {
    let mut rig = in_pieces(16);
    rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 8 * MTU);
    assert_eq!(rig.reads(), [(100, 0, 4), (104, 4 * 256, 4)]);
    rig.wait();
    assert_eq!((rig.reads(), rig.missing()), (vec![(100, 0, 1)], 8));
    rig.hear_repeat(100);
    assert_eq!((rig.reads(), rig.missing()), (vec![(101, 256, 3), (104, 4 * 256, 4)], 7));
    assert!(rig.requester.take_signals().lost_responses);
    rig.hear_piece(101, 101..104, 104);
    rig.hear_piece(104, 104..108, 108);
    assert_eq!((rig.completions(), rig.missing()), (vec![(1, S::Success)], 0));
}

#[test]
fn lost_probed_read_is_repeated_in_same_parts() {
    // The peer may have mistaken the probe for the request itself, and then holds a READ of one packet.
    let mut rig = in_pieces(16);
    rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 4 * MTU);
    rig.flush();
    rig.wait();
    assert_eq!(rig.reads(), [(100, 0, 1)]);
    rig.requester.resend();
    assert_eq!(rig.reads(), [(100, 0, 1), (101, 256, 3)]);
    rig.hear_repeat(100);
    rig.hear_piece(101, 101..104, 104);
    assert_eq!((rig.completions(), rig.missing()), (vec![(1, S::Success)], 0));
}

#[test]
fn retransmission_skips_arrived_responses() {
    let mut rig = in_pieces(16);
    rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 12 * MTU);
    rig.flush();
    rig.hear_piece(100, 100..101, 104);
    rig.hear_piece(100, 102..104, 104);
    rig.hear_piece(104, 104..106, 108);
    assert_eq!(rig.reads(), [(101, 256, 1), (108, 8 * 256, 4)]);
    rig.requester.resend();
    assert_eq!(rig.reads(), [(101, 256, 3), (106, 6 * 256, 2), (108, 8 * 256, 4)]);
    assert_eq!(rig.missing(), 7);
    rig.hear_piece(108, 108..112, 112);
    rig.hear_piece(106, 106..108, 108);
    assert_eq!(rig.missing(), 1);
    rig.hear_piece(101, 101..104, 104);
    assert_eq!((rig.completions(), rig.missing()), (vec![(1, S::Success)], 0));
    rig.check_memory(12);
}

/// Sends all responses except the response with PSN 100. Returns the PSN after the last response.
fn answer_beyond(rig: &mut Rig) -> u32 {
    let mut highest = 0;
    loop {
        let reads: Vec<_> = rig.reads().into_iter().map(|(psn, _, packets)| psn..psn + packets).collect();
        if reads.iter().all(|psns| psns.end <= highest) {
            return highest;
        }
        for psns in reads {
            rig.hear_piece(psns.start, psns.start.max(101)..psns.end, psns.end);
            highest = highest.max(psns.end);
        }
    }
}

#[test]
fn unfilled_gap_is_bounded() {
    let tuning = Tuning { read_piece: 8, read_window: 16, ..Tuning::default() };
    let mut rig = Rig::with(&QpAttributes { max_rd_atomic: 255, ..attributes(QpType::XrcIni) }, tuning);
    for wr_id in 0..8 {
        rig.post(wr_id, SendOperation::RdmaRead(remote(0x4000)), 200 * MTU);
    }
    assert_eq!(answer_beyond(&mut rig), 100 + 1024);
    rig.hear_repeat(100);
    assert_eq!(rig.completions().len(), 5);
    assert_eq!(rig.reads(), [(1124, 24 * 256, 8), (1132, 32 * 256, 8)]);
}

#[test]
fn reads_in_flight_do_not_exceed_max_rd_atomic() {
    // contract rocev2 7.6
    let mut rig = in_pieces(3);
    rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 40 * MTU);
    assert_eq!(answer_beyond(&mut rig), 100 + 3 * 4);
    rig.requester.resend();
    assert_eq!(rig.reads(), [(100, 0, 4)]);
    rig.hear_piece(100, 100..101, 104);
    assert_eq!(rig.reads(), [(112, 12 * 256, 4), (116, 16 * 256, 4)]);
}

#[test]
fn response_beyond_gap_ends_its_measurement() {
    let mut rig = reading(4);
    rig.hear_piece(100, 100..101, 104);
    rig.hear_piece(100, 102..104, 104);
    rig.post(2, SendOperation::RdmaRead(remote(0x4000)), 2 * MTU);
    rig.flush();
    rig.requester.take_signals();
    rig.now = rig.now.plus_ns(MS / 5);
    rig.hear_piece(104, 104..105, 106);
    rig.now = rig.now.plus_ns(9 * MS);
    rig.hear_piece(100, 101..102, 104);
    let measured = rig.requester.take_signals().measured.expect("measured");
    assert_eq!((measured.round_trip_ns, measured.is_read), (MS / 5, true));
}

#[test]
fn request_implied_by_response_is_not_measured() {
    let mut rig = reading(4);
    rig.hear_piece(100, 100..101, 104);
    rig.hear_piece(100, 102..104, 104);
    rig.send(2);
    rig.post(3, SendOperation::RdmaRead(remote(0x4000)), 2 * MTU);
    rig.flush();
    rig.requester.take_signals();
    rig.hear_piece(105, 105..107, 107);
    rig.now = rig.now.plus_ns(9 * MS);
    rig.hear_piece(100, 101..102, 104);
    assert_eq!(rig.completions(), [(1, S::Success), (2, S::Success), (3, S::Success)]);
    assert_eq!(rig.requester.take_signals().measured, None);
}

proptest! {
    /// Responses are lost, repeated and reordered. Each READ completes with its bytes, and the number of packets in flight
    /// never exceeds the number of missing packets.
    #[test]
    fn reads_complete_over_bad_network(
        fates in proptest::collection::vec((0_u8..8, any::<proptest::sample::Index>()), 0..120),
    ) {
        let tuning = Tuning { read_piece: 4, read_window: 16, ..Tuning::default() };
        let quality = QpAttributes { max_rd_atomic: 16, retry_count: 7, ..attributes(QpType::XrcIni) };
        let mut rig = Rig::with(&quality, tuning);
        rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 30 * MTU);
        rig.send(2);
        rig.try_post(3, SendOperation::RdmaRead(remote(0x4000)), &[sge(30_000, 10 * MTU)], SendFlags::SIGNALED)
            .expect("room");
        let mut fates = fates.into_iter();
        let mut network: Vec<(Operation, u32)> = Vec::new();
        let mut arrived = std::collections::BTreeSet::new();
        for _ in 0..10_000 {
            for sent in rig.flush() {
                let Some(reth) = sent.reth else {
                    network.push((Operation::ACKNOWLEDGE, sent.psn));
                    continue;
                };
                let end = sent.psn + reth.length / MTU;
                for psn in sent.psn..end {
                    network.push((match (psn == sent.psn, psn + 1 == end) {
                        (true, true) => Operation::READ_RESPONSE_ONLY,
                        (true, false) => Operation::READ_RESPONSE_FIRST,
                        (false, false) => Operation::READ_RESPONSE_MIDDLE,
                        (false, true) => Operation::READ_RESPONSE_LAST,
                    }, psn));
                }
            }
            if rig.requester.outstanding() == 0 {
                break;
            }
            if network.is_empty() {
                rig.wait();
                continue;
            }
            let (fate, index) = fates.next().map_or((7, 0), |(fate, index)| (fate, index.index(network.len())));
            let (operation, psn) = match fate {
                0 => { network.remove(index); continue }
                1 => network[index],
                2 => network.remove(index),
                _ => network.remove(0),
            };
            let bytes = [u8::try_from(psn % 256).expect("a byte"); MTU as usize];
            let is_ack = operation == Operation::ACKNOWLEDGE;
            rig.hear(&if is_ack { ack(psn) } else { response(operation, psn, &bytes) });
            arrived.extend((!is_ack).then_some(psn));
            prop_assert!(rig.missing() as usize + arrived.len() <= 40);
        }
        prop_assert_eq!(rig.completions(), [(1, S::Success), (2, S::Success), (3, S::Success)]);
        prop_assert_eq!(rig.requester.in_flight(), InFlight::default());
        rig.check_memory(30);
        for packet in 0..10 {
            prop_assert_eq!(rig.ram.0[30_000 + packet * 256], u8::try_from(131 + packet).expect("a byte"));
        }
    }
}
