//! Requests for acknowledgements, and the timers of packets without such a request.

use super::*;

#[test]
fn unsignaled_request_requests_acks_until_peer_answered() {
    let mut rig = Rig::new();
    rig.send_unsignaled(1);
    rig.send_unsignaled(2);
    assert_eq!(rig.asking(), [100, 101]);
    rig.hear(&ack(101));
    rig.send_unsignaled(3);
    rig.send(4);
    rig.send_unsignaled(5);
    assert_eq!(rig.asking(), [103]);
    // A new path must be proven again. Retransmitted packets request acknowledgements like first transmissions.
    rig.requester.resend();
    assert_eq!(rig.asking(), [102, 103, 104]);
    rig.send_unsignaled(6);
    assert_eq!(rig.asking(), [105]);
    rig.hear(&ack(105));
    rig.send_unsignaled(7);
    assert_eq!(rig.asking(), [] as [u32; 0]);
}

#[test]
fn ack_is_requested_each_quarter_of_window_or_half_of_queue() {
    let mut rig = Rig::answered(Tuning { window: 24, ..Tuning::default() });
    (1..=13).for_each(|wr_id| rig.send_unsignaled(wr_id));
    assert_eq!(rig.asking(), [106, 112]);
    let mut rig = Rig::answered(Tuning { window: 400, ..Tuning::default() });
    (1..=64).for_each(|wr_id| rig.send_unsignaled(wr_id));
    assert_eq!(rig.asking(), [132, 164], "the queue has 64 entries");
}

#[test]
fn limited_credit_requests_more_acknowledgements() {
    // contract rocev2 6.6
    let mut rig = Rig::answered(Tuning::default());
    rig.send(1);
    rig.flush();
    let mut grant = ack(101);
    grant.aeth = Some(Aeth::new(Syndrome::Ack { credits: CreditCode(1) }, 2));
    rig.hear(&grant);
    rig.send_unsignaled(2);
    assert_eq!(rig.asking(), [102]);
}

#[test]
fn every_request_requests_ack_without_probes() {
    let mut rig = Rig::answered(Tuning { probe_floor_ns: 0, ..Tuning::default() });
    rig.send_unsignaled(1);
    assert_eq!(rig.asking(), [101]);
}

#[test]
fn silence_without_ack_request_is_not_loss() {
    let mut rig = Rig::answered(Tuning::default());
    for psn in [101, 103] {
        rig.send_unsignaled(1);
        rig.send_unsignaled(2);
        assert_eq!(rig.asking(), [] as [u32; 0]);
        assert_eq!(rig.wait(), MS, "earlier requests do not double the wait");
        assert_eq!(rig.asking(), [psn]);
        rig.hear(&ack(psn + 1));
        assert_eq!((rig.requester.outstanding(), rig.requester.next_timeout()), (0, None));
    }
    let counters = *rig.requester.counters();
    assert_eq!((counters.probes, counters.retransmits, counters.timeouts), (0, 0, 0));
}

#[test]
fn dead_peer_is_detected_after_four_timeouts_without_ack_request() {
    for is_loss_rare in [false, true] {
        let mut rig = Rig::answered(Tuning::default());
        rig.requester.set_loss_rare(is_loss_rare);
        rig.send_unsignaled(1);
        rig.flush();
        while rig.requester.state() == QpState::ReadyToSend {
            rig.wait();
            rig.flush();
        }
        assert_eq!((rig.now.0, rig.requester.counters().timeouts), (4 * TIMEOUT, 4));
    }
}

#[test]
fn packets_without_retransmission_time_out() {
    let mut rig = Rig::answered(Tuning::default());
    rig.send_unsignaled(1);
    rig.flush();
    rig.requester.resend();
    while rig.requester.state() == QpState::ReadyToSend {
        rig.wait();
    }
    assert_eq!(rig.now.0, 4 * TIMEOUT);
}

#[test]
fn unnoticed_timeout_requests_ack_before_counting_timeout() {
    let mut rig = Rig::answered(Tuning::default());
    rig.send_unsignaled(1);
    rig.flush();
    rig.now = rig.now.plus_ns(10 * TIMEOUT);
    rig.requester.handle_timeout(rig.now);
    rig.requester.handle_timeout(rig.now);
    assert_eq!((rig.asking(), rig.requester.counters().timeouts), (vec![101], 0));
}

#[test]
fn draining_requests_acknowledgement_of_sent_packets() {
    let mut rig = Rig::answered(Tuning::default());
    rig.send_unsignaled(1);
    rig.send_unsignaled(2);
    rig.flush();
    rig.requester.modify(&in_state(QpType::XrcIni, QpState::SendQueueDrained));
    assert_eq!(rig.asking(), [101]);
    rig.hear(&ack(102));
    assert_eq!(rig.events(), [RequesterEvent::Drained]);
    // A started message requests an acknowledgement at its end.
    let mut rig = Rig::answered(Tuning { window: 4, ..Tuning::default() });
    rig.try_post(1, SendOperation::Send, &[sge(1000, 6 * MTU)], SendFlags::empty()).expect("room");
    assert_eq!(rig.asking(), [104]);
    rig.requester.modify(&in_state(QpType::XrcIni, QpState::SendQueueDrained));
    rig.hear(&ack(104));
    assert_eq!(rig.asking(), [106]);
}

#[test]
fn pause_for_receives_sends_all_again_and_asks() {
    let mut rig = Rig::answered(Tuning::default());
    rig.send_unsignaled(1);
    rig.send_unsignaled(2);
    rig.flush();
    let rnr = answer(Operation::ACKNOWLEDGE, 101, Syndrome::Rnr { timer: RnrTimer(12) }, &[]);
    rig.hear(&rnr);
    rig.wait();
    assert_eq!(rig.asking(), [101, 102]);
}
