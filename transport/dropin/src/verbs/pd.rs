//! Allocation and deallocation of protection domains.

use super::host::host;
use super::objects::PdObject;
use crate::abi::{ibv_context, ibv_pd};
use crate::border::{Errno, Handle, hand_out, object, status};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use trunkline_verbs::Device;

/// `ibv_alloc_pd(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    object(|| {
        // SAFETY: as `ibv_alloc_pd(3)` requires, the program passes an open context.
        let owner = unsafe { Handle::new(context)? };
        let inner = owner.device.alloc_pd()?;
        let base = UnsafeCell::new(ibv_pd { context, handle: host().next_handle() });
        let pd: Handle<'_, ibv_pd> = hand_out(PdObject { base, inner: inner.clone() });
        owner.live.pds.insert(pd.address(), &inner);
        Ok(pd.as_ptr())
    })
}

/// `ibv_dealloc_pd(3)`: `EBUSY` while an object uses the PD.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    status(|| {
        // SAFETY: as `ibv_dealloc_pd(3)` requires, the program passes a live PD.
        let pd = unsafe { Handle::new(pd)? };
        let owner = pd.owner()?;
        pd.inner.destroy()?;
        owner.live.pds.remove(pd.address());
        // SAFETY: this is the program's last use of the PD, and its context does not list it any more.
        unsafe { pd.release() };
        Ok(())
    })
}

/// `ibv_import_pd(3)`: `EOPNOTSUPP`, because processes cannot share a PD of this device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
    object(|| Err(Errno::EOPNOTSUPP))
}

/// `ibv_unimport_pd(3)`: no-op, because [`ibv_import_pd`] never succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_pd(_pd: *mut ibv_pd) {}
