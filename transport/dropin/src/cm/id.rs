//! Ids, which are the program's handles for connections, listeners and unconnected endpoints.
//!
//! An id's object begins with its C structure. The endpoint is created together with the object. The device, the addresses
//! and the protection domain in the C structure are filled in later. A *synchronous* id has a separate channel, and each
//! call on it waits for its outcome.

use super::channel::{Channel, ChannelObject};
use super::fields::{CHANNEL, Id, QP_TYPE};
use super::host::host;
use super::sockaddr;
use super::synchronous::forget_event;
use crate::abi::*;
use crate::border::{Errno, Handle, Out, Structure, hand_out, value};
use crate::verbs::events::EventCount;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use trunkline_verbs::{CmId, CmOption, Device, PortSpace, QpType};

/// An id. The C structure in it is accessed only through an [`Id`], field by field.
#[repr(C)]
pub(crate) struct IdObject {
    base: UnsafeCell<rdma_cm_id>,
    pub(super) endpoint: Arc<dyn CmId>,
    /// Number of events that the program has taken but not acknowledged.
    pub(super) outstanding: Arc<EventCount>,
    pub(super) is_synchronous: AtomicBool,
    pub(super) facts: Mutex<Facts>,
}

// SAFETY: `IdObject` is `repr(C)` and begins with `base`.
unsafe impl Structure for rdma_cm_id {
    type Object = IdObject;
}

/// The library's data about an id that is not in its C structure.
#[derive(Default)]
pub(super) struct Facts {
    /// Maximum numbers of READs and atomics that the peer serves and that it issues.
    pub(super) offered: (u8, u8),
    /// Attributes for the QPs of connections to this listener, if it was created with `rdma_create_ep`.
    pub(super) template: Option<ibv_qp_init_attr>,
    /// True if bringing up the QP has failed. The program gets no further events of the connection.
    pub(super) has_failed: bool,
    /// True if this program or the peer has requested a connection.
    pub(super) was_asked: bool,
    /// True while the peer's request waits for `rdma_accept`. As in the kernel, events are held back during this time.
    pub(super) awaits_accept: bool,
    /// True if a connection has been established, even if it has ended.
    pub(super) was_connected: bool,
    /// True if the program has taken the event for the connection's end.
    pub(super) is_disconnected: bool,
    /// Vendor number and options set with `rdma_set_local_ece`.
    pub(super) ece: (u32, u32),
    /// Type of service. It is set by the program or, for a request, by the peer.
    pub(super) traffic_class: u8,
    /// Target of `route.path_rec`.
    pub(super) path: Option<Box<UnsafeCell<ibv_sa_path_rec>>>,
}

/// Returns the QP type in a connection request for a QP of this type and port space (contract J1). In port space UDP there
/// are no connections, and the peer receives only a QP number.
fn wire_type(port_space: PortSpace, qp_type: c_uint) -> Result<QpType, Errno> {
    match (port_space, qp_type) {
        (PortSpace::Tcp | PortSpace::Ib, IBV_QPT_RC)
        | (PortSpace::Tcp, IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV) => Ok(QpType::Rc),
        (PortSpace::Ib, IBV_QPT_XRC_SEND) => Ok(QpType::XrcIni),
        (PortSpace::Ib, IBV_QPT_XRC_RECV) => Ok(QpType::XrcTgt),
        (PortSpace::Udp, IBV_QPT_UD) => Ok(QpType::Rc),
        // The device does not support UD QPs. Other port spaces do not imply a type.
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// Returns the default QP type of an id.
fn default_qp_type(ps: c_uint) -> c_uint {
    match ps {
        RDMA_PS_UDP => IBV_QPT_UD,
        _ => IBV_QPT_RC,
    }
}

/// Creates an id that uses `channel`, or a synchronous id if `channel` is `None`.
pub(super) fn create<'a>(
    channel: Option<Channel<'_>>,
    context: *mut c_void,
    ps: c_uint,
    qp_type: c_uint,
) -> Result<Id<'a>, Errno> {
    let port_space = match ps {
        RDMA_PS_TCP => PortSpace::Tcp,
        RDMA_PS_IB => PortSpace::Ib,
        RDMA_PS_UDP => PortSpace::Udp,
        RDMA_PS_IPOIB => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::EINVAL),
    };
    let wire_type = wire_type(port_space, qp_type)?;
    let device = host().device()?;
    let own = if channel.is_none() { Some(ChannelObject::create()?) } else { None };
    let Some(reports_to) = channel.or(own) else { return Err(Errno::EINVAL) };
    let manager = device.connection_manager();
    let endpoint = manager.create_id(port_space, wire_type, &reports_to.inner).and_then(|endpoint| {
        // Programs such as qperf send a port number to their peer before they listen on the port.
        endpoint.set_option(CmOption::RetryRefused(true))?;
        Ok(endpoint)
    });
    let endpoint = endpoint.inspect_err(|_| {
        if let Some(own) = own {
            // SAFETY: the channel was created in this call, and no id refers to it.
            unsafe { own.release() };
        }
    })?;
    Ok(hand_out_id(endpoint, reports_to.as_ptr(), context, ps, qp_type, own.is_some()))
}

