//! Section H: asynchronous events.

use crate::check::{Verdict, check, equal};
use crate::connect::{Terms, set_state};
use crate::traffic::{receive, request};
use crate::{Lab, Side};
use std::sync::Arc;
use trunkline_verbs::{
    AsyncEventKind as Kind, AsyncSubject, CompletionOpcode as Op, CompletionStatus as Status, CqInit, QpInit,
    QpState, RemoteAddress, Rkey, SendFlags, SendOperation, SendRequest,
};

/// Waits for an event of the given kind, and skips events of other kinds.
pub(super) fn event(lab: &Lab, side: &Side, kind: Kind) -> Verdict<AsyncSubject> {
    lab.wait(&format!("the event {kind:?}"), || {
        std::iter::from_fn(|| side.device.next_async_event())
            .find(|event| event.kind == kind)
            .map(|event| event.subject)
    })
}

/// Takes all waiting events. Returns true if one of them is of the given kind.
fn waits(side: &Side, kind: Kind) -> bool {
    std::iter::from_fn(|| side.device.next_async_event()).filter(|event| event.kind == kind).count() > 0
}

pub(super) fn h1(lab: &Lab) -> Verdict {
    // A device has one event queue, even if a TGT has several handles. `processes` checks that other processes get the
    // event too.
    let route = lab.route(&Terms::default())?;
    let opened = lab.far.device.open_qp(&route.xrcd, route.tgt.number())?;
    let data = [lab.near.piece(0, 8)];
    let nowhere = RemoteAddress { rkey: Rkey(!lab.far.region.rkey().0), ..lab.far.remote(0) };
    route.ini.post_send(&[request(1, SendOperation::RdmaWrite(nowhere), &data, route.srq_number)])?;
    lab.ends("a WRITE without the access right", &lab.near.cq, 1, Status::RemoteAccessError)?;
    let subject = event(lab, &lab.far, Kind::QpAccessError)?;
    equal("the QP of the event", subject, AsyncSubject::Qp(opened.number()))
}

pub(super) fn h2(lab: &Lab) -> Verdict {
    // Linux 6.1 reports no event here (contract H2).
    let route = lab.route(&Terms::default())?;
    let opened = lab.far.device.open_qp(&route.xrcd, route.tgt.number())?;
    route.tgt.destroy()?;
    let data = [lab.near.piece(0, 8)];
    let nowhere = RemoteAddress { rkey: Rkey(!lab.far.region.rkey().0), ..lab.far.remote(0) };
    route.ini.post_send(&[request(1, SendOperation::RdmaWrite(nowhere), &data, route.srq_number)])?;
    lab.ends("a WRITE without the access right", &lab.near.cq, 1, Status::RemoteAccessError)?;
    let subject = event(lab, &lab.far, Kind::QpAccessError)?;
    equal(
        "the QP of the event after the creator's handle was destroyed",
        subject,
        AsyncSubject::Qp(opened.number()),
    )
}

pub(super) fn h3(lab: &Lab) -> Verdict {
    let early = lab.route(&Terms { tgt_state: QpState::ReadyToReceive, ..Terms::default() })?;
    let ready = lab.route(&Terms::default())?;
    for wr_id in 1..=2 {
        receive(&early.srq, wr_id, &[lab.far.piece(0, 64)])?;
        receive(&ready.srq, wr_id, &[lab.far.piece(0, 64)])?;
    }
    let data = [lab.near.piece(0, 8)];
    for wr_id in 1..=2 {
        ready.ini.post_send(&[request(wr_id, SendOperation::Send, &data, ready.srq_number)])?;
        lab.succeeds("a receive in RTS", &ready.cq, wr_id, Op::Receive)?;
    }
    check(!waits(&lab.far, Kind::CommunicationEstablished), || {
        "a TGT in RTS reported a first packet".into()
    })?;
    // The event must not depend on an acknowledgement. Post an unsignalled send, which need not request one.
    let first = request(1, SendOperation::Send, &data, early.srq_number);
    early.ini.post_send(&[SendRequest { flags: SendFlags::empty(), ..first }])?;
    lab.succeeds("the first receive in RTR", &early.cq, 1, Op::Receive)?;
    let subject = event(lab, &lab.far, Kind::CommunicationEstablished)?;
    equal("the QP of the event", subject, AsyncSubject::Qp(early.tgt.number()))?;
    early.ini.post_send(&[request(2, SendOperation::Send, &data, early.srq_number)])?;
    lab.succeeds("the second receive in RTR", &early.cq, 2, Op::Receive)?;
    check(!waits(&lab.far, Kind::CommunicationEstablished), || "the second packet was reported too".into())
}

