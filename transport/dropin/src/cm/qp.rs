//! QPs of ids: making them with what is missing, and what connections want of them.

use super::attributes::for_c;
use super::host::{host, made};
use super::id::IdObject;
use crate::abi::*;
use crate::border::{Errno, guarded, value};
use crate::verbs;
use crate::verbs::convert::qp_state;
use std::ffi::c_int;
use std::mem::replace;
use std::ptr::null_mut;
use trunkline_verbs::{QpModify, QpState};

/// Makes the id's QP, and moves it to INIT.
///
/// # Safety
/// The id is not destroyed; `pd` is null or alive; `init` may be read and written.
#[unsafe(export_name = "trunkline_rdma_create_qp")]
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    value(|| {
        // SAFETY: the caller's promise.
        let (id, init) = unsafe { (IdObject::of(id)?, init.as_mut().ok_or(Errno::EINVAL)?) };
        // SAFETY: the caller's promise.
        unsafe { create_plain(id, pd, init) }?;
        Ok(0)
    })
}

/// As [`rdma_create_qp`].
///
/// # Safety
/// `pd` is null or alive.
pub(super) unsafe fn create_plain(
    id: &IdObject,
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: numbers and null pointers.
    let mut extended: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    extended.qp_context = init.qp_context;
    (extended.send_cq, extended.recv_cq, extended.srq) = (init.send_cq, init.recv_cq, init.srq);
    (extended.cap, extended.qp_type, extended.sq_sig_all) = (init.cap, init.qp_type, init.sq_sig_all);
    (extended.comp_mask, extended.pd) = (IBV_QP_INIT_ATTR_PD, pd);
    // SAFETY: the caller's promise.
    let result = unsafe { create(id, &mut extended) };
    init.cap = extended.cap;
    (init.send_cq, init.recv_cq, init.srq) = (extended.send_cq, extended.recv_cq, extended.srq);
    result
}

/// As [`rdma_create_qp`], with more to say.
///
/// # Safety
/// The id is not destroyed; `init` may be read and written, and what it names is alive.
#[unsafe(export_name = "trunkline_rdma_create_qp_ex")]
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, init: *mut ibv_qp_init_attr_ex) -> c_int {
    value(|| {
        // SAFETY: the caller's promise.
        let (id, init) = unsafe { (IdObject::of(id)?, init.as_mut().ok_or(Errno::EINVAL)?) };
        // SAFETY: the caller's promise.
        unsafe { create(id, init) }?;
        Ok(0)
    })
}

/// # Safety
/// What `init` names is alive.
unsafe fn create(id: &IdObject, init: &mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
    let base = id.get(|base| *base);
    if id.is_datagram() {
        // The device has no UD QPs, and the others are connected.
        return Err(if init.qp_type == IBV_QPT_UD { Errno::EOPNOTSUPP } else { Errno::EINVAL });
    }
    if !base.qp.is_null() || base.verbs.is_null() {
        return Err(Errno::EINVAL);
    }
    if init.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || init.pd.is_null() {
        init.comp_mask |= IBV_QP_INIT_ATTR_PD;
        init.pd = base.pd;
    } else {
        // SAFETY: the caller's promise.
        let context = unsafe { (*init.pd).context };
        if context != base.verbs {
            return Err(Errno::EINVAL);
        }
    }
    let conflict = |own: *mut ibv_cq, named: *mut ibv_cq| !own.is_null() && !named.is_null() && own != named;
    if conflict(base.recv_cq, init.recv_cq) || conflict(base.send_cq, init.send_cq) {
        return Err(Errno::EINVAL);
    }
    let lacks_xrcd = init.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || init.xrcd.is_null();
    if base.qp_type == IBV_QPT_XRC_RECV && lacks_xrcd {
        init.xrcd = host().xrcd()?;
        init.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
    }
    let missing = |own: *mut ibv_cq, named: *mut ibv_cq, size: u32| {
        if own.is_null() && named.is_null() { size } else { 0 }
    };
    create_cqs(
        id,
        missing(base.send_cq, init.send_cq, init.cap.max_send_wr),
        missing(base.recv_cq, init.recv_cq, init.cap.max_recv_wr),
    )?;
    let (send_cq, recv_cq) = id.get(|base| (base.send_cq, base.recv_cq));
    let or = |named: *mut ibv_cq, own: *mut ibv_cq| if named.is_null() { own } else { named };
    (init.send_cq, init.recv_cq) = (or(init.send_cq, send_cq), or(init.recv_cq, recv_cq));
    if init.srq.is_null() {
        init.srq = base.srq;
    }
    // SAFETY: what `init` names is alive, by the caller's promise or because the id holds it.
    let qp = made(unsafe { verbs::create_qp_ex(base.verbs, init) });
    let ready = qp.and_then(|qp| {
        id.set(|base| base.qp = qp);
        move_through(id, &[QpState::Init], 0, 0)
    });
    if let Err(errno) = ready {
        destroy(id);
        return Err(errno);
    }
    let pd = init.pd;
    id.set(|base| base.pd = pd);
    Ok(())
}

