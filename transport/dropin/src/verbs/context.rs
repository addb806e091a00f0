//! Opening and closing the device; its asynchronous events.

use super::device::the_device;
use super::events::{ContextEvents, Element};
use super::host::host;
use super::objects::{ContextObject, Live, context_of, hand_out, take_back};
use super::ops::table;
use crate::abi::*;
use crate::border::{Errno, guarded, object, status, value};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use trunkline_verbs::AsyncEventKind as Kind;
use trunkline_verbs::legacy::LegacyXrc;

/// `ibv_open_device(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    object(|| {
        if device != the_device()? {
            return Err(Errno(libc::ENODEV));
        }
        open(device)
    })
}

fn open(device: *mut ibv_device) -> Result<*mut ibv_context, Errno> {
    let opened = host().device()?;
    let events = host().router.open()?;
    let table = UnsafeCell::new(table(device, events.as_fd().as_raw_fd()));
    let legacy = LegacyXrc::new(opened.clone());
    let context = hand_out(ContextObject { table, device: opened, events, live: Live::default(), legacy });
    // SAFETY: just made; the field is the one that C's pointers name.
    Ok(unsafe { &raw mut (*(*context).table.get()).context })
}

/// `ibv_close_device(3)`. What the program left undestroyed in the context ends with it
/// (contract A14).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    status(|| {
        // SAFETY: an opened context of the caller's.
        let object = unsafe { context_of(context) };
        object.legacy.unreg_all();
        object.live.end_all();
        host().router.close(&object.events);
        // SAFETY: handed out by `open` under this address, and closed by the caller now.
        unsafe { take_back(std::ptr::from_ref(object).cast_mut()) };
        Ok(())
    })
}

impl Live {
    /// In the order that nothing refuses (contract I3).
    fn end_all(&self) {
        self.qps.end(|qp| qp.destroy());
        self.srqs.end(|srq| srq.destroy());
        self.cqs.end(|cq| cq.destroy());
        self.mrs.end(|mr| mr.destroy());
        self.pds.end(|pd| pd.destroy());
        self.xrcds.end(|xrcd| xrcd.close());
    }
}

/// Takes an event from behind a descriptor as `read` would: waits unless it is non-blocking.
pub(crate) fn read_event<T>(fd: BorrowedFd<'_>, mut take: impl FnMut() -> Option<T>) -> Result<T, Errno> {
    loop {
        if let Some(event) = take() {
            return Ok(event);
        }
        let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
        if flags.contains(OFlag::O_NONBLOCK) {
            return Err(Errno::EAGAIN);
        }
        poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::NONE)?;
    }
}

/// `ibv_get_async_event(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    value(|| {
        // SAFETY: an opened context of the caller's. The queue may outlive it in this call.
        let events: Arc<ContextEvents> = Arc::clone(unsafe { &context_of(context).events });
        let waiting = read_event(events.as_fd(), || events.take())?;
        let element = match waiting.element {
            Element::Qp(target) => {
                ibv_async_element { qp: std::ptr::with_exposed_provenance_mut(target.address) }
            }
            Element::Srq(target) => {
                ibv_async_element { srq: std::ptr::with_exposed_provenance_mut(target.address) }
            }
            Element::Cq(target) => {
                ibv_async_element { cq: std::ptr::with_exposed_provenance_mut(target.address) }
            }
            Element::Port(port) => ibv_async_element { port_num: c_int::from(port) },
            Element::Device => ibv_async_element { port_num: 0 },
        };
        // SAFETY: the caller's place for the event.
        unsafe { event.write(ibv_async_event { element, event_type: code(waiting.kind) }) };
        Ok(0)
    })
}

/// `ibv_ack_async_event(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    guarded((), || {
        // SAFETY: an event that ibv_get_async_event filled in; which of the element's fields holds
        // is told by its type, and the object lives until this acknowledgement.
        unsafe {
            let event = &*event;
            match event.event_type {
                IBV_EVENT_CQ_ERR => super::objects::cq_of(event.element.cq).async_events.acknowledge(1),
                IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                    super::objects::srq_of(event.element.srq).events.acknowledge(1);
                }
                IBV_EVENT_QP_FATAL
                | IBV_EVENT_QP_REQ_ERR
                | IBV_EVENT_QP_ACCESS_ERR
                | IBV_EVENT_COMM_EST
                | IBV_EVENT_SQ_DRAINED
                | IBV_EVENT_PATH_MIG
                | IBV_EVENT_PATH_MIG_ERR
                | IBV_EVENT_QP_LAST_WQE_REACHED => {
                    super::objects::qp_of(event.element.qp).events.acknowledge(1);
                }
                _ => {}
            }
        }
    });
}

/// `ibv_event_type` of what happened.
fn code(kind: Kind) -> c_uint {
    match kind {
        Kind::CqError => IBV_EVENT_CQ_ERR,
        Kind::QpFatal => IBV_EVENT_QP_FATAL,
        Kind::QpRequestError => IBV_EVENT_QP_REQ_ERR,
        Kind::QpAccessError => IBV_EVENT_QP_ACCESS_ERR,
        Kind::CommunicationEstablished => IBV_EVENT_COMM_EST,
        Kind::SqDrained => IBV_EVENT_SQ_DRAINED,
        Kind::PathMigrated => IBV_EVENT_PATH_MIG,
        Kind::PathMigrationError => IBV_EVENT_PATH_MIG_ERR,
        Kind::PortActive => IBV_EVENT_PORT_ACTIVE,
        Kind::PortError => IBV_EVENT_PORT_ERR,
        Kind::LidChange => IBV_EVENT_LID_CHANGE,
        Kind::PkeyChange => IBV_EVENT_PKEY_CHANGE,
        Kind::SmChange => IBV_EVENT_SM_CHANGE,
        Kind::SrqError => IBV_EVENT_SRQ_ERR,
        Kind::SrqLimitReached => IBV_EVENT_SRQ_LIMIT_REACHED,
        Kind::QpLastWqeReached => IBV_EVENT_QP_LAST_WQE_REACHED,
        Kind::ClientReregister => IBV_EVENT_CLIENT_REREGISTER,
        Kind::GidChange => IBV_EVENT_GID_CHANGE,
        // The device, and whatever a provider may add: the program must stop in any case.
        _ => IBV_EVENT_DEVICE_FATAL,
    }
}
