//! Ids: what a program holds of a connection, a listener, or what is to become one.
//!
//! An id has its C structure first. Its endpoint is made with it; the C structure's device,
//! addresses and protection domain are filled in when they are known. A *synchronous* id has a
//! channel of its own, and each call waits for its outcome.

use super::channel::ChannelObject;
use super::host::host;
use super::sockaddr;
use crate::abi::*;
use crate::border::{Errno, guarded, value};
use crate::verbs::events::{EventCount, lock};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::mem::replace;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use trunkline_verbs::{CmId, Device, Gid, PKEY_DEFAULT, PortSpace, QpType};

/// An id.
#[repr(C)]
pub(super) struct IdObject {
    base: UnsafeCell<rdma_cm_id>,
    pub(super) endpoint: Arc<dyn CmId>,
    /// Events that were reported and are not acknowledged.
    pub(super) outstanding: Arc<EventCount>,
    is_synchronous: AtomicBool,
    pub(super) facts: Mutex<Facts>,
}

/// What librdmacm remembers of an id beyond its C structure.
#[derive(Default)]
pub(super) struct Facts {
    /// READs and atomics that the peer has outstanding, and serves.
    pub(super) offered: (u8, u8),
    /// Of a passive endpoint: what its connections' QPs are made with, in the endpoint's domain.
    pub(super) template: Option<ibv_qp_init_attr>,
    /// The program was told that bringing the QP up failed, and is told nothing after.
    pub(super) has_failed: bool,
    /// A peer was asked, or has asked.
    pub(super) was_asked: bool,
    /// A peer has asked, and the program has not accepted: as in the kernel, it is told of nothing.
    pub(super) is_unheard: bool,
    /// There is or was a connection.
    pub(super) was_connected: bool,
    /// The program was told that it is over.
    pub(super) is_disconnected: bool,
    pub(super) ece: (u32, u32),
    /// What `route.path_rec` points to.
    path: Option<Box<UnsafeCell<ibv_sa_path_rec>>>,
}

