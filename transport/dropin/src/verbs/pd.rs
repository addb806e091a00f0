//! Protection domains.

use super::host::host;
use super::objects::{PdObject, context_of, hand_out, pd_of, take_back};
use crate::abi::{ibv_context, ibv_pd};
use crate::border::{Errno, object, status};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use trunkline_verbs::Device;

/// `ibv_alloc_pd(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    object(|| {
        // SAFETY: an opened context of the caller's.
        let owner = unsafe { context_of(context) };
        let inner = owner.device.alloc_pd()?;
        let base = UnsafeCell::new(ibv_pd { context, handle: host().next_handle() });
        let pd = hand_out(PdObject { base, inner: inner.clone() });
        owner.live.pds.insert(pd, &inner);
        Ok(pd.cast())
    })
}

/// `ibv_dealloc_pd(3)`: `EBUSY` while something belongs to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    status(|| {
        // SAFETY: a domain of the caller's, and its context.
        let (object, owner) = unsafe { (pd_of(pd), context_of((*pd).context)) };
        object.inner.destroy()?;
        owner.live.pds.remove(pd);
        // SAFETY: handed out above; the caller gives it up.
        unsafe { take_back(pd.cast::<PdObject>()) };
        Ok(())
    })
}

/// No domain can be named by a handle of another process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
    object(|| Err(Errno::EOPNOTSUPP))
}

/// Nothing to undo: [`ibv_import_pd`] answers none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_pd(_pd: *mut ibv_pd) {}
