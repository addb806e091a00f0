//! Endpoints: synchronous ids made from what `rdma_getaddrinfo` found (contract J2).

use super::event::{forget, next};
use super::id::{IdObject, rdma_destroy_id};
use super::qp::{create_plain, rdma_destroy_qp};
use super::resolve::{resolve_address, resolve_route};
use super::sockaddr;
use super::srq::rdma_destroy_srq;
use crate::abi::*;
use crate::border::{Errno, guarded, value};
use crate::verbs::events::lock;
use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;

/// Makes an endpoint: passive ones are bound, active ones resolved and given a QP if attributes
/// come along.
///
/// # Safety
/// `id` may be written; `info` is what `rdma_getaddrinfo` made, or like it; `pd` is null or
/// alive; `init` is null or may be read and written.
#[unsafe(export_name = "trunkline_rdma_create_ep")]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    value(|| {
        // SAFETY: the caller's promise.
        let (info, init) = unsafe { (info.as_ref().ok_or(Errno::EINVAL)?, init.as_mut()) };
        let unsigned = |number: c_int| c_uint::try_from(number).map_err(|_| Errno::EINVAL);
        let (ps, qp_type) = (unsigned(info.ai_port_space)?, unsigned(info.ai_qp_type)?);
        // SAFETY: without a channel, and made right now.
        let (made, object) = unsafe {
            let made = IdObject::create(null_mut(), null_mut(), ps, qp_type)?;
            (made, IdObject::of(made)?)
        };
        // SAFETY: the caller's promise.
        let ready = unsafe {
            if info.ai_flags & RAI_PASSIVE == 0 {
                activate(object, info, pd, init)
            } else {
                bind(object, info, pd, init)
            }
        };
        if let Err(errno) = ready {
            // SAFETY: it was made right now, and nobody else has it.
            unsafe { rdma_destroy_ep(made) };
            return Err(errno);
        }
        // SAFETY: the caller's promise.
        unsafe { id.write(made) };
        Ok(0)
    })
}

/// # Safety
/// The addresses of `info` may be read.
unsafe fn bind(
    id: &IdObject,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: Option<&mut ibv_qp_init_attr>,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let source = unsafe { sockaddr::read_sized(info.ai_src_addr, info.ai_src_len) }?.ok_or(Errno::EINVAL)?;
    id.endpoint.bind(source)?;
    id.show_addresses()?;
    let qp_type = id.get(|base| base.qp_type);
    lock(&id.facts).template = init.map(|init| ibv_qp_init_attr { qp_type, ..*init });
    if !pd.is_null() {
        // Programs register what they receive in with the listener's domain.
        id.set(|base| base.pd = pd);
    }
    Ok(())
}

/// # Safety
/// The addresses of `info` may be read; `pd` is null or alive.
unsafe fn activate(
    id: &IdObject,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: Option<&mut ibv_qp_init_attr>,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (source, remote) = unsafe {
        let source = sockaddr::read_sized(info.ai_src_addr, info.ai_src_len)?;
        (source, sockaddr::read_sized(info.ai_dst_addr, info.ai_dst_len)?)
    };
    resolve_address(id, source, remote.ok_or(Errno::EINVAL)?)?;
    resolve_route(id)?;
    let Some(init) = init else { return Ok(()) };
    init.qp_type = id.get(|base| base.qp_type);
    // SAFETY: the caller's promise.
    unsafe { create_plain(id, pd, init) }
}

/// Ends an endpoint: its QP, its SRQ, its id.
///
/// # Safety
/// The endpoint is not destroyed, and the program uses it no more.
#[unsafe(export_name = "trunkline_rdma_destroy_ep")]
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    guarded((), || {
        // SAFETY: the caller's promise, until the last call.
        unsafe {
            let Ok(object) = IdObject::of(id) else { return };
            if object.get(|base| !base.qp.is_null()) {
                rdma_destroy_qp(id);
            }
            if object.get(|base| !base.srq.is_null()) {
                rdma_destroy_srq(id);
            }
            rdma_destroy_id(id);
        }
    });
}

/// Waits for a request at a synchronous listener; the new id has a channel of its own, and a QP
/// if the listener's endpoint was made with attributes.
///
/// # Safety
/// The listener is not destroyed, and `id` may be written.
#[unsafe(export_name = "trunkline_rdma_get_request")]
pub unsafe extern "C" fn rdma_get_request(listener: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    value(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(listener) }?;
        if !object.is_synchronous() {
            return Err(Errno::EINVAL);
        }
        forget(object);
        let channel = object.get(|base| base.channel);
        // SAFETY: a synchronous id's channel lives as long as the id, and the event was made
        // right now.
        let (event, kind, status, new) = unsafe {
            let event = next(channel)?;
            (event, (*event).event, (*event).status, (*event).id)
        };
        let refused = match (kind, status) {
            (RDMA_CM_EVENT_REJECTED, _) => Some(libc::ECONNREFUSED),
            (RDMA_CM_EVENT_CONNECT_REQUEST, 0) => None,
            _ => Some(libc::EINVAL),
        };
        if let Some(errno) = refused {
            object.set(|base| base.event = event);
            return Err(Errno(errno));
        }
        // SAFETY: the request made it.
        let asked = unsafe { IdObject::of(new) }?;
        let template = lock(&object.facts).template;
        if let Some(mut attributes) = template {
            let pd = object.get(|base| base.pd);
            // SAFETY: the program keeps the endpoint's PD as long as its listener.
            if let Err(errno) = unsafe { create_plain(asked, pd, &mut attributes) } {
                object.set(|base| base.event = event);
                // SAFETY: nobody else knows it. The peer is refused.
                unsafe { rdma_destroy_id(new) };
                return Err(errno);
            }
        }
        asked.set(|base| base.event = event);
        // SAFETY: the caller's promise.
        unsafe { id.write(new) };
        Ok(0)
    })
}
