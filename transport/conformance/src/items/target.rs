//! Section G: the data path at the target.

use super::initiator::bogus;
use crate::Lab;
use crate::check::{Verdict, check, equal};
use crate::connect::{Terms, impatient};
use crate::traffic::{poll_one, receive, request, rnr_received};
use std::sync::Arc;
use trunkline_verbs::{
    Access, AsyncEventKind, AsyncSubject, CompletionFlags, CompletionOpcode as Op,
    CompletionStatus as Status, QpState, RemoteAddress, SendOperation, Sge, SrqInit,
};

pub(super) fn g1(lab: &Lab) -> Verdict {
    let route = lab.route(&Terms::default())?;
    let other_cq = lab.far.new_cq()?;
    let other = lab.far.new_srq(&route.xrcd, &other_cq)?;
    for wr_id in 0..4 {
        receive(&route.srq, wr_id, &[lab.far.piece(0, 64)])?;
        receive(&other, 100 + wr_id, &[lab.far.piece(64, 64)])?;
    }
    let data = [lab.near.piece(0, 8)];
    for wr_id in 0..4 {
        route.ini.post_send(&[
            request(wr_id, SendOperation::Send, &data, other.number()?),
            request(10 + wr_id, SendOperation::Send, &data, route.srq_number),
        ])?;
    }
    for wr_id in 0..4 {
        lab.succeeds("a receive of the first SRQ", &route.cq, wr_id, Op::Receive)?;
        lab.succeeds("a receive of the second SRQ", &other_cq, 100 + wr_id, Op::Receive)?;
    }
    for cq in [&route.cq, &other_cq, &lab.far.cq] {
        check(poll_one(cq).is_none(), || "a receive completed twice or elsewhere".to_owned())?;
    }
    Ok(())
}

pub(super) fn g2(lab: &Lab) -> Verdict {
    let first = lab.route(&Terms::default())?;
    let (ini, tgt) = (lab.near.new_ini()?, lab.far.new_tgt(&first.xrcd)?);
    lab.join(&ini, &tgt, &Terms::default())?;
    let data = [lab.near.piece(0, 8)];
    for (wr_id, (ini, tgt)) in (0..).zip([(&ini, &tgt), (&first.ini, &first.tgt), (&ini, &tgt)]) {
        receive(&first.srq, wr_id, &[lab.far.piece(0, 64)])?;
        ini.post_send(&[request(wr_id, SendOperation::Send, &data, first.srq_number)])?;
        let got = lab.succeeds("a receive", &first.cq, wr_id, Op::Receive)?;
        equal("the QP of the receive", got.qp_number, tgt.number())?;
        lab.succeeds("its send", &lab.near.cq, wr_id, Op::Send)?;
    }
    Ok(())
}

pub(super) fn g3(lab: &Lab) -> Verdict {
    let route = lab.route(&Terms::default())?;
    for wr_id in 1..=3 {
        receive(&route.srq, wr_id, &[lab.far.piece(0, 8192)])?;
    }
    let data = [lab.near.piece(0, 5000)];
    let remote = lab.far.remote(16_384);
    lab.near.fill(0, 5000, 0x31)?;
    route.ini.post_send(&[
        request(1, SendOperation::Send, &data, route.srq_number),
        request(2, SendOperation::SendWithImmediate(0x0102_0304), &data, route.srq_number),
        request(3, SendOperation::RdmaWriteWithImmediate(remote, 0xfffe_fdfc), &data, route.srq_number),
    ])?;
    let expected = [
        (1, Op::Receive, None),
        (2, Op::Receive, Some(0x0102_0304)),
        (3, Op::ReceiveRdmaWithImmediate, Some(0xfffe_fdfc)),
    ];
    for (wr_id, opcode, immediate) in expected {
        let got = lab.succeeds("a receive", &route.cq, wr_id, opcode)?;
        equal("its length", got.byte_length, 5000)?;
        let shown = got.flags.contains(CompletionFlags::WITH_IMMEDIATE).then_some(got.immediate);
        equal("its immediate data", shown, immediate)?;
    }
    lab.far.holds("the message", 0, 5000, 0x31)?;
    lab.far.holds("what was written", 16_384, 5000, 0x31)
}

pub(super) fn g4(lab: &Lab) -> Verdict {
    let far = &lab.far;
    let route = lab.route(&Terms::default())?;
    let second_pd = far.device.alloc_pd()?;
    let foreign = far
        .device
        .create_srq(SrqInit { pd: Arc::clone(&second_pd), ..far.srq_init(&route.xrcd, &route.cq) })?;
    let data = [lab.near.piece(0, 8)];
    lab.near.fill(0, 8, 1)?;
    let write = SendOperation::RdmaWrite(far.remote(0));
    route.ini.post_send(&[request(1, write, &data, route.srq_number)])?;
    lab.succeeds("a WRITE by way of the region's PD", &lab.near.cq, 1, Op::RdmaWrite)?;
    far.holds("what was written", 0, 8, 1)?;
    lab.near.fill(0, 8, 2)?;
    route.ini.post_send(&[request(2, write, &data, foreign.number()?)])?;
    lab.ends("a WRITE by way of another PD", &lab.near.cq, 2, Status::RemoteAccessError)?;
    far.holds("memory behind another PD", 0, 8, 1)?;
    rights(lab)
}

