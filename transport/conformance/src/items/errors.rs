//! Section I: errors, flushing, and the order of destruction.

use crate::Lab;
use crate::check::{EBUSY, Verdict, check, equal, refused};
use crate::connect::{Route, Terms, few_retries, set_state};
use crate::traffic::{poll_one, receive, request, rnr_received};
use std::sync::Arc;
use trunkline_verbs::{
    CompletionOpcode as Op, CompletionStatus as Status, CqInit, QpInit, QpState, RemoteAddress, Rkey,
    SendFlags, SendOperation, SendRequest, SrqInit,
};

pub(super) fn i1(lab: &Lab) -> Verdict {
    let route = lab.route(&Terms::default())?;
    let bystander = lab.route_into(Arc::clone(&route.xrcd), &Terms::default())?;
    let data = [lab.near.piece(0, 8)];
    let nowhere = RemoteAddress { rkey: Rkey(!lab.far.region.rkey().0), ..lab.far.remote(0) };
    let after_it =
        |wr_id, flags| SendRequest { flags, ..request(wr_id, SendOperation::Send, &data, route.srq_number) };
    route.ini.post_send(&[
        request(1, SendOperation::RdmaWrite(nowhere), &data, route.srq_number),
        after_it(2, SendFlags::SIGNALED),
        after_it(3, SendFlags::empty()),
        after_it(4, SendFlags::SIGNALED),
        after_it(5, SendFlags::empty()),
    ])?;
    lab.ends("the WRITE that fails", &lab.near.cq, 1, Status::RemoteAccessError)?;
    flushed(lab, &route, 2..=5)?;
    proves_alive(lab, &bystander)?;

    // Repeat the check for a change to ERR while one send waits for a receive.
    let route = lab.route(&Terms::default())?;
    let before = rnr_received(&lab.near);
    let send = |wr_id, flags| {
        route.ini.post_send(&[SendRequest {
            flags,
            ..request(wr_id, SendOperation::Send, &data, route.srq_number)
        }])
    };
    send(6, SendFlags::SIGNALED)?;
    send(7, SendFlags::empty())?;
    lab.wait_for_rnr(&lab.near, before)?;
    set_state(&route.ini, QpState::Error)?;
    flushed(lab, &route, 6..=7)?;
    proves_alive(lab, &bystander)
}

fn flushed(lab: &Lab, route: &Route, wr_ids: std::ops::RangeInclusive<u64>) -> Verdict {
    for wr_id in wr_ids {
        let done = lab.ends("an outstanding send", &lab.near.cq, wr_id, Status::WorkRequestFlushed)?;
        equal("the QP of a flushed send", done.qp_number, route.ini.number())?;
    }
    equal("the INI's state", route.ini.query()?.state, QpState::Error)?;
    check(poll_one(&lab.near.cq).is_none(), || "a send completed twice".to_owned())
}

fn proves_alive(lab: &Lab, route: &Route) -> Verdict {
    receive(&route.srq, 90, &[lab.far.piece(0, 64)])?;
    let data = [lab.near.piece(0, 8)];
    route.ini.post_send(&[request(91, SendOperation::Send, &data, route.srq_number)])?;
    lab.succeeds("a send of another INI", &lab.near.cq, 91, Op::Send)?;
    lab.succeeds("its receive", &route.cq, 90, Op::Receive)?;
    Ok(())
}

pub(super) fn i2(lab: &Lab) -> Verdict {
    let route = lab.route(&few_retries())?;
    for wr_id in 0..4 {
        receive(&route.srq, wr_id, &[lab.far.piece(0, 64)])?;
    }
    set_state(&route.tgt, QpState::Error)?;
    let data = [lab.near.piece(0, 8)];
    route.ini.post_send(&[request(5, SendOperation::Send, &data, route.srq_number)])?;
    lab.ends("a send to a TGT in ERR", &lab.near.cq, 5, Status::RetryExceeded)?;
    check(poll_one(&route.cq).is_none(), || "a receive was flushed".to_owned())?;
    let (ini, tgt) = (lab.near.new_ini()?, lab.far.new_tgt(&route.xrcd)?);
    lab.join(&ini, &tgt, &Terms::default())?;
    for wr_id in 0..4 {
        ini.post_send(&[request(10 + wr_id, SendOperation::Send, &data, route.srq_number)])?;
        lab.succeeds("a receive that was not flushed", &route.cq, wr_id, Op::Receive)?;
        lab.succeeds("its send", &lab.near.cq, 10 + wr_id, Op::Send)?;
    }
    Ok(())
}

pub(super) fn i3(lab: &Lab) -> Verdict {
    let (near, far) = (&lab.near, &lab.far);
    let init = CqInit { capacity_cqe: 16, ..CqInit::default() };
    let (pd, cq) = (near.device.alloc_pd()?, near.device.create_cq(init)?);
    let region = pd.register(Arc::clone(&near.memory), near.region.access())?;
    let qp = QpInit { pd: Some(Arc::clone(&pd)), send_cq: Some(Arc::clone(&cq)), ..near.ini_init() };
    let ini = near.device.create_qp(qp)?;
    refused("destroying the CQ of a QP", cq.destroy(), EBUSY)?;
    refused("destroying the PD of a QP and a region", pd.destroy(), EBUSY)?;
    ini.destroy()?;
    cq.destroy()?;
    refused("destroying the PD of a region", pd.destroy(), EBUSY)?;
    region.destroy()?;
    pd.destroy()?;

    let (pd, cq, xrcd) = (far.device.alloc_pd()?, far.new_cq()?, far.new_xrcd()?);
    let srq = far.device.create_srq(SrqInit { pd: Arc::clone(&pd), ..far.srq_init(&xrcd, &cq) })?;
    let tgt = far.new_tgt(&xrcd)?;
    tgt.destroy()?;
    refused("closing the domain of an SRQ", xrcd.close(), EBUSY)?;
    refused("destroying the CQ of an SRQ", cq.destroy(), EBUSY)?;
    refused("destroying the PD of an SRQ", pd.destroy(), EBUSY)?;
    srq.destroy()?;
    let tgt = far.new_tgt(&xrcd)?;
    refused("closing the domain of a TGT", xrcd.close(), EBUSY)?;
    tgt.destroy()?;
    cq.destroy()?;
    xrcd.close()?;
    Ok(pd.destroy()?)
}
