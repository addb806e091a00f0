//! Listening, connecting, accepting, refusing, ending.

use super::event::{complete, forget};
use super::id::IdObject;
use super::qp;
use crate::abi::*;
use crate::border::{Errno, value};
use crate::verbs::events::lock;
use std::ffi::{c_int, c_uint, c_void};
use std::mem::replace;
use trunkline_verbs::{ConnectParameters, QpNumber, RejectReason};

/// READs and atomics at once, for programs that name none; what the device has.
const MAX_RD_ATOMIC: u8 = 16;
/// Requests that wait for a listener whose program names no number.
const BACKLOG: u32 = 1024;

/// Starts to listen.
///
/// # Safety
/// The id is not destroyed.
#[unsafe(export_name = "trunkline_rdma_listen")]
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    value(|| {
        // SAFETY: the caller's promise.
        let id = unsafe { IdObject::of(id) }?;
        let backlog = u32::try_from(backlog).ok().filter(|backlog| *backlog > 0).unwrap_or(BACKLOG);
        id.endpoint.listen(backlog)?;
        id.show_addresses()?;
        Ok(0)
    })
}

/// Asks the peer for a connection, or, in port space UDP, for its QP.
///
/// # Safety
/// The id is not destroyed; `param` is null or to be read, with its private data.
#[unsafe(export_name = "trunkline_rdma_connect")]
pub unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    value(|| {
        // SAFETY: the caller's promise.
        let (id, param) = unsafe { (IdObject::of(id)?, param.as_ref()) };
        // SAFETY: the caller's promise.
        let parameters = unsafe { parameters(id, param) }?;
        id.endpoint.connect(&parameters)?;
        lock(&id.facts).was_asked = true;
        complete(id)?;
        Ok(0)
    })
}

/// Accepts a request: the id's QP is brought up, then the peer is told. As in the kernel, an
/// answer that cannot be given refuses the peer. In port space UDP the peer is told of the QP that
/// `param` names, and that is all.
///
/// # Safety
/// The id is not destroyed; `param` is null or to be read, with its private data.
#[unsafe(export_name = "trunkline_rdma_accept")]
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    value(|| {
        // SAFETY: the caller's promise.
        let (id, param) = unsafe { (IdObject::of(id)?, param.as_ref()) };
        if id.is_datagram() {
            // SAFETY: the caller's promise.
            return unsafe { answer(id, param) };
        }
        let offered = lock(&id.facts).offered;
        // SAFETY: the caller's promise.
        let mut parameters = unsafe { parameters(id, param) }?;
        // What the peer does not serve, or has not outstanding, is of no use.
        let fit =
            |asked: Option<u8>, all: u8, offered: u8| asked.filter(|asked| *asked != all).unwrap_or(offered);
        parameters.responder_resources =
            fit(param.map(|param| param.responder_resources), RDMA_MAX_RESP_RES, offered.0)
                .min(MAX_RD_ATOMIC);
        parameters.initiator_depth =
            fit(param.map(|param| param.initiator_depth), RDMA_MAX_INIT_DEPTH, offered.1)
                .min(offered.1)
                .min(MAX_RD_ATOMIC);
        qp::bring_up(id, parameters.responder_resources, parameters.initiator_depth)?;
        let was_unheard = replace(&mut lock(&id.facts).is_unheard, false);
        if let Err(error) = id.endpoint.accept(&parameters) {
            lock(&id.facts).is_unheard = was_unheard;
            let _left = qp::to_error(id);
            let _gone = id.endpoint.reject_for(RejectReason::CONSUMER, &[]);
            return Err(error.into());
        }
        lock(&id.facts).was_connected = true;
        complete(id)?;
        Ok(0)
    })
}

/// Names a QP to who asked for one; nothing follows that a call could wait for.
///
/// # Safety
/// The private data that `param` names may be read.
unsafe fn answer(id: &IdObject, param: Option<&rdma_conn_param>) -> Result<c_int, Errno> {
    let parameters = match param {
        // SAFETY: the caller's promise.
        Some(param) => unsafe { parameters(id, Some(param)) }?,
        None => ConnectParameters { qp_number: Some(QpNumber::new(0)), ..ConnectParameters::default() },
    };
    if let Err(error) = id.endpoint.accept(&parameters) {
        let _gone = id.endpoint.reject(&[]);
        return Err(error.into());
    }
    Ok(0)
}

/// What the connection is to be like.
///
/// # Safety
/// The private data that `param` names may be read.
unsafe fn parameters(id: &IdObject, param: Option<&rdma_conn_param>) -> Result<ConnectParameters, Errno> {
    let (qp, ps) = id.get(|base| (base.qp, base.ps));
    // The QP itself says what it has: the program may have made it, and put it into the id.
    // SAFETY: the id's QP lives until `rdma_destroy_qp`, or until its program destroys it.
    let (own, has_srq) = match unsafe { qp.as_ref() } {
        Some(qp) => (Some(qp.qp_num), !qp.srq.is_null()),
        None => (None, false),
    };
    let number = own.or(param.map(|param| param.qp_num)).ok_or(Errno::EINVAL)?;
    let Some(param) = param else {
        let qp_number = Some(QpNumber::new(number));
        return Ok(ConnectParameters { qp_number, srq: has_srq, ..ConnectParameters::default() });
    };
    let resources =
        [(param.responder_resources, RDMA_MAX_RESP_RES), (param.initiator_depth, RDMA_MAX_INIT_DEPTH)];
    if ps == RDMA_PS_TCP && resources.iter().any(|(asked, all)| asked != all && *asked > MAX_RD_ATOMIC) {
        return Err(Errno::EINVAL);
    }
    let length = usize::from(param.private_data_len);
    let private_data = if length == 0 || param.private_data.is_null() {
        Vec::new()
    } else {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(param.private_data.cast::<u8>(), length) }.to_vec()
    };
    Ok(ConnectParameters {
        private_data,
        responder_resources: param.responder_resources.min(MAX_RD_ATOMIC),
        initiator_depth: param.initiator_depth.min(MAX_RD_ATOMIC),
        retry_count: param.retry_count.min(7),
        rnr_retry_count: param.rnr_retry_count.min(7),
        qp_number: Some(QpNumber::new(number)),
        srq: if own.is_some() { has_srq } else { param.srq != 0 },
        ..ConnectParameters::default()
    })
}

