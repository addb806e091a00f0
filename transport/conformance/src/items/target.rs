//! Section G: the target's data path.

use super::initiator::bogus;
use crate::Lab;
use crate::allowed::{atomic_of_wrong_length, denied_by_the_qp, unusable_receive};
use crate::check::{Verdict, check, equal};
use crate::connect::{Terms, few_retries, set_state};
use crate::traffic::{poll_one, receive, request, rnr_received};
use std::sync::Arc;
use trunkline_verbs::{
    Access, AsyncEventKind, AsyncSubject, CompletionFlags, CompletionOpcode as Op,
    CompletionStatus as Status, IoAddress, Memory, QpState, RemoteAddress, Rkey, SendOperation, Sge, SrqInit,
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
        check(poll_one(cq).is_none(), || "a receive completed twice or into another CQ".to_owned())?;
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
    lab.succeeds("a WRITE through an SRQ of the region's PD", &lab.near.cq, 1, Op::RdmaWrite)?;
    far.holds("what was written", 0, 8, 1)?;
    lab.near.fill(0, 8, 2)?;
    route.ini.post_send(&[request(2, write, &data, foreign.number()?)])?;
    lab.ends("a WRITE through an SRQ of another PD", &lab.near.cq, 2, Status::RemoteAccessError)?;
    far.holds("memory of another PD", 0, 8, 1)?;
    rights(lab)?;
    bounds(lab)
}

/// Constructs an operation on a remote address.
type Toward = fn(RemoteAddress) -> SendOperation;

/// Checks that each operation requires the matching access right of the region, and stays within the region's bounds.
fn bounds(lab: &Lab) -> Verdict {
    let far = &lab.far;
    let operations: [(Access, Toward); 4] = [
        (Access::REMOTE_WRITE, SendOperation::RdmaWrite),
        (Access::REMOTE_READ, SendOperation::RdmaRead),
        (Access::REMOTE_ATOMIC, |remote| SendOperation::FetchAdd { remote, add: 1 }),
        (Access::REMOTE_ATOMIC, |remote| SendOperation::CompareSwap { remote, compare: 0, swap: 1 }),
    ];
    let every = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let memory = Arc::new(Memory::zeroed(64)?);
    let before = vec![0; memory.len()];
    let data = [lab.near.piece(0, 8)];
    for (right, operation) in operations {
        let lacking = far.pd.register(Arc::clone(&memory), Access::LOCAL_WRITE | (every - right))?;
        let whole = far.pd.register(Arc::clone(&memory), Access::LOCAL_WRITE | every)?;
        let at = |address, rkey| RemoteAddress { address, rkey };
        let start = memory.address(0);
        let places = [
            ("without the access right", at(start, lacking.rkey())),
            ("before the region", at(IoAddress(start.0.wrapping_sub(8)), whole.rkey())),
            ("after the region", at(start.plus(64), whole.rkey())),
            ("at the end of the address space", at(IoAddress(u64::MAX - 7), whole.rkey())),
            ("with an unknown key", at(start, Rkey(whole.rkey().0 ^ 0x5555_5500))),
        ];
        for (what, remote) in places {
            let route = lab.route(&Terms::default())?;
            route.ini.post_send(&[request(4, operation(remote), &data, route.srq_number)])?;
            let what = format!("{:?} {what}", operation(remote));
            lab.ends(&what, &lab.near.cq, 4, Status::RemoteAccessError)?;
        }
        whole.destroy()?;
        let route = lab.route(&Terms::default())?;
        let gone = operation(at(start, whole.rkey()));
        route.ini.post_send(&[request(5, gone, &data, route.srq_number)])?;
        lab.ends("access to a deregistered region", &lab.near.cq, 5, Status::RemoteAccessError)?;
        let mut bytes = vec![0; memory.len()];
        memory.read(0, &mut bytes)?;
        check(bytes == before, || format!("{right:?} was needed, and memory was written without"))?;
    }
    // An atomic requires 8 aligned bytes.
    let route = lab.route(&Terms::default())?;
    let short = [lab.near.piece(0, 4)];
    let add = SendOperation::FetchAdd { remote: far.remote(8), add: 1 };
    let request_6 = request(6, add, &short, route.srq_number);
    let posted = lab.what_becomes_of(&route.ini, request_6, &lab.near.cq);
    atomic_of_wrong_length("an atomic of 4 bytes", posted)?;
    // A device that detected the error late has moved the INI to ERR, so a new route is needed.
    let route = lab.route(&Terms::default())?;
    let odd = SendOperation::FetchAdd { remote: far.remote(4), add: 1 };
    route.ini.post_send(&[request(7, odd, &data, route.srq_number)])?;
    lab.ends("a misaligned atomic", &lab.near.cq, 7, Status::RemoteInvalidRequest)?;
    Ok(())
}

