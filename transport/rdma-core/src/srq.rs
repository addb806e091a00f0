//! Shared receive queues, both basic and XRC.

use crate::context::Opened;
use crate::convert::zeroed;
use crate::cq::Cq;
use crate::error::{Doing, check, check_destroy, last};
use crate::handle::{Handle, dropped};
use crate::inlines;
use crate::pd::Pd;
use crate::post::{Receiver, receive};
use crate::xrcd::Xrcd;
use rdma_sys::*;
use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use trunkline_verbs::{
    AsyncSubject, PostError, ReceiveRequest, SharedReceiveQueue, SrqAttributes, SrqNumber, VerbsError,
};

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    handle: Handle<ibv_srq>,
    /// Number of an XRC SRQ, which peers use to address it; `None` for a basic SRQ.
    number: Option<SrqNumber>,
    opened: Arc<Opened>,
    // Objects that the SRQ uses. Fields are dropped after the destructor has destroyed the SRQ.
    _pd: Arc<Pd>,
    xrc: Option<(Arc<Xrcd>, Arc<Cq>)>,
}

impl Srq {
    pub(crate) fn new(
        pd: Arc<Pd>,
        xrc: Option<(Arc<Xrcd>, Arc<Cq>)>,
        max_wr: u32,
        max_sge: u32,
        number: u64,
    ) -> Result<Self, VerbsError> {
        let opened = Arc::clone(pd.opened());
        let attr = ibv_srq_attr { max_wr, max_sge, srq_limit: 0 };
        let held = pd.handle().hold()?;
        let raw = match &xrc {
            None => opened.enter(|| {
                let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr };
                // SAFETY: the guard keeps the domain from being destroyed, and the attributes are local.
                taken(unsafe { ibv_create_srq(held.raw(), &raw mut init) }, number)
            })?,
            Some((xrcd, cq)) => {
                use ibv_srq_init_attr_mask as M;
                let (xrcd, cq) = (xrcd.handle().hold()?, cq.handle().hold()?);
                // SAFETY: the structure consists of numbers and pointers.
                let mut init: ibv_srq_init_attr_ex = unsafe { zeroed() };
                init.attr = attr;
                init.comp_mask = (M::IBV_SRQ_INIT_ATTR_TYPE
                    | M::IBV_SRQ_INIT_ATTR_PD
                    | M::IBV_SRQ_INIT_ATTR_XRCD
                    | M::IBV_SRQ_INIT_ATTR_CQ)
                    .0;
                init.srq_type = ibv_srq_type::IBV_SRQT_XRC;
                (init.pd, init.xrcd, init.cq) = (held.raw(), xrcd.raw(), cq.raw());
                opened.enter(|| {
                    // SAFETY: the guards keep the objects of the structure from being destroyed.
                    taken(unsafe { inlines::create_srq_ex(opened.live(), &mut init) }, number)
                })?
            }
        };
        drop(held);
        // SAFETY: libibverbs has just created it, and only this value destroys it.
        let handle = unsafe { Handle::new(raw) };
        let mut srq = Self { handle, number: None, opened, _pd: pd, xrc };
        if srq.xrc.is_some() {
            let mut number = 0;
            check(Doing::Query, srq.handle.with(|srq| inlines::get_srq_num(srq, &mut number))?)?;
            srq.number = Some(SrqNumber::new(number));
        }
        Ok(srq)
    }

    /// Returns the C object.
    pub(crate) fn handle(&self) -> &Handle<ibv_srq> {
        &self.handle
    }

    /// Returns the opening to which the SRQ belongs.
    pub(crate) fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }

    /// Returns true for an XRC SRQ.
    pub(crate) fn is_xrc(&self) -> bool {
        self.xrc.is_some()
    }

    fn modify(&self, mut attr: ibv_srq_attr, mask: ibv_srq_attr_mask) -> Result<(), VerbsError> {
        let mask = c_int::try_from(mask.0).unwrap_or(0);
        // SAFETY: the SRQ is `Live`, and the attributes are local.
        let status = self.handle.with(|srq| unsafe { ibv_modify_srq(srq.raw(), &raw mut attr, mask) })?;
        check(Doing::ModifySrq, status)
    }
}

fn taken(raw: *mut ibv_srq, number: u64) -> Result<(NonNull<ibv_srq>, AsyncSubject), VerbsError> {
    let raw = NonNull::new(raw).ok_or_else(|| last(Doing::CreateSrq))?;
    Ok((raw, AsyncSubject::Srq(number)))
}

impl SharedReceiveQueue for Srq {
    fn number(&self) -> Result<SrqNumber, VerbsError> {
        self.number.ok_or(VerbsError::Invalid("a basic SRQ has no number that a peer could name"))
    }

    fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        let posted = self.handle.with(|srq| receive(Receiver::Srq(srq), requests));
        posted.unwrap_or_else(|cause| Err(PostError { index: 0, cause }))
    }

    fn query(&self) -> Result<SrqAttributes, VerbsError> {
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 0 };
        // SAFETY: the SRQ is `Live`, and the attributes are local.
        let status = self.handle.with(|srq| unsafe { ibv_query_srq(srq.raw(), &raw mut attr) })?;
        check(Doing::Query, status)?;
        Ok(SrqAttributes { max_wr: attr.max_wr, max_sge: attr.max_sge, limit: attr.srq_limit })
    }

    fn arm_limit(&self, limit: u32) -> Result<(), VerbsError> {
        let attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        self.modify(attr, ibv_srq_attr_mask::IBV_SRQ_LIMIT)
    }

    fn resize(&self, max_wr: u32) -> Result<(), VerbsError> {
        let attr = ibv_srq_attr { max_wr, max_sge: 0, srq_limit: 0 };
        self.modify(attr, ibv_srq_attr_mask::IBV_SRQ_MAX_WR)
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        self.handle.destroy(
            // SAFETY: the SRQ is `Live`. If the call succeeds, `Handle::destroy` clears the pointer, so the
            // SRQ is not used afterwards.
            |srq| self.opened.leave(srq.raw(), |srq| unsafe { ibv_destroy_srq(srq) }),
            |errno| check_destroy(errno, "a QP takes its receives from this SRQ"),
        )
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        dropped("a shared receive queue", self.destroy());
    }
}
