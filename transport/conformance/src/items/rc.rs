//! Section R: reliable connections, which XRC programs use as well.

use crate::check::{EBUSY, EINVAL, Verdict, check, equal, post_refused, refused};
use crate::connect::set_state;
use crate::traffic::{poll_one, receive, request, rnr_received};
use crate::{Lab, Side};
use std::sync::Arc;
use trunkline_verbs::{
    CompletionFlags, CompletionOpcode as Op, CompletionQueue, CompletionStatus as Status, QpInit, QpState,
    QueuePair, ReceiveRequest, SendOperation, SrqNumber,
};

/// Unused SRQ number; RC packets have no XRCETH.
const NO_SRQ: SrqNumber = SrqNumber::new(0);

/// Creates an RC QP with a separate receive CQ.
fn rc(side: &Side) -> Verdict<(Arc<dyn QueuePair>, Arc<dyn CompletionQueue>)> {
    let cq = side.new_cq()?;
    let init = QpInit { receive_cq: Some(Arc::clone(&cq)), ..side.rc_init() };
    Ok((side.device.create_qp(init)?, cq))
}

fn post(side: &Side, qp: &Arc<dyn QueuePair>, wr_id: u64, length: u32) -> Verdict {
    Ok(qp.post_receive(&[ReceiveRequest { wr_id, scatter: &[side.piece(65_536, length)] }])?)
}

pub(super) fn r1(lab: &Lab) -> Verdict {
    let ((near, near_cq), (far, far_cq)) = (rc(&lab.near)?, rc(&lab.far)?);
    let early = [ReceiveRequest { wr_id: 0, scatter: &[] }];
    post_refused("a receive in RESET", near.post_receive(&early))?;
    lab.join_rc(&near, &far)?;
    let ways = [(&lab.near, &near, &lab.far, &far, &far_cq), (&lab.far, &far, &lab.near, &near, &near_cq)];
    for (from, sender, to, receiver, cq) in ways {
        let send = |wr_id, operation, length| {
            sender.post_send(&[request(wr_id, operation, &[from.piece(0, length)], NO_SRQ)])
        };
        for (wr_id, length) in (1..).zip([0u32, 1, 1024, 1025, 30_001]) {
            from.fill(0, length as usize, 0x3c)?;
            post(to, receiver, wr_id, 40_000)?;
            send(wr_id, SendOperation::SendWithImmediate(length), length)?;
            let done = lab.succeeds("a send", &from.cq, wr_id, Op::Send)?;
            equal("the QP of a send", done.qp_number, sender.number())?;
            let got = lab.succeeds("a receive", cq, wr_id, Op::Receive)?;
            equal("its length and immediate data", (got.byte_length, got.immediate), (length, length))?;
            check(got.flags.contains(CompletionFlags::WITH_IMMEDIATE), || {
                "a receive without its immediate data".to_owned()
            })?;
            equal("the QP of a receive", got.qp_number, receiver.number())?;
            to.holds("a message", 65_536, length as usize, 0x3c)?;
        }
        from.fill(0, 5000, 0x44)?;
        send(10, SendOperation::RdmaWrite(to.remote(100)), 5000)?;
        lab.succeeds("a WRITE", &from.cq, 10, Op::RdmaWrite)?;
        to.holds("what was written", 100, 5000, 0x44)?;
        post(to, receiver, 11, 64)?;
        send(11, SendOperation::RdmaWriteWithImmediate(to.remote(100), 9), 5000)?;
        lab.succeeds("a WRITE with immediate", &from.cq, 11, Op::RdmaWrite)?;
        let got = lab.succeeds("its receive", cq, 11, Op::ReceiveRdmaWithImmediate)?;
        equal("its length and immediate data", (got.byte_length, got.immediate), (5000, 9))?;
        from.fill(0, 5000, 0)?;
        send(12, SendOperation::RdmaRead(to.remote(100)), 5000)?;
        lab.succeeds("a READ", &from.cq, 12, Op::RdmaRead)?;
        from.holds("what was read", 0, 5000, 0x44)?;
        to.memory.write(64, &5u64.to_ne_bytes())?;
        send(13, SendOperation::FetchAdd { remote: to.remote(64), add: 3 }, 8)?;
        lab.succeeds("FETCH_ADD", &from.cq, 13, Op::FetchAdd)?;
        send(14, SendOperation::CompareSwap { remote: to.remote(64), compare: 8, swap: 21 }, 8)?;
        lab.succeeds("CMP_AND_SWP", &from.cq, 14, Op::CompareSwap)?;
        from.contains("the value before the atomic", 0, &8u64.to_ne_bytes())?;
        to.contains("the value after the atomic", 64, &21u64.to_ne_bytes())?;
    }
    empty_queue(lab, &near, &far, &far_cq)?;
    flush(lab, &far, &far_cq)
}