/// What the wire is told for a type of QP in a port space (contract J1). In port space UDP, where
/// nothing is connected, it is told of no QP but by its number.
fn wire_type(port_space: PortSpace, qp_type: c_uint) -> Result<QpType, Errno> {
    match (port_space, qp_type) {
        (PortSpace::Tcp | PortSpace::Ib, IBV_QPT_RC)
        | (PortSpace::Tcp, IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV) => Ok(QpType::Rc),
        (PortSpace::Ib, IBV_QPT_XRC_SEND) => Ok(QpType::XrcIni),
        (PortSpace::Ib, IBV_QPT_XRC_RECV) => Ok(QpType::XrcTgt),
        (PortSpace::Udp, IBV_QPT_UD) => Ok(QpType::Rc),
        // The device has no UD, and no other port space says which it is.
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// The type of QP that an id without further word is for.
fn usual_type(ps: c_uint) -> c_uint {
    match ps {
        RDMA_PS_UDP => IBV_QPT_UD,
        _ => IBV_QPT_RC,
    }
}

impl IdObject {
    /// Makes an id and puts it where C can hold it; without a channel it is synchronous.
    ///
    /// # Safety
    /// `channel` is null or not destroyed.
    pub(super) unsafe fn create(
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        ps: c_uint,
        qp_type: c_uint,
    ) -> Result<*mut rdma_cm_id, Errno> {
        let port_space = match ps {
            RDMA_PS_TCP => PortSpace::Tcp,
            RDMA_PS_IB => PortSpace::Ib,
            RDMA_PS_UDP => PortSpace::Udp,
            RDMA_PS_IPOIB => return Err(Errno::EOPNOTSUPP),
            _ => return Err(Errno::EINVAL),
        };
        let wire_type = wire_type(port_space, qp_type)?;
        let device = host().device()?;
        let is_synchronous = channel.is_null();
        let channel = if is_synchronous { ChannelObject::create()? } else { channel };
        // SAFETY: it was made right now, or the caller's promise.
        let object = unsafe { ChannelObject::of(channel) }?;
        let endpoint = device.connection_manager().create_id(port_space, wire_type, &object.inner);
        let endpoint = match endpoint {
            Ok(endpoint) => endpoint,
            Err(error) => {
                if is_synchronous {
                    // SAFETY: it was made right now, and nobody else has it.
                    unsafe { ChannelObject::destroy(channel) };
                }
                return Err(error.into());
            }
        };
        Ok(Self::hand_out(endpoint, channel, context, ps, qp_type, is_synchronous))
    }

    /// Puts an id of an endpoint where C can hold it.
    pub(super) fn hand_out(
        endpoint: Arc<dyn CmId>,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        ps: c_uint,
        qp_type: c_uint,
        is_synchronous: bool,
    ) -> *mut rdma_cm_id {
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
        let object = Self {
            base: UnsafeCell::new(base),
            endpoint,
            outstanding: Arc::default(),
            is_synchronous: AtomicBool::new(is_synchronous),
            facts: Mutex::default(),
        };
        let id = Box::into_raw(Box::new(object));
        id.expose_provenance();
        host().enter(number, id.cast());
        id.cast()
    }

    /// The id behind a pointer of the program.
    ///
    /// # Safety
    /// The id is not destroyed.
    pub(super) unsafe fn of<'a>(pointer: *mut rdma_cm_id) -> Result<&'a Self, Errno> {
        // SAFETY: the ids that programs hold stand first in an IdObject.
        unsafe { pointer.cast::<Self>().as_ref() }.ok_or(Errno::EINVAL)
    }

    /// The C structure's address.
    pub(super) fn pointer(&self) -> *mut rdma_cm_id {
        self.base.get()
    }

    /// Reads from the C structure.
    pub(super) fn get<T: Copy>(&self, read: impl FnOnce(&rdma_cm_id) -> T) -> T {
        // SAFETY: a program that uses an id in several threads keeps them apart, as librdmacm
        // asks; `read` calls nothing.
        unsafe { read(&*self.base.get()) }
    }

    /// Writes to the C structure.
    pub(super) fn set(&self, write: impl FnOnce(&mut rdma_cm_id)) {
        // SAFETY: as for `get`.
        unsafe { write(&mut *self.base.get()) };
    }

    pub(super) fn is_synchronous(&self) -> bool {
        self.is_synchronous.load(Ordering::Relaxed)
    }

    /// Whether it asks for QPs and names them, and connects nothing.
    pub(super) fn is_datagram(&self) -> bool {
        self.get(|base| base.qp_type) == IBV_QPT_UD
    }

    /// Shows the endpoint's addresses, and the device once an address says which it is. A
    /// listener at every address has none.
    pub(super) fn show_addresses(&self) -> Result<(), Errno> {
        let (local, peer) = (self.endpoint.local_address(), self.endpoint.peer_address());
        self.set(|base| {
            sockaddr::write(local, &mut base.route.addr.src);
            if let Some(peer) = peer {
                sockaddr::write(peer, &mut base.route.addr.dst);
            }
        });
        if local.ip().is_unspecified() || peer.is_none() && names_no_device(local.ip())? {
            return Ok(());
        }
        let (context, pd) = (host().context()?, host().pd()?);
        self.set(|base| {
            base.verbs = context;
            base.port_num = 1;
            if base.pd.is_null() {
                base.pd = pd;
            }
            let gids = &mut base.route.addr.ibaddr;
            gids.sgid = gid(local);
            gids.dgid = peer.map(gid).unwrap_or_default();
            gids.pkey = PKEY_DEFAULT.to_be();
        });
        Ok(())
    }

    /// Shows the way to the peer.
    pub(super) fn show_route(&self) {
        let gids = self.get(|base| base.route.addr.ibaddr);
        let path = ibv_sa_path_rec {
            dgid: gids.dgid,
            sgid: gids.sgid,
            hop_limit: 64,
            reversible: 1,
            numb_path: 1,
            pkey: PKEY_DEFAULT.to_be(),
            // "Exactly" 1,024 bytes, in the codes of the subnet administrator.
            mtu_selector: 2,
            mtu: 3,
            rate_selector: 2,
            packet_life_time_selector: 2,
            ..ibv_sa_path_rec::default()
        };
        let mut facts = lock(&self.facts);
        let place = facts.path.insert(Box::new(UnsafeCell::new(path))).get();
        self.set(|base| (base.route.path_rec, base.route.num_paths) = (place, 1));
    }
}

/// Whether what is bound there is bound to no device in particular, as a kernel has it at loopback
/// addresses. Here localhost is an address of the device as any other, unless the user named the
/// device's addresses without it. libfabric's servers advertise the address of the device that they
/// are shown, and localhost if that shows one.
fn names_no_device(ip: IpAddr) -> Result<bool, Errno> {
    Ok(ip == Ipv4Addr::LOCALHOST && host().device()?.is_named_without(ip))
}

fn gid(address: SocketAddr) -> ibv_gid {
    ibv_gid { raw: Gid::from(address.ip()).0 }
}

/// Makes an id.
///
/// # Safety
/// `channel` is null or not destroyed, and `id` may be written.
#[unsafe(export_name = "trunkline_rdma_create_id")]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: c_uint,
) -> c_int {
    value(|| {
        // SAFETY: the caller's promise.
        let made = unsafe { IdObject::create(channel, context, ps, usual_type(ps)) }?;
        // SAFETY: the caller's promise.
        unsafe { id.write(made) };
        Ok(0)
    })
}

/// Ends an id, and waits until the program has acknowledged what it was told of it. What must
/// be said to the peer is said; a TGT's peer is told nothing (contract J9).
///
/// # Safety
/// The id is not destroyed, and the program uses it no more.
#[unsafe(export_name = "trunkline_rdma_destroy_id")]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    value(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        host().leave(object.endpoint.number());
        let event = object.get(|base| base.event);
        if !event.is_null() {
            // SAFETY: synchronous calls keep their event there until it is acknowledged.
            unsafe { super::event::rdma_ack_cm_event(event) };
        }
        object.outstanding.wait();
        let (own, channel) = (object.is_synchronous(), object.get(|base| base.channel));
        // SAFETY: `hand_out` made it; nobody finds it any more.
        drop(unsafe { Box::from_raw(id.cast::<IdObject>()) });
        if own {
            // SAFETY: a synchronous id's channel is its own.
            unsafe { ChannelObject::destroy(channel) };
        }
        Ok(0)
    })
}

