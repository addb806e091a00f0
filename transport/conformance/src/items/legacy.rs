//! Section B: the calls of OFED 1.x on a device. Two tables of registrations represent two processes, because the table is
//! the only state that these calls keep per process.

use crate::check::{Deviation, EAGAIN, EBUSY, EEXIST, EINVAL, Verdict, check, equal};
use crate::connect::{End, Terms, every_attribute, init_mask, only, rtr_mask};
use crate::traffic::{receive, request};
use crate::{Lab, Side};
use std::os::fd::AsFd;
use std::sync::{Arc, Barrier};
use std::thread;
use trunkline_testkit::Folder;
use trunkline_verbs::legacy::{LegacyError, LegacySrqInit, LegacyXrc};
use trunkline_verbs::{
    CompletionOpcode, QpModify, QpNumber, QpState, QpType, SendOperation, SharedReceiveQueue, XrcDomain,
    XrcdFlags,
};

impl From<LegacyError> for Deviation {
    fn from(error: LegacyError) -> Self {
        Self::Failed(format!("a call was refused: {error}"))
    }
}

fn process(side: &Side) -> LegacyXrc {
    LegacyXrc::new(Arc::clone(&side.device))
}

fn refused<T>(what: &str, result: Result<T, LegacyError>, errno: i32) -> Verdict {
    match result {
        Ok(_) => Err(Deviation::Failed(format!("{what} was allowed; it must fail with errno {errno}"))),
        Err(error) => equal(&format!("{what}: errno of \"{error}\""), error.errno(), errno),
    }
}

/// Returns the change that moves the far side's receive QP to the state `to`.
fn step(lab: &Lab, peer: QpNumber, to: QpState) -> QpModify {
    let (from, mask) = match to {
        QpState::Init => (QpState::Reset, init_mask()),
        _ => (QpState::Init, rtr_mask(QpType::XrcTgt)),
    };
    only(&every_attribute(&lab.far, lab.near.gid(), peer, from, to, &Terms::default()), mask)
}

fn new_srq(
    lab: &Lab,
    process: &LegacyXrc,
    domain: &Arc<dyn XrcDomain>,
) -> Verdict<Arc<dyn SharedReceiveQueue>> {
    let init = LegacySrqInit { max_wr: 8, max_sge: 1, context: 0 };
    Ok(process.create_xrc_srq(&lab.far.pd, domain, &lab.far.cq, init)?)
}

pub(super) fn b2(lab: &Lab) -> Verdict {
    let (a, b, folder) = (process(&lab.far), process(&lab.far), Folder::new()?);
    let file = folder.create("domain")?;
    let open = |process: &LegacyXrc, flags| process.open_xrc_domain(Some(file.as_fd()), flags);
    refused("an open of no domain", open(&a, XrcdFlags::empty()), EAGAIN)?;
    let first = open(&a, XrcdFlags::CREATE)?;
    let exclusive = XrcdFlags::CREATE | XrcdFlags::EXCLUSIVE;
    refused("an exclusive open of the same domain", open(&b, exclusive), EINVAL)?;
    let second = open(&b, XrcdFlags::empty())?;
    let number = a.create_xrc_rcv_qp(&first)?;
    b.reg_xrc_rcv_qp(&second, number)?;
    refused("closing while its creator is registered", a.close_xrc_domain(&first), EBUSY)?;
    a.unreg_xrc_rcv_qp(&first, number)?;
    a.close_xrc_domain(&first)?;
    refused("closing while another process is registered", b.close_xrc_domain(&second), EBUSY)?;
    let srq = new_srq(lab, &b, &second)?;
    b.unreg_xrc_rcv_qp(&second, number)?;
    refused("closing while an SRQ exists", b.close_xrc_domain(&second), EBUSY)?;
    srq.destroy()?;
    Ok(b.close_xrc_domain(&second)?)
}

pub(super) fn b3(lab: &Lab) -> Verdict {
    let (a, b) = (process(&lab.far), process(&lab.far));
    let domain = lab.far.new_xrcd()?;
    let number = a.create_xrc_rcv_qp(&domain)?;
    refused("registering the creator", a.reg_xrc_rcv_qp(&domain, number), EEXIST)?;
    equal("its state", a.query_xrc_rcv_qp(&domain, number)?.state, QpState::Reset)?;
    a.unreg_xrc_rcv_qp(&domain, number)?;
    refused("registering after the creator unregistered", b.reg_xrc_rcv_qp(&domain, number), EINVAL)?;
    refused("unregistering twice", a.unreg_xrc_rcv_qp(&domain, number), EINVAL)
}

pub(super) fn b4(lab: &Lab) -> Verdict {
    let (a, b) = (process(&lab.far), process(&lab.far));
    let (domain, other) = (lab.far.new_xrcd()?, lab.far.new_xrcd()?);
    let number = a.create_xrc_rcv_qp(&domain)?;
    refused("registering in another domain", b.reg_xrc_rcv_qp(&other, number), EINVAL)?;
    let nobody = QpNumber::new(number.get() ^ 0x80_0000);
    refused("registering with an unknown number", b.reg_xrc_rcv_qp(&domain, nobody), EINVAL)?;
    let ini = lab.far.new_ini()?;
    refused("registering with an INI", b.reg_xrc_rcv_qp(&domain, ini.number()), EINVAL)?;
    refused("registering again in another domain", a.reg_xrc_rcv_qp(&other, number), EINVAL)
}

