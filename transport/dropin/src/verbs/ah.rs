//! Functions for address handles, multicast groups and fork, which do not use the device.
//!
//! The device does not support UD QPs. A program may create an address handle, but cannot use it with a QP.

use super::host::host;
use super::objects::AhObject;
use crate::abi::*;
use crate::border::{Errno, Handle, In, hand_out, object, status, value};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use trunkline_verbs::Device;

/// `ibv_create_ah(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    object(|| {
        // SAFETY: as `ibv_create_ah(3)` requires, the program passes a live PD, and attributes that
        // do not change during the call.
        let (pd, attr) = unsafe { (Handle::new(pd)?, In::new(attr)?) };
        let owner = pd.owner()?;
        let device = &owner.device;
        device.port(attr.port_num)?;
        let index = u16::from(attr.grh.sgid_index);
        if attr.is_global == 0 || !device.gid_table().iter().any(|entry| entry.index == index) {
            return Err(Errno::EINVAL);
        }
        let base = UnsafeCell::new(ibv_ah {
            context: owner.as_ptr(),
            pd: pd.as_ptr(),
            handle: host().next_handle(),
        });
        let ah: Handle<'_, ibv_ah> = hand_out(AhObject { base, _pd: Arc::clone(&pd.inner) });
        Ok(ah.as_ptr())
    })
}

/// `ibv_destroy_ah(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    status(|| {
        // SAFETY: `ibv_create_ah` returned the handle, and `ibv_destroy_ah(3)` ends its use. No
        // table lists it.
        unsafe { Handle::<ibv_ah>::new(ah)?.release() };
        Ok(())
    })
}

/// `ibv_init_ah_from_wc(3)`: `EOPNOTSUPP`, because this device does not support UD QPs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    _context: *mut ibv_context,
    _port: u8,
    _wc: *mut ibv_wc,
    _grh: *mut ibv_grh,
    _attr: *mut ibv_ah_attr,
) -> c_int {
    value(|| Err(Errno::EOPNOTSUPP))
}

/// `ibv_create_ah_from_wc(3)`: `EOPNOTSUPP`, like [`ibv_init_ah_from_wc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    _pd: *mut ibv_pd,
    _wc: *mut ibv_wc,
    _grh: *mut ibv_grh,
    _port: u8,
) -> *mut ibv_ah {
    object(|| Err(Errno::EOPNOTSUPP))
}

/// `ibv_attach_mcast(3)`: `EOPNOTSUPP`, because only UD QPs receive multicast packets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_attach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    status(|| Err(Errno::EOPNOTSUPP))
}

/// `ibv_detach_mcast(3)`: `EOPNOTSUPP`, like [`ibv_attach_mcast`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_detach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    status(|| Err(Errno::EOPNOTSUPP))
}

/// `ibv_fork_init(3)`: always returns 0. Registered memory is not pinned. A child gets a copy of it, and the device
/// continues to use the parent's memory.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized(3)`: returns `IBV_FORK_UNNEEDED`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}

/// `ibv_dontfork_range`: see [`ibv_fork_init`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// `ibv_dofork_range`: see [`ibv_fork_init`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
