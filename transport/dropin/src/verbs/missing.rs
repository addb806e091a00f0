//! Memory windows, device memory and prefetching, which this device does not support.
//!
//! The functions return the same errors as rdma-core's providers that lack the feature.

use crate::abi::*;
use crate::border::{Errno, object, status};
use std::ffi::{c_int, c_uint, c_void};

/// Table entry for `ibv_bind_mw(3)`, which does not check whether the entry exists. Programs cannot create a window to
/// bind.
pub(super) unsafe extern "C" fn bind_mw(
    _qp: *mut ibv_qp,
    _mw: *mut ibv_mw,
    _bind: *mut ibv_mw_bind,
) -> c_int {
    status(|| Err(Errno::EOPNOTSUPP))
}

/// Like [`bind_mw`].
pub(super) unsafe extern "C" fn dealloc_mw(_mw: *mut ibv_mw) -> c_int {
    status(|| Err(Errno::EOPNOTSUPP))
}

/// `ibv_advise_mr(3)`: `EOPNOTSUPP`, because the advice concerns on-demand paging.
pub(super) unsafe extern "C" fn advise_mr(
    _pd: *mut ibv_pd,
    _advice: c_uint,
    _flags: u32,
    _list: *mut ibv_sge,
    _count: u32,
) -> c_int {
    status(|| Err(Errno::EOPNOTSUPP))
}

/// `ibv_import_dm(3)`: `EOPNOTSUPP`, because there is no device memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> *mut c_void {
    object(|| Err(Errno::EOPNOTSUPP))
}

/// `ibv_unimport_dm(3)`: no-op, because [`ibv_import_dm`] never succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_dm(_dm: *mut c_void) {}
