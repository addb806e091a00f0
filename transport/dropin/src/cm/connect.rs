//! Functions that listen, connect, accept, reject and disconnect.

use super::fields::{Id, PORT_SPACE, QP, QP_TYPE};
use super::qp;
use super::synchronous::{begin, forget_event, wait_for_outcome};
use crate::abi::*;
use crate::border::{Errno, Handle, In, Out, field, value};
use crate::verbs::events::lock;
use std::ffi::{c_int, c_uint, c_void};
use std::mem::replace;
use std::sync::Arc;
use trunkline_verbs::{ConnectParameters, QpNumber, RejectReason};

/// Maximum number of outstanding READs and atomics in each direction. It is the device's limit and the default.
const MAX_RD_ATOMIC: u8 = 128;
/// Maximum number of requests that wait for `rdma_accept`, if the program passes no backlog.
const BACKLOG: u32 = 1024;

/// `rdma_listen(3)`.
///
/// # Safety
/// The id is not destroyed.
#[unsafe(export_name = "trunkline_rdma_listen")]
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    value(|| {
        // SAFETY: the program upholds this function's contract.
        let id = unsafe { Handle::new(id)? };
        let backlog = u32::try_from(backlog).ok().filter(|backlog| *backlog > 0).unwrap_or(BACKLOG);
        id.endpoint.listen(backlog)?;
        id.show_addresses()?;
        Ok(0)
    })
}

/// `rdma_connect(3)`: requests a connection to the peer. In port space UDP, requests the number of the peer's QP.
///
/// # Safety
/// The id is not destroyed; `param` is null, or points to parameters whose private data may be read.
#[unsafe(export_name = "trunkline_rdma_connect")]
pub unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    value(|| {
        // SAFETY: the program upholds this function's contract.
        let (id, param) = unsafe { (Handle::new(id)?, Param::new(param)?) };
        let parameters = parameters(id, param.as_ref())?;
        let before = replace(&mut lock(&id.facts).was_asked, true);
        begin(id, |endpoint| {
            endpoint.connect(&parameters).inspect_err(|_| lock(&id.facts).was_asked = before)
        })?;
        Ok(0)
    })
}

/// `rdma_accept(3)`: brings up the id's QP and sends the reply. As in the kernel, the peer is rejected on failure. In port
/// space UDP, the reply contains only the QP number in `param`.
///
/// # Safety
/// The id is not destroyed; `param` is null, or points to parameters whose private data may be read.
#[unsafe(export_name = "trunkline_rdma_accept")]
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    value(|| {
        // SAFETY: the program upholds this function's contract.
        let (id, param) = unsafe { (Handle::new(id)?, Param::new(param)?) };
        if id.is_datagram() {
            return name_qp(id, param.as_ref());
        }
        let offered = lock(&id.facts).offered;
        let mut parameters = parameters(id, param.as_ref())?;
        // Limit the parameters to the peer's offer. An all-ones value requests exactly the offer.
        let fit =
            |asked: Option<u8>, all: u8, offered: u8| asked.filter(|asked| *asked != all).unwrap_or(offered);
        let asked =
            param.as_ref().map(|param| (param.fields.responder_resources, param.fields.initiator_depth));
        parameters.responder_resources =
            fit(asked.map(|asked| asked.0), RDMA_MAX_RESP_RES, offered.0).min(MAX_RD_ATOMIC);
        parameters.initiator_depth =
            fit(asked.map(|asked| asked.1), RDMA_MAX_INIT_DEPTH, offered.1).min(offered.1).min(MAX_RD_ATOMIC);
        qp::bring_up(id, parameters.responder_resources, parameters.initiator_depth)?;
        let awaited = replace(&mut lock(&id.facts).awaits_accept, false);
        let before = replace(&mut lock(&id.facts).was_connected, true);
        begin(id, |endpoint| {
            endpoint.accept(&parameters).inspect_err(|_| {
                let mut facts = lock(&id.facts);
                (facts.awaits_accept, facts.was_connected) = (awaited, before);
                drop(facts);
                let _no_qp = qp::to_error(id);
                let _no_connection = endpoint.reject_for(RejectReason::CONSUMER, &[]);
            })
        })?;
        Ok(0)
    })
}