/// Rights and bounds of the region, and those of the TGT.
fn rights(lab: &Lab) -> Verdict {
    let far = &lab.far;
    let region = far.pd.register(Arc::clone(&far.memory), Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    let read_only = RemoteAddress { rkey: region.rkey(), ..far.remote(0) };
    let end = far.remote(far.memory.len() - 4);
    let terms = Terms::default();
    let no_writes = Terms { access: Access::REMOTE_READ, ..terms };
    let data = [lab.near.piece(0, 8)];
    for (what, terms, remote, status) in [
        ("a WRITE to a read-only region", terms, read_only, Status::RemoteAccessError),
        ("a WRITE across the region's end", terms, end, Status::RemoteAccessError),
        ("a WRITE through a TGT that forbids it", no_writes, far.remote(0), Status::RemoteInvalidRequest),
    ] {
        let route = lab.route(&terms)?;
        let write = SendOperation::RdmaWrite(remote);
        route.ini.post_send(&[request(3, write, &data, route.srq_number)])?;
        lab.ends(what, &lab.near.cq, 3, status)?;
        far.holds(what, 0, 8, 1)?;
    }
    Ok(())
}

pub(super) fn g5(lab: &Lab) -> Verdict {
    let route = lab.route(&Terms::default())?;
    let foreign =
        lab.far.device.alloc_pd()?.register(Arc::clone(&lab.far.memory), lab.far.region.access())?;
    lab.far.fill(0, 64, 0x66)?;
    receive(&route.srq, 1, &[Sge { lkey: foreign.lkey(), ..lab.far.piece(0, 64) }])?;
    let data = [lab.near.piece(0, 8)];
    route.ini.post_send(&[request(2, SendOperation::Send, &data, route.srq_number)])?;
    lab.ends("the send", &lab.near.cq, 2, Status::RemoteOperationError)?;
    let got = lab.next("the receive", &route.cq)?;
    check(!got.status.is_success(), || "a receive with another PD's lkey succeeded".to_owned())?;
    lab.far.holds("memory behind another PD", 0, 64, 0x66)
}

pub(super) fn g7(lab: &Lab) -> Verdict {
    let route = lab.route(&impatient())?;
    receive(&route.srq, 1, &[lab.far.piece(0, 64)])?;
    let data = [lab.near.piece(0, 8)];
    route.ini.post_send(&[
        request(2, SendOperation::Send, &data, bogus(route.srq_number)),
        request(3, SendOperation::Send, &data, route.srq_number),
    ])?;
    let ended = lab.next("a send to no SRQ", &lab.near.cq)?;
    equal("the send that failed", ended.wr_id, 2)?;
    check(lab.xrc_violation.contains(&ended.status), || format!("it ended with {:?}", ended.status))?;
    lab.ends("the send behind it", &lab.near.cq, 3, Status::WorkRequestFlushed)?;
    equal("the INI's state", route.ini.query()?.state, QpState::Error)?;
    if ended.status != Status::RetryExceeded {
        equal("the TGT's state", route.tgt.query()?.state, QpState::Error)?;
        let wanted = (AsyncEventKind::QpAccessError, AsyncSubject::Qp(route.tgt.number()));
        while let event = lab.next_async("the TGT", &lab.far)?
            && (event.kind, event.subject) != wanted
        {}
    }
    check(poll_one(&route.cq).is_none(), || "a receive of another SRQ completed".to_owned())
}

pub(super) fn g9(lab: &Lab) -> Verdict {
    let data = [lab.near.piece(0, 3000)];
    let write = SendOperation::RdmaWriteWithImmediate(lab.far.remote(8192), 5);
    for (operation, opcode) in [(SendOperation::Send, Op::Send), (write, Op::RdmaWrite)] {
        // Seven retries are for ever: it waits until a receive is there.
        let route = lab.route(&Terms::default())?;
        let before = rnr_received(&lab.near);
        route.ini.post_send(&[request(1, operation, &data, route.srq_number)])?;
        lab.wait_for_rnr(&lab.near, before.map(|count| count + 8))?;
        check(poll_one(&lab.near.cq).is_none(), || "a send without a receive completed".to_owned())?;
        equal("the TGT's state", route.tgt.query()?.state, QpState::ReadyToSend)?;
        receive(&route.srq, 2, &[lab.far.piece(0, 4096)])?;
        lab.succeeds("a send that waited", &lab.near.cq, 1, opcode)?;
        lab.next("its receive", &route.cq)?;

        // None at all: the first refusal ends it, at the INI alone.
        let route = lab.route(&Terms { rnr_retry: 0, ..Terms::default() })?;
        route.ini.post_send(&[request(3, operation, &data, route.srq_number)])?;
        lab.ends("a send without a receive", &lab.near.cq, 3, Status::RnrRetryExceeded)?;
        equal("the INI's state", route.ini.query()?.state, QpState::Error)?;
        equal("the TGT's state after it", route.tgt.query()?.state, QpState::ReadyToSend)?;
    }
    Ok(())
}

pub(super) fn g10(lab: &Lab) -> Verdict {
    let route = lab.route(&Terms::default())?;
    receive(&route.srq, 1, &[lab.far.piece(0, 1024)])?;
    lab.far.fill(1024, 1024, 0x77)?;
    let data = [lab.near.piece(0, 2048)];
    route.ini.post_send(&[request(2, SendOperation::Send, &data, route.srq_number)])?;
    lab.ends("the send", &lab.near.cq, 2, Status::RemoteInvalidRequest)?;
    let got = lab.next("the receive", &route.cq)?;
    equal("the receive that was too short", got.wr_id, 1)?;
    // Providers differ in the status (contract G10), not in that it is a failure.
    check(!got.status.is_success(), || "a receive that was too short succeeded".to_owned())?;
    equal("the TGT's state", route.tgt.query()?.state, QpState::Error)?;
    lab.far.holds("memory behind the receive", 1024, 1024, 0x77)
}
