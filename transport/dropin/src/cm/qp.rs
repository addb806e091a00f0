//! QPs of ids: their creation, with PDs and CQs where these are missing, and their state changes.

use super::attributes::for_c;
use super::fields::{Id, PD, QP, QP_TYPE, RECEIVE_CHANNEL, RECEIVE_CQ, SEND_CHANNEL, SEND_CQ, SRQ, VERBS};
use super::host::host;
use crate::abi::*;
use crate::border::{Errno, Handle, InOut, Out, guarded, made, value};
use crate::verbs;
use crate::verbs::convert::qp_state;
use std::ffi::c_int;
use std::ptr::null_mut;
use trunkline_verbs::{QpModify, QpState};

/// `rdma_create_qp(3)`: creates the id's QP and moves it to INIT.
///
/// # Safety
/// The id is not destroyed; `pd` is null or not deallocated; `init` points to attributes that only
/// the library uses during the call and name objects that are not destroyed.
#[unsafe(export_name = "trunkline_rdma_create_qp")]
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    value(|| {
        // SAFETY: the program upholds this function's contract.
        unsafe { create_plain(Handle::new(id)?, pd, &mut *InOut::new(init)?) }?;
        Ok(0)
    })
}

/// Like [`rdma_create_qp`].
///
/// # Safety
/// `pd` and each object that `init` names is null or not destroyed.
pub(super) unsafe fn create_plain(
    id: Id<'_>,
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: zeros are valid for the structure's numbers and pointers.
    let mut extended: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    extended.qp_context = init.qp_context;
    (extended.send_cq, extended.recv_cq, extended.srq) = (init.send_cq, init.recv_cq, init.srq);
    (extended.cap, extended.qp_type, extended.sq_sig_all) = (init.cap, init.qp_type, init.sq_sig_all);
    (extended.comp_mask, extended.pd) = (IBV_QP_INIT_ATTR_PD, pd);
    // SAFETY: this function's contract.
    let result = unsafe { create(id, &mut extended) };
    init.cap = extended.cap;
    (init.send_cq, init.recv_cq, init.srq) = (extended.send_cq, extended.recv_cq, extended.srq);
    result
}

/// `rdma_create_qp_ex(3)`: like [`rdma_create_qp`], with extended attributes.
///
/// # Safety
/// The id is not destroyed; `init` points to attributes that only the library uses during the call and name
/// objects that are not destroyed.
#[unsafe(export_name = "trunkline_rdma_create_qp_ex")]
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, init: *mut ibv_qp_init_attr_ex) -> c_int {
    value(|| {
        // SAFETY: the program upholds this function's contract.
        unsafe { create(Handle::new(id)?, &mut *InOut::new(init)?) }?;
        Ok(0)
    })
}

/// Creates the id's QP. If an object is missing in `init`, it is taken from the id or created.
///
/// # Safety
/// Each object that `init` names is null or not destroyed.
unsafe fn create(id: Id<'_>, init: &mut ibv_qp_init_attr_ex) -> Result<(), Errno> {
    if id.is_datagram() {
        // The device does not support UD QPs, and QPs of other types require a connection.
        return Err(if init.qp_type == IBV_QPT_UD { Errno::EOPNOTSUPP } else { Errno::EINVAL });
    }
    let context = id.get(VERBS);
    if !id.get(QP).is_null() || context.is_null() {
        return Err(Errno::EINVAL);
    }
    if init.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || init.pd.is_null() {
        init.comp_mask |= IBV_QP_INIT_ATTR_PD;
        init.pd = id.get(PD);
    } else {
        // SAFETY: this function's contract.
        let pd = unsafe { Handle::new(init.pd)? };
        if pd.owner()?.as_ptr() != context {
            return Err(Errno::EINVAL);
        }
    }
    let (own_send, own_receive) = (id.get(SEND_CQ), id.get(RECEIVE_CQ));
    let conflict = |own: *mut ibv_cq, named: *mut ibv_cq| !own.is_null() && !named.is_null() && own != named;
    if conflict(own_receive, init.recv_cq) || conflict(own_send, init.send_cq) {
        return Err(Errno::EINVAL);
    }
    let lacks_xrcd = init.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || init.xrcd.is_null();
    if id.get(QP_TYPE) == IBV_QPT_XRC_RECV && lacks_xrcd {
        init.xrcd = host().xrcd()?;
        init.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
    }
    let missing = |own: *mut ibv_cq, named: *mut ibv_cq, size: u32| {
        if own.is_null() && named.is_null() { size } else { 0 }
    };
    create_cqs(
        id,
        missing(own_send, init.send_cq, init.cap.max_send_wr),
        missing(own_receive, init.recv_cq, init.cap.max_recv_wr),
    )?;
    let or = |named: *mut ibv_cq, own: *mut ibv_cq| if named.is_null() { own } else { named };
    init.send_cq = or(init.send_cq, id.get(SEND_CQ));
    init.recv_cq = or(init.recv_cq, id.get(RECEIVE_CQ));
    if init.srq.is_null() {
        init.srq = id.get(SRQ);
    }
    // SAFETY: an id's context is never closed. What `init` names is not destroyed, by this function's
    // contract or because it belongs to the id.
    let qp = made(unsafe { verbs::create_qp_ex(context, init) });
    let ready = qp.and_then(|qp| {
        id.set(QP, qp);
        move_through(id, &[QpState::Init], 0, 0)
    });
    if let Err(errno) = ready {
        destroy(id);
        return Err(errno);
    }
    id.set(PD, init.pd);
    Ok(())
}

