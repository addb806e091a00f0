//! Section R: failures and ends of reliable connections, and connection setup through the CM.

use super::srq::limit_event;
use crate::check::{EBUSY, EINVAL, Verdict, check, equal, refused};
use crate::connect::{Terms, answer_disconnect, both_sides_end, dial, few_retries, listen_in, unexpected};
use crate::traffic::{receive, request};
use crate::{Deviation, Lab, Side};
use std::net::SocketAddr;
use std::sync::Arc;
use trunkline_verbs::{
    Access, AsyncSubject, CmChannel, CmEventKind, CmId, CompletionOpcode as Op, CompletionQueue,
    CompletionStatus as Status, ConnectParameters, PortSpace, QpInit, QpState, QpType, QueuePair,
    ReceiveRequest, RejectReason, RemoteAddress, Rkey, SendOperation, SharedReceiveQueue, SrqInit, SrqKind,
    SrqNumber,
};

/// Unused SRQ number; RC packets have no XRCETH.
const NO_SRQ: SrqNumber = SrqNumber::new(0);

/// An RC QP at the near side, connected to an RC QP that has an SRQ at the far side.
pub(super) struct RcPair {
    pub(super) near: Arc<dyn QueuePair>,
    far: Arc<dyn QueuePair>,
    srq: Arc<dyn SharedReceiveQueue>,
    /// The far QP's receive CQ.
    cq: Arc<dyn CompletionQueue>,
}

impl RcPair {
    pub(super) fn new(lab: &Lab, terms: &Terms) -> Verdict<Self> {
        let (srq, cq) = (lab.far.new_basic_srq()?, lab.far.new_cq()?);
        let near = lab.near.device.create_qp(lab.near.rc_init())?;
        let far = lab.far.device.create_qp(with_srq(&lab.far, &srq, &cq))?;
        lab.join_rc_by(&near, &far, terms)?;
        Ok(Self { near, far, srq, cq })
    }

    fn send(&self, lab: &Lab, wr_id: u64, length: u32) -> Verdict {
        let data = [lab.near.piece(0, length)];
        Ok(self.near.post_send(&[request(wr_id, SendOperation::Send, &data, NO_SRQ)])?)
    }
}

fn with_srq(side: &Side, srq: &Arc<dyn SharedReceiveQueue>, cq: &Arc<dyn CompletionQueue>) -> QpInit {
    QpInit { srq: Some(Arc::clone(srq)), receive_cq: Some(Arc::clone(cq)), ..side.rc_init() }
}

pub(super) fn r3(lab: &Lab) -> Verdict {
    let pair = RcPair::new(lab, &Terms::default())?;
    let capacity = pair.srq.query()?.max_wr;
    refused("a limit above the size", pair.srq.arm_limit(capacity + 1), EINVAL)?;
    for wr_id in 0..6 {
        receive(&pair.srq, wr_id, &[lab.far.piece(0, 64)])?;
    }
    pair.srq.arm_limit(3)?;
    let consume = |wr_id| {
        pair.send(lab, wr_id, 8)?;
        lab.succeeds("a send", &lab.near.cq, wr_id, Op::Send)?;
        lab.succeeds("a receive", &pair.cq, wr_id, Op::Receive)
    };
    for wr_id in 0..3 {
        consume(wr_id)?;
        check(limit_event(lab).is_none(), || format!("the limit of 3 fired with {} posted", 5 - wr_id))?;
    }
    consume(3)?;
    let subject = lab.wait("the limit event", || limit_event(lab))?;
    equal("the SRQ of the event", subject, AsyncSubject::Srq(0))?;
    consume(4)?;
    check(limit_event(lab).is_none(), || "the limit fired twice".to_owned())
}

pub(super) fn r4(lab: &Lab) -> Verdict {
    let pair = RcPair::new(lab, &Terms { rnr_retry: 1, ..Terms::default() })?;
    pair.send(lab, 1, 8)?;
    pair.send(lab, 2, 8)?;
    lab.ends("a send to an empty SRQ", &lab.near.cq, 1, Status::RnrRetryExceeded)?;
    lab.ends("the send after it", &lab.near.cq, 2, Status::WorkRequestFlushed)?;
    equal("the sender's state", pair.near.query()?.state, QpState::Error)
}

