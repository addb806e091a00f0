//! Shared receive queues (contract D).

use super::events::{Element, EventCount, Target};
use super::host::host;
use super::objects::{SrqObject, context_of, cq_of, hand_out, pd_of, srq_of, take_back, xrcd_of};
use crate::abi::*;
use crate::border::{Errno, object, status};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use trunkline_verbs::{AsyncSubject, Device, SrqInit, SrqKind};

/// `ibv_create_srq(3)`: a basic one (contract D10).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    object(|| {
        // SAFETY: the caller's domain and request.
        unsafe { create((*pd).context, pd, SrqKind::Basic, (*init).srq_context, &mut (*init).attr) }
    })
}

/// `ibv_create_srq_ex(3)`.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    object(|| {
        // SAFETY: the caller's request, to which the sizes are written back.
        let init = unsafe { &mut *init };
        // contract D1
        if init.comp_mask >= IBV_SRQ_INIT_ATTR_RESERVED {
            return Err(Errno::EOPNOTSUPP);
        }
        let has = |bit| init.comp_mask & bit != 0;
        let kind = if has(IBV_SRQ_INIT_ATTR_TYPE) { init.srq_type } else { IBV_SRQT_BASIC };
        if !has(IBV_SRQ_INIT_ATTR_PD) || init.pd.is_null() {
            return Err(Errno::EINVAL);
        }
        let kind = match kind {
            IBV_SRQT_BASIC => SrqKind::Basic,
            IBV_SRQT_XRC => {
                if !has(IBV_SRQ_INIT_ATTR_XRCD)
                    || !has(IBV_SRQ_INIT_ATTR_CQ)
                    || init.xrcd.is_null()
                    || init.cq.is_null()
                {
                    return Err(Errno::EINVAL);
                }
                // SAFETY: objects of the caller's.
                let (xrcd, cq) = unsafe { (xrcd_of(init.xrcd), cq_of(init.cq)) };
                SrqKind::Xrc { xrcd: Arc::clone(&xrcd.inner), cq: Arc::clone(&cq.inner) }
            }
            IBV_SRQT_TM => return Err(Errno::EOPNOTSUPP),
            _ => return Err(Errno::EINVAL),
        };
        // SAFETY: the caller's context and domain.
        unsafe { create(context, init.pd, kind, init.srq_context, &mut init.attr) }
    })
}

unsafe fn create(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    kind: SrqKind,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
) -> Result<*mut ibv_srq, Errno> {
    // SAFETY: the caller's context and domain.
    let (owner, domain) = unsafe { (context_of(context), pd_of(pd)) };
    let id = host().next_id();
    let inner = owner.device.create_srq(SrqInit {
        pd: Arc::clone(&domain.inner),
        kind,
        max_wr: attr.max_wr,
        max_sge: attr.max_sge,
        context: id,
    })?;
    let made = inner.query()?;
    // contract D5
    (attr.max_wr, attr.max_sge) = (made.max_wr, made.max_sge);
    let events = Arc::<EventCount>::default();
    let base = UnsafeCell::new(ibv_srq {
        context,
        srq_context,
        pd,
        handle: host().next_handle(),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    });
    let srq = hand_out(SrqObject { base, inner: Arc::clone(&inner), id, events: Arc::clone(&events) });
    let element = Element::Srq(Target { address: srq.expose_provenance(), count: events });
    host().router.listen(AsyncSubject::Srq(id), &owner.events, element);
    owner.live.srqs.insert(srq, &inner);
    Ok(srq.cast())
}

/// `ibv_modify_srq(3)`: its size (contract D7) and its limit (contract D6).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    status(|| {
        let mask = mask.cast_unsigned();
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: a queue of the caller's, and its attributes.
        let (object, attr) = unsafe { (srq_of(srq), &*attr) };
        if mask & IBV_SRQ_MAX_WR != 0 {
            object.inner.resize(attr.max_wr)?;
        }
        if mask & IBV_SRQ_LIMIT != 0 {
            object.inner.arm_limit(attr.srq_limit)?;
        }
        Ok(())
    })
}

/// `ibv_query_srq(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    status(|| {
        // SAFETY: a queue of the caller's.
        let now = unsafe { srq_of(srq) }.inner.query()?;
        let answer = ibv_srq_attr { max_wr: now.max_wr, max_sge: now.max_sge, srq_limit: now.limit };
        // SAFETY: the caller's place for it.
        unsafe { attr.write(answer) };
        Ok(())
    })
}

/// `ibv_get_srq_num(3)` (contract D4).
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    status(|| {
        // SAFETY: a queue of the caller's, and its place for the number.
        unsafe { number.write(srq_of(srq).inner.number()?.get()) };
        Ok(())
    })
}

/// `ibv_destroy_srq(3)`: waits until its events are acknowledged (contract D8, D9, H6).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    status(|| {
        // SAFETY: a queue of the caller's, and its context.
        let (object, owner) = unsafe { (srq_of(srq), context_of((*srq).context)) };
        object.inner.destroy()?;
        host().router.leave(AsyncSubject::Srq(object.id), &owner.events, srq.addr());
        object.events.wait();
        owner.live.srqs.remove(srq);
        // SAFETY: handed out by `create`; the caller gives it up.
        unsafe { take_back(srq.cast::<SrqObject>()) };
        Ok(())
    })
}
