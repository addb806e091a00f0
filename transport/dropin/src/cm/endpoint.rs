//! Endpoints, which are synchronous ids that are created from a result of `rdma_getaddrinfo` (contract J2).

use super::event::next;
use super::fields::{EVENT, Id, PD, QP, QP_TYPE, SRQ};
use super::id;
use super::qp;
use super::resolve::{resolve_address, resolve_route};
use super::sockaddr;
use super::srq;
use super::synchronous::{forget_event, own_channel};
use crate::abi::*;
use crate::border::{Errno, Handle, In, InOut, Out, field, guarded, value};
use crate::verbs::events::lock;
use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;

/// `rdma_create_ep(3)`: binds a passive endpoint, or resolves an active one and creates its QP if the program passes
/// attributes for it.
///
/// # Safety
/// `id` points to memory for a pointer; `info` points to a result of `rdma_getaddrinfo` or an equivalent structure;
/// `pd` is null or not deallocated; `init` is null, or points to attributes that only the library
/// uses during the call and name objects that are not destroyed.
#[unsafe(export_name = "trunkline_rdma_create_ep")]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    value(|| {
        // SAFETY: the program upholds this function's contract.
        let (id, info, init) = unsafe { (Out::new(id)?, In::new(info)?, InOut::optional(init)) };
        let unsigned = |number: c_int| c_uint::try_from(number).map_err(|_| Errno::EINVAL);
        let (ps, qp_type) = (unsigned(info.ai_port_space)?, unsigned(info.ai_qp_type)?);
        let made = id::create(None, null_mut(), ps, qp_type)?;
        // SAFETY: by this function's contract the addresses of `info` may be read, and the PD and the objects of the
        // attributes are not destroyed.
        let ready = unsafe {
            if info.ai_flags & RAI_PASSIVE == 0 {
                activate(made, &info, pd, init)
            } else {
                bind(made, &info, pd, init)
            }
        };
        if let Err(errno) = ready {
            // SAFETY: the id was created above, and the program does not have it yet.
            unsafe { destroy(made) };
            return Err(errno);
        }
        id.write(made.as_ptr());
        Ok(0)
    })
}

/// # Safety
/// The addresses of `info` may be read.
unsafe fn bind(
    id: Id<'_>,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: Option<InOut<'_, ibv_qp_init_attr>>,
) -> Result<(), Errno> {
    // SAFETY: this function's contract.
    let source = unsafe { sockaddr::read_sized(info.ai_src_addr, info.ai_src_len) }?.ok_or(Errno::EINVAL)?;
    id.endpoint.bind(source)?;
    id.show_addresses()?;
    let qp_type = id.get(QP_TYPE);
    lock(&id.facts).template = init.map(|init| ibv_qp_init_attr { qp_type, ..*init });
    if !pd.is_null() {
        // Programs register their receive buffers with the listener's PD.
        id.set(PD, pd);
    }
    Ok(())
}

/// # Safety
/// The addresses of `info` may be read; `pd` is null or not deallocated, and so are the objects that
/// `init` names.
unsafe fn activate(
    id: Id<'_>,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: Option<InOut<'_, ibv_qp_init_attr>>,
) -> Result<(), Errno> {
    // SAFETY: this function's contract.
    let (source, remote) = unsafe {
        let source = sockaddr::read_sized(info.ai_src_addr, info.ai_src_len)?;
        (source, sockaddr::read_sized(info.ai_dst_addr, info.ai_dst_len)?)
    };
    resolve_address(id, source, remote.ok_or(Errno::EINVAL)?)?;
    resolve_route(id)?;
    let Some(mut init) = init else { return Ok(()) };
    init.qp_type = id.get(QP_TYPE);
    // SAFETY: this function's contract.
    unsafe { qp::create_plain(id, pd, &mut init) }
}

/// Destroys an endpoint: its QP, its SRQ and its id.
///
/// # Safety
/// The id is alive, and neither the program nor the library uses it after this.
unsafe fn destroy(id: Id<'_>) {
    if !id.get(QP).is_null() {
        qp::destroy(id);
    }
    if !id.get(SRQ).is_null() {
        srq::destroy(id);
    }
    // SAFETY: this function's contract.
    unsafe { id::destroy(id) };
}

/// `rdma_destroy_ep(3)`.
///
/// # Safety
/// The endpoint is not destroyed, and the program does not use it after this.
#[unsafe(export_name = "trunkline_rdma_destroy_ep")]
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    guarded((), || {
        // SAFETY: the program upholds this function's contract.
        unsafe {
            if let Some(id) = Handle::optional(id) {
                destroy(id);
            }
        }
    });
}

/// `rdma_get_request(3)`: waits for a request to a synchronous listener. The new id has a separate channel. It also has a
/// QP if the listener was created with attributes for one.
///
/// # Safety
/// The listener is not destroyed, and `id` points to memory for a pointer.
#[unsafe(export_name = "trunkline_rdma_get_request")]
pub unsafe extern "C" fn rdma_get_request(listener: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    value(|| {
        // SAFETY: the program upholds this function's contract.
        let (listener, id): (Id<'_>, _) = unsafe { (Handle::new(listener)?, Out::new(id)?) };
        if !listener.is_synchronous() {
            return Err(Errno::EINVAL);
        }
        forget_event(listener);
        let event = next(own_channel(listener)?)?;
        let (kind, status) =
            (event.get(field!(rdma_cm_event, event)), event.get(field!(rdma_cm_event, status)));
        let failure = match (kind, status) {
            (RDMA_CM_EVENT_REJECTED, _) => Some(libc::ECONNREFUSED),
            (RDMA_CM_EVENT_CONNECT_REQUEST, 0) => None,
            _ => Some(libc::EINVAL),
        };
        if let Some(errno) = failure {
            listener.set(EVENT, event.as_ptr());
            return Err(Errno(errno));
        }
        // SAFETY: the event of a request names the id that the request has created, and the program does
        // not have that id yet.
        let new: Id<'_> = unsafe { Handle::new(event.get(field!(rdma_cm_event, id)))? };
        let template = lock(&listener.facts).template;
        if let Some(mut attributes) = template {
            // SAFETY: as `rdma_create_ep(3)` requires, the PD and the objects of the attributes
            // outlive the listener.
            if let Err(errno) = unsafe { qp::create_plain(new, listener.get(PD), &mut attributes) } {
                listener.set(EVENT, event.as_ptr());
                // SAFETY: the program never gets the id. This rejects the peer.
                unsafe { id::destroy(new) };
                return Err(errno);
            }
        }
        new.set(EVENT, event.as_ptr());
        id.write(new.as_ptr());
        Ok(0)
    })
}