/// Lets an id report to another channel; to one of its own, and synchronously, without one.
///
/// # Safety
/// Neither the id nor the channel is destroyed.
#[unsafe(export_name = "trunkline_rdma_migrate_id")]
pub unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    value(|| {
        // SAFETY: the caller's promise.
        let object = unsafe { IdObject::of(id) }?;
        // SAFETY: the caller's promise.
        unsafe { migrate(object, channel) }.map(|()| 0)
    })
}

/// As [`rdma_migrate_id`].
///
/// # Safety
/// The channel is null or not destroyed.
pub(super) unsafe fn migrate(id: &IdObject, channel: *mut rdma_event_channel) -> Result<(), Errno> {
    let becomes_synchronous = channel.is_null();
    let was_synchronous = id.is_synchronous();
    if was_synchronous && becomes_synchronous {
        return Err(Errno::EINVAL);
    }
    let channel = if becomes_synchronous { ChannelObject::create()? } else { channel };
    // SAFETY: it was made right now, or the caller's promise.
    let moved = unsafe { ChannelObject::of(channel) }
        .and_then(|object| id.endpoint.migrate(&object.inner).map_err(Errno::from));
    if let Err(error) = moved {
        if becomes_synchronous {
            // SAFETY: it was made right now, and nobody else has it.
            unsafe { ChannelObject::destroy(channel) };
        }
        return Err(error);
    }
    let mut old = null_mut();
    let mut event = null_mut();
    id.set(|base| {
        old = replace(&mut base.channel, channel);
        if was_synchronous {
            event = replace(&mut base.event, null_mut());
        }
    });
    id.is_synchronous.store(becomes_synchronous, Ordering::Relaxed);
    if !event.is_null() {
        // SAFETY: synchronous calls keep their event there until it is acknowledged.
        unsafe { super::event::rdma_ack_cm_event(event) };
    }
    if was_synchronous {
        // SAFETY: a synchronous id's channel is its own.
        unsafe { ChannelObject::destroy(old) };
    }
    id.outstanding.wait();
    Ok(())
}

/// The id's own port, in network order; 0 while it has none.
///
/// # Safety
/// The id is not destroyed.
#[unsafe(export_name = "trunkline_rdma_get_src_port")]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller's promise.
    guarded(0, || unsafe { port(id, |route| &raw const route.addr.src) })
}

/// The peer's port, in network order; 0 while there is none.
///
/// # Safety
/// The id is not destroyed.
#[unsafe(export_name = "trunkline_rdma_get_dst_port")]
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller's promise.
    guarded(0, || unsafe { port(id, |route| &raw const route.addr.dst) })
}

/// # Safety
/// The id is not destroyed.
unsafe fn port(id: *mut rdma_cm_id, which: impl FnOnce(&rdma_route) -> *const libc::sockaddr_storage) -> u16 {
    // SAFETY: the caller's promise.
    let Ok(object) = (unsafe { IdObject::of(id) }) else { return 0 };
    // SAFETY: a sockaddr_storage has room for the address that its family says.
    let address = object.get(|base| unsafe { sockaddr::read(which(&base.route).cast()) }.ok().flatten());
    address.map_or(0, |address| address.port().to_be())
}
