//! Shared receive queues (contract D).

use super::events::{Element, EventCount, Target};
use super::host::host;
use super::objects::SrqObject;
use crate::abi::*;
use crate::border::{Errno, Handle, In, InOut, Out, hand_out, object, status};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use trunkline_verbs::{AsyncSubject, Device, SrqInit, SrqKind};

/// `ibv_create_srq(3)`: creates a basic SRQ (contract D10).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    object(|| {
        // SAFETY: as `ibv_create_srq(3)` requires, the program passes a live PD, and attributes
        // that only the library accesses until the call returns.
        let (pd, mut init) = unsafe { (Handle::new(pd)?, InOut::new(init)?) };
        create(pd.owner()?, pd, SrqKind::Basic, init.srq_context, &mut init.attr)
    })
}

/// `ibv_create_srq_ex(3)`.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    object(|| {
        // SAFETY: as `ibv_create_srq_ex(3)` requires, the program passes an open context, and
        // attributes that only the library accesses until the call returns.
        let (owner, mut init) = unsafe { (Handle::new(context)?, InOut::new(init)?) };
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
                // SAFETY: as `ibv_create_srq_ex(3)` requires, the attributes refer to an open XRC
                // domain and a live CQ.
                let (xrcd, cq) = unsafe { (Handle::new(init.xrcd)?, Handle::new(init.cq)?) };
                SrqKind::Xrc { xrcd: Arc::clone(&xrcd.inner), cq: Arc::clone(&cq.inner) }
            }
            IBV_SRQT_TM => return Err(Errno::EOPNOTSUPP),
            _ => return Err(Errno::EINVAL),
        };
        // SAFETY: as `ibv_create_srq_ex(3)` requires, the attributes refer to a live PD.
        let pd = unsafe { Handle::new(init.pd)? };
        create(owner, pd, kind, init.srq_context, &mut init.attr)
    })
}

/// Creates an SRQ and stores its size in `attr` (contract D5).
fn create(
    owner: Handle<'_, ibv_context>,
    pd: Handle<'_, ibv_pd>,
    kind: SrqKind,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
) -> Result<*mut ibv_srq, Errno> {
    let id = host().next_id();
    let inner = owner.device.create_srq(SrqInit {
        pd: Arc::clone(&pd.inner),
        kind,
        max_wr: attr.max_wr,
        max_sge: attr.max_sge,
        context: id,
    })?;
    let made = inner.query()?;
    (attr.max_wr, attr.max_sge) = (made.max_wr, made.max_sge);
    let events = Arc::<EventCount>::default();
    let base = UnsafeCell::new(ibv_srq {
        context: owner.as_ptr(),
        srq_context,
        pd: pd.as_ptr(),
        handle: host().next_handle(),
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    });
    let srq: Handle<'_, ibv_srq> =
        hand_out(SrqObject { base, inner: Arc::clone(&inner), id, events: Arc::clone(&events) });
    let element = Element::Srq(Target { address: srq.address(), count: events });
    host().router.listen(AsyncSubject::Srq(id), &owner.events, element);
    owner.live.srqs.insert(srq.address(), &inner);
    Ok(srq.as_ptr())
}

/// `ibv_modify_srq(3)`: changes the size (contract D7) and the limit (contract D6).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    status(|| {
        let mask = mask.cast_unsigned();
        if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: as `ibv_modify_srq(3)` requires, the program passes a live SRQ, and attributes
        // that do not change during the call.
        let (srq, attr) = unsafe { (Handle::new(srq)?, In::new(attr)?) };
        if mask & IBV_SRQ_MAX_WR != 0 {
            srq.inner.resize(attr.max_wr)?;
        }
        if mask & IBV_SRQ_LIMIT != 0 {
            srq.inner.arm_limit(attr.srq_limit)?;
        }
        Ok(())
    })
}

/// `ibv_query_srq(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    status(|| {
        // SAFETY: as `ibv_query_srq(3)` requires, the program passes a live SRQ, and memory for the
        // attributes.
        let (srq, attr) = unsafe { (Handle::new(srq)?, Out::new(attr)?) };
        let now = srq.inner.query()?;
        attr.write(ibv_srq_attr { max_wr: now.max_wr, max_sge: now.max_sge, srq_limit: now.limit });
        Ok(())
    })
}

/// `ibv_get_srq_num(3)` (contract D4).
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    status(|| {
        // SAFETY: as `ibv_get_srq_num(3)` requires, the program passes a live SRQ, and memory for the number.
        let (srq, number) = unsafe { (Handle::new(srq)?, Out::new(number)?) };
        number.write(srq.inner.number()?.get());
        Ok(())
    })
}

/// `ibv_destroy_srq(3)`: waits until the program has acknowledged the SRQ's events (contract D8, D9,
/// H6).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    status(|| {
        // SAFETY: as `ibv_destroy_srq(3)` requires, the program passes a live SRQ.
        let srq = unsafe { Handle::new(srq)? };
        let owner = srq.owner()?;
        srq.inner.destroy()?;
        host().router.leave(AsyncSubject::Srq(srq.id), &owner.events, srq.address());
        srq.events.wait();
        owner.live.srqs.remove(srq.address());
        // SAFETY: this is the program's last use of the SRQ. The router and the context do not list it
        // any more, and all its events are acknowledged.
        unsafe { srq.release() };
        Ok(())
    })
}
