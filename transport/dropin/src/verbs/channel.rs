//! Completion channels.

use super::context::read_event;
use super::events::lock;
use super::objects::{ChannelObject, channel_of, context_of, cq_of, hand_out, take_back};
use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::border::{Errno, guarded, object, status, value};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Mutex;
use trunkline_verbs::Device;

/// Makes the device's descriptor blocking, as programs expect to find it. The device reads it
/// only while it holds an event and writes it only while it holds none, so it never waits.
pub(crate) fn make_blocking(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
    Ok(())
}

/// `ibv_create_comp_channel(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    object(|| {
        // SAFETY: an opened context of the caller's.
        let inner = unsafe { context_of(context) }.device.create_completion_channel()?;
        make_blocking(inner.as_fd())?;
        let fd = inner.as_fd().as_raw_fd();
        let base = UnsafeCell::new(ibv_comp_channel { context, fd, refcnt: 0 });
        Ok(hand_out(ChannelObject { base, inner, cqs: Mutex::new(HashMap::new()) }).cast())
    })
}

/// `ibv_destroy_comp_channel(3)`: `EBUSY` while CQs use it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    status(|| {
        // SAFETY: a channel of the caller's.
        if !lock(unsafe { &channel_of(channel).cqs }).is_empty() {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: handed out above; the caller gives it up.
        unsafe { take_back(channel.cast::<ChannelObject>()) };
        Ok(())
    })
}

/// `ibv_get_cq_event(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    value(|| {
        // SAFETY: a channel of the caller's.
        let object = unsafe { channel_of(channel) };
        let target = read_event(object.inner.as_fd(), || {
            // With the lock held until the event counts, its CQ is not destroyed in between.
            let cqs = lock(&object.cqs);
            let target = cqs.get(&object.inner.next_event()?).cloned();
            if let Some(target) = &target {
                target.count.report();
            }
            Some(target)
        })?;
        // Events of a destroyed CQ are taken out when it goes, so one is always known.
        let target = target.ok_or(Errno::EAGAIN)?;
        let fired: *mut ibv_cq = std::ptr::with_exposed_provenance_mut(target.address);
        // SAFETY: places of the caller's; the CQ lives until the event is acknowledged.
        unsafe {
            cq.write(fired);
            cq_context.write((*fired).cq_context);
        }
        Ok(0)
    })
}

/// `ibv_ack_cq_events(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    // SAFETY: a CQ of the caller's.
    guarded((), || unsafe { cq_of(cq) }.completion_events.acknowledge(nevents));
}
