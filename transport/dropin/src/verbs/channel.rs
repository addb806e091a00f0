//! Creation and destruction of completion channels, and their events.

use super::context::read_event;
use super::events::lock;
use super::objects::ChannelObject;
use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq};
use crate::border::{Errno, Handle, Out, field, guarded, hand_out, object, status, value};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Mutex;
use trunkline_verbs::Device;

/// Makes a descriptor of the device blocking, as programs expect. The device reads the descriptor only when it contains an
/// event, and writes it only when it contains none. The device therefore never blocks.
pub(crate) fn make_blocking(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK))?;
    Ok(())
}

/// `ibv_create_comp_channel(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    object(|| {
        // SAFETY: as `ibv_create_comp_channel(3)` requires, the program passes an open context.
        let inner = unsafe { Handle::new(context)? }.device.create_completion_channel()?;
        make_blocking(inner.as_fd())?;
        let fd = inner.as_fd().as_raw_fd();
        let base = UnsafeCell::new(ibv_comp_channel { context, fd, refcnt: 0 });
        let object = ChannelObject { base, inner, cqs: Mutex::new(HashMap::new()) };
        let channel: Handle<'_, ibv_comp_channel> = hand_out(object);
        Ok(channel.as_ptr())
    })
}

/// `ibv_destroy_comp_channel(3)`: `EBUSY` while CQs use it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    status(|| {
        // SAFETY: as `ibv_destroy_comp_channel(3)` requires, the program passes a live channel.
        let channel = unsafe { Handle::new(channel)? };
        if !lock(&channel.cqs).is_empty() {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: this is the program's last use of the channel, and no CQ refers to it.
        unsafe { channel.release() };
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
        // SAFETY: as `ibv_get_cq_event(3)` requires, the program passes a live channel, and memory
        // for the two results.
        let (channel, cq, cq_context) =
            unsafe { (Handle::new(channel)?, Out::new(cq)?, Out::new(cq_context)?) };
        let target = read_event(channel.inner.as_fd(), || {
            // Hold the lock until the event is counted, so that its CQ is not destroyed before.
            let cqs = lock(&channel.cqs);
            let target = cqs.get(&channel.inner.next_event()?).cloned();
            if let Some(target) = &target {
                target.count.report();
            }
            Some(target)
        })?;
        // `ibv_destroy_cq` removes the CQ's events from the channel, so the CQ of an event is listed.
        let target = target.ok_or(Errno::EAGAIN)?;
        // SAFETY: the event was counted under the lock, and `ibv_destroy_cq` waits until the program
        // acknowledges it.
        let fired: Handle<'_, ibv_cq> = unsafe { Handle::at(target.address)? };
        cq.write(fired.as_ptr());
        cq_context.write(fired.get(field!(ibv_cq, cq_context)));
        Ok(0)
    })
}

/// `ibv_ack_cq_events(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    guarded((), || {
        // SAFETY: as `ibv_ack_cq_events(3)` requires, the program passes a live CQ.
        if let Some(cq) = unsafe { Handle::optional(cq) } {
            cq.completion_events.acknowledge(nevents);
        }
    });
}
