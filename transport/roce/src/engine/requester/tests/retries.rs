//! Timeouts, probes and negative acknowledgements.

use super::*;

#[test]
fn dead_peer_ends_request_after_retry_count_plus_one_timeouts() {
    // contract rocev2 7.22: finite, with a first transmission and retry_cnt repetitions.
    let mut rig = Rig::patient();
    rig.send(1);
    rig.try_post(2, SendOperation::Send, &[sge(0, 1)], SendFlags::empty()).expect("room");
    for _ in 0..4 {
        assert_eq!(rig.psns(), [100, 101]);
        assert_eq!(rig.wait(), TIMEOUT);
    }
    assert_eq!(rig.psns(), [] as [u32; 0]);
    // The unsignalled request is flushed too (contract I1).
    assert_eq!(rig.completions(), [(1, S::RetryExceeded), (2, S::WorkRequestFlushed)]);
    assert_eq!(rig.events(), [RequesterEvent::Failed(S::RetryExceeded)]);
    assert_eq!(rig.requester.state(), QpState::Error);
    assert_eq!(rig.requester.counters().timeouts, 4);
    assert_eq!(rig.requester.next_timeout(), None);
    // contract E8
    rig.send(3);
    assert_eq!(rig.completions(), [(3, S::WorkRequestFlushed)]);
}

#[test]
fn peer_may_take_up_to_four_timeouts_to_start_and_fewer_later() {
    // contract rocev2 7.22
    let tuning = |first, later| Tuning {
        probe_floor_ns: 0,
        first_ack_floor_ns: first,
        ack_floor_ns: later,
        ..Tuning::default()
    };
    for (floors, first, later) in [
        ((9 * MS, 6 * MS), 9 * MS, 6 * MS),
        ((1000 * MS, 1000 * MS), 4 * TIMEOUT, 4 * TIMEOUT),
        ((MS, MS), TIMEOUT, TIMEOUT),
    ] {
        let mut rig = Rig::tuned(&attributes(QpType::XrcIni), tuning(floors.0, floors.1));
        rig.send(1);
        assert_eq!(rig.psns(), [100]);
        assert_eq!(rig.wait(), first);
        assert_eq!(rig.psns(), [100]);
        assert_eq!(rig.wait(), first);
        assert_eq!(rig.psns(), [100]);
        rig.hear(&ack(100));
        rig.send(2);
        assert_eq!(rig.psns(), [101]);
        assert_eq!(rig.wait(), later);
    }
}

#[test]
fn retry_count_7_ends_after_eight_transmissions() {
    let mut rig = Rig::with(
        &QpAttributes { retry_count: 7, ..attributes(QpType::XrcIni) },
        Tuning { probe_floor_ns: 0, ..Tuning::default() },
    );
    rig.send(1);
    let mut sent = 0;
    while rig.requester.state() == QpState::ReadyToSend {
        sent += rig.flush().len();
        rig.wait();
    }
    assert_eq!(sent, 8);
}

#[test]
fn probes_double_their_interval_without_using_retries() {
    let mut rig = Rig::new();
    rig.send(1);
    rig.send(2);
    assert_eq!(rig.psns(), [100, 101]);
    assert_eq!(rig.wait(), MS);
    // Only the oldest packet is repeated.
    assert_eq!(rig.psns(), [100]);
    assert_eq!(rig.wait(), 2 * MS);
    assert_eq!(rig.psns(), [100]);
    // The nominal timeout keeps running from the first transmission while probes are sent.
    assert_eq!(rig.wait(), TIMEOUT - 3 * MS);
    assert_eq!(rig.psns(), [100, 101]);
    let counters = *rig.requester.counters();
    assert_eq!((counters.probes, counters.timeouts, counters.retransmits), (2, 1, 2));
    while rig.requester.state() == QpState::ReadyToSend {
        rig.wait();
        rig.flush();
    }
    assert_eq!(rig.now.0, 4 * TIMEOUT, "probes must not put off death, nor hasten it");
}

#[test]
fn path_with_rare_loss_times_out_before_probe() {
    let mut rig = Rig::new();
    rig.requester.set_loss_rare(true);
    rig.send(1);
    assert_eq!(rig.psns(), [100]);
    // The ACK timeout of this peer expires before 16 ms.
    assert_eq!(rig.wait(), TIMEOUT);
    assert_eq!((rig.requester.counters().probes, rig.requester.counters().timeouts), (0, 1));
    rig.requester.set_loss_rare(false);
    assert_eq!(rig.psns(), [100]);
    assert_eq!(rig.wait(), MS);
}

