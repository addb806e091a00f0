//! The list of devices.

use super::host::host;
use crate::abi::*;
use crate::border::{guarded, object};
use std::ffi::c_int;
use std::ptr::null_mut;

/// All devices, opened, and NULL behind.
///
/// # Safety
/// `count` is null or may be written.
#[unsafe(export_name = "trunkline_rdma_get_devices")]
pub unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    object(|| {
        if !count.is_null() {
            // SAFETY: the caller's promise.
            unsafe { count.write(0) };
        }
        let list = Box::new([host().context()?, null_mut()]);
        if !count.is_null() {
            // SAFETY: the caller's promise.
            unsafe { count.write(1) };
        }
        Ok(Box::into_raw(list).cast())
    })
}

/// Gives a list back; the devices stay open.
///
/// # Safety
/// `list` is null or came from [`rdma_get_devices`], and is used no more.
#[unsafe(export_name = "trunkline_rdma_free_devices")]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    guarded((), || {
        if !list.is_null() {
            // SAFETY: `rdma_get_devices` made it of this very type.
            drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_context; 2]>()) });
        }
    });
}