/// After `RDMA_CM_EVENT_CONNECT_RESPONSE`: the program has brought its QP up.
///
/// # Safety
/// The id is not destroyed.
#[unsafe(export_name = "trunkline_rdma_establish")]
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    value(|| {
        // SAFETY: the caller's promise.
        let id = unsafe { IdObject::of(id) }?;
        if id.get(|base| !base.qp.is_null()) {
            return Err(Errno::EINVAL);
        }
        id.endpoint.establish()?;
        lock(&id.facts).was_connected = true;
        Ok(0)
    })
}

/// Refuses a request.
///
/// # Safety
/// The id is not destroyed, and `length` bytes at `private_data` may be read.
#[unsafe(export_name = "trunkline_rdma_reject")]
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, length: u8) -> c_int {
    // SAFETY: the caller's promise.
    value(|| unsafe { reject(id, RejectReason::CONSUMER, private_data, length) })
}

/// Refuses a request for the vendor options that it offers.
///
/// # Safety
/// As [`rdma_reject`].
#[unsafe(export_name = "trunkline_rdma_reject_ece")]
pub unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: the caller's promise.
    value(|| unsafe { reject(id, RejectReason::VENDOR_OPTION, private_data, length) })
}

/// # Safety
/// As [`rdma_reject`].
unsafe fn reject(
    id: *mut rdma_cm_id,
    reason: RejectReason,
    private_data: *const c_void,
    length: u8,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's promise.
    let id = unsafe { IdObject::of(id) }?;
    let private_data = if length == 0 || private_data.is_null() {
        &[]
    } else {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(private_data.cast::<u8>(), usize::from(length)) }
    };
    id.endpoint.reject_for(reason, private_data)?;
    Ok(0)
}

/// Tells of an event of the id's QP: a packet that arrived before the peer's last word counts as
/// that.
///
/// # Safety
/// The id is not destroyed.
#[unsafe(export_name = "trunkline_rdma_notify")]
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: c_uint) -> c_int {
    value(|| {
        // SAFETY: the caller's promise.
        let id = unsafe { IdObject::of(id) }?;
        if event != IBV_EVENT_COMM_EST {
            return Err(Errno::EINVAL);
        }
        id.endpoint.communication_established();
        Ok(0)
    })
}

/// Ends a connection; its QP goes to ERR. Where there is none any more, or not yet, or never will be
/// as in port space UDP, that is all: only an id that nobody was asked by is refused.
///
/// # Safety
/// The id is not destroyed.
#[unsafe(export_name = "trunkline_rdma_disconnect")]
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    value(|| {
        // SAFETY: the caller's promise.
        let id = unsafe { IdObject::of(id) }?;
        if id.is_datagram() {
            return if lock(&id.facts).was_asked { Ok(0) } else { Err(Errno::EINVAL) };
        }
        qp::to_error(id)?;
        let result = id.endpoint.disconnect();
        let (was_asked, is_told) = {
            let facts = lock(&id.facts);
            (facts.was_asked, facts.was_connected && facts.is_disconnected)
        };
        match result {
            // The peer was faster; a call that waited would wait for ever.
            _ if is_told => forget(id),
            Ok(()) => complete(id)?,
            Err(error) if !was_asked => return Err(error.into()),
            Err(_) => {}
        }
        Ok(0)
    })
}

/// Keeps the vendor options for this id's connection. The device has none, so the peer is not
/// told.
///
/// # Safety
/// The id is not destroyed, and `ece` may be read.
#[unsafe(export_name = "trunkline_rdma_set_local_ece")]
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    value(|| {
        // SAFETY: the caller's promise.
        let (id, ece) = unsafe { (IdObject::of(id)?, ece.as_ref().ok_or(Errno::EINVAL)?) };
        if ece.vendor_id == 0 || ece.comp_mask != 0 || id.get(|base| base.qp_type) == IBV_QPT_UD {
            return Err(Errno::EINVAL);
        }
        lock(&id.facts).ece = (ece.vendor_id, ece.options);
        Ok(0)
    })
}

/// The peer's vendor options: none, as from any peer that says nothing of them.
///
/// # Safety
/// The id is not destroyed, and `ece` may be written.
#[unsafe(export_name = "trunkline_rdma_get_remote_ece")]
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    value(|| {
        // SAFETY: the caller's promise.
        unsafe { IdObject::of(id) }?;
        if ece.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller's promise.
        unsafe { ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 }) };
        Ok(0)
    })
}
