//! `rdma_get_devices` and `rdma_free_devices`.

use super::host::host;
use crate::abi::*;
use crate::border::{Out, guarded, object};
use std::ffi::c_int;
use std::ptr::null_mut;

/// `rdma_get_devices(3)`: returns the contexts of all devices, terminated by NULL.
///
/// # Safety
/// `count` is null or points to memory for a number.
#[unsafe(export_name = "trunkline_rdma_get_devices")]
pub unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    object(|| {
        // SAFETY: the program upholds this function's contract.
        let count = unsafe { Out::optional(count) };
        let context = host().context();
        if let Some(count) = count {
            count.write(c_int::from(context.is_ok()));
        }
        let list = Box::new([context?, null_mut()]);
        Ok(Box::into_raw(list).cast())
    })
}

/// `rdma_free_devices(3)`: frees the list. The devices stay open.
///
/// # Safety
/// `list` is null or came from [`rdma_get_devices`], and the program does not use it after this.
#[unsafe(export_name = "trunkline_rdma_free_devices")]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    guarded((), || {
        if !list.is_null() {
            // SAFETY: `rdma_get_devices` allocated it with this type, and this is its last use.
            drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_context; 2]>()) });
        }
    });
}
