//! Creation, resizing, destruction and polling of completion queues.

use super::convert::completion;
use super::cq_ex::{Readers, readers};
use super::events::{Element, EventCount, Target, lock};
use super::host::host;
use super::objects::{CqObject, CqTarget};
use super::spin::polled;
use super::turn::Turn;
use crate::abi::*;
use crate::border::{Errno, Handle, OutArray, field, guarded, hand_out, object, status};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use trunkline_verbs::{AsyncSubject, Completion, CqInit, Device, Notify};

/// `ibv_create_cq(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    object(|| {
        let cqe = u32::try_from(cqe).map_err(|_| Errno::EINVAL)?;
        let comp_vector = u32::try_from(comp_vector).map_err(|_| Errno::EINVAL)?;
        // SAFETY: as `ibv_create_cq(3)` requires, the program passes an open context, and a live
        // channel or null.
        let (context, channel) = unsafe { (Handle::new(context)?, Handle::optional(channel)) };
        let cq = create(context, cqe, cq_context, channel, comp_vector, Readers::empty())?;
        Ok(cq.as_ptr().cast())
    })
}

/// Creates a CQ with at least `cqe` entries, and with functions for the fields in `wanted`.
pub(super) fn create<'a>(
    owner: Handle<'a, ibv_context>,
    cqe: u32,
    cq_context: *mut c_void,
    channel: Option<Handle<'a, ibv_comp_channel>>,
    comp_vector: u32,
    wanted: Readers,
) -> Result<Handle<'a, ibv_cq_ex>, Errno> {
    if comp_vector != 0 {
        return Err(Errno::EINVAL);
    }
    let id = host().next_id();
    let inner = owner.device.create_cq(CqInit {
        capacity_cqe: cqe,
        channel: channel.map(|channel| Arc::clone(&channel.inner)),
        context: id,
        ..CqInit::default()
    })?;
    let base = ibv_cq {
        context: owner.as_ptr(),
        channel: channel.map_or(null_mut(), Handle::as_ptr),
        cq_context,
        handle: host().next_handle(),
        cqe: c_int::try_from(inner.capacity_cqe()).unwrap_or(c_int::MAX),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        comp_events_completed: 0,
        async_events_completed: 0,
    };
    let (completion_events, async_events) = (Arc::<EventCount>::default(), Arc::<EventCount>::default());
    let cq: Handle<'a, ibv_cq_ex> = hand_out(CqObject {
        base: UnsafeCell::new(readers(base, wanted)),
        inner: Arc::clone(&inner),
        id,
        completion_events: Arc::clone(&completion_events),
        async_events: Arc::clone(&async_events),
        turn: Turn::default(),
    });
    let address = cq.address();
    let element = Element::Cq(Target { address, count: async_events });
    host().router.listen(AsyncSubject::Cq(id), &owner.events, element);
    if let Some(channel) = channel {
        let mut cqs = lock(&channel.cqs);
        cqs.insert(id, CqTarget { address, count: completion_events });
        count_users(channel, cqs.len());
    }
    owner.live.cqs.insert(address, &inner);
    Ok(cq)
}

/// Stores the number of CQs that use a channel in the channel's C structure, as rdma-core does.
fn count_users(channel: Handle<'_, ibv_comp_channel>, users: usize) {
    channel.set(field!(ibv_comp_channel, refcnt), c_int::try_from(users).unwrap_or(c_int::MAX));
}

/// `ibv_resize_cq(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    status(|| {
        let cqe = u32::try_from(cqe).map_err(|_| Errno::EINVAL)?;
        // SAFETY: as `ibv_resize_cq(3)` requires, the program passes a live CQ.
        let cq = unsafe { Handle::new(cq)? };
        cq.inner.resize(cqe)?;
        cq.set(field!(ibv_cq, cqe), c_int::try_from(cq.inner.capacity_cqe()).unwrap_or(c_int::MAX));
        Ok(())
    })
}

/// `ibv_destroy_cq(3)`: `EBUSY` while an SRQ or a QP uses the CQ. Waits until the program has acknowledged the CQ's events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    status(|| {
        // SAFETY: as `ibv_destroy_cq(3)` requires, the program passes a live CQ.
        let cq = unsafe { Handle::new(cq)? };
        let owner = cq.owner()?;
        cq.inner.destroy()?;
        host().router.leave(AsyncSubject::Cq(cq.id), &owner.events, cq.address());
        // SAFETY: the library stored the channel, programs only read the field, and a channel refuses
        // to be destroyed while a CQ uses it.
        if let Some(channel) = unsafe { Handle::optional(cq.get(field!(ibv_cq, channel))) } {
            let mut cqs = lock(&channel.cqs);
            cqs.remove(&cq.id);
            channel.inner.forget(cq.id);
            count_users(channel, cqs.len());
        }
        cq.completion_events.wait();
        cq.async_events.wait();
        owner.live.cqs.remove(cq.address());
        // SAFETY: this is the program's last use of the CQ. The router, the channel and the context
        // do not list it any more, and all its events are acknowledged.
        unsafe { cq.release() };
        Ok(())
    })
}

/// Number of completions taken from the device at a time.
const BATCH: usize = 32;

/// `ibv_poll_cq(3)`.
pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    guarded(-libc::EIO, || {
        let wanted = usize::try_from(num_entries).unwrap_or(0);
        // SAFETY: as `ibv_poll_cq(3)` requires, the program passes a live CQ, and an array of
        // `num_entries` elements.
        let (Ok(cq), Ok(out)) = (unsafe { (Handle::new(cq), OutArray::new(wc, wanted)) }) else {
            return -libc::EINVAL;
        };
        let mut completions = [Completion::default(); BATCH];
        let mut got = 0;
        while got < wanted {
            let room = (wanted - got).min(BATCH);
            let count = cq.inner.poll(&mut completions[..room]);
            for entry in &completions[..count] {
                out.write(got, completion(entry));
                got += 1;
            }
            if count < room {
                break;
            }
        }
        polled(got > 0);
        c_int::try_from(got).unwrap_or(c_int::MAX)
    })
}

/// `ibv_req_notify_cq(3)`.
pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    status(|| {
        // SAFETY: as `ibv_req_notify_cq(3)` requires, the program passes a live CQ.
        let cq = unsafe { Handle::new(cq)? };
        if cq.get(field!(ibv_cq, channel)).is_null() {
            // Without a channel, a request for notification has no effect. The kernel accepts it as well.
            return Ok(());
        }
        let notify = if solicited_only == 0 { Notify::Any } else { Notify::Solicited };
        Ok(cq.inner.request_notify(notify)?)
    })
}
