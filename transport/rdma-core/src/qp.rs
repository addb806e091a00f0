//! Queue pairs. A TGT may have several handles, and each is a [`Qp`].

use crate::async_events::of_qp;
use crate::context::Opened;
use crate::convert::{self, zeroed};
use crate::cq::Cq;
use crate::error::{Doing, check, check_destroy, last};
use crate::handle::{Handle, dropped, raw_or_null};
use crate::inlines;
use crate::pd::Pd;
use crate::post::{self, Receiver};
use crate::srq::Srq;
use crate::xrcd::Xrcd;
use rdma_sys::*;
use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use trunkline_verbs::{
    PostError, QpAttributes, QpModify, QpNumber, QpType, QueueCapacities, QueuePair, ReceiveRequest,
    SendRequest, VerbsError,
};

/// The objects that a QP uses.
#[derive(Debug, Default)]
pub(crate) struct QpParts {
    pub(crate) pd: Option<Arc<Pd>>,
    pub(crate) send_cq: Option<Arc<Cq>>,
    pub(crate) receive_cq: Option<Arc<Cq>>,
    pub(crate) srq: Option<Arc<Srq>>,
    pub(crate) xrcd: Option<Arc<Xrcd>>,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    handle: Handle<ibv_qp>,
    number: QpNumber,
    qp_type: QpType,
    capacities: QueueCapacities,
    opened: Arc<Opened>,
    parts: QpParts,
}

impl Qp {
    /// Creates a QP from objects that fit its type. The caller has checked this.
    pub(crate) fn create(
        opened: Arc<Opened>,
        qp_type: QpType,
        capacities: QueueCapacities,
        signal_all: bool,
        parts: QpParts,
    ) -> Result<Self, VerbsError> {
        use ibv_qp_init_attr_mask as M;
        // SAFETY: the structure consists of numbers and pointers.
        let mut init: ibv_qp_init_attr_ex = unsafe { zeroed() };
        init.cap = convert::to_cap(capacities);
        init.qp_type = convert::qp_type(qp_type);
        init.sq_sig_all = c_int::from(signal_all);
        init.comp_mask =
            if qp_type == QpType::XrcTgt { M::IBV_QP_INIT_ATTR_XRCD.0 } else { M::IBV_QP_INIT_ATTR_PD.0 };
        // Lock a CQ that is used by both queues only once. A second read lock would deadlock if a writer waits.
        let is_one_cq =
            matches!((&parts.send_cq, &parts.receive_cq), (Some(a), Some(b)) if Arc::ptr_eq(a, b));
        let pd = parts.pd.as_ref().map(|pd| pd.handle().hold()).transpose()?;
        let xrcd = parts.xrcd.as_ref().map(|xrcd| xrcd.handle().hold()).transpose()?;
        let srq = parts.srq.as_ref().map(|srq| srq.handle().hold()).transpose()?;
        let send_cq = parts.send_cq.as_ref().map(|cq| cq.handle().hold()).transpose()?;
        let receive_cq = parts.receive_cq.as_ref().filter(|_| !is_one_cq);
        let receive_cq = receive_cq.map(|cq| cq.handle().hold()).transpose()?;
        init.pd = raw_or_null(pd.as_ref());
        init.xrcd = raw_or_null(xrcd.as_ref());
        init.srq = raw_or_null(srq.as_ref());
        init.send_cq = raw_or_null(send_cq.as_ref());
        init.recv_cq = if is_one_cq { init.send_cq } else { raw_or_null(receive_cq.as_ref()) };
        let raw = opened.enter(|| {
            // SAFETY: the guards keep the objects of the structure from being destroyed.
            taken(unsafe { inlines::create_qp_ex(opened.live(), &mut init) }, Doing::CreateQp)
        })?;
        drop((pd, xrcd, srq, send_cq, receive_cq));
        let capacities = match qp_type {
            QpType::XrcTgt => QueueCapacities::default(),
            _ => convert::from_cap(&init.cap),
        };
        Ok(Self::new(opened, raw, qp_type, capacities, parts))
    }

    /// Opens another handle of a TGT.
    pub(crate) fn open(xrcd: Arc<Xrcd>, number: QpNumber) -> Result<Self, VerbsError> {
        use ibv_qp_open_attr_mask as M;
        let opened = Arc::clone(xrcd.opened());
        let raw = xrcd.handle().with(|xrcd| {
            let mask = M::IBV_QP_OPEN_ATTR_NUM | M::IBV_QP_OPEN_ATTR_XRCD | M::IBV_QP_OPEN_ATTR_TYPE;
            let mut attributes = ibv_qp_open_attr {
                comp_mask: mask.0,
                qp_num: number.get(),
                xrcd: xrcd.raw(),
                qp_context: null_mut(),
                qp_type: ibv_qp_type::IBV_QPT_XRC_RECV,
            };
            opened.enter(|| {
                // SAFETY: the domain of the structure is `Live`.
                let raw = unsafe { inlines::open_qp(opened.live(), &mut attributes) };
                taken(raw, Doing::OpenQp)
            })
        })??;
        let parts = QpParts { xrcd: Some(xrcd), ..QpParts::default() };
        Ok(Self::new(opened, raw, QpType::XrcTgt, QueueCapacities::default(), parts))
    }