/// Creates an endpoint's id, and adds it to the table so that its events are found.
pub(super) fn hand_out_id<'a>(
    endpoint: Arc<dyn CmId>,
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: c_uint,
    qp_type: c_uint,
    is_synchronous: bool,
) -> Id<'a> {
    let number = endpoint.number();
    let addr =
        rdma_addr { src: sockaddr::zeroed(), dst: sockaddr::zeroed(), ibaddr: rdma_ib_addr::default() };
    let base = rdma_cm_id {
        verbs: null_mut(),
        channel,
        context,
        qp: null_mut(),
        route: rdma_route { addr, path_rec: null_mut(), num_paths: 0 },
        ps,
        port_num: 0,
        event: null_mut(),
        send_cq_channel: null_mut(),
        send_cq: null_mut(),
        recv_cq_channel: null_mut(),
        recv_cq: null_mut(),
        srq: null_mut(),
        pd: null_mut(),
        qp_type,
    };
    let id: Id<'a> = hand_out(IdObject {
        base: UnsafeCell::new(base),
        endpoint,
        outstanding: Arc::default(),
        is_synchronous: AtomicBool::new(is_synchronous),
        facts: Mutex::default(),
    });
    host().enter(number, id);
    id
}

impl Id<'_> {
    /// Returns true if each call on the id waits for its outcome.
    pub(super) fn is_synchronous(self) -> bool {
        self.is_synchronous.load(Ordering::Relaxed)
    }

    /// Returns true if the id is in port space UDP, in which QP numbers are exchanged without connections.
    pub(super) fn is_datagram(self) -> bool {
        self.get(QP_TYPE) == IBV_QPT_UD
    }
}

/// Destroys an id after the program has acknowledged its events. The peer is notified if the id's state requires it, but
/// not the peer of a TGT (contract J9).
///
/// # Safety
/// The id is alive, and neither the program nor the library uses it after this.
pub(super) unsafe fn destroy(id: Id<'_>) {
    host().leave(id.endpoint.number());
    forget_event(id);
    id.outstanding.wait();
    // SAFETY: the field holds the id's channel, which the program does not destroy before the id.
    let own = if id.is_synchronous() { unsafe { Channel::optional(id.get(CHANNEL)) } } else { None };
    // SAFETY: this function's contract; the table of ids does not list the id, and no event names it.
    unsafe { id.release() };
    if let Some(own) = own {
        // SAFETY: a synchronous id's channel belongs to the id, and is destroyed with it.
        unsafe { super::channel::destroy(own) };
    }
}

/// `rdma_create_id(3)`.
///
/// # Safety
/// `channel` is null or not destroyed, and `id` points to memory for a pointer.
#[unsafe(export_name = "trunkline_rdma_create_id")]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: c_uint,
) -> c_int {
    value(|| {
        // SAFETY: the program upholds this function's contract.
        let (channel, id) = unsafe { (Handle::optional(channel), Out::new(id)?) };
        id.write(create(channel, context, ps, default_qp_type(ps))?.as_ptr());
        Ok(0)
    })
}

/// `rdma_destroy_id(3)`: waits until the program has acknowledged the id's events.
///
/// # Safety
/// The id is not destroyed, and the program does not use it after this.
#[unsafe(export_name = "trunkline_rdma_destroy_id")]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    value(|| {
        // SAFETY: the program upholds this function's contract.
        unsafe { destroy(Handle::new(id)?) };
        Ok(0)
    })
}
