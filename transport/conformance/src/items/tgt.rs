//! Section C: the object model of TGT QPs.

use crate::Lab;
use crate::check::{EINVAL, Verdict, check, equal, post_refused, refused};
use crate::connect::{Terms, set_state};
use crate::traffic::{receive, request};
use std::sync::Arc;
use trunkline_verbs::{
    CompletionOpcode, QpInit, QpNumber, QpState, QpType, QueueCapacities, ReceiveRequest, SendOperation,
    SrqNumber,
};

pub(super) fn c1(lab: &Lab) -> Verdict {
    let device = &lab.far.device;
    refused("a TGT without a domain", device.create_qp(QpInit::new(QpType::XrcTgt)), EINVAL)?;
    let tgt = lab.far.new_tgt(&lab.far.new_xrcd()?)?;
    equal("its type", tgt.qp_type(), QpType::XrcTgt)?;
    equal("its state", tgt.query()?.state, QpState::Reset)
}

pub(super) fn c2(lab: &Lab) -> Verdict {
    let xrcd = lab.far.new_xrcd()?;
    let absurd = QueueCapacities {
        max_send_wr: u32::MAX,
        max_receive_wr: u32::MAX,
        max_send_sge: u32::MAX,
        max_receive_sge: u32::MAX,
        max_inline_data: u32::MAX,
    };
    let init = QpInit { xrcd: Some(xrcd), capacities: absurd, ..QpInit::new(QpType::XrcTgt) };
    lab.far.device.create_qp(init)?;
    let receives = |init: QpInit| QpInit {
        capacities: QueueCapacities {
            max_receive_wr: u32::MAX,
            max_receive_sge: u32::MAX,
            ..init.capacities
        },
        ..init
    };
    lab.near.device.create_qp(receives(lab.near.ini_init()))?;
    let srq = Some(lab.near.new_basic_srq()?);
    lab.near.device.create_qp(receives(QpInit { srq, ..lab.near.rc_init() }))?;
    let requested = lab.near.ini_init().capacities;
    let got = lab.near.new_ini()?.capacities();
    check(got.max_send_wr >= requested.max_send_wr && got.max_send_sge >= requested.max_send_sge, || {
        format!("a send queue smaller than requested: {got:?}")
    })
}

pub(super) fn c3(lab: &Lab) -> Verdict {
    let xrcd = lab.far.new_xrcd()?;
    let tgt = lab.far.new_tgt(&xrcd)?;
    let number = tgt.number();
    let opened = lab.far.device.open_qp(&xrcd, number)?;
    // The creator's handle counts like any other handle.
    tgt.destroy()?;
    equal("the state after the creator's handle was destroyed", opened.query()?.state, QpState::Reset)?;
    let third = lab.far.device.open_qp(&xrcd, number)?;
    opened.destroy()?;
    equal("the state for the third handle", third.query()?.state, QpState::Reset)?;
    // Neither the TGT nor its domain uses a PD or a CQ.
    let (pd, cq) = (lab.far.device.alloc_pd()?, lab.far.new_cq()?);
    cq.destroy()?;
    Ok(pd.destroy()?)
}

pub(super) fn c5(lab: &Lab) -> Verdict {
    let route = lab.route(&Terms::default())?;
    let opened = lab.far.device.open_qp(&route.xrcd, route.tgt.number())?;
    equal("the opened handle's number", opened.number(), route.tgt.number())?;
    equal("its type", opened.qp_type(), QpType::XrcTgt)?;
    equal("its state, queried", opened.query()?.state, QpState::ReadyToSend)?;
    equal("its sizes", opened.capacities(), route.tgt.capacities())?;
    route.tgt.destroy()?;
    check(route.tgt.query().is_err(), || "a destroyed handle can still be queried".to_owned())?;
    check(route.tgt.destroy().is_err(), || "a destroyed handle could be destroyed again".to_owned())?;
    equal("its state after the other handle was destroyed", opened.query()?.state, QpState::ReadyToSend)
}

pub(super) fn c4(lab: &Lab) -> Verdict {
    let device = &lab.far.device;
    let (xrcd, other) = (lab.far.new_xrcd()?, lab.far.new_xrcd()?);
    let tgt = lab.far.new_tgt(&xrcd)?;
    refused("opening a TGT of another domain", device.open_qp(&other, tgt.number()), EINVAL)?;
    let nobody = QpNumber::new(tgt.number().get() ^ 0x80_0000);
    refused("opening an unknown number", device.open_qp(&xrcd, nobody), EINVAL)?;
    let rc = device.create_qp(lab.far.rc_init())?;
    refused("opening a QP that is not a TGT", device.open_qp(&xrcd, rc.number()), EINVAL)?;
    let opened = device.open_qp(&xrcd, tgt.number())?;
    equal("the number of the opened one", opened.number(), tgt.number())?;
    equal("the type of the opened one", opened.qp_type(), QpType::XrcTgt)
}