/// Sends the number of a QP to the peer that has requested it, in port space UDP. No event follows, so a synchronous id
/// does not wait.
fn name_qp(id: Id<'_>, param: Option<&Param<'_>>) -> Result<c_int, Errno> {
    let parameters = match param {
        Some(param) => parameters(id, Some(param))?,
        None => ConnectParameters { qp_number: Some(QpNumber::new(0)), ..ConnectParameters::default() },
    };
    if let Err(error) = id.endpoint.accept(&parameters) {
        let _no_request = id.endpoint.reject(&[]);
        return Err(error.into());
    }
    Ok(0)
}

/// The parameters that a program passes, with their private data.
struct Param<'a> {
    fields: In<'a, rdma_conn_param>,
    private_data: In<'a, [u8]>,
}

impl Param<'_> {
    /// # Safety
    /// `pointer` is null, or points to parameters whose private data may be read, and both are not changed
    /// during `'a`.
    unsafe fn new(pointer: *const rdma_conn_param) -> Result<Option<Self>, Errno> {
        // SAFETY: this function's contract.
        unsafe {
            let Some(fields) = In::optional(pointer) else { return Ok(None) };
            let private_data = private_data(fields.private_data, fields.private_data_len)?;
            Ok(Some(Self { fields, private_data }))
        }
    }
}

/// Returns the private data. The data is empty if the pointer is null, whatever the length.
///
/// # Safety
/// `pointer` is null, or points to `length` bytes that are not changed during `'a`.
unsafe fn private_data<'a>(pointer: *const c_void, length: u8) -> Result<In<'a, [u8]>, Errno> {
    let length = if pointer.is_null() { 0 } else { usize::from(length) };
    // SAFETY: this function's contract.
    unsafe { In::array(pointer.cast(), length) }
}

/// Returns the parameters of a connection, taken from the program's parameters and the id's QP.
fn parameters(id: Id<'_>, param: Option<&Param<'_>>) -> Result<ConnectParameters, Errno> {
    // Query the QP itself, since the program may have created it and stored it in the id. SAFETY: a QP that is stored
    // in an id is not destroyed. `rdma_destroy_qp` clears the field, and so does a program that destroys its own QP.
    let (own, has_srq) = match unsafe { Handle::optional(id.get(QP)) } {
        Some(qp) => (Some(qp.get(field!(ibv_qp, qp_num))), !qp.get(field!(ibv_qp, srq)).is_null()),
        None => (None, false),
    };
    let number = own.or(param.map(|param| param.fields.qp_num)).ok_or(Errno::EINVAL)?;
    let Some(param) = param else {
        let qp_number = Some(QpNumber::new(number));
        return Ok(ConnectParameters { qp_number, srq: has_srq, ..ConnectParameters::default() });
    };
    let private_data = param.private_data.to_vec();
    let param = param.fields;
    let resources =
        [(param.responder_resources, RDMA_MAX_RESP_RES), (param.initiator_depth, RDMA_MAX_INIT_DEPTH)];
    if id.get(PORT_SPACE) == RDMA_PS_TCP
        && resources.iter().any(|(asked, all)| asked != all && *asked > MAX_RD_ATOMIC)
    {
        return Err(Errno::EINVAL);
    }
    Ok(ConnectParameters {
        private_data,
        responder_resources: param.responder_resources.min(MAX_RD_ATOMIC),
        initiator_depth: param.initiator_depth.min(MAX_RD_ATOMIC),
        retry_count: param.retry_count.min(7),
        rnr_retry_count: param.rnr_retry_count.min(7),
        qp_number: Some(QpNumber::new(number)),
        flow_control: param.flow_control != 0,
        srq: if own.is_some() { has_srq } else { param.srq != 0 },
        ..ConnectParameters::default()
    })
}

/// `rdma_establish(3)`: a program calls this after `RDMA_CM_EVENT_CONNECT_RESPONSE`, when it has brought up its own QP.
///
/// # Safety
/// The id is not destroyed.
#[unsafe(export_name = "trunkline_rdma_establish")]
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    value(|| {
        // SAFETY: the program upholds this function's contract.
        let id = unsafe { Handle::new(id)? };
        if !id.get(QP).is_null() {
            return Err(Errno::EINVAL);
        }
        id.endpoint.establish()?;
        lock(&id.facts).was_connected = true;
        Ok(0)
    })
}

