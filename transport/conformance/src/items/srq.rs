//! Section D: XRC SRQs.

use crate::check::{EBUSY, EINVAL, Verdict, check, equal, post_refused, refused};
use crate::connect::Terms;
use crate::traffic::{receive, request};
use crate::{Deviation, Lab};
use std::sync::Arc;
use trunkline_verbs::{
    AsyncEventKind, AsyncSubject, CompletionOpcode, DeviceCapabilities, QpInit, QpNumber, QpType,
    ReceiveRequest, SendOperation, SrqInit, SrqKind,
};

pub(super) fn d1(lab: &Lab) -> Verdict {
    // The types ensure that the objects exist, so only objects of another device can be refused.
    let (near, far) = (&lab.near, &lab.far);
    if Arc::ptr_eq(&near.device, &far.device) {
        return Err(Deviation::Skipped("the bench has one device only".to_owned()));
    }
    let xrcd = far.new_xrcd()?;
    let refuse = |what: &str, init: SrqInit| refused(what, far.device.create_srq(init), EINVAL);
    let good = || far.srq_init(&xrcd, &far.cq);
    refuse("a PD of another device", SrqInit { pd: Arc::clone(&near.pd), ..good() })?;
    refuse("a domain of another device", far.srq_init(&near.new_xrcd()?, &far.cq))?;
    refuse("a CQ of another device", far.srq_init(&xrcd, &near.cq))?;
    far.device.create_srq(good())?;
    far.device.create_srq(SrqInit { kind: SrqKind::Basic, ..good() })?;
    Ok(())
}

pub(super) fn d2(lab: &Lab) -> Verdict {
    let far = &lab.far;
    let (pd, cq, xrcd) = (far.device.alloc_pd()?, far.new_cq()?, far.new_xrcd()?);
    let init = || SrqInit { pd: Arc::clone(&pd), ..far.srq_init(&xrcd, &cq) };
    let (first, second) = (far.device.create_srq(init())?, far.device.create_srq(init())?);
    for srq in [first, second] {
        refused("destroying the CQ of an SRQ", cq.destroy(), EBUSY)?;
        refused("destroying the PD of an SRQ", pd.destroy(), EBUSY)?;
        refused("closing the domain of an SRQ", xrcd.close(), EBUSY)?;
        srq.destroy()?;
    }
    cq.destroy()?;
    pd.destroy()?;
    Ok(xrcd.close()?)
}

pub(super) fn d3(lab: &Lab) -> Verdict {
    let (near, far) = (&lab.near, &lab.far);
    if Arc::ptr_eq(&near.device, &far.device) {
        return Err(Deviation::Skipped("the bench has one device only".to_owned()));
    }
    // A handle belongs to one open device. Calls on another open device refuse the handle.
    let refuse = |what: &str, init: QpInit| refused(what, far.device.create_qp(init), EINVAL);
    refuse("an INI with another device's PD", QpInit { pd: Some(Arc::clone(&near.pd)), ..far.ini_init() })?;
    let send_cq = Some(Arc::clone(&near.cq));
    refuse("an INI with another device's CQ", QpInit { send_cq, ..far.ini_init() })?;
    let receive_cq = Some(Arc::clone(&near.cq));
    refuse("an RC QP with another device's CQ", QpInit { receive_cq, ..far.rc_init() })?;
    let srq = Some(near.new_basic_srq()?);
    refuse("an RC QP with another device's SRQ", QpInit { srq, ..far.rc_init() })?;
    let xrcd = near.new_xrcd()?;
    refused("opening a TGT by another device's domain", far.device.open_qp(&xrcd, QpNumber::new(5)), EINVAL)?;
    refuse("a TGT in another device's domain", QpInit { xrcd: Some(xrcd), ..QpInit::new(QpType::XrcTgt) })
}

pub(super) fn d4(lab: &Lab) -> Verdict {
    let xrcd = lab.far.new_xrcd()?;
    let mut numbers = Vec::new();
    let mut kept = Vec::new();
    for _ in 0..16 {
        let srq = lab.far.new_srq(&xrcd, &lab.far.cq)?;
        let number = srq.number()?.get();
        check(number <= 0xff_ffff, || format!("{number:#x} does not fit 24 bits"))?;
        check(!numbers.contains(&number), || format!("{number:#x} was assigned twice"))?;
        numbers.push(number);
        kept.push(srq);
    }
    Ok(())
}

pub(super) fn d5(lab: &Lab) -> Verdict {
    let far = &lab.far;
    let limits = far.device.attributes();
    let xrcd = far.new_xrcd()?;
    let make =
        |max_wr, max_sge| far.device.create_srq(SrqInit { max_wr, max_sge, ..far.srq_init(&xrcd, &far.cq) });
    let got = make(10, 1)?.query()?;
    check(got.max_wr >= 10 && got.max_sge >= 1, || format!("requested were 10 requests and 1 SGE: {got:?}"))?;
    equal("the limit of a fresh SRQ", got.limit, 0)?;
    refused("an SRQ of 0 requests", make(0, 1), EINVAL)?;
    refused("an SRQ above max_srq_wr", make(limits.max_srq_wr.saturating_add(1), 1), EINVAL)?;
    refused("an SRQ above max_srq_sge", make(8, limits.max_srq_sge.saturating_add(1)), EINVAL)?;
    let srq = make(2, 1)?;
    let pieces = vec![far.piece(0, 8); srq.query()?.max_sge as usize + 1];
    let long = [ReceiveRequest { wr_id: 0, scatter: &pieces }];
    post_refused("a receive with too many SGEs", srq.post_receive(&long))
}