pub(super) fn c6(lab: &Lab) -> Verdict {
    let route = lab.route(&Terms::default())?;
    let opened = lab.far.device.open_qp(&route.xrcd, route.tgt.number())?;
    route.tgt.destroy()?;
    receive(&route.srq, 5, &[lab.far.piece(0, 64)])?;
    let data = [lab.near.piece(0, 8)];
    route.ini.post_send(&[request(6, SendOperation::Send, &data, route.srq_number)])?;
    lab.succeeds(
        "a receive after the creator's handle was destroyed",
        &route.cq,
        5,
        CompletionOpcode::Receive,
    )?;
    let number = opened.number();
    opened.destroy()?;
    refused("opening it after the last handle", lab.far.device.open_qp(&route.xrcd, number), EINVAL)
}

pub(super) fn c8(lab: &Lab) -> Verdict {
    let xrcd = lab.far.new_xrcd()?;
    let tgt = lab.far.new_tgt(&xrcd)?;
    let opened = lab.far.device.open_qp(&xrcd, tgt.number())?;
    lab.join(&lab.near.new_ini()?, &opened, &Terms::default())?;
    equal("the state at the creator's handle", tgt.query()?.state, QpState::ReadyToSend)?;
    set_state(&tgt, QpState::Error)?;
    equal("the state at the opened handle", opened.query()?.state, QpState::Error)
}

pub(super) fn c9(lab: &Lab) -> Verdict {
    let route = lab.route(&Terms::default())?;
    let second = lab.far.new_srq(&route.xrcd, &route.cq)?;
    route.srq.destroy()?;
    receive(&second, 5, &[lab.far.piece(0, 64)])?;
    let data = [lab.near.piece(0, 8)];
    route.ini.post_send(&[request(6, SendOperation::Send, &data, second.number()?)])?;
    lab.succeeds("a receive after another SRQ was destroyed", &route.cq, 5, CompletionOpcode::Receive)?;
    route.tgt.destroy()?;
    receive(&second, 7, &[lab.far.piece(0, 64)])
}

pub(super) fn c10(lab: &Lab) -> Verdict {
    let route = lab.route(&Terms::default())?;
    let data = [lab.far.piece(0, 8)];
    let send = [request(1, SendOperation::Send, &data, SrqNumber::new(1))];
    post_refused("a send on a TGT", route.tgt.post_send(&send))?;
    let receives = [ReceiveRequest { wr_id: 1, scatter: &data }];
    post_refused("a receive on a TGT", route.tgt.post_receive(&receives))?;
    post_refused("a receive on an INI", route.ini.post_receive(&receives))
}

pub(super) fn c11(lab: &Lab) -> Verdict {
    let device = &lab.near.device;
    let xrcd = lab.near.new_xrcd()?;
    let refuse = |what: &str, init: QpInit| refused(what, device.create_qp(init), EINVAL);
    refuse("an INI without PD", QpInit { pd: None, ..lab.near.ini_init() })?;
    refuse("an INI without send CQ", QpInit { send_cq: None, ..lab.near.ini_init() })?;
    let srq = lab.near.new_srq(&xrcd, &lab.near.cq)?;
    refuse("an INI with an SRQ", QpInit { srq: Some(srq), ..lab.near.ini_init() })?;
    refuse("an INI with a domain", QpInit { xrcd: Some(xrcd), ..lab.near.ini_init() })?;
    let ignored = QpInit { receive_cq: Some(Arc::clone(&lab.near.cq)), ..lab.near.ini_init() };
    device.create_qp(ignored)?;
    Ok(())
}

pub(super) fn c12(lab: &Lab) -> Verdict {
    let device = &lab.far.device;
    let xrcd = lab.far.new_xrcd()?;
    let srq = lab.far.new_srq(&xrcd, &lab.far.cq)?;
    let rc = QpInit { srq: Some(srq), ..lab.far.rc_init() };
    refused("an RC QP with an XRC SRQ", device.create_qp(rc), EINVAL)?;
    let basic = lab.far.new_basic_srq()?;
    let tgt = QpInit { xrcd: Some(xrcd), srq: Some(basic), ..QpInit::new(QpType::XrcTgt) };
    refused("a TGT with a basic SRQ", device.create_qp(tgt), EINVAL)
}
