//! Section C: the object model of TGT QPs.

use crate::Lab;
use crate::check::{EINVAL, Verdict, equal, post_refused, refused};
use crate::connect::{Terms, set_state};
use crate::traffic::{receive, request};
use std::sync::Arc;
use trunkline_verbs::{
    CompletionOpcode, QpInit, QpNumber, QpState, QpType, ReceiveRequest, SendOperation, SrqNumber,
};

pub(super) fn c1(lab: &Lab) -> Verdict {
    let device = &lab.far.device;
    refused("a TGT without a domain", device.create_qp(QpInit::new(QpType::XrcTgt)), EINVAL)?;
    let tgt = lab.far.new_tgt(&lab.far.new_xrcd()?)?;
    equal("its type", tgt.qp_type(), QpType::XrcTgt)?;
    equal("its state", tgt.query()?.state, QpState::Reset)
}

pub(super) fn c4(lab: &Lab) -> Verdict {
    let device = &lab.far.device;
    let (xrcd, other) = (lab.far.new_xrcd()?, lab.far.new_xrcd()?);
    let tgt = lab.far.new_tgt(&xrcd)?;
    refused("opening a TGT of another domain", device.open_qp(&other, tgt.number()), EINVAL)?;
    let nobody = QpNumber::new(tgt.number().get() ^ 0x80_0000);
    refused("opening a number that nobody has", device.open_qp(&xrcd, nobody), EINVAL)?;
    let rc = device.create_qp(lab.far.rc_init())?;
    refused("opening a QP that is no TGT", device.open_qp(&xrcd, rc.number()), EINVAL)?;
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
    lab.succeeds("a receive after the creator left", &route.cq, 5, CompletionOpcode::Receive)?;
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
