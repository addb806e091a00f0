//! READs and atomics, with their answers, pieces and order.

use super::*;

#[test]
fn acknowledgement_beyond_read_retransmits_read() {
    // contract rocev2 7.18
    let mut rig = Rig::new();
    rig.send(1);
    rig.post(2, SendOperation::RdmaRead(remote(0)), 3);
    rig.send(3);
    rig.flush();
    rig.hear(&ack(102));
    assert_eq!(rig.completions(), [(1, S::Success)]);
    assert_eq!(rig.psns(), [101, 102]);
    // Further responses in the same burst do not cost a retry each.
    for _ in 0..10 {
        rig.hear(&ack(102));
    }
    assert_eq!(rig.psns(), [] as [u32; 0]);
    rig.hear(&response(Operation::READ_RESPONSE_ONLY, 101, b"abc"));
    rig.hear(&ack(102));
    assert_eq!(rig.completions(), [(2, S::Success), (3, S::Success)]);
    assert_eq!(rig.requester.counters().implied_losses, 11);
}

#[test]
fn read_response_acknowledges_earlier_requests() {
    let mut rig = Rig::new();
    rig.send(1);
    rig.post(2, SendOperation::RdmaRead(remote(0)), 3);
    rig.flush();
    rig.hear(&response(Operation::READ_RESPONSE_ONLY, 101, b"abc"));
    assert_eq!(rig.completions(), [(1, S::Success), (2, S::Success)]);
}

#[test]
fn read_responses_of_wrong_kind_or_length_are_fatal() {
    // contract rocev2 7.27
    let wrong: [&dyn Fn() -> Packet<'static>; 4] = [
        &|| response(Operation::READ_RESPONSE_ONLY, 100, b"abc"),
        &|| response(Operation::READ_RESPONSE_ONLY, 101, b"toolong"),
        &|| response(Operation::READ_RESPONSE_LAST, 101, b""),
        &|| {
            let mut packet = response(Operation::ATOMIC_ACKNOWLEDGE, 101, b"");
            packet.atomic_ack = Some(1);
            packet
        },
    ];
    for make in wrong {
        let mut rig = Rig::new();
        rig.send(1);
        rig.post(2, SendOperation::RdmaRead(remote(0)), 3);
        rig.flush();
        assert_eq!(rig.hear(&make()), Response::Unexpected);
        assert!(rig.completions().iter().any(|(_, status)| *status == S::BadResponse));
        assert_eq!(rig.requester.state(), QpState::Error);
    }
}

#[test]
fn atomics_return_old_value_in_host_order() {
    let mut rig = Rig::new();
    rig.try_post(
        1,
        SendOperation::FetchAdd { remote: remote(8), add: 1 },
        &[sge(1000, 3), sge(2000, 5)],
        SendFlags::SIGNALED,
    )
    .expect("room");
    assert_eq!(rig.flush()[0].operation, Operation::FETCH_ADD);
    let mut packet = response(Operation::ATOMIC_ACKNOWLEDGE, 100, b"");
    packet.atomic_ack = Some(0x0102_0304_0506_0708);
    rig.hear(&packet);
    let mut bytes = rig.ram.0[1000..1003].to_vec();
    bytes.extend_from_slice(&rig.ram.0[2000..2005]);
    assert_eq!(bytes, 0x0102_0304_0506_0708_u64.to_ne_bytes());
    let completion = rig.requester.poll_completion().expect("signalled");
    assert_eq!((completion.opcode, completion.byte_length), (CompletionOpcode::FetchAdd, 8));
}

#[test]
fn reads_beyond_max_rd_atomic_wait() {
    // contract rocev2 7.17
    let mut rig = Rig::new();
    for wr_id in 1..=3 {
        rig.post(wr_id, SendOperation::RdmaRead(remote(0)), 1);
    }
    rig.send(4);
    assert_eq!(rig.psns(), [100, 101]);
    rig.hear(&response(Operation::READ_RESPONSE_ONLY, 100, b"x"));
    assert_eq!(rig.psns(), [102, 103]);
}

#[test]
fn fence_waits_for_reads() {
    // contract rocev2 7.17
    let mut rig = Rig::new();
    rig.post(1, SendOperation::RdmaRead(remote(0)), 1);
    rig.send(2);
    rig.try_post(3, SendOperation::Send, &[], SendFlags::FENCE).expect("room");
    assert_eq!(rig.psns(), [100, 101]);
    rig.hear(&response(Operation::READ_RESPONSE_ONLY, 100, b"x"));
    assert_eq!(rig.psns(), [102]);
}