pub(super) fn b5(lab: &Lab) -> Verdict {
    let (a, b) = (process(&lab.far), process(&lab.far));
    let (domain, other) = (lab.far.new_xrcd()?, lab.far.new_xrcd()?);
    let number = a.create_xrc_rcv_qp(&domain)?;
    refused("unregistering a process that is not registered", b.unreg_xrc_rcv_qp(&domain, number), EINVAL)?;
    refused("unregistering in another domain", a.unreg_xrc_rcv_qp(&other, number), EINVAL)?;
    b.reg_xrc_rcv_qp(&domain, number)?;
    a.unreg_xrc_rcv_qp(&domain, number)?;
    equal("its state at the second", b.query_xrc_rcv_qp(&domain, number)?.state, QpState::Reset)?;
    a.reg_xrc_rcv_qp(&domain, number)?;
    // A process's registrations end with the process.
    drop(b);
    a.unreg_xrc_rcv_qp(&domain, number)?;
    refused("registering after the last one unregistered", a.reg_xrc_rcv_qp(&domain, number), EINVAL)
}

/// Sends a message through a receive QP that is in RTR.
pub(super) fn b6(lab: &Lab) -> Verdict {
    let a = process(&lab.far);
    let domain = lab.far.new_xrcd()?;
    let srq = new_srq(lab, &a, &domain)?;
    let number = a.create_xrc_rcv_qp(&domain)?;
    let ini = lab.near.new_ini()?;
    for to in [QpState::Init, QpState::ReadyToReceive] {
        a.modify_xrc_rcv_qp(&domain, number, &step(lab, ini.number(), to))?;
    }
    equal("its state", a.query_xrc_rcv_qp(&domain, number)?.state, QpState::ReadyToReceive)?;
    let initiator = End { side: &lab.near, qp: &ini, other: lab.far.gid(), peer: number };
    initiator.bring_to(QpState::ReadyToSend, &Terms::default())?;
    lab.near.fill(0, 1500, 6)?;
    receive(&srq, 1, &[lab.far.piece(0, 2048)])?;
    ini.post_send(&[request(2, SendOperation::Send, &[lab.near.piece(0, 1500)], srq.number()?)])?;
    let got = lab.succeeds("a message by the older calls", &lab.far.cq, 1, CompletionOpcode::Receive)?;
    equal("the QP it came through", got.qp_number, number)?;
    lab.far.holds("the message", 0, 1500, 6)
}

pub(super) fn b8(lab: &Lab) -> Verdict {
    let (a, device) = (process(&lab.far), &lab.far.device);
    let domain = a.open_xrc_domain(None, XrcdFlags::CREATE)?;
    let number = a.create_xrc_rcv_qp(&domain)?;
    let opened = device.open_qp(&domain, number)?;
    equal("the type of a receive QP", opened.qp_type(), QpType::XrcTgt)?;
    a.unreg_xrc_rcv_qp(&domain, number)?;
    equal("its state at a handle of the present API", opened.query()?.state, QpState::Reset)?;
    a.reg_xrc_rcv_qp(&domain, number)?;
    opened.destroy()?;
    a.modify_xrc_rcv_qp(&domain, number, &step(lab, QpNumber::new(7), QpState::Init))?;
    equal("its state by number", a.query_xrc_rcv_qp(&domain, number)?.state, QpState::Init)
}

pub(super) fn b9(lab: &Lab) -> Verdict {
    let (a, b) = (process(&lab.far), process(&lab.far));
    let (domain, other) = (lab.far.new_xrcd()?, lab.far.new_xrcd()?);
    let number = a.create_xrc_rcv_qp(&domain)?;
    let change = step(lab, QpNumber::new(7), QpState::Init);
    refused(
        "a change by a process that is not registered",
        b.modify_xrc_rcv_qp(&domain, number, &change),
        EINVAL,
    )?;
    refused("a query by a process that is not registered", b.query_xrc_rcv_qp(&domain, number), EINVAL)?;
    refused("a change in another domain", a.modify_xrc_rcv_qp(&other, number, &change), EINVAL)?;
    refused("a query in another domain", a.query_xrc_rcv_qp(&other, number), EINVAL)?;
    b.reg_xrc_rcv_qp(&domain, number)?;
    refused("a second registration", b.reg_xrc_rcv_qp(&domain, number), EEXIST)?;
    Ok(b.modify_xrc_rcv_qp(&domain, number, &change)?)
}

pub(super) fn b10(lab: &Lab) -> Verdict {
    let domain = lab.far.new_xrcd()?;
    for round in 0..20 {
        let (a, b) = (process(&lab.far), process(&lab.far));
        let number = a.create_xrc_rcv_qp(&domain)?;
        b.reg_xrc_rcv_qp(&domain, number)?;
        let start = Barrier::new(2);
        let race = |process: &LegacyXrc| {
            start.wait();
            for to in [QpState::Init, QpState::ReadyToReceive] {
                process.modify_xrc_rcv_qp(&domain, number, &step(lab, QpNumber::new(7), to))?;
            }
            Ok::<_, LegacyError>(())
        };
        let results = thread::scope(|scope| {
            let other = scope.spawn(|| race(&b));
            [Ok(race(&a)), other.join()]
        });
        let mut lost = Vec::new();
        for result in results {
            let result = result.map_err(|_| Deviation::Failed("a racing thread panicked".to_owned()))?;
            lost.extend(result.err().map(LegacyError::errno));
        }
        check(lost == [EINVAL], || format!("round {round}: errnos {lost:?} instead of one EINVAL"))?;
        equal("its state", b.query_xrc_rcv_qp(&domain, number)?.state, QpState::ReadyToReceive)?;
    }
    Ok(())
}