    fn new(
        opened: Arc<Opened>,
        raw: NonNull<ibv_qp>,
        qp_type: QpType,
        capacities: QueueCapacities,
        parts: QpParts,
    ) -> Self {
        // SAFETY: libibverbs has just created the QP.
        let number = QpNumber::new(unsafe { (*raw.as_ptr()).qp_num });
        // SAFETY: libibverbs has just created it, and only this value destroys it.
        let handle = unsafe { Handle::new(raw) };
        Self { handle, number, qp_type, capacities, opened, parts }
    }

    /// Returns the opening to which the QP belongs.
    pub(crate) fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }

    /// Changes the QP with C attributes from `rdma_init_qp_attr`.
    ///
    /// # Errors
    /// Same as [`QueuePair::modify`].
    pub(crate) fn modify_raw(&self, attributes: &mut ibv_qp_attr, mask: c_int) -> Result<(), VerbsError> {
        // SAFETY: the QP is `Live`, and the attributes are borrowed exclusively.
        let status = self.handle.with(|qp| unsafe { ibv_modify_qp(qp.raw(), attributes, mask) })?;
        check(Doing::ModifyQp, status)
    }

    /// Returns true if the QP takes its receives from an SRQ.
    pub(crate) fn has_srq(&self) -> bool {
        self.parts.srq.is_some()
    }
}

fn taken(
    raw: *mut ibv_qp,
    doing: Doing,
) -> Result<(NonNull<ibv_qp>, trunkline_verbs::AsyncSubject), VerbsError> {
    let raw = NonNull::new(raw).ok_or_else(|| last(doing))?;
    // SAFETY: libibverbs has just created it.
    let subject = of_qp(unsafe { (*raw.as_ptr()).qp_num });
    Ok((raw, subject))
}

impl QueuePair for Qp {
    fn number(&self) -> QpNumber {
        self.number
    }

    fn qp_type(&self) -> QpType {
        self.qp_type
    }

    fn capacities(&self) -> QueueCapacities {
        self.capacities
    }

    fn modify(&self, change: &QpModify) -> Result<(), VerbsError> {
        let (mut attr, mask) =
            convert::modify(change).ok_or(VerbsError::Invalid("the GID index exceeds what C can name"))?;
        self.modify_raw(&mut attr, mask)
    }

    fn query(&self) -> Result<QpAttributes, VerbsError> {
        // SAFETY: the structures consist of numbers and pointers.
        let (mut attr, mut init) = unsafe { (zeroed::<ibv_qp_attr>(), zeroed::<ibv_qp_init_attr>()) };
        let mask = convert::QUERY_MASK;
        let status = self.handle.with(|qp| {
            // SAFETY: the QP is `Live`, and both structures are local.
            unsafe { ibv_query_qp(qp.raw(), &raw mut attr, mask, &raw mut init) }
        })?;
        check(Doing::Query, status)?;
        Ok(convert::attributes(self.qp_type, &attr))
    }

    fn post_send(&self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        if self.qp_type == QpType::XrcTgt {
            return Err(PostError { index: 0, cause: VerbsError::Invalid("a TGT does not send") });
        }
        let is_xrc = self.qp_type == QpType::XrcIni;
        let posted = self.handle.with(|qp| post::send(qp, is_xrc, requests));
        posted.unwrap_or_else(|cause| Err(PostError { index: 0, cause }))
    }

    fn post_send_whole(&self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        // A single request is either posted or not posted.
        if requests.len() <= 1 {
            return self.post_send(requests);
        }
        Err(PostError {
            index: 0,
            cause: VerbsError::NotSupported("posting a list of requests either wholly or not at all"),
        })
    }

    fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        if self.qp_type != QpType::Rc || self.parts.srq.is_some() {
            let cause = VerbsError::Invalid("only an RC QP without an SRQ has receives of its own");
            return Err(PostError { index: 0, cause });
        }
        let posted = self.handle.with(|qp| post::receive(Receiver::Qp(qp), requests));
        posted.unwrap_or_else(|cause| Err(PostError { index: 0, cause }))
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        self.handle.destroy(
            // SAFETY: the QP is `Live`. If the call succeeds, `Handle::destroy` clears the pointer, so the
            // QP is not used afterwards.
            |qp| self.opened.leave(qp.raw(), |qp| unsafe { ibv_destroy_qp(qp) }),
            |errno| check_destroy(errno, "the device still uses this QP"),
        )
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        dropped("a queue pair", self.destroy());
    }
}
