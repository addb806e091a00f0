//! SRQs of ids. An SRQ is an XRC SRQ if the id's QP is a TGT, and otherwise a basic SRQ (contract J4).

use super::fields::{Id, PD, QP, QP_TYPE, RECEIVE_CQ, SRQ, VERBS};
use super::host::host;
use super::qp::{create_cqs, destroy_cqs};
use crate::abi::*;
use crate::border::{Errno, Handle, InOut, guarded, made, value};
use crate::verbs;
use std::ffi::c_int;
use std::ptr::null_mut;

/// `rdma_create_srq(3)`.
///
/// # Safety
/// The id is not destroyed; `pd` is null or not deallocated; `init` points to attributes that only
/// the library uses during the call.
#[unsafe(export_name = "trunkline_rdma_create_srq")]
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> c_int {
    value(|| {
        // SAFETY: the program upholds this function's contract.
        let (id, mut init) = unsafe { (Id::new(id)?, InOut::new(init)?) };
        let is_xrc = id.get(QP_TYPE) == IBV_QPT_XRC_RECV;
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
        // SAFETY: the caller guarantees that `pd` is valid. The attributes refer to no other object.
        let result = unsafe { create(id, &mut extended) };
        init.attr = extended.attr;
        result.map(|()| 0)
    })
}

/// `rdma_create_srq_ex(3)`: like [`rdma_create_srq`], with extended attributes.
///
/// # Safety
/// The id is not destroyed; `init` points to attributes that only the library uses during the call and name
/// objects that are not destroyed.
#[unsafe(export_name = "trunkline_rdma_create_srq_ex")]
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, init: *mut ibv_srq_init_attr_ex) -> c_int {
    value(|| {
        // SAFETY: the program upholds this function's contract.
        unsafe { create(Handle::new(id)?, &mut *InOut::new(init)?) }.map(|()| 0)
    })
}

/// Creates the id's SRQ. If an object is missing in `init`, it is taken from the id or created.
///
/// # Safety
/// Each object that `init` names is null or not destroyed.
unsafe fn create(id: Id<'_>, init: &mut ibv_srq_init_attr_ex) -> Result<(), Errno> {
    let context = id.get(VERBS);
    if init.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || context.is_null() {
        return Err(Errno::EINVAL);
    }
    if init.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || init.pd.is_null() {
        init.pd = id.get(PD);
        init.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    }
    let mut made_cq = false;
    if init.srq_type == IBV_SRQT_XRC {
        if init.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || init.xrcd.is_null() {
            init.xrcd = host().xrcd()?;
            init.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
        }
        if init.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || init.cq.is_null() {
            if id.get(RECEIVE_CQ).is_null() {
                create_cqs(id, 0, init.attr.max_wr)?;
                made_cq = true;
            }
            init.cq = id.get(RECEIVE_CQ);
            init.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
        }
    }
    // SAFETY: an id's context is never closed. What `init` names is not destroyed, by this function's
    // contract or because it belongs to the id.
    let srq = made(unsafe { verbs::create_srq_ex(context, init) });
    let srq = srq.inspect_err(|_| {
        if made_cq {
            destroy_cqs(id);
        }
    })?;
    id.set(SRQ, srq);
    if id.get(PD).is_null() {
        id.set(PD, init.pd);
    }
    Ok(())
}

/// `rdma_destroy_srq(3)`: destroys the id's SRQ and the CQs that were created with it.
///
/// # Safety
/// The id is not destroyed.
#[unsafe(export_name = "trunkline_rdma_destroy_srq")]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    guarded((), || {
        // SAFETY: the program upholds this function's contract.
        if let Some(id) = unsafe { Handle::optional(id) } {
            destroy(id);
        }
    });
}

/// Like [`rdma_destroy_srq`].
pub(super) fn destroy(id: Id<'_>) {
    let srq = id.replace(SRQ, null_mut());
    if !srq.is_null() {
        // SAFETY: the id's SRQ is not destroyed; it is removed from the id here, so it is destroyed once.
        unsafe { verbs::ibv_destroy_srq(srq) };
    }
    if id.get(QP).is_null() {
        destroy_cqs(id);
    }
}
