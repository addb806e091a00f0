//! SRQs of ids, of type XRC where the id's QPs are TGTs (contract J4).

use super::host::{host, made};
use super::id::IdObject;
use super::qp::{create_cqs, destroy_cqs};
use crate::abi::*;
use crate::border::{Errno, guarded, value};
use crate::verbs;
use std::ffi::c_int;
use std::ptr::null_mut;

/// Makes the id's SRQ.
///
/// # Safety
/// The id is not destroyed; `pd` is null or alive; `init` may be read and written.
#[unsafe(export_name = "trunkline_rdma_create_srq")]
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> c_int {
    value(|| {
        // SAFETY: the caller's promise.
        let (id, init) = unsafe { (IdObject::of(id)?, init.as_mut().ok_or(Errno::EINVAL)?) };
        let is_xrc = id.get(|base| base.qp_type) == IBV_QPT_XRC_RECV;
        let mut extended = ibv_srq_init_attr_ex {
            srq_context: init.srq_context,
            attr: init.attr,
            comp_mask: IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
            srq_type: if is_xrc { IBV_SRQT_XRC } else { IBV_SRQT_BASIC },
            pd,
            xrcd: null_mut(),
            cq: null_mut(),
            max_num_tags: 0,
            max_ops: 0,
        };
        // SAFETY: the caller's promise.
        let result = unsafe { create(id, &mut extended) };
        init.attr = extended.attr;
        result.map(|()| 0)
    })
}

/// As [`rdma_create_srq`], with more to say.
///
/// # Safety
/// The id is not destroyed; `init` may be read and written, and what it names is alive.
#[unsafe(export_name = "trunkline_rdma_create_srq_ex")]
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, init: *mut ibv_srq_init_attr_ex) -> c_int {
    value(|| {
        // SAFETY: the caller's promise.
        let (id, init) = unsafe { (IdObject::of(id)?, init.as_mut().ok_or(Errno::EINVAL)?) };
        // SAFETY: the caller's promise.
        unsafe { create(id, init) }.map(|()| 0)
    })
}

/// # Safety
/// What `init` names is alive.
unsafe fn create(id: &IdObject, init: &mut ibv_srq_init_attr_ex) -> Result<(), Errno> {
    let base = id.get(|base| *base);
    if init.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || base.verbs.is_null() {
        return Err(Errno::EINVAL);
    }
    if init.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || init.pd.is_null() {
        init.pd = base.pd;
        init.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    }
    let mut made_cq = false;
    if init.srq_type == IBV_SRQT_XRC {
        if init.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || init.xrcd.is_null() {
            init.xrcd = host().xrcd()?;
            init.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
        }
        if init.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || init.cq.is_null() {
            if base.recv_cq.is_null() {
                create_cqs(id, 0, init.attr.max_wr)?;
                made_cq = true;
            }
            init.cq = id.get(|base| base.recv_cq);
            init.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
        }
    }
    // SAFETY: what `init` names is alive, by the caller's promise or because the id holds it.
    let srq = made(unsafe { verbs::create_srq_ex(base.verbs, init) });
    let srq = srq.inspect_err(|_| {
        if made_cq {
            destroy_cqs(id);
        }
    })?;
    let pd = init.pd;
    id.set(|base| {
        base.srq = srq;
        if base.pd.is_null() {
            base.pd = pd;
        }
    });
    Ok(())
}

/// Ends the id's SRQ, and the CQs that were made with it.
///
/// # Safety
/// The id is not destroyed.
#[unsafe(export_name = "trunkline_rdma_destroy_srq")]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    guarded((), || {
        // SAFETY: the caller's promise.
        let Ok(id) = (unsafe { IdObject::of(id) }) else { return };
        let mut srq = null_mut();
        id.set(|base| srq = std::mem::replace(&mut base.srq, null_mut()));
        if !srq.is_null() {
            // SAFETY: it is the id's SRQ, which the id lets go of here.
            unsafe { verbs::ibv_destroy_srq(srq) };
        }
        if id.get(|base| base.qp.is_null()) {
            destroy_cqs(id);
        }
    });
}
