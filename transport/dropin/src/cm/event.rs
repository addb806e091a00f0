//! Events on their way to the program.
//!
//! An event counts as reported on the id that it belongs to (a request on its listener) until
//! the program acknowledges it. What librdmacm does by itself is done while the event is taken:
//! a peer's answer brings the id's QP up.

use super::channel::ChannelObject;
use super::host::host;
use super::id::IdObject;
use super::qp;
use crate::abi::*;
use crate::border::{Errno, value};
use crate::verbs::events::{EventCount, lock};
use std::ffi::{c_int, c_uint};
use std::ptr::{null, null_mut};
use std::sync::Arc;
use trunkline_verbs::{CmEvent, CmEventKind, CmId, ConnectParameters, Device, RejectReason, SidrStatus};

/// An event as C holds it.
#[repr(C)]
struct EventObject {
    base: rdma_cm_event,
    /// What `param.conn.private_data` points to.
    private_data: Vec<u8>,
    outstanding: Arc<EventCount>,
}

/// Takes the next event of a channel, waiting for one unless the descriptor is `O_NONBLOCK`.
///
/// # Safety
/// The channel is not destroyed, and `event` may be written.
#[unsafe(export_name = "trunkline_rdma_get_cm_event")]
pub unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    value(|| {
        if event.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller's promise.
        let taken = unsafe { next(channel) }?;
        // SAFETY: the caller's promise.
        unsafe { event.write(taken) };
        Ok(0)
    })
}

/// Gives an event back. Destroying its id may go on then.
///
/// # Safety
/// The event came from [`rdma_get_cm_event`], and is used no more.
#[unsafe(export_name = "trunkline_rdma_ack_cm_event")]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    value(|| {
        if event.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: `Told::hand_out` made it; the caller's promise for the rest.
        let object = unsafe { Box::from_raw(event.cast::<EventObject>()) };
        object.outstanding.acknowledge(1);
        Ok(0)
    })
}

