//! Address handles, multicast groups and fork: functions that need no device.
//!
//! No QP type of this device takes an address handle, but programs may make one; they are told
//! so when they make a UD QP.

use super::host::host;
use super::objects::{AhObject, context_of, hand_out, pd_of, take_back};
use crate::abi::*;
use crate::border::{Errno, object, status, value};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use trunkline_verbs::Device;

/// `ibv_create_ah(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    object(|| {
        // SAFETY: the caller's attributes, domain and context.
        let (attr, domain, context) = unsafe { (attr.read(), pd_of(pd), (*pd).context) };
        // SAFETY: as above.
        let device = unsafe { &context_of(context).device };
        device.port(attr.port_num)?;
        let index = u16::from(attr.grh.sgid_index);
        if attr.is_global == 0 || !device.gid_table().iter().any(|entry| entry.index == index) {
            return Err(Errno::EINVAL);
        }
        let base = UnsafeCell::new(ibv_ah { context, pd, handle: host().next_handle() });
        Ok(hand_out(AhObject { base, _pd: Arc::clone(&domain.inner) }).cast())
    })
}

/// `ibv_destroy_ah(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    status(|| {
        // SAFETY: handed out above; the caller gives it up.
        unsafe { take_back(ah.cast::<AhObject>()) };
        Ok(())
    })
}

/// `ibv_init_ah_from_wc(3)`: completions of this device come from no UD QP, so none names an
/// address.
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

/// `ibv_create_ah_from_wc(3)`, as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    _pd: *mut ibv_pd,
    _wc: *mut ibv_wc,
    _grh: *mut ibv_grh,
    _port: u8,
) -> *mut ibv_ah {
    object(|| Err(Errno::EOPNOTSUPP))
}

/// `ibv_attach_mcast(3)`: for UD, which this device has not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_attach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    status(|| Err(Errno::EOPNOTSUPP))
}

/// `ibv_detach_mcast(3)`, as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_detach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    status(|| Err(Errno::EOPNOTSUPP))
}

/// `ibv_fork_init(3)`: nothing to prepare. Registered memory is not pinned: a child has its own
/// copy, and the device goes on with the parent's.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized(3)`: `IBV_FORK_UNNEEDED`.
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