pub(super) fn h4(lab: &Lab) -> Verdict {
    let basic = lab.far.new_basic_srq()?;
    let shared = lab.far.device.create_qp(QpInit { srq: Some(basic), ..lab.far.rc_init() })?;
    let own = lab.far.device.create_qp(lab.far.rc_init())?;
    let near = lab.near.device.create_qp(lab.near.rc_init())?;
    for (what, qp, due) in [("with an SRQ", &shared, true), ("with its own queue", &own, false)] {
        let end = crate::connect::End { side: &lab.far, qp, other: lab.near.gid(), peer: near.number() };
        end.bring_to(QpState::ReadyToReceive, &Terms::default())?;
        check(!waits(&lab.far, Kind::QpLastWqeReached), || format!("a QP {what} reported its last receive"))?;
        set_state(qp, QpState::Error)?;
        if due {
            let subject = event(lab, &lab.far, Kind::QpLastWqeReached)?;
            equal("the QP of the event", subject, AsyncSubject::Qp(qp.number()))?;
        }
        check(!waits(&lab.far, Kind::QpLastWqeReached), || {
            format!("a QP {what} in ERR reported a second event")
        })?;
    }
    Ok(())
}

pub(super) fn h5(lab: &Lab) -> Verdict {
    const CONTEXT: u64 = 0x4351;
    let small = || CqInit { capacity_cqe: 2, context: CONTEXT, ..CqInit::default() };
    let bystander = lab.route(&Terms::default())?;
    receive(&bystander.srq, 70, &[lab.far.piece(0, 64)])?;
    let data = [lab.near.piece(0, 8)];

    // When a send CQ overflows, the QPs that complete into it go to ERR.
    let cq = lab.near.device.create_cq(small())?;
    let route = lab.route(&Terms::default())?;
    let init = QpInit { send_cq: Some(Arc::clone(&cq)), ..lab.near.ini_init() };
    let (ini, tgt) = (lab.near.device.create_qp(init)?, lab.far.new_tgt(&route.xrcd)?);
    lab.join(&ini, &tgt, &Terms::default())?;
    let write = SendOperation::RdmaWrite(lab.far.remote(0));
    for wr_id in 0..u64::from(cq.capacity_cqe()) + 1 {
        ini.post_send(&[request(wr_id, write, &data, route.srq_number)])?;
    }
    equal("the CQ of the event", event(lab, &lab.near, Kind::CqError)?, AsyncSubject::Cq(CONTEXT))?;
    lab.wait("ERR of the INI", || ini.query().is_ok_and(|qp| qp.state == QpState::Error).then_some(()))?;
    check(!waits(&lab.near, Kind::CqError), || "the overflow was reported twice".to_owned())?;
    check(!waits(&lab.far, Kind::CqError), || "the overflow was reported to the peer".to_owned())?;
    for wr_id in 0..u64::from(cq.capacity_cqe()) {
        lab.succeeds("a completion from before the overflow", &cq, wr_id, Op::RdmaWrite)?;
    }

    // When the CQ of an XRC SRQ overflows, the SRQ accepts no further messages. The TGT remains in its state, because other
    // SRQs use it.
    let cq = lab.far.device.create_cq(small())?;
    let srq = lab.far.new_srq(&bystander.xrcd, &cq)?;
    let number = srq.number()?;
    let count = u64::from(cq.capacity_cqe()) + 1;
    for wr_id in 0..count + 1 {
        receive(&srq, wr_id, &[lab.far.piece(0, 64)])?;
    }
    for wr_id in 0..count {
        bystander.ini.post_send(&[request(wr_id, SendOperation::Send, &data, number)])?;
    }
    equal("the CQ of the event", event(lab, &lab.far, Kind::CqError)?, AsyncSubject::Cq(CONTEXT))?;
    equal("the SRQ of the event", event(lab, &lab.far, Kind::SrqError)?, AsyncSubject::Srq(0x5253))?;
    for wr_id in 0..count {
        lab.succeeds("a send before the overflow", &lab.near.cq, wr_id, Op::Send)?;
    }
    bystander.ini.post_send(&[request(80, SendOperation::Send, &data, bystander.srq_number)])?;
    lab.succeeds("a receive of another SRQ", &bystander.cq, 70, Op::Receive)?;
    lab.succeeds("its send", &lab.near.cq, 80, Op::Send)?;
    equal("the TGT's state", bystander.tgt.query()?.state, QpState::ReadyToSend)?;

    // To senders, the failed SRQ appears empty, although a receive is posted (contract G10).
    let (ini, tgt) = (lab.near.new_ini()?, lab.far.new_tgt(&bystander.xrcd)?);
    lab.join(&ini, &tgt, &Terms { rnr_retry: 0, ..Terms::default() })?;
    ini.post_send(&[request(90, SendOperation::Send, &data, number)])?;
    lab.ends("a send to a failed SRQ", &lab.near.cq, 90, Status::RnrRetryExceeded)?;
    Ok(())
}
