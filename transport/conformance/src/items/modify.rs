//! Section E: `modify_qp` for INIs and TGTs.

use crate::allowed::{denied_by_the_qp, not_executed};
use crate::check::{EINVAL, Verdict, check, equal, refused};
use crate::connect::{End, Terms, few_retries, init_mask, rtr_mask, rts_mask, set_state};
use crate::lab::remote_rights;
use crate::traffic::{poll_one, receive, request};
use crate::{Deviation, Lab};
use std::sync::Arc;
use trunkline_verbs::{
    Access, AttributeMask as M, CompletionOpcode, CompletionStatus, QpInit, QpModify, QpNumber, QpState,
    QpType, QueuePair, SendOperation,
};

/// A row of the table in contract E1 for one QP type.
struct Step {
    from: QpState,
    to: QpState,
    required: M,
    optional: M,
}

/// Returns the table in contract E1, independently of any provider.
fn steps(qp_type: QpType) -> Vec<Step> {
    use QpState::{Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained};
    let only = |holds: bool, mask: M| if holds { mask } else { M::empty() };
    let (receives, sends) = (qp_type != QpType::XrcIni, qp_type != QpType::XrcTgt);
    let timer = only(receives, M::MIN_RNR_TIMER);
    let sending = only(sends, M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC);
    let receiving = only(receives, M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER);
    let running = M::CURRENT_STATE | M::ACCESS_FLAGS | timer;
    let drained = M::PORT | M::AV | M::TIMEOUT | M::ACCESS_FLAGS | M::PKEY_INDEX;
    let none = M::empty();
    [
        (Reset, Init, init_mask(), none),
        (Init, Init, none, init_mask()),
        (Init, ReadyToReceive, rtr_mask(qp_type), M::ACCESS_FLAGS | M::PKEY_INDEX),
        (ReadyToReceive, ReadyToSend, rts_mask(qp_type), running),
        (ReadyToSend, ReadyToSend, none, running),
        (ReadyToSend, SendQueueDrained, none, none),
        (SendQueueDrained, ReadyToSend, none, running),
        (SendQueueDrained, SendQueueDrained, none, drained | receiving | sending),
    ]
    .into_iter()
    .map(|(from, to, required, optional)| Step { from, to, required, optional })
    .collect()
}

/// Returns the attributes that the kernel drops from the mask before its check (contract E3).
fn dropped(qp_type: QpType) -> M {
    match qp_type {
        QpType::XrcTgt => M::MAX_QP_RD_ATOMIC | M::RETRY_CNT | M::RNR_RETRY,
        QpType::XrcIni => M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
        QpType::Rc => M::empty(),
    }
}

/// Creates an INI and a TGT that are not connected.
fn pair(lab: &Lab) -> Verdict<(Arc<dyn QueuePair>, Arc<dyn QueuePair>)> {
    Ok((lab.near.new_ini()?, lab.far.new_tgt(&lab.far.new_xrcd()?)?))
}

/// Returns each QP together with its peer's address.
fn ends<'a>(lab: &'a Lab, pair: &'a (Arc<dyn QueuePair>, Arc<dyn QueuePair>)) -> [End<'a>; 2] {
    let (ini, tgt) = pair;
    [
        End { side: &lab.near, qp: ini, other: lab.far.gid(), peer: tgt.number() },
        End { side: &lab.far, qp: tgt, other: lab.near.gid(), peer: ini.number() },
    ]
}

/// Attempts one transition with the attributes in `mask`, on a QP that is first moved from RESET to the transition's start.
fn attempt(end: &End<'_>, step: &Step, mask: M, allowed: bool) -> Verdict {
    let terms = Terms::default();
    set_state(end.qp, QpState::Reset)?;
    end.bring_to(step.from, &terms)?;
    let what = || format!("{:?} {:?} -> {:?} with {mask:?}", end.qp.qp_type(), step.from, step.to);
    let answer = end.step(step.from, step.to, mask, &terms);
    let state = end.qp.query()?.state;
    if allowed {
        check(answer.is_ok(), || format!("{} was refused: {answer:?}", what()))?;
        equal(&what(), state, step.to)
    } else {
        refused(&what(), answer, EINVAL)?;
        equal(&format!("{}: the state after the refusal", what()), state, step.from)
    }
}