/// `rdma_reject(3)`.
///
/// # Safety
/// The id is not destroyed, and `length` bytes at `private_data` may be read.
#[unsafe(export_name = "trunkline_rdma_reject")]
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, length: u8) -> c_int {
    // SAFETY: the program upholds this function's contract.
    value(|| unsafe { reject(id, RejectReason::CONSUMER, private_data, length) })
}

/// `rdma_reject_ece(3)`: rejects a request because of the vendor options that it offers.
///
/// # Safety
/// Same as [`rdma_reject`].
#[unsafe(export_name = "trunkline_rdma_reject_ece")]
pub unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: the program upholds this function's contract.
    value(|| unsafe { reject(id, RejectReason::VENDOR_OPTION, private_data, length) })
}

/// # Safety
/// Same as [`rdma_reject`].
unsafe fn reject(
    id: *mut rdma_cm_id,
    reason: RejectReason,
    private_data: *const c_void,
    length: u8,
) -> Result<c_int, Errno> {
    // SAFETY: this function has the contract of `rdma_reject`.
    let (id, data) = unsafe { (Handle::new(id)?, self::private_data(private_data, length)?) };
    id.endpoint.reject_for(reason, &data)?;
    Ok(0)
}

/// `rdma_notify(3)`: reports an event of the id's QP. `IBV_EVENT_COMM_EST` means that a packet arrived before the peer's
/// last message of the connection setup, and counts as this message.
///
/// # Safety
/// The id is not destroyed.
#[unsafe(export_name = "trunkline_rdma_notify")]
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: c_uint) -> c_int {
    value(|| {
        // SAFETY: the program upholds this function's contract.
        let id = unsafe { Handle::new(id)? };
        if event != IBV_EVENT_COMM_EST {
            return Err(Errno::EINVAL);
        }
        id.endpoint.communication_established();
        Ok(0)
    })
}

/// `rdma_disconnect(3)`: moves the QP to ERR and ends the connection if the id is connected. Fails if neither side has
/// requested a connection. Has no effect in port space UDP.
///
/// # Safety
/// The id is not destroyed.
#[unsafe(export_name = "trunkline_rdma_disconnect")]
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    value(|| {
        // SAFETY: the program upholds this function's contract.
        let id = unsafe { Handle::new(id)? };
        if id.is_datagram() {
            return if lock(&id.facts).was_asked { Ok(0) } else { Err(Errno::EINVAL) };
        }
        qp::to_error(id)?;
        let (endpoint, is_synchronous) = (Arc::clone(&id.endpoint), id.is_synchronous());
        let was_asked = lock(&id.facts).was_asked;
        let result = endpoint.disconnect();
        // After this, use the id only if it is synchronous. For any other id, another thread may have taken the event and
        // destroyed the id.
        let is_told = is_synchronous && {
            let facts = lock(&id.facts);
            facts.was_connected && facts.is_disconnected
        };
        match result {
            // The peer disconnected first. No event follows, so the call must not wait for one.
            _ if is_told => forget_event(id),
            Ok(()) if is_synchronous => wait_for_outcome(id)?,
            Err(error) if !was_asked => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        Ok(0)
    })
}

/// `rdma_set_local_ece(3)`: stores the vendor options for this id's connection. The device supports none, so they are not
/// sent to the peer.
///
/// # Safety
/// The id is not destroyed, and `ece` may be read.
#[unsafe(export_name = "trunkline_rdma_set_local_ece")]
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    value(|| {
        // SAFETY: the program upholds this function's contract.
        let (id, ece) = unsafe { (Handle::new(id)?, In::new(ece)?) };
        if ece.vendor_id == 0 || ece.comp_mask != 0 || id.get(QP_TYPE) == IBV_QPT_UD {
            return Err(Errno::EINVAL);
        }
        lock(&id.facts).ece = (ece.vendor_id, ece.options);
        Ok(0)
    })
}

/// `rdma_get_remote_ece(3)`: returns zeros, as for a peer that sends no vendor options.
///
/// # Safety
/// The id is not destroyed, and `ece` may be written.
#[unsafe(export_name = "trunkline_rdma_get_remote_ece")]
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    value(|| {
        // SAFETY: the program upholds this function's contract.
        let (_id, ece) = unsafe { (Id::new(id)?, Out::new(ece)?) };
        ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 });
        Ok(0)
    })
}
