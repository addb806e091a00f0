//! Completion queues.

use super::convert::completion;
use super::cq_ex::{Readers, readers};
use super::events::{Element, EventCount, Target, lock};
use super::host::host;
use super::objects::{CqObject, CqTarget, Turn, channel_of, context_of, cq_of, hand_out, take_back};
use super::spin::polled;
use crate::abi::*;
use crate::border::{Errno, guarded, object, status};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
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
        // SAFETY: passed on from the caller.
        unsafe { create(context, cqe, cq_context, channel, comp_vector, Readers::empty()) }
    })
    .cast()
}

/// Makes a CQ, with the readers of the fields that an extended one was asked for.
pub(super) unsafe fn create(
    context: *mut ibv_context,
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: u32,
    wanted: Readers,
) -> Result<*mut CqObject, Errno> {
    if comp_vector != 0 {
        return Err(Errno::EINVAL);
    }
    // SAFETY: an opened context of the caller's.
    let owner = unsafe { context_of(context) };
    // SAFETY: a channel of the caller's.
    let to = (!channel.is_null()).then(|| unsafe { channel_of(channel) });
    let id = host().next_id();
    let inner = owner.device.create_cq(CqInit {
        capacity_cqe: cqe,
        channel: to.map(|to| Arc::clone(&to.inner)),
        context: id,
    })?;
    let base = ibv_cq {
        context,
        channel,
        cq_context,
        handle: host().next_handle(),
        cqe: c_int::try_from(inner.capacity_cqe()).unwrap_or(c_int::MAX),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        comp_events_completed: 0,
        async_events_completed: 0,
    };
    let (completion_events, async_events) = (Arc::<EventCount>::default(), Arc::<EventCount>::default());
    let cq = hand_out(CqObject {
        base: UnsafeCell::new(readers(base, wanted)),
        inner: Arc::clone(&inner),
        id,
        completion_events: Arc::clone(&completion_events),
        async_events: Arc::clone(&async_events),
        turn: Turn::default(),
        current: UnsafeCell::new(Completion::default()),
    });
    let address = cq.expose_provenance();
    let element = Element::Cq(Target { address, count: async_events });
    host().router.listen(AsyncSubject::Cq(id), &owner.events, element);
    if let Some(to) = to {
        lock(&to.cqs).insert(id, CqTarget { address, count: completion_events });
        // SAFETY: the caller's channel; as in rdma-core the count is the library's to keep.
        unsafe { (*channel).refcnt += 1 };
    }
    owner.live.cqs.insert(cq, &inner);
    Ok(cq)
}

/// `ibv_resize_cq(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    status(|| {
        let cqe = u32::try_from(cqe).map_err(|_| Errno::EINVAL)?;
        // SAFETY: a CQ of the caller's.
        let object = unsafe { cq_of(cq) };
        object.inner.resize(cqe)?;
        let now = c_int::try_from(object.inner.capacity_cqe()).unwrap_or(c_int::MAX);
        // SAFETY: as above; programs only read this field.
        unsafe { (*cq).cqe = now };
        Ok(())
    })
}

/// `ibv_destroy_cq(3)`: `EBUSY` while an SRQ or a QP completes into it; waits until its events
/// are acknowledged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    status(|| {
        // SAFETY: a CQ of the caller's, its context and its channel.
        let (object, context, channel) = unsafe { (cq_of(cq), (*cq).context, (*cq).channel) };
        // SAFETY: as above.
        let owner = unsafe { context_of(context) };
        object.inner.destroy()?;
        host().router.leave(AsyncSubject::Cq(object.id), &owner.events, cq.addr());
        if !channel.is_null() {
            // SAFETY: a channel cannot be destroyed while a CQ uses it.
            let from = unsafe { channel_of(channel) };
            let mut cqs = lock(&from.cqs);
            cqs.remove(&object.id);
            from.inner.forget(object.id);
            // SAFETY: as above, with the lock that guards the count.
            unsafe { (*channel).refcnt -= 1 };
        }
        object.completion_events.wait();
        object.async_events.wait();
        owner.live.cqs.remove(cq);
        // SAFETY: handed out by `create`; the caller gives it up.
        unsafe { take_back(cq.cast::<CqObject>()) };
        Ok(())
    })
}

/// Completions converted at a time.
const BATCH: usize = 32;

/// `ibv_poll_cq(3)`.
pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    guarded(-libc::EIO, || {
        // SAFETY: a CQ of the caller's.
        let object = unsafe { cq_of(cq) };
        let wanted = usize::try_from(num_entries).unwrap_or(0);
        let mut completions = [Completion::default(); BATCH];
        let mut got = 0;
        while got < wanted {
            let room = (wanted - got).min(BATCH);
            let count = object.inner.poll(&mut completions[..room]);
            for entry in &completions[..count] {
                // SAFETY: the caller has room for `num_entries`, and got < wanted here.
                unsafe { wc.add(got).write(completion(entry)) };
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
        // SAFETY: a CQ of the caller's.
        let (object, channel) = unsafe { (cq_of(cq), (*cq).channel) };
        if channel.is_null() {
            // There is nobody to tell, which the kernel does not mind.
            return Ok(());
        }
        let notify = if solicited_only == 0 { Notify::Any } else { Notify::Solicited };
        Ok(object.inner.request_notify(notify)?)
    })
}
