//! Functions that open and close the device and take its asynchronous events.

use super::device::the_device;
use super::events::{ContextEvents, Element};
use super::host::host;
use super::live::Live;
use super::objects::ContextObject;
use super::ops::table;
use crate::abi::*;
use crate::border::{Errno, Handle, In, Out, guarded, hand_out, object, status, value};
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
    let object = ContextObject { table, device: opened, events, live: Live::default(), legacy };
    let context: Handle<'_, ibv_context> = hand_out(object);
    Ok(context.as_ptr())
}

/// `ibv_close_device(3)`. Objects of the context that the program has not destroyed are destroyed
/// with it (contract A14).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    status(|| {
        // SAFETY: as `ibv_close_device(3)` requires, the program passes an open context.
        let context = unsafe { Handle::new(context)? };
        context.legacy.unreg_all();
        context.live.destroy_all();
        host().router.close(&context.events);
        // SAFETY: this is the program's last use of the context and of all objects in it, and the router no
        // longer lists it.
        unsafe { context.release() };
        Ok(())
    })
}

/// Takes the event that a descriptor signals. Like `read`, waits for an event, or returns `EAGAIN` if the descriptor is
/// non-blocking.
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
        // SAFETY: as `ibv_get_async_event(3)` requires, the program passes an open context, and
        // memory for the event.
        let (context, event) = unsafe { (Handle::new(context)?, Out::new(event)?) };
        // Hold a reference to the queue, because another thread may close the context during the wait.
        let events: Arc<ContextEvents> = Arc::clone(&context.events);
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
        event.write(ibv_async_event { element, event_type: code(waiting.kind) });
        Ok(0)
    })
}

/// `ibv_ack_async_event(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    guarded((), || {
        // SAFETY: as `ibv_ack_async_event(3)` requires, `ibv_get_async_event` filled in the event.
        let Some(event) = (unsafe { In::optional(event) }) else { return };
        // SAFETY: `ibv_get_async_event` set the field of the element that the type names, and the
        // object's destruction waits for this acknowledgement.
        let count = unsafe {
            match event.event_type {
                IBV_EVENT_CQ_ERR => Handle::optional(event.element.cq).map(|cq| Arc::clone(&cq.async_events)),
                IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                    Handle::optional(event.element.srq).map(|srq| Arc::clone(&srq.events))
                }
                IBV_EVENT_QP_FATAL
                | IBV_EVENT_QP_REQ_ERR
                | IBV_EVENT_QP_ACCESS_ERR
                | IBV_EVENT_COMM_EST
                | IBV_EVENT_SQ_DRAINED
                | IBV_EVENT_PATH_MIG
                | IBV_EVENT_PATH_MIG_ERR
                | IBV_EVENT_QP_LAST_WQE_REACHED => {
                    Handle::optional(event.element.qp).map(|qp| Arc::clone(&qp.events))
                }
                _ => None,
            }
        };
        if let Some(count) = count {
            count.acknowledge(1);
        }
    });
}

/// Returns the `ibv_event_type` for a kind of event.
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
        // Kinds that are added later are reported as fatal too, so that the program stops using the device.
        _ => IBV_EVENT_DEVICE_FATAL,
    }
}
