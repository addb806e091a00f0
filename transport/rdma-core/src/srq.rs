//! Shared receive queues.

use crate::context::Opened;
use crate::convert::zeroed;
use crate::cq::Cq;
use crate::error::{Doing, check, last};
use crate::handle::{Handle, dropped};
use crate::inlines;
use crate::pd::{Pd, check_destroy};
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
    /// Of an XRC one.
    number: Option<SrqNumber>,
    opened: Arc<Opened>,
    // What it leans on; fields are dropped after the value's own destructor has run.
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
                // SAFETY: the domain is held, the structure is whole.
                taken(unsafe { ibv_create_srq(held.raw(), &raw mut init) }, number)
            })?,
            Some((xrcd, cq)) => {
                use ibv_srq_init_attr_mask as M;
                let (xrcd, cq) = (xrcd.handle().hold()?, cq.handle().hold()?);
                // SAFETY: a structure of plain numbers and pointers.
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
                    // SAFETY: the context is open, the objects of the structure are held.
                    taken(unsafe { inlines::create_srq_ex(opened.raw(), &raw mut init) }, number)
                })?
            }
        };
        drop(held);
        let mut srq = Self { handle: Handle::new(raw), number: None, opened, _pd: pd, xrc };
        if srq.xrc.is_some() {
            let mut number = 0;
            // SAFETY: it has just been made.
            check(Doing::Query, unsafe { inlines::get_srq_num(raw.as_ptr(), &mut number) })?;
            srq.number = Some(SrqNumber::new(number));
        }
        Ok(srq)
    }

    /// The C object.
    pub(crate) fn handle(&self) -> &Handle<ibv_srq> {
        &self.handle
    }

    /// Whose it is.
    pub(crate) fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }

    /// Whether it is reached through TGTs.
    pub(crate) fn is_xrc(&self) -> bool {
        self.xrc.is_some()
    }

    fn modify(&self, mut attr: ibv_srq_attr, mask: ibv_srq_attr_mask) -> Result<(), VerbsError> {
        let mask = c_int::try_from(mask.0).unwrap_or(0);
        // SAFETY: the handle lends a live SRQ, the structure is whole.
        let answer = self.handle.with(|srq| unsafe { ibv_modify_srq(srq, &raw mut attr, mask) })?;
        check(Doing::ModifySrq, answer)
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
        // SAFETY: the handle lends a live SRQ.
        let posted = self.handle.with(|srq| unsafe { receive(Receiver::Srq(srq), requests) });
        posted.unwrap_or_else(|cause| Err(PostError { index: 0, cause }))
    }

    fn query(&self) -> Result<SrqAttributes, VerbsError> {
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 0 };
        // SAFETY: the handle lends a live SRQ, the structure is ours to be written.
        let answer = self.handle.with(|srq| unsafe { ibv_query_srq(srq, &raw mut attr) })?;
        check(Doing::Query, answer)?;
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
            // SAFETY: the handle lends a live SRQ, and takes it as gone when this succeeds.
            |srq| self.opened.leave(srq, |srq| unsafe { ibv_destroy_srq(srq) }),
            |errno| check_destroy(errno, "a QP takes its receives from this SRQ"),
        )
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        dropped("a shared receive queue", self.destroy());
    }
}