/// Creates the id's CQs, each with a channel. `send` and `receive` are their numbers of entries. No CQ is created for 0.
pub(super) fn create_cqs(id: Id<'_>, send: u32, receive: u32) -> Result<(), Errno> {
    let one = |size: u32| -> Result<Option<(*mut ibv_comp_channel, *mut ibv_cq)>, Errno> {
        let Ok(entries) = c_int::try_from(size) else { return Err(Errno::EINVAL) };
        if entries == 0 {
            return Ok(None);
        }
        let context = id.get(VERBS);
        // SAFETY: an id's context is null or never closed. The channel is created on the line before, and is destroyed
        // only if no CQ uses it.
        unsafe {
            let channel = made(verbs::ibv_create_comp_channel(context))?;
            let cq = verbs::ibv_create_cq(context, entries, id.as_ptr().cast(), channel, 0);
            made(cq).map(|cq| Some((channel, cq))).inspect_err(|_| {
                verbs::ibv_destroy_comp_channel(channel);
            })
        }
    };
    if let Some((channel, cq)) = one(receive)? {
        id.set(RECEIVE_CHANNEL, channel);
        id.set(RECEIVE_CQ, cq);
    }
    match one(send) {
        Ok(Some((channel, cq))) => {
            id.set(SEND_CHANNEL, channel);
            id.set(SEND_CQ, cq);
        }
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

/// Destroys the CQs that were created for the id. The CQ of an XRC SRQ is kept until the SRQ is destroyed.
pub(super) fn destroy_cqs(id: Id<'_>) {
    if id.get(QP_TYPE) == IBV_QPT_XRC_RECV && !id.get(SRQ).is_null() {
        return;
    }
    for (cq, channel) in [(RECEIVE_CQ, RECEIVE_CHANNEL), (SEND_CQ, SEND_CHANNEL)] {
        let (cq, channel) = (id.replace(cq, null_mut()), id.replace(channel, null_mut()));
        // SAFETY: `create_cqs` created the CQs and stored them in the id. They are removed from the id
        // here, so they are destroyed once.
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

/// `rdma_destroy_qp(3)`: destroys the id's QP and the CQs that were created with it.
///
/// # Safety
/// The id is not destroyed.
#[unsafe(export_name = "trunkline_rdma_destroy_qp")]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    guarded((), || {
        // SAFETY: the program upholds this function's contract.
        if let Some(id) = unsafe { Handle::optional(id) } {
            destroy(id);
        }
    });
}

/// Like [`rdma_destroy_qp`].
pub(super) fn destroy(id: Id<'_>) {
    let qp = id.replace(QP, null_mut());
    if !qp.is_null() {
        // SAFETY: the id's QP is not destroyed; it is removed from the id here, so it is destroyed once.
        unsafe { verbs::ibv_destroy_qp(qp) };
    }
    destroy_cqs(id);
}

/// Brings the id's QP up to RTS, if the id has one. The first transition is to INIT, because the connection's access rights
/// are set only now, and a QP created by the program may still be in RESET. `resources` and `depth` are the maximum numbers
/// of READs and atomics that the QP serves and issues. An all-ones value stands for the value that both sides have agreed
/// on.
pub(super) fn bring_up(id: Id<'_>, resources: u8, depth: u8) -> Result<(), Errno> {
    move_through(id, &[QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend], resources, depth)
}

fn move_through(id: Id<'_>, states: &[QpState], resources: u8, depth: u8) -> Result<(), Errno> {
    let qp = id.get(QP);
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
        // SAFETY: `qp` is the QP of the id, as `modify` requires.
        unsafe { modify(qp, &mut attributes, mask) }?;
    }
    Ok(())
}

/// Moves the id's QP to ERR, if the id has one.
pub(super) fn to_error(id: Id<'_>) -> Result<(), Errno> {
    let qp = id.get(QP);
    if qp.is_null() {
        return Ok(());
    }
    let (mut attributes, mask) = for_c(&QpModify { state: Some(QpState::Error), ..QpModify::default() });
    // SAFETY: `qp` is the QP of the id, as `modify` requires.
    unsafe { modify(qp, &mut attributes, mask) }
}

/// # Safety
/// `qp` is the QP of an id. It is not destroyed, because `rdma_destroy_qp` and programs that destroy their own QP
/// remove it from the id.
unsafe fn modify(qp: *mut ibv_qp, attributes: &mut ibv_qp_attr, mask: c_int) -> Result<(), Errno> {
    // SAFETY: by this function's contract the QP is not destroyed; the attributes are borrowed exclusively.
    match unsafe { verbs::ibv_modify_qp(qp, attributes, mask) } {
        0 => Ok(()),
        errno => Err(Errno(errno)),
    }
}

/// `rdma_init_qp_attr(3)`: returns the attributes that move a QP of the id's connection to the state in `attributes`.
///
/// # Safety
/// The id is not destroyed; `attributes` points to attributes that only the library uses during the call,
/// `mask` to memory for a number.
#[unsafe(export_name = "trunkline_rdma_init_qp_attr")]
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attributes: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    value(|| {
        // SAFETY: the program upholds this function's contract.
        let (id, mut attributes, mask) =
            unsafe { (Handle::new(id)?, InOut::new(attributes)?, Out::new(mask)?) };
        let state = qp_state(attributes.qp_state)?;
        let (change, names) = for_c(&id.endpoint.qp_changes(state)?);
        *attributes = change;
        mask.write(names);
        Ok(0)
    })
}