/// Makes CQs of these sizes, each with a channel; 0 makes none.
pub(super) fn create_cqs(id: &IdObject, send: u32, receive: u32) -> Result<(), Errno> {
    let one = |size: u32| -> Result<Option<(*mut ibv_comp_channel, *mut ibv_cq)>, Errno> {
        let Ok(entries) = c_int::try_from(size) else { return Err(Errno::EINVAL) };
        if entries == 0 {
            return Ok(None);
        }
        let context = id.get(|base| base.verbs);
        // SAFETY: the context is never closed, and the channel was made right now.
        unsafe {
            let channel = made(verbs::ibv_create_comp_channel(context))?;
            let cq = verbs::ibv_create_cq(context, entries, id.pointer().cast(), channel, 0);
            made(cq).map(|cq| Some((channel, cq))).inspect_err(|_| {
                verbs::ibv_destroy_comp_channel(channel);
            })
        }
    };
    if let Some((channel, cq)) = one(receive)? {
        id.set(|base| (base.recv_cq_channel, base.recv_cq) = (channel, cq));
    }
    match one(send) {
        Ok(Some((channel, cq))) => id.set(|base| (base.send_cq_channel, base.send_cq) = (channel, cq)),
        Ok(None) => {}
        Err(errno) => {
            if receive > 0 {
                destroy_cqs(id);
            }
            return Err(errno);
        }
    }
    Ok(())
}

/// Ends the CQs that the id holds. Those of an XRC SRQ stay as long as that does.
pub(super) fn destroy_cqs(id: &IdObject) {
    if id.get(|base| base.qp_type == IBV_QPT_XRC_RECV && !base.srq.is_null()) {
        return;
    }
    let mut held = [(null_mut(), null_mut()); 2];
    id.set(|base| {
        let take = |cq: &mut *mut ibv_cq, channel: &mut *mut ibv_comp_channel| {
            (replace(cq, null_mut()), replace(channel, null_mut()))
        };
        held = [
            take(&mut base.recv_cq, &mut base.recv_cq_channel),
            take(&mut base.send_cq, &mut base.send_cq_channel),
        ];
    });
    for (cq, channel) in held {
        // SAFETY: `create_cqs` made them, and the id lets go of them here.
        unsafe {
            if !cq.is_null() {
                verbs::ibv_destroy_cq(cq);
            }
            if !channel.is_null() {
                verbs::ibv_destroy_comp_channel(channel);
            }
        }
    }
}

/// Ends the id's QP, and the CQs that were made with it.
///
/// # Safety
/// The id is not destroyed.
#[unsafe(export_name = "trunkline_rdma_destroy_qp")]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    guarded((), || {
        // SAFETY: the caller's promise.
        if let Ok(id) = unsafe { IdObject::of(id) } {
            destroy(id);
        }
    });
}

fn destroy(id: &IdObject) {
    let mut qp = null_mut();
    id.set(|base| qp = replace(&mut base.qp, null_mut()));
    if !qp.is_null() {
        // SAFETY: it is the id's QP, which the id lets go of here.
        unsafe { verbs::ibv_destroy_qp(qp) };
    }
    destroy_cqs(id);
}

/// Brings the id's QP, if it has one, up to RTS. INIT comes first even where the QP is in INIT: what
/// the connection grants is known only now, and a QP that the program made and put into the id may be
/// in RESET. The two limits are set where they belong; their all-ones values leave what both sides
/// agreed on.
pub(super) fn bring_up(id: &IdObject, resources: u8, depth: u8) -> Result<(), Errno> {
    move_through(id, &[QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend], resources, depth)
}

fn move_through(id: &IdObject, states: &[QpState], resources: u8, depth: u8) -> Result<(), Errno> {
    let qp = id.get(|base| base.qp);
    if qp.is_null() {
        return Ok(());
    }
    for state in states {
        let (mut attributes, mask) = for_c(&id.endpoint.qp_changes(*state)?);
        if *state == QpState::ReadyToReceive && resources != RDMA_MAX_RESP_RES {
            attributes.max_dest_rd_atomic = resources;
        }
        if *state == QpState::ReadyToSend && depth != RDMA_MAX_INIT_DEPTH {
            attributes.max_rd_atomic = depth;
        }
        modify(qp, &mut attributes, mask)?;
    }
    Ok(())
}

/// Moves the id's QP, if it has one, to ERR.
pub(super) fn to_error(id: &IdObject) -> Result<(), Errno> {
    let qp = id.get(|base| base.qp);
    if qp.is_null() {
        return Ok(());
    }
    let (mut attributes, mask) = for_c(&QpModify { state: Some(QpState::Error), ..QpModify::default() });
    modify(qp, &mut attributes, mask)
}

fn modify(qp: *mut ibv_qp, attributes: &mut ibv_qp_attr, mask: c_int) -> Result<(), Errno> {
    // SAFETY: the id's QP lives until `rdma_destroy_qp`.
    match unsafe { verbs::ibv_modify_qp(qp, attributes, mask) } {
        0 => Ok(()),
        errno => Err(Errno(errno)),
    }
}

/// What brings a QP of the id's connection to the state that `attributes` names.
///
/// # Safety
/// The id is not destroyed; `attributes` may be read and written, `mask` written.
#[unsafe(export_name = "trunkline_rdma_init_qp_attr")]
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attributes: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    value(|| {
        // SAFETY: the caller's promise.
        let (id, attributes, mask) = unsafe {
            (
                IdObject::of(id)?,
                attributes.as_mut().ok_or(Errno::EINVAL)?,
                mask.as_mut().ok_or(Errno::EINVAL)?,
            )
        };
        let state = qp_state(attributes.qp_state)?;
        (*attributes, *mask) = for_c(&id.endpoint.qp_changes(state)?);
        Ok(0)
    })
}