pub(super) fn r5(lab: &Lab) -> Verdict {
    let pair = RcPair::new(lab, &Terms::default())?;
    receive(&pair.srq, 1, &[lab.far.piece(0, 64)])?;
    pair.send(lab, 2, 65)?;
    let sent = lab.next("a send of one byte too many", &lab.near.cq)?;
    equal("which send", sent.wr_id, 2)?;
    check(lab.length_violation.contains(&sent.status), || format!("the send ended with {:?}", sent.status))?;
    let ended = lab.next("its receive", &pair.cq)?;
    equal("which receive", ended.wr_id, 1)?;
    let fits = match sent.status {
        Status::RemoteOperationError => ended.status == Status::LocalQpOperationError,
        _ => [Status::LocalLengthError, Status::RemoteInvalidRequest].contains(&ended.status),
    };
    check(fits, || format!("the receive ended with {:?}", ended.status))?;
    lab.wait("the receiver's state ERR", || {
        let state = pair.far.query().ok()?.state;
        (state == QpState::Error).then_some(())
    })
}

pub(super) fn r6(lab: &Lab) -> Verdict {
    let far = &lab.far;
    far.fill(0, 64, 0x11)?;
    let read_only = far.pd.register(Arc::clone(&far.memory), Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    let at = |rkey, offset| RemoteAddress { address: far.memory.address(offset), rkey };
    let whole = at(far.region.rkey(), 0);
    let nobody = at(Rkey(whole.rkey.0 ^ 0x00ff_ff00), 0);
    let end = at(far.region.rkey(), crate::lab::MEMORY_BYTES - 4);
    let no_write = at(read_only.rkey(), 0);
    let none = Terms { access: Access::empty(), ..Terms::default() };
    let cases = [
        ("a WRITE with an unknown rkey", SendOperation::RdmaWrite(nobody), Terms::default()),
        ("a WRITE past the end of its region", SendOperation::RdmaWrite(end), Terms::default()),
        ("a WRITE to a region without write access", SendOperation::RdmaWrite(no_write), Terms::default()),
        ("a READ with an unknown rkey", SendOperation::RdmaRead(nobody), Terms::default()),
        ("a WRITE to a QP without write access", SendOperation::RdmaWrite(whole), none),
    ];
    for (what, operation, terms) in cases {
        let pair = RcPair::new(lab, &terms)?;
        lab.near.fill(0, 8, 0x77)?;
        pair.near.post_send(&[request(1, operation, &[lab.near.piece(0, 8)], NO_SRQ)])?;
        let ended = lab.next(what, &lab.near.cq)?;
        let due = [Status::RemoteAccessError, Status::RemoteInvalidRequest];
        check(due.contains(&ended.status), || format!("{what} ended with {:?}", ended.status))?;
        far.holds("memory that must not change", 0, 64, 0x11)?;
    }
    drop(read_only);
    Ok(())
}

pub(super) fn r7(lab: &Lab) -> Verdict {
    let near = lab.near.device.create_qp(lab.near.rc_init())?;
    let silent = lab.far.device.create_qp(lab.far.rc_init())?;
    let end = crate::connect::End { side: &lab.near, qp: &near, other: lab.far.gid(), peer: silent.number() };
    end.bring_to(QpState::ReadyToSend, &few_retries())?;
    near.post_send(&[request(1, SendOperation::Send, &[lab.near.piece(0, 8)], NO_SRQ)])?;
    lab.ends("a send to a QP that is not connected", &lab.near.cq, 1, Status::RetryExceeded)?;
    equal("the sender's state", near.query()?.state, QpState::Error)
}

/// An active endpoint, its QP and its event channel.
type Initiator = (Arc<dyn CmId>, Arc<dyn QueuePair>, Arc<dyn CmChannel>);

/// Starts a connection attempt on the active side.
fn begin_connect(lab: &Lab, remote: SocketAddr, port_space: PortSpace) -> Verdict<Initiator> {
    let (id, channel) = dial(&lab.near, remote, port_space, QpType::Rc)?;
    let qp = lab.near.device.create_qp(lab.near.rc_init())?;
    id.attach(Arc::clone(&qp))?;
    let offer = ConnectParameters { private_data: b"offer".to_vec(), ..ConnectParameters::default() };
    id.connect(&offer)?;
    Ok((id, qp, channel))
}

pub(super) fn r8(lab: &Lab) -> Verdict {
    for port_space in [PortSpace::Tcp, PortSpace::Ib] {
        let (listener, passive) = listen_in(&lab.far, port_space, QpType::Rc)?;
        let (near_id, near, active) = begin_connect(lab, listener.local_address(), port_space)?;
        let incoming = lab.next_cm("a connection request", &passive)?;
        equal("the request's private data", incoming.private_data.get(..5), Some(&b"offer"[..]))?;
        let CmEventKind::ConnectRequest { id: far_id, .. } = incoming.kind else {
            return Err(unexpected("the listener", &incoming));
        };
        let (srq, cq) = (lab.far.new_basic_srq()?, lab.far.new_cq()?);
        let far = lab.far.device.create_qp(with_srq(&lab.far, &srq, &cq))?;
        far_id.attach(Arc::clone(&far))?;
        let near_cq = &lab.near.cq;
        near.post_receive(&[ReceiveRequest { wr_id: 7, scatter: &[lab.near.piece(64, 64)] }])?;
        receive(&srq, 8, &[lab.far.piece(64, 64)])?;
        let answer = ConnectParameters { private_data: b"answer".to_vec(), ..ConnectParameters::default() };
        far_id.accept(&answer)?;
        for (what, channel) in [("the active side", &active), ("the passive side", &passive)] {
            let event = lab.next_cm(what, channel)?;
            if !matches!(event.kind, CmEventKind::Established) {
                return Err(unexpected(what, &event));
            }
            let is_active = Arc::ptr_eq(channel, &active);
            let matches = !is_active || event.private_data.starts_with(b"answer");
            check(matches, || format!("the reply's private data: {:?}", event.private_data))?;
        }
        near.post_send(&[request(1, SendOperation::Send, &[lab.near.piece(0, 8)], NO_SRQ)])?;
        lab.succeeds("a send", near_cq, 1, Op::Send)?;
        lab.succeeds("a receive", &cq, 8, Op::Receive)?;
        far.post_send(&[request(2, SendOperation::Send, &[lab.far.piece(0, 8)], NO_SRQ)])?;
        lab.succeeds("a send back", &lab.far.cq, 2, Op::Send)?;
        lab.succeeds("a receive", near_cq, 7, Op::Receive)?;
        near.post_receive(&[ReceiveRequest { wr_id: 9, scatter: &[lab.near.piece(64, 64)] }])?;
        near_id.disconnect()?;
        both_sides_end(
            || lab.next_cm("the passive side", &passive),
            || answer_disconnect(&far_id),
            || lab.next_cm("the active side", &active),
        )?;
        lab.ends("a receive after the end", near_cq, 9, Status::WorkRequestFlushed)?;
    }
    Ok(())
}

pub(super) fn r9(lab: &Lab) -> Verdict {
    let (listener, passive) = listen_in(&lab.far, PortSpace::Tcp, QpType::Rc)?;
    let address = listener.local_address();
    let (_near_id, _near, active) = begin_connect(lab, address, PortSpace::Tcp)?;
    let incoming = lab.next_cm("a connection request", &passive)?;
    let CmEventKind::ConnectRequest { id, .. } = incoming.kind else {
        return Err(unexpected("the listener", &incoming));
    };
    id.reject(b"no room")?;
    expect_refusal(lab, &active, RejectReason::CONSUMER, b"no room")?;
    drop(id);
    // After the listener has been dropped, the next request is refused.
    drop(listener);
    let (_near_id, _near, active) = begin_connect(lab, address, PortSpace::Tcp)?;
    expect_refusal(lab, &active, RejectReason::INVALID_SERVICE_ID, b"")
}

fn expect_refusal(
    lab: &Lab,
    channel: &Arc<dyn CmChannel>,
    due: RejectReason,
    private_data: &[u8],
) -> Verdict {
    let event = lab.next_cm("the refused request", channel)?;
    let CmEventKind::Rejected(reason) = event.kind else {
        return Err(unexpected("the active side", &event));
    };
    equal("the reason", reason, due)?;
    check(event.private_data.starts_with(private_data), || format!("private data {:?}", event.private_data))
}

pub(super) fn r10(lab: &Lab) -> Verdict {
    let far = &lab.far;
    let (pd, cq) = (far.device.alloc_pd()?, far.new_cq()?);
    let region = pd.register(Arc::clone(&far.memory), Access::LOCAL_WRITE)?;
    refused("destroying the PD of a region", pd.destroy(), EBUSY)?;
    drop(region);
    let srq = far.device.create_srq(SrqInit {
        pd: Arc::clone(&pd),
        kind: SrqKind::Basic,
        max_wr: 8,
        max_sge: 1,
        context: 0,
    })?;
    let init =
        QpInit { pd: Some(Arc::clone(&pd)), send_cq: Some(Arc::clone(&cq)), ..with_srq(far, &srq, &cq) };
    let qp = far.device.create_qp(init)?;
    refused("destroying the CQ of a QP", cq.destroy(), EBUSY)?;
    refused("destroying the SRQ of a QP", srq.destroy(), EBUSY)?;
    qp.destroy()?;
    refused("destroying the PD of an SRQ", pd.destroy(), EBUSY)?;
    srq.destroy()?;
    cq.destroy()?;
    pd.destroy().map_err(Deviation::from)
}