pub(super) fn e1(lab: &Lab) -> Verdict {
    let xrc = pair(lab)?;
    let rc = (lab.near.device.create_qp(lab.near.rc_init())?, lab.far.device.create_qp(lab.far.rc_init())?);
    for end in ends(lab, &xrc).into_iter().chain(ends(lab, &rc)) {
        for step in steps(end.qp.qp_type()) {
            let mild = step.optional | dropped(end.qp.qp_type());
            attempt(&end, &step, step.required, true)?;
            for bit in M::all().iter() {
                let allowed = !step.required.contains(bit) && mild.contains(bit);
                attempt(&end, &step, step.required ^ bit, allowed)?;
            }
        }
    }
    Ok(())
}

pub(super) fn e2(lab: &Lab) -> Verdict {
    use QpState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained};
    let terms = Terms::default();
    let pair = pair(lab)?;
    for end in ends(lab, &pair) {
        let to = |state| end.qp.modify(&QpModify { state: Some(state), ..QpModify::default() });
        refused("RESET to ERR", to(Error), EINVAL)?;
        for state in [Init, ReadyToReceive, ReadyToSend, SendQueueDrained] {
            end.bring_to(state, &terms)?;
            to(Error)?;
            to(Error)?;
            equal("the state after ERR, twice", end.qp.query()?.state, Error)?;
            refused("ERR to INIT", end.step(Error, Init, init_mask(), &terms), EINVAL)?;
            to(Reset)?;
            end.bring_to(state, &terms)?;
            to(Reset)?;
            to(Reset)?;
            equal("the state after RESET", end.qp.query()?.state, Reset)?;
        }
        let qp_type = end.qp.qp_type();
        refused("RESET to RTR", end.step(Reset, ReadyToReceive, rtr_mask(qp_type), &terms), EINVAL)?;
        refused("RESET to RTS", end.step(Reset, ReadyToSend, rts_mask(qp_type), &terms), EINVAL)?;
        end.bring_to(Init, &terms)?;
        refused("INIT to RTS", end.step(Init, ReadyToSend, rts_mask(qp_type), &terms), EINVAL)?;
        refused("ERR with an attribute", end.step(Init, Error, M::ACCESS_FLAGS, &terms), EINVAL)?;
    }
    Ok(())
}

pub(super) fn e3(lab: &Lab) -> Verdict {
    use QpState::{Init, ReadyToReceive, ReadyToSend, Reset};
    let terms = Terms::default();
    let pair = pair(lab)?;
    for end in ends(lab, &pair) {
        for (from, to, mask) in [
            (Reset, Init, init_mask()),
            (Init, ReadyToReceive, rtr_mask(QpType::Rc)),
            (ReadyToReceive, ReadyToSend, rts_mask(QpType::Rc)),
        ] {
            end.step(from, to, mask, &terms).map_err(|error| {
                Deviation::Failed(format!("{:?} to {to:?} with RC's mask: {error}", end.qp.qp_type()))
            })?;
        }
    }
    // The connection must work.
    let (ini, tgt) = pair;
    check(ini.query()?.destination_qp == tgt.number(), || "the INI lost its peer".to_owned())
}

pub(super) fn e4(lab: &Lab) -> Verdict {
    let pair = pair(lab)?;
    let ports = lab.near.device.attributes().ports;
    for end in ends(lab, &pair) {
        let init = |port, pkey_index| {
            end.qp.modify(&QpModify {
                state: Some(QpState::Init),
                port: Some(port),
                pkey_index: Some(pkey_index),
                access: Some(Terms::default().access),
                ..QpModify::default()
            })
        };
        refused("port 0", init(0, 0), EINVAL)?;
        refused("a port that does not exist", init(ports + 1, 0), EINVAL)?;
        refused("a P_Key index that does not exist", init(1, u16::MAX), EINVAL)?;
        init(1, 0)?;
        let mut change = crate::connect::every_attribute(
            end.side,
            end.other,
            end.peer,
            QpState::Init,
            QpState::ReadyToReceive,
            &Terms::default(),
        );
        if let Some(vector) = &mut change.address_vector {
            vector.port = ports + 1;
        }
        let change = crate::connect::only(&change, rtr_mask(end.qp.qp_type()));
        refused("an address vector with another port", end.qp.modify(&change), EINVAL)?;
    }
    Ok(())
}