#[test]
fn long_read_is_requested_in_pieces() {
    let mut rig = in_pieces(16);
    rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 14 * MTU - 1);
    assert_eq!(rig.reads(), [(100, 0, 4), (104, 4 * 256, 4)]);
    rig.hear_piece(100, 100..103, 104);
    // One response is missing, and the window has room for only three more.
    assert_eq!(rig.reads(), []);
    rig.hear_piece(100, 103..104, 104);
    assert_eq!(rig.reads(), [(108, 8 * 256, 4)]);
    rig.hear_piece(104, 104..108, 108);
    // The last piece has two packets, so the window has room for it earlier.
    rig.hear_piece(108, 108..110, 112);
    assert_eq!(rig.reads(), [(112, 12 * 256, 2)]);
    rig.hear_piece(108, 110..112, 112);
    assert_eq!(rig.completions(), []);
    rig.hear(&response(Operation::READ_RESPONSE_FIRST, 112, &[112; 256]));
    rig.hear(&response(Operation::READ_RESPONSE_LAST, 113, &[113; 255]));
    assert_eq!(rig.completions(), [(1, S::Success)]);
    for psn in 0..13 {
        assert_eq!(rig.ram.0[1000 + psn * 256], u8::try_from(100 + psn).expect("a byte"));
    }
    assert_eq!(rig.requester.counters().retransmits, 0);
    assert_eq!(rig.requester.next_timeout(), None);
}

#[test]
fn probe_requests_one_response() {
    let mut rig = in_pieces(16);
    rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 12 * MTU);
    rig.flush();
    rig.hear_piece(100, 100..101, 104);
    rig.wait();
    assert_eq!(rig.reads(), [(101, 256, 1)]);
    // The answers were late and not lost, so later responses are not requested again.
    rig.hear_piece(100, 101..103, 104);
    assert_eq!(rig.reads(), []);
    rig.hear_piece(100, 103..104, 104);
    assert_eq!(rig.reads(), [(108, 8 * 256, 4)]);
}

#[test]
fn read_response_with_unexpected_end_is_fatal() {
    // contract rocev2 7.27
    for (operation, psn) in [(Operation::READ_RESPONSE_LAST, 102), (Operation::READ_RESPONSE_MIDDLE, 103)] {
        let mut rig = in_pieces(16);
        rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 12 * MTU);
        rig.flush();
        rig.hear_piece(100, 100..psn, 104);
        assert_eq!(rig.hear(&response(operation, psn, &[0; 256])), Response::Unexpected);
        assert_eq!(rig.completions(), [(1, S::BadResponse)]);
    }
}

#[test]
fn each_piece_is_one_of_max_rd_atomic() {
    let mut rig = in_pieces(1);
    rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 8 * MTU);
    rig.post(2, SendOperation::RdmaRead(remote(0x4000)), 1);
    assert_eq!(rig.psns(), [100]);
    rig.hear_piece(100, 100..103, 104);
    assert_eq!(rig.psns(), [] as [u32; 0]);
    rig.hear_piece(100, 103..104, 104);
    assert_eq!(rig.psns(), [104]);
    rig.hear_piece(104, 104..108, 108);
    assert_eq!(rig.completions(), [(1, S::Success)]);
    assert_eq!(rig.psns(), [108]);
}

#[test]
fn read_piece_longer_than_window_is_sent_alone() {
    let tuning = Tuning { read_piece: 4, read_window: 2, ..Tuning::default() };
    let mut rig = Rig::with(&attributes(QpType::XrcIni), tuning);
    rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 8 * MTU);
    assert_eq!(rig.psns(), [100]);
    rig.hear_piece(100, 100..103, 104);
    assert_eq!(rig.psns(), [] as [u32; 0]);
    rig.hear_piece(100, 103..104, 104);
    assert_eq!(rig.psns(), [104]);
}

#[test]
fn started_read_completes_before_sqd() {
    let mut rig = in_pieces(1);
    rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 8 * MTU);
    rig.flush();
    rig.requester
        .modify(&QpAttributes { max_rd_atomic: 1, ..in_state(QpType::XrcIni, QpState::SendQueueDrained) });
    rig.hear_piece(100, 100..104, 104);
    assert_eq!(rig.events(), []);
    assert_eq!(rig.psns(), [104]);
    rig.hear_piece(104, 104..108, 108);
    assert_eq!(rig.psns(), [] as [u32; 0]);
    assert_eq!(rig.events(), [RequesterEvent::Drained]);
}

#[test]
fn posted_unsent_reads_use_allowance() {
    let tuning = Tuning { read_piece: 4, read_window: 12, ..Tuning::default() };
    let mut rig = Rig::with(&attributes(QpType::XrcIni), tuning);
    let admit = |rig: &mut Rig, responses| {
        let allowance = Allowance { requests: 9, responses, is_idle: false, ack_every: 4, read_piece: 3 };
        rig.requester.admit(Some(allowance));
        let allowance = rig.requester.read_allowance(responses);
        (allowance.packets, allowance.per_read)
    };
    assert_eq!(admit(&mut rig, 5), (5, 3));
    rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 6 * MTU);
    assert_eq!(admit(&mut rig, 5), (0, 3));
    assert_eq!(rig.psns(), [100], "there is room for one piece");
    assert_eq!(admit(&mut rig, 5), (2, 3), "the other one waits");
    assert_eq!(admit(&mut rig, 100), (6, 3), "12 packets have buffers");
}