/// # Safety
/// The channel is not destroyed.
pub(super) unsafe fn next(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event, Errno> {
    // SAFETY: the caller's promise.
    unsafe { ChannelObject::of(channel) }?.next(take)
}

/// An event before it is C's.
struct Told {
    event: c_uint,
    status: c_int,
    private_data: Vec<u8>,
    parameters: Option<ConnectParameters>,
    /// In port space UDP: the way to the QP that was named.
    address: ibv_ah_attr,
    /// The new id of a request.
    new: *mut rdma_cm_id,
}

impl Told {
    fn plain(event: c_uint) -> Self {
        let address = ibv_ah_attr::default();
        Self { event, status: 0, private_data: Vec::new(), parameters: None, address, new: null_mut() }
    }

    fn failed(event: c_uint, errno: c_int) -> Self {
        Self { status: -errno, ..Self::plain(event) }
    }

    fn hand_out(self, id: &IdObject) -> *mut rdma_cm_event {
        let mut private_data = self.private_data;
        private_data.truncate(usize::from(u8::MAX));
        let length = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
        let from = self.parameters.as_ref();
        let conn = rdma_conn_param {
            private_data: if private_data.is_empty() { null() } else { private_data.as_ptr().cast() },
            private_data_len: length,
            responder_resources: from.map_or(0, |from| from.responder_resources),
            initiator_depth: from.map_or(0, |from| from.initiator_depth),
            flow_control: 0,
            retry_count: from.map_or(0, |from| from.retry_count),
            rnr_retry_count: from.map_or(0, |from| from.rnr_retry_count),
            srq: from.map_or(0, |from| u8::from(from.srq)),
            qp_num: from.and_then(|from| from.qp_number).map_or(0, |number| number.get()),
        };
        let is_request = !self.new.is_null();
        let ud = rdma_ud_param {
            private_data: conn.private_data,
            private_data_len: length,
            ah_attr: self.address,
            qp_num: conn.qp_num,
            qkey: from.map_or(0, |from| from.q_key),
        };
        // The union's larger member is set first, so that no byte of it is left unwritten.
        // SAFETY: numbers and null pointers.
        let mut param = rdma_cm_event_param { ud: unsafe { std::mem::zeroed() } };
        if id.is_datagram() {
            param.ud = ud;
        } else {
            param.conn = conn;
        }
        let base = rdma_cm_event {
            id: if is_request { self.new } else { id.pointer() },
            listen_id: if is_request { id.pointer() } else { null_mut() },
            event: self.event,
            status: self.status,
            param,
        };
        let outstanding = Arc::clone(&id.outstanding);
        Box::into_raw(Box::new(EventObject { base, private_data, outstanding })).cast()
    }
}

/// Makes of an endpoint's event what the program is told, if it is told at all.
fn take(event: CmEvent) -> Option<*mut rdma_cm_event> {
    let Some(id) = host().report(event.id) else {
        // Its id was destroyed meanwhile. A request goes with its listener: the new endpoint is
        // dropped here, and so refused.
        return None;
    };
    match told(id, event) {
        Some(told) => Some(told.hand_out(id)),
        None => {
            id.outstanding.acknowledge(1);
            None
        }
    }
}

fn told(id: &IdObject, event: CmEvent) -> Option<Told> {
    let CmEvent { kind, private_data, .. } = event;
    let mut facts = lock(&id.facts);
    if facts.is_unheard {
        return None;
    }
    match kind {
        CmEventKind::AddressResolved => {
            drop(facts);
            Some(match id.show_addresses() {
                Ok(()) => Told::plain(RDMA_CM_EVENT_ADDR_RESOLVED),
                Err(errno) => Told::failed(RDMA_CM_EVENT_ADDR_ERROR, errno.0),
            })
        }
        CmEventKind::AddressError(error) => Some(Told::failed(RDMA_CM_EVENT_ADDR_ERROR, error.errno())),
        CmEventKind::RouteResolved => {
            drop(facts);
            id.show_route();
            Some(Told::plain(RDMA_CM_EVENT_ROUTE_RESOLVED))
        }
        CmEventKind::ConnectRequest { id: new, parameters } => {
            drop(facts);
            requested(id, new, parameters, private_data)
        }
        CmEventKind::ConnectResponse { parameters } => {
            facts.offered = (parameters.responder_resources, parameters.initiator_depth);
            drop(facts);
            Some(responded(id, parameters, private_data))
        }
        CmEventKind::Established => {
            facts.was_connected = true;
            Some(Told::plain(RDMA_CM_EVENT_ESTABLISHED))
        }
        CmEventKind::ServiceResolved { parameters } => {
            drop(facts);
            let address = way(id);
            let established = Told::plain(RDMA_CM_EVENT_ESTABLISHED);
            Some(Told { private_data, parameters: Some(parameters), address, ..established })
        }
        CmEventKind::ServiceRefused(SidrStatus(status)) => {
            let unreachable = Told::plain(RDMA_CM_EVENT_UNREACHABLE);
            Some(Told { status: c_int::from(status), private_data, ..unreachable })
        }
        _ if facts.has_failed && !matches!(kind, CmEventKind::TimewaitExit) => None,
        CmEventKind::ConnectError => Some(Told::failed(RDMA_CM_EVENT_CONNECT_ERROR, libc::EIO)),
        CmEventKind::Unreachable => Some(Told::failed(RDMA_CM_EVENT_UNREACHABLE, libc::ETIMEDOUT)),
        CmEventKind::Rejected(RejectReason(reason)) => {
            drop(facts);
            let _refused = qp::to_error(id);
            let status = c_int::from(reason);
            Some(Told { status, private_data, ..Told::plain(RDMA_CM_EVENT_REJECTED) })
        }
        CmEventKind::Disconnected => {
            facts.is_disconnected = true;
            Some(Told::plain(RDMA_CM_EVENT_DISCONNECTED))
        }
        CmEventKind::DeviceRemoval => Some(Told::plain(RDMA_CM_EVENT_DEVICE_REMOVAL)),
        CmEventKind::TimewaitExit => Some(Told::plain(RDMA_CM_EVENT_TIMEWAIT_EXIT)),
        // Kinds that this library does not know have no number in C.
        _ => None,
    }
}

/// The way to the peer of a resolved id, as a UD QP would take it.
fn way(id: &IdObject) -> ibv_ah_attr {
    let (sgid, dgid) = id.get(|base| (base.route.addr.ibaddr.sgid, base.route.addr.ibaddr.dgid));
    let table = host().device().map(|device| device.gid_table()).unwrap_or_default();
    let own = table.iter().find(|entry| entry.gid.0 == sgid.raw);
    let sgid_index = own.and_then(|entry| u8::try_from(entry.index).ok()).unwrap_or(0);
    let grh = ibv_global_route { dgid, sgid_index, hop_limit: 64, ..ibv_global_route::default() };
    ibv_ah_attr { grh, is_global: 1, port_num: 1, ..ibv_ah_attr::default() }
}

/// A request makes an id, on the listener's channel, or on its own if the listener is
/// synchronous.
fn requested(
    listener: &IdObject,
    new: Arc<dyn CmId>,
    parameters: ConnectParameters,
    private_data: Vec<u8>,
) -> Option<Told> {
    let (channel, context, ps, qp_type) =
        listener.get(|base| (base.channel, base.context, base.ps, base.qp_type));
    let id = IdObject::hand_out(new, channel, context, ps, qp_type, false);
    // SAFETY: it was made right now.
    let object = unsafe { IdObject::of(id) }.ok()?;
    {
        let mut facts = lock(&object.facts);
        facts.offered = (parameters.responder_resources, parameters.initiator_depth);
        (facts.was_asked, facts.is_unheard) = (true, true);
    }
    let mut ready = object.show_addresses();
    object.show_route();
    if ready.is_ok() && listener.is_synchronous() {
        // SAFETY: null asks for a channel of its own.
        ready = unsafe { super::id::migrate(object, null_mut()) };
    }
    if ready.is_err() {
        // SAFETY: nobody else knows it. The peer is refused.
        unsafe { super::id::rdma_destroy_id(id) };
        return None;
    }
    let plain = Told::plain(RDMA_CM_EVENT_CONNECT_REQUEST);
    Some(Told { private_data, parameters: Some(parameters), new: id, ..plain })
}

/// The peer accepted: an id with a QP is connected by that, one without leaves it to the program.
fn responded(id: &IdObject, parameters: ConnectParameters, private_data: Vec<u8>) -> Told {
    let event = if id.get(|base| base.qp.is_null()) {
        RDMA_CM_EVENT_CONNECT_RESPONSE
    } else {
        let up = qp::bring_up(id, RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH)
            .and_then(|()| id.endpoint.establish().map_err(Errno::from));
        if let Err(errno) = up {
            let _refused = qp::to_error(id);
            let _gone = id.endpoint.reject_for(RejectReason::NO_RESOURCES, &[]);
            lock(&id.facts).has_failed = true;
            return Told::failed(RDMA_CM_EVENT_CONNECT_ERROR, errno.0);
        }
        lock(&id.facts).was_connected = true;
        RDMA_CM_EVENT_ESTABLISHED
    };
    Told { private_data, parameters: Some(parameters), ..Told::plain(event) }
}

/// Waits for the outcome of a call on a synchronous id, whose event stays with the id until the
/// next call.
pub(super) fn complete(id: &IdObject) -> Result<(), Errno> {
    if !id.is_synchronous() {
        return Ok(());
    }
    forget(id);
    let channel = id.get(|base| base.channel);
    // SAFETY: a synchronous id's channel lives as long as the id.
    let event = unsafe { next(channel) }?;
    id.set(|base| base.event = event);
    // SAFETY: it was made right now.
    let (kind, status) = unsafe { ((*event).event, (*event).status) };
    match status {
        0 => Ok(()),
        _ if kind == RDMA_CM_EVENT_REJECTED => Err(Errno(libc::ECONNREFUSED)),
        _ => Err(Errno(status.saturating_abs())),
    }
}

/// Acknowledges the event that a synchronous call has left with the id.
pub(super) fn forget(id: &IdObject) {
    let mut event = null_mut();
    id.set(|base| event = std::mem::replace(&mut base.event, null_mut()));
    if !event.is_null() {
        // SAFETY: it was left by `complete`.
        unsafe { rdma_ack_cm_event(event) };
    }
}