pub(super) fn e5(lab: &Lab) -> Verdict {
    // The INI's access flags are ignored. The TGT's flags decide, except on SENDs.
    let xrcd = lab.far.new_xrcd()?;
    let srq = lab.far.new_srq(&xrcd, &lab.far.cq)?;
    let number = srq.number()?;
    let data = [lab.near.piece(0, 8)];
    let remote = lab.far.remote(0);
    let read = SendOperation::RdmaRead(remote);
    let write = SendOperation::RdmaWrite(remote);
    let add = SendOperation::FetchAdd { remote, add: 1 };
    let rights = [(read, Access::REMOTE_READ), (write, Access::REMOTE_WRITE), (add, Access::REMOTE_ATOMIC)];
    for (operation, right) in rights {
        for granted in [right, remote_rights() - right] {
            let (ini, tgt) = (lab.near.new_ini()?, lab.far.new_tgt(&xrcd)?);
            let target = End { side: &lab.far, qp: &tgt, other: lab.near.gid(), peer: ini.number() };
            target.bring_to(QpState::ReadyToSend, &Terms { access: granted, ..Terms::default() })?;
            let initiator = End { side: &lab.near, qp: &ini, other: lab.far.gid(), peer: tgt.number() };
            // The INI grants the rights that the TGT does not grant.
            let access = remote_rights() - granted;
            initiator.bring_to(QpState::ReadyToSend, &Terms { access, ..Terms::default() })?;
            receive(&srq, 1, &[lab.far.piece(64, 64)])?;
            ini.post_send(&[request(2, SendOperation::Send, &data, number)])?;
            lab.succeeds("a SEND, which needs no access flag", &lab.near.cq, 2, CompletionOpcode::Send)?;
            lab.succeeds("its receive", &lab.far.cq, 1, CompletionOpcode::Receive)?;
            ini.post_send(&[request(3, operation, &data, number)])?;
            let what = format!("{operation:?} where {granted:?} is granted");
            let ended = lab.next(&what, &lab.near.cq)?;
            equal(&format!("{what}: the request"), ended.wr_id, 3)?;
            if granted == right {
                equal(&what, ended.status, CompletionStatus::Success)?;
            } else {
                denied_by_the_qp(&what, ended.status)?;
            }
        }
    }
    Ok(())
}

pub(super) fn e6(lab: &Lab) -> Verdict {
    let data = [lab.near.piece(0, 8)];
    let read = SendOperation::RdmaRead(lab.far.remote(0));
    // The INI's rq_psn differs from the TGT's sq_psn. Other routes of the suite do not use these PSNs.
    let route = lab.route(&few_retries())?;
    let (ini, tgt) = (route.ini.query()?, route.tgt.query()?);
    check(ini.rq_psn != ini.sq_psn && ini.sq_psn == tgt.rq_psn, || format!("{ini:?}, {tgt:?}"))?;
    route.ini.post_send(&[request(1, read, &data, route.srq_number)])?;
    lab.succeeds("a READ whose response repeats its PSN", &lab.near.cq, 1, CompletionOpcode::RdmaRead)?;
    // Connect first the INI and then the TGT to a QP that is not its peer.
    let bystander = lab.far.new_tgt(&route.xrcd)?;
    for wrong in ["the INI", "the TGT"] {
        let (ini, tgt) = (lab.near.new_ini()?, lab.far.new_tgt(&route.xrcd)?);
        let ends = [
            End { side: &lab.far, qp: &tgt, other: lab.near.gid(), peer: ini.number() },
            End { side: &lab.near, qp: &ini, other: lab.far.gid(), peer: tgt.number() },
        ];
        let [mut target, mut initiator] = ends;
        if wrong == "the INI" {
            initiator.peer = bystander.number();
        } else {
            target.peer = bystander.number();
        }
        target.bring_to(QpState::ReadyToSend, &few_retries())?;
        initiator.bring_to(QpState::ReadyToSend, &few_retries())?;
        ini.post_send(&[request(2, read, &data, route.srq_number)])?;
        let what = format!("a READ where {wrong} names another peer");
        lab.ends(&what, &lab.near.cq, 2, CompletionStatus::RetryExceeded)?;
    }
    Ok(())
}