/// Checks that an RC QP without posted receives responds with RNR NAKs.
fn empty_queue(
    lab: &Lab,
    near: &Arc<dyn QueuePair>,
    far: &Arc<dyn QueuePair>,
    cq: &Arc<dyn CompletionQueue>,
) -> Verdict {
    let before = rnr_received(&lab.near);
    near.post_send(&[request(20, SendOperation::Send, &[lab.near.piece(0, 8)], NO_SRQ)])?;
    lab.wait_for_rnr(&lab.near, before)?;
    check(poll_one(&lab.near.cq).is_none(), || "a send without a receive completed".to_owned())?;
    post(&lab.far, far, 20, 64)?;
    lab.succeeds("a send that waited", &lab.near.cq, 20, Op::Send)?;
    lab.succeeds("its receive", cq, 20, Op::Receive)?;
    Ok(())
}

/// Checks that the receives of a QP in ERR are flushed, unlike receives of an SRQ.
fn flush(lab: &Lab, qp: &Arc<dyn QueuePair>, cq: &Arc<dyn CompletionQueue>) -> Verdict {
    for wr_id in 30..33 {
        post(&lab.far, qp, wr_id, 64)?;
    }
    set_state(qp, QpState::Error)?;
    let mut last = 32;
    if lab.flushes_late_receives {
        last = 33;
        post(&lab.far, qp, last, 64)?;
    }
    for wr_id in 30..=last {
        let flushed = lab.ends("a receive of a QP in ERR", cq, wr_id, Status::WorkRequestFlushed)?;
        equal("its QP", flushed.qp_number, qp.number())?;
    }
    check(poll_one(cq).is_none(), || "a receive was flushed twice".to_owned())
}

pub(super) fn r2(lab: &Lab) -> Verdict {
    let srq = lab.far.new_basic_srq()?;
    let pairs = [(); 2].map(|()| {
        let cq = lab.far.new_cq()?;
        let init =
            QpInit { srq: Some(Arc::clone(&srq)), receive_cq: Some(Arc::clone(&cq)), ..lab.far.rc_init() };
        let (near, far) = (rc(&lab.near)?.0, lab.far.device.create_qp(init)?);
        lab.join_rc(&near, &far)?;
        Ok((near, far, cq))
    });
    let pairs: Vec<_> = pairs.into_iter().collect::<Verdict<_>>()?;
    let own = [ReceiveRequest { wr_id: 0, scatter: &[lab.far.piece(0, 8)] }];
    refused("a receive on a QP with an SRQ", pairs[0].1.post_receive(&own).map_err(|e| e.cause), EINVAL)?;
    let data = [lab.near.piece(0, 8)];
    for wr_id in 0..6u64 {
        // Receives are consumed in the order in which they were posted, by whichever QP.
        let (near, far, cq) = &pairs[usize::from(wr_id % 3 == 0)];
        receive(&srq, wr_id, &[lab.far.piece(0, 64)])?;
        near.post_send(&[request(wr_id, SendOperation::Send, &data, NO_SRQ)])?;
        lab.succeeds("a send", &lab.near.cq, wr_id, Op::Send)?;
        let got = lab.succeeds("a receive of the SRQ", cq, wr_id, Op::Receive)?;
        equal("its QP", got.qp_number, far.number())?;
    }
    // After one QP has moved to ERR, the other QP can use the posted receives.
    receive(&srq, 10, &[lab.far.piece(0, 64)])?;
    set_state(&pairs[0].1, QpState::Error)?;
    check(poll_one(&pairs[0].2).is_none(), || "a receive of an SRQ was flushed".to_owned())?;
    pairs[1].0.post_send(&[request(11, SendOperation::Send, &data, NO_SRQ)])?;
    lab.succeeds("a receive that was not flushed", &pairs[1].2, 10, Op::Receive)?;
    refused("destroying an SRQ in use", srq.destroy(), EBUSY)?;
    for (_, far, _) in &pairs {
        far.destroy()?;
    }
    Ok(srq.destroy()?)
}