/// Checks the access rights of the region and the TGT, and the bounds of the region.
fn rights(lab: &Lab) -> Verdict {
    let far = &lab.far;
    let region = far.pd.register(Arc::clone(&far.memory), Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    let read_only = RemoteAddress { rkey: region.rkey(), ..far.remote(0) };
    let end = far.remote(far.memory.len() - 4);
    let terms = Terms::default();
    let no_writes = Terms { access: Access::REMOTE_READ, ..terms };
    let data = [lab.near.piece(0, 8)];
    for (what, terms, remote) in [
        ("a WRITE to a read-only region", terms, read_only),
        ("a WRITE across the region's end", terms, end),
        ("a WRITE through a TGT that forbids it", no_writes, far.remote(0)),
    ] {
        let route = lab.route(&terms)?;
        let write = SendOperation::RdmaWrite(remote);
        route.ini.post_send(&[request(3, write, &data, route.srq_number)])?;
        let ended = lab.next(what, &lab.near.cq)?;
        equal("which WRITE", ended.wr_id, 3)?;
        if terms.access.contains(Access::REMOTE_WRITE) {
            equal(what, ended.status, Status::RemoteAccessError)?;
        } else {
            denied_by_the_qp(what, ended.status)?;
        }
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
    let sent = lab.next("the send", &lab.near.cq)?;
    equal("which send", sent.wr_id, 2)?;
    unusable_receive("the send", sent.status)?;
    let got = lab.next("the receive", &route.cq)?;
    check(!got.status.is_success(), || "a receive with another PD's lkey succeeded".to_owned())?;
    lab.far.holds("memory of another PD", 0, 64, 0x66)
}

pub(super) fn g7(lab: &Lab) -> Verdict {
    let route = lab.route(&few_retries())?;
    receive(&route.srq, 1, &[lab.far.piece(0, 64)])?;
    let data = [lab.near.piece(0, 8)];
    route.ini.post_send(&[
        request(2, SendOperation::Send, &data, bogus(route.srq_number)),
        request(3, SendOperation::Send, &data, route.srq_number),
    ])?;
    let ended = lab.next("a send to a nonexistent SRQ", &lab.near.cq)?;
    equal("the send that failed", ended.wr_id, 2)?;
    check(lab.xrc_violation.contains(&ended.status), || format!("it ended with {:?}", ended.status))?;
    lab.ends("the send after it", &lab.near.cq, 3, Status::WorkRequestFlushed)?;
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

pub(super) fn g8(lab: &Lab) -> Verdict {
    // Create two SRQs in one domain, and destroy one of them while a peer sends to it.
    let route = lab.route(&few_retries())?;
    let kept = lab.far.new_srq(&route.xrcd, &lab.far.cq)?;
    let data = [lab.near.piece(0, 8)];
    route.srq.destroy()?;
    route.ini.post_send(&[request(1, SendOperation::Send, &data, route.srq_number)])?;
    let ended = lab.next("a send to a destroyed SRQ", &lab.near.cq)?;
    check(lab.xrc_violation.contains(&ended.status), || format!("it ended with {:?}", ended.status))?;
    let tgt = route.tgt.query()?.state;
    if ended.status == Status::RetryExceeded && tgt == QpState::ReadyToSend {
        // The TGT dropped the message silently and can serve another sender.
        let ini = lab.near.new_ini()?;
        set_state(&route.tgt, QpState::Reset)?;
        lab.join(&ini, &route.tgt, &Terms::default())?;
        receive(&kept, 2, &[lab.far.piece(0, 64)])?;
        ini.post_send(&[request(3, SendOperation::Send, &data, kept.number()?)])?;
        lab.succeeds("a receive of the remaining SRQ", &lab.far.cq, 2, Op::Receive)?;
        return Ok(());
    }
    // Peers of this TGT need a new TGT. The SRQs in the domain are not affected.
    equal("the TGT's state", tgt, QpState::Error)?;
    receive(&kept, 4, &[lab.far.piece(0, 64)])?;
    let (ini, fresh) = (lab.near.new_ini()?, lab.far.new_tgt(&route.xrcd)?);
    lab.join(&ini, &fresh, &Terms::default())?;
    ini.post_send(&[request(5, SendOperation::Send, &data, kept.number()?)])?;
    lab.succeeds("a receive of the remaining SRQ", &lab.far.cq, 4, Op::Receive)?;
    Ok(())
}

pub(super) fn g9(lab: &Lab) -> Verdict {
    let data = [lab.near.piece(0, 3000)];
    let write = SendOperation::RdmaWriteWithImmediate(lab.far.remote(8192), 5);
    for (operation, opcode) in [(SendOperation::Send, Op::Send), (write, Op::RdmaWrite)] {
        // A count of seven means unlimited retries, so the message waits until a receive is posted.
        let route = lab.route(&Terms::default())?;
        let before = rnr_received(&lab.near);
        route.ini.post_send(&[request(1, operation, &data, route.srq_number)])?;
        lab.wait_for_rnr(&lab.near, before.map(|count| count + 8))?;
        check(poll_one(&lab.near.cq).is_none(), || "a send without a receive completed".to_owned())?;
        equal("the TGT's state", route.tgt.query()?.state, QpState::ReadyToSend)?;
        receive(&route.srq, 2, &[lab.far.piece(0, 4096)])?;
        lab.succeeds("a send that waited", &lab.near.cq, 1, opcode)?;
        lab.next("its receive", &route.cq)?;

        // Without retries, the first RNR NAK ends the send. Only the INI is affected.
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
    let sent = lab.next("the send", &lab.near.cq)?;
    equal("which send", sent.wr_id, 2)?;
    unusable_receive("the send", sent.status)?;
    let got = lab.next("the receive", &route.cq)?;
    equal("the receive that was too short", got.wr_id, 1)?;
    // Providers report different statuses (contract G10), but the status must be an error.
    check(!got.status.is_success(), || "a receive that was too short succeeded".to_owned())?;
    lab.reaches("the TGT", &route.tgt, QpState::Error)?;
    lab.far.holds("memory after the receive", 1024, 1024, 0x77)
}