/// A peer that always takes 3.5 ms is probed less often after each message, until one is answered without a probe and
/// measured.
#[test]
fn slow_peer_is_probed_less_after_measurement() {
    let mut rig = Rig::new();
    for (wr_id, probes) in [(1, 2), (2, 0), (3, 0)] {
        rig.send(wr_id);
        let psn = rig.psns()[0];
        let answered = rig.now.plus_ns(7 * MS / 2);
        let mut sent = 0;
        while rig.requester.next_timeout().is_some_and(|at| at < answered) {
            rig.wait();
            sent += rig.flush().len();
        }
        assert_eq!(sent, probes, "for message {wr_id}");
        rig.now = answered;
        rig.hear(&ack(psn));
    }
    assert_eq!(rig.requester.counters().timeouts, 0);
}

#[test]
fn probe_answered_alone_retransmits_later_packets() {
    let mut rig = Rig::new();
    for wr_id in 1..=3 {
        rig.send(wr_id);
    }
    rig.flush();
    rig.wait();
    assert_eq!(rig.psns(), [100]);
    rig.hear(&ack(100));
    assert_eq!(rig.psns(), [101, 102]);
    // A response that covers further packets does not have this effect.
    rig.send(4);
    rig.flush();
    rig.wait();
    assert_eq!(rig.psns(), [101]);
    rig.hear(&ack(102));
    assert_eq!(rig.psns(), [] as [u32; 0]);
}

#[test]
fn new_packets_do_not_delay_probe() {
    let mut rig = Rig::new();
    for wr_id in 0..4 {
        rig.send(wr_id);
        rig.flush();
        rig.now = rig.now.plus_ns(MS / 4);
    }
    rig.requester.handle_timeout(rig.now);
    assert_eq!(rig.psns(), [100]);
}

#[test]
fn timeout_0_never_expires() {
    let mut rig = Rig::with(
        &QpAttributes { timeout: 0, ..attributes(QpType::XrcIni) },
        Tuning { probe_floor_ns: 0, ..Tuning::default() },
    );
    rig.send(1);
    rig.flush();
    assert_eq!(rig.requester.next_timeout(), None);
}

#[test]
fn progress_resets_retry_count() {
    // contract rocev2 7.23
    let mut rig = Rig::patient();
    rig.send(1);
    rig.send(2);
    rig.flush();
    for _ in 0..3 {
        rig.wait();
        rig.flush();
    }
    rig.hear(&ack(100));
    for _ in 0..3 {
        rig.wait();
        assert_eq!(rig.psns(), [101]);
    }
    rig.wait();
    assert_eq!(rig.completions(), [(1, S::Success), (2, S::RetryExceeded)]);
}

#[test]
fn sequence_nak_acknowledges_earlier_and_retransmits_later_packets() {
    // contract rocev2 7.20
    let mut rig = Rig::new();
    for wr_id in 1..=4 {
        rig.send(wr_id);
    }
    rig.flush();
    assert_eq!(rig.hear(&nak(102, NakCode::PSN_SEQUENCE)), Response::Progress);
    assert_eq!(rig.completions(), [(1, S::Success), (2, S::Success)]);
    assert_eq!(rig.psns(), [102, 103]);
    // A duplicate NAK has no effect.
    rig.hear(&nak(102, NakCode::PSN_SEQUENCE));
    assert_eq!(rig.psns(), [] as [u32; 0]);
}

#[test]
fn repeated_packets_are_equal() {
    // contract rocev2 7.25
    let mut rig = Rig::new();
    rig.post(1, SendOperation::RdmaWriteWithImmediate(remote(64), 3), 3 * MTU + 1);
    let first = rig.flush();
    rig.hear(&nak(102, NakCode::PSN_SEQUENCE));
    let mut again = rig.flush();
    for (sent, before) in again.iter_mut().zip(&first[2..]) {
        sent.ack_request = before.ack_request;
    }
    assert_eq!(again, first[2..]);
}

