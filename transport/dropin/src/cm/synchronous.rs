//! Synchronous ids. Each call waits for its outcome and stores the event with the outcome in the id.

use super::channel::Channel;
use super::event::{acknowledge, next};
use super::fields::{CHANNEL, EVENT, Id};
use crate::abi::*;
use crate::border::{Errno, Handle, field};
use std::ptr::null_mut;
use std::sync::Arc;
use trunkline_verbs::{CmId, VerbsError};

/// Starts an operation whose completion an event reports. If the id is synchronous, waits for the event. Any other id is
/// not used after the start, because another thread may have taken the event and destroyed the id.
pub(super) fn begin(
    id: Id<'_>,
    action: impl FnOnce(&dyn CmId) -> Result<(), VerbsError>,
) -> Result<(), Errno> {
    let (endpoint, is_synchronous) = (Arc::clone(&id.endpoint), id.is_synchronous());
    action(&*endpoint)?;
    if is_synchronous { wait_for_outcome(id) } else { Ok(()) }
}

/// Waits for the outcome of a call on a synchronous id.
pub(super) fn wait_for_outcome(id: Id<'_>) -> Result<(), Errno> {
    forget_event(id);
    let event = next(own_channel(id)?)?;
    id.set(EVENT, event.as_ptr());
    match event.get(field!(rdma_cm_event, status)) {
        0 => Ok(()),
        _ if event.get(field!(rdma_cm_event, event)) == RDMA_CM_EVENT_REJECTED => {
            Err(Errno(libc::ECONNREFUSED))
        }
        status => Err(Errno(status.saturating_abs())),
    }
}

/// Returns the separate channel of a synchronous id.
pub(super) fn own_channel<'a>(id: Id<'a>) -> Result<Channel<'a>, Errno> {
    // SAFETY: the library stored the channel, programs only read the field, and a synchronous id's
    // channel lives as long as the id.
    unsafe { Handle::new(id.get(CHANNEL)) }
}

/// Acknowledges the event that the last call stored in a synchronous id.
pub(super) fn forget_event(id: Id<'_>) {
    let event = id.replace(EVENT, null_mut());
    // SAFETY: only the library writes the field, with an event that the program does not acknowledge
    // itself. This removes the event from the field, so it is acknowledged once.
    unsafe {
        if let Some(event) = Handle::optional(event) {
            acknowledge(event);
        }
    }
}