pub(super) fn d6(lab: &Lab) -> Verdict {
    let route = lab.route(&Terms::default())?;
    let capacity = route.srq.query()?.max_wr;
    refused("a limit above the size", route.srq.arm_limit(capacity + 1), EINVAL)?;
    for wr_id in 0..8 {
        receive(&route.srq, wr_id, &[lab.far.piece(0, 64)])?;
    }
    route.srq.arm_limit(4)?;
    equal("the armed limit", route.srq.query()?.limit, 4)?;
    let consume = |wr_id| {
        let data = [lab.near.piece(0, 8)];
        route.ini.post_send(&[request(wr_id, SendOperation::Send, &data, route.srq_number)])?;
        lab.succeeds("a receive", &route.cq, wr_id, CompletionOpcode::Receive)
    };
    for wr_id in 0..4 {
        consume(wr_id)?;
        let event = limit_event(lab);
        check(event.is_none(), || format!("event {event:?} with {} posted", 7 - wr_id))?;
    }
    consume(4)?;
    let subject = lab.wait("the limit event", || limit_event(lab))?;
    equal("the SRQ of the event", subject, AsyncSubject::Srq(0x5253))?;
    equal("the limit after it fired", route.srq.query()?.limit, 0)?;
    for wr_id in 5..8 {
        consume(wr_id)?;
    }
    check(limit_event(lab).is_none(), || "the limit fired twice".to_owned())
}

/// Returns the next limit event. Events of other kinds are skipped, because a TGT may report that it is established.
pub(super) fn limit_event(lab: &Lab) -> Option<AsyncSubject> {
    while let Some(event) = lab.far.device.next_async_event() {
        if event.kind == AsyncEventKind::SrqLimitReached {
            return Some(event.subject);
        }
    }
    None
}

pub(super) fn d7(lab: &Lab) -> Verdict {
    if !lab.far.device.attributes().capabilities.contains(DeviceCapabilities::SRQ_RESIZE) {
        return Err(Deviation::Skipped("the device does not resize SRQs, as contract D7 allows".to_owned()));
    }
    let route = lab.route(&Terms::default())?;
    let capacity = route.srq.query()?.max_wr;
    let post = |wr_id| route.srq.post_receive(&[ReceiveRequest { wr_id, scatter: &[lab.far.piece(0, 64)] }]);
    let send = |wr_id| {
        let data = [lab.near.piece(0, 8)];
        route.ini.post_send(&[request(wr_id, SendOperation::Send, &data, route.srq_number)])?;
        lab.succeeds("a send", &lab.near.cq, wr_id, CompletionOpcode::Send)?;
        lab.succeeds("a receive", &route.cq, wr_id, CompletionOpcode::Receive)
    };
    // Consume some receives first, so that the ring does not start at index 0.
    for wr_id in 0..4 {
        post(wr_id)?;
        send(wr_id)?;
    }
    for wr_id in 4..4 + u64::from(capacity) {
        post(wr_id)?;
    }
    check(post(0).is_err(), || "a full SRQ accepted one more".to_owned())?;
    route.srq.resize(capacity * 2)?;
    check(route.srq.query()?.max_wr >= capacity * 2, || "the SRQ did not grow".to_owned())?;
    post(4 + u64::from(capacity))?;
    refused("a size below the number of posted receives", route.srq.resize(capacity), EINVAL)?;
    for wr_id in 4..=4 + u64::from(capacity) {
        send(wr_id)?;
    }
    route.srq.arm_limit(3)?;
    refused("a size below the limit", route.srq.resize(2), EINVAL)?;
    refused("a size of 0", route.srq.resize(0), EINVAL)?;
    let most = lab.far.device.attributes().max_srq_wr;
    refused("a size above max_srq_wr", route.srq.resize(most.saturating_add(1)), EINVAL)?;
    route.srq.resize(3)?;
    equal("the limit after a resize", route.srq.query()?.limit, 3)
}

pub(super) fn d8(lab: &Lab) -> Verdict {
    let far = &lab.far;
    let basic = far.new_basic_srq()?;
    let rc = far.device.create_qp(QpInit { srq: Some(Arc::clone(&basic)), ..far.rc_init() })?;
    refused("destroying a basic SRQ that an RC QP uses", basic.destroy(), EBUSY)?;
    rc.destroy()?;
    basic.destroy()?;
    // The SRQ's CQ still contains completions from before the SRQ was destroyed.
    let route = lab.route(&Terms::default())?;
    for wr_id in 0..2 {
        receive(&route.srq, wr_id, &[lab.far.piece(0, 64)])?;
        let data = [lab.near.piece(0, 8)];
        route.ini.post_send(&[request(wr_id, SendOperation::Send, &data, route.srq_number)])?;
        lab.succeeds("a send", &lab.near.cq, wr_id, CompletionOpcode::Send)?;
    }
    route.srq.destroy()?;
    for wr_id in 0..2 {
        lab.succeeds("a receive of a destroyed SRQ", &route.cq, wr_id, CompletionOpcode::Receive)?;
    }
    Ok(())
}

pub(super) fn d9(lab: &Lab) -> Verdict {
    let xrcd = lab.far.new_xrcd()?;
    let cq = lab.far.new_cq()?;
    let srq = lab.far.new_srq(&xrcd, &cq)?;
    for wr_id in 0..8 {
        receive(&srq, wr_id, &[lab.far.piece(0, 64)])?;
    }
    srq.destroy()?;
    lab.stays_quiet("the CQ of a destroyed SRQ", &cq)
}

pub(super) fn d10(lab: &Lab) -> Verdict {
    refused("the number of a basic SRQ", lab.far.new_basic_srq()?.number(), EINVAL)
}
