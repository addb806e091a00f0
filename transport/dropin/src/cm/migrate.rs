//! Migration of an id to another event channel.

use super::channel::{Channel, ChannelObject, destroy as destroy_channel};
use super::fields::{CHANNEL, Id};
use super::synchronous::forget_event;
use crate::abi::*;
use crate::border::{Errno, Handle, value};
use std::ffi::c_int;
use std::sync::atomic::Ordering;

/// `rdma_migrate_id(3)`: without a channel, the id gets a separate channel and becomes synchronous. Waits until the program
/// has acknowledged the id's events from the old channel.
///
/// # Safety
/// The id is not destroyed, and `channel` is null or not destroyed.
#[unsafe(export_name = "trunkline_rdma_migrate_id")]
pub unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    value(|| {
        // SAFETY: the program upholds this function's contract.
        let (id, channel) = unsafe { (Handle::new(id)?, Handle::optional(channel)) };
        migrate(id, channel)?;
        Ok(0)
    })
}

/// Like [`rdma_migrate_id`].
pub(super) fn migrate(id: Id<'_>, channel: Option<Channel<'_>>) -> Result<(), Errno> {
    let was_synchronous = id.is_synchronous();
    if was_synchronous && channel.is_none() {
        return Err(Errno::EINVAL);
    }
    let own = if channel.is_none() { Some(ChannelObject::create()?) } else { None };
    let Some(reports_to) = channel.or(own) else { return Err(Errno::EINVAL) };
    id.endpoint.migrate(&reports_to.inner).inspect_err(|_| {
        if let Some(own) = own {
            // SAFETY: the channel was created in this call, and no id refers to it.
            unsafe { own.release() };
        }
    })?;
    let old = id.replace(CHANNEL, reports_to.as_ptr());
    id.is_synchronous.store(own.is_some(), Ordering::Relaxed);
    if was_synchronous {
        forget_event(id);
        // SAFETY: the old channel belonged to the synchronous id, which no longer uses it.
        unsafe {
            if let Some(old) = Channel::optional(old) {
                destroy_channel(old);
            }
        }
    }
    id.outstanding.wait();
    Ok(())
}