#[test]
fn old_and_impossible_answers_are_ignored() {
    // contract rocev2 7.18
    let mut rig = Rig::new();
    for wr_id in 1..=3 {
        rig.send(wr_id);
    }
    rig.flush();
    rig.hear(&ack(101));
    assert_eq!(rig.hear(&ack(100)), Response::Stale);
    assert_eq!(rig.hear(&nak(101, NakCode::REMOTE_ACCESS)), Response::Stale);
    assert_eq!(rig.hear(&ack(103)), Response::Unexpected);
    assert_eq!(rig.hear(&nak(103, NakCode::REMOTE_ACCESS)), Response::Unexpected);
    assert_eq!(
        rig.hear(&answer(Operation::ACKNOWLEDGE, 102, Syndrome::Reserved(0x40), &[])),
        Response::Unexpected
    );
    let mut foreign = ack(102);
    foreign.bth.opcode = crate::wire::Opcode::new(crate::wire::Service::RC, Operation::ACKNOWLEDGE);
    assert_eq!(rig.hear(&foreign), Response::Unexpected);
    assert_eq!(rig.requester.outstanding(), 1);
    assert_eq!(rig.completions().len(), 2);
}

fn rnr(psn: u32) -> Packet<'static> {
    answer(Operation::ACKNOWLEDGE, psn, Syndrome::Rnr { timer: RnrTimer(12) }, &[])
}

#[test]
fn rnr_nak_waits_and_retransmits_from_its_psn() {
    // contract rocev2 7.21
    let mut rig = Rig::new();
    for wr_id in 1..=3 {
        rig.send(wr_id);
    }
    rig.flush();
    rig.hear(&rnr(101));
    assert_eq!(rig.completions(), [(1, S::Success)]);
    assert_eq!(rig.psns(), [] as [u32; 0]);
    // Later answers from the same burst are tolerated (contract rocev2 7.10).
    rig.hear(&nak(101, NakCode::PSN_SEQUENCE));
    rig.hear(&rnr(101));
    assert_eq!(rig.wait(), 640_000);
    assert_eq!(rig.psns(), [101, 102]);
}

#[test]
fn rnr_retries_are_limited_except_with_count_7() {
    let mut rig = Rig::new();
    rig.send(1);
    for _ in 0..2 {
        assert_eq!(rig.psns(), [100]);
        rig.hear(&rnr(100));
        rig.wait();
    }
    assert_eq!(rig.psns(), [100]);
    rig.hear(&rnr(100));
    assert_eq!(rig.completions(), [(1, S::RnrRetryExceeded)]);

    let mut rig = Rig::with(&QpAttributes { rnr_retry: 7, ..attributes(QpType::XrcIni) }, Tuning::default());
    rig.send(1);
    for _ in 0..100 {
        assert_eq!(rig.psns(), [100]);
        rig.hear(&rnr(100));
        rig.wait();
    }
    rig.flush();
    rig.hear(&ack(100));
    assert_eq!(rig.completions(), [(1, S::Success)]);
}

#[test]
fn fatal_naks_complete_request_with_matching_status() {
    // contract rocev2 6.2
    let statuses = [
        (NakCode::INVALID_REQUEST, S::RemoteInvalidRequest),
        (NakCode::REMOTE_ACCESS, S::RemoteAccessError),
        (NakCode::REMOTE_OPERATIONAL, S::RemoteOperationError),
        (NakCode::INVALID_RD_REQUEST, S::RemoteInvalidRdRequest),
        (NakCode(9), S::RemoteOperationError),
    ];
    for (code, status) in statuses {
        let mut rig = Rig::new();
        for wr_id in 1..=3 {
            rig.send(wr_id);
        }
        rig.flush();
        rig.hear(&nak(101, code));
        assert_eq!(rig.completions(), [(1, S::Success), (2, status), (3, S::WorkRequestFlushed)]);
        assert_eq!(rig.events(), [RequesterEvent::Failed(status)]);
        assert_eq!(rig.hear(&ack(102)), Response::Unexpected);
    }
}

#[test]
fn nak_behind_lost_read_response_fails_only_refused_request() {
    let mut rig = Rig::new();
    rig.post(1, SendOperation::RdmaRead(remote(0)), 1);
    rig.send(2);
    rig.flush();
    rig.hear(&nak(101, NakCode::REMOTE_ACCESS));
    assert_eq!(rig.completions(), [(1, S::WorkRequestFlushed), (2, S::RemoteAccessError)]);
}