pub(super) fn e7(lab: &Lab) -> Verdict {
    let route = lab.route(&Terms { tgt_state: QpState::ReadyToReceive, ..Terms::default() })?;
    equal("the TGT's state", route.tgt.query()?.state, QpState::ReadyToReceive)?;
    receive(&route.srq, 1, &[lab.far.piece(0, 64)])?;
    lab.near.fill(0, 64, 9)?;
    let data = [lab.near.piece(0, 64)];
    route.ini.post_send(&[request(2, SendOperation::Send, &data, route.srq_number)])?;
    lab.succeeds("a receive in RTR", &route.cq, 1, CompletionOpcode::Receive)?;
    lab.succeeds("its send", &lab.near.cq, 2, CompletionOpcode::Send)?;
    lab.far.holds("the message", 0, 64, 9)
}

pub(super) fn e8(lab: &Lab) -> Verdict {
    use QpState::{Error, ReadyToSend, SendQueueDrained};
    for state in [QpState::Reset, QpState::Init, QpState::ReadyToReceive] {
        early_send(lab, state)?;
    }
    let terms = Terms::default();
    let xrcd = lab.far.new_xrcd()?;
    let cq = lab.far.new_cq()?;
    let srq = lab.far.new_srq(&xrcd, &cq)?;
    let (ini, tgt) = (lab.near.new_ini()?, lab.far.new_tgt(&xrcd)?);
    let number = srq.number()?;
    let data = [lab.near.piece(0, 8)];
    let post = |wr_id| ini.post_send(&[request(wr_id, SendOperation::Send, &data, number)]);
    let target = End { side: &lab.far, qp: &tgt, other: lab.near.gid(), peer: ini.number() };
    target.bring_to(ReadyToSend, &terms)?;
    let end = End { side: &lab.near, qp: &ini, other: lab.far.gid(), peer: tgt.number() };
    end.bring_to(ReadyToSend, &terms)?;
    for wr_id in 2..=4 {
        receive(&srq, wr_id, &[lab.far.piece(0, 64)])?;
    }
    post(2)?;
    lab.succeeds("a send in RTS", &lab.near.cq, 2, CompletionOpcode::Send)?;
    lab.succeeds("its receive", &cq, 2, CompletionOpcode::Receive)?;
    set_state(&ini, SendQueueDrained)?;
    post(3)?;
    lab.stays_quiet("a send held in SQD", &lab.near.cq)?;
    check(poll_one(&cq).is_none(), || "a send left in SQD".to_owned())?;
    set_state(&ini, ReadyToSend)?;
    lab.succeeds("a send after SQD", &lab.near.cq, 3, CompletionOpcode::Send)?;
    lab.succeeds("its receive", &cq, 3, CompletionOpcode::Receive)?;
    set_state(&ini, Error)?;
    post(4)?;
    let flushed = lab.ends("a send in ERR", &lab.near.cq, 4, CompletionStatus::WorkRequestFlushed)?;
    equal("the QP of the flushed send", flushed.qp_number, ini.number())?;
    check(ini.number() != QpNumber::new(0), || "the INI has number 0".to_owned())
}

/// Posts a send on an INI before RTS, to a target that would accept the message. The pair is not used again, because an
/// accepted request may still be queued.
fn early_send(lab: &Lab, state: QpState) -> Verdict {
    let terms = Terms::default();
    let (xrcd, target_cq, initiator_cq) = (lab.far.new_xrcd()?, lab.far.new_cq()?, lab.near.new_cq()?);
    let srq = lab.far.new_srq(&xrcd, &target_cq)?;
    let init = QpInit { send_cq: Some(Arc::clone(&initiator_cq)), ..lab.near.ini_init() };
    let (ini, tgt) = (lab.near.device.create_qp(init)?, lab.far.new_tgt(&xrcd)?);
    let target = End { side: &lab.far, qp: &tgt, other: lab.near.gid(), peer: ini.number() };
    target.bring_to(QpState::ReadyToSend, &terms)?;
    let initiator = End { side: &lab.near, qp: &ini, other: lab.far.gid(), peer: tgt.number() };
    initiator.bring_to(state, &terms)?;
    receive(&srq, 1, &[lab.far.piece(0, 64)])?;
    let data = [lab.near.piece(0, 8)];
    let send = request(2, SendOperation::Send, &data, srq.number()?);
    let what = format!("a send in {state:?}");
    not_executed(&what, lab.what_becomes_of(&ini, send, &initiator_cq))?;
    check(poll_one(&target_cq).is_none(), || format!("{what} reached its target"))
}
