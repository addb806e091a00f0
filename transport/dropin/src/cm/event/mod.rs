//! Events, which programs take and acknowledge.
//!
//! An event counts as outstanding on its id until the program acknowledges it. For a request, it counts on the listener.
//! When the program takes an endpoint's event, `translate` performs the steps that librdmacm would perform, and `content`
//! converts the event to C.

mod content;
mod translate;

use super::channel::Channel;
use crate::abi::*;
use crate::border::{Errno, Handle, Out, Structure, value};
use crate::verbs::events::EventCount;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

/// An event that belongs to the program or will be given to it.
pub(super) type CmEventHandle<'a> = Handle<'a, rdma_cm_event>;

/// An event.
#[repr(C)]
pub(crate) struct EventObject {
    base: UnsafeCell<rdma_cm_event>,
    /// Target of `param.conn.private_data`.
    _private_data: Vec<u8>,
    /// Event count of the id on which the event is outstanding.
    outstanding: Arc<EventCount>,
}

// SAFETY: `EventObject` is `repr(C)` and begins with `base`.
unsafe impl Structure for rdma_cm_event {
    type Object = EventObject;
}

/// `rdma_get_cm_event(3)`: waits for an event, unless the channel's descriptor is `O_NONBLOCK`.
///
/// # Safety
/// The channel is not destroyed, and `event` points to memory for a pointer.
#[unsafe(export_name = "trunkline_rdma_get_cm_event")]
pub unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    value(|| {
        // SAFETY: the program upholds this function's contract.
        let (event, channel) = unsafe { (Out::new(event)?, Handle::new(channel)?) };
        event.write(next(channel)?.as_ptr());
        Ok(0)
    })
}

/// `rdma_ack_cm_event(3)`: frees the event. A thread that waits to destroy the event's id may then continue.
///
/// # Safety
/// `event` came from [`rdma_get_cm_event`], and the program does not use it after this.
#[unsafe(export_name = "trunkline_rdma_ack_cm_event")]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    value(|| {
        // SAFETY: the program upholds this function's contract.
        unsafe { acknowledge(Handle::new(event)?) };
        Ok(0)
    })
}

/// Takes the next event of a channel, like [`rdma_get_cm_event`].
pub(super) fn next<'a>(channel: Channel<'_>) -> Result<CmEventHandle<'a>, Errno> {
    channel.next(translate::take)
}

/// Acknowledges an event and frees it.
///
/// # Safety
/// The event is alive, and neither the program nor the library uses it after this.
pub(super) unsafe fn acknowledge(event: CmEventHandle<'_>) {
    let outstanding = Arc::clone(&event.outstanding);
    // SAFETY: this function's contract; no table lists events.
    unsafe { event.release() };
    outstanding.acknowledge(1);
}
