//! The devices that libibverbs lists, with their names and GUIDs.
//!
//! Listing does not open the devices, so it requires no access rights. The provider's device list and the explanations of
//! errors use this module.

use crate::error::{Doing, last, named};
use rdma_sys::{
    ibv_device, ibv_free_device_list, ibv_get_device_guid, ibv_get_device_list, ibv_get_device_name,
};
use std::ffi::{CStr, c_int};
use std::ptr::NonNull;
use trunkline_verbs::{DeviceInfo, VerbsError};

/// Returns the devices that libibverbs lists.
pub(crate) fn devices() -> Result<Vec<DeviceInfo>, VerbsError> {
    let mut count: c_int = 0;
    // SAFETY: the count is a local variable.
    let list = unsafe { ibv_get_device_list(&raw mut count) };
    let list = NonNull::new(list).ok_or_else(|| last(Doing::List))?;
    let mut devices = Vec::new();
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: libibverbs returns as many devices as it counts.
        let device = unsafe { list.add(index).read() };
        // SAFETY: the list keeps its devices from being freed.
        devices.push(unsafe { DeviceInfo { name: name_of(device), guid: guid_of(device) } });
    }
    // SAFETY: the list was returned above and is not used after this.
    unsafe { ibv_free_device_list(list.as_ptr()) };
    if devices.is_empty() { Err(named(Doing::List, libc::ENODEV)) } else { Ok(devices) }
}

/// Returns the name of a device.
///
/// # Safety
/// The device must be kept from being freed, by a device list or by a context.
pub(crate) unsafe fn name_of(device: *mut ibv_device) -> String {
    // SAFETY: by this function's contract the device is not freed, and its name ends with a zero.
    unsafe { CStr::from_ptr(ibv_get_device_name(device)) }.to_string_lossy().into_owned()
}

/// Returns the GUID of a device, in host order.
///
/// # Safety
/// Same as [`name_of`].
pub(crate) unsafe fn guid_of(device: *mut ibv_device) -> u64 {
    // SAFETY: this function's contract.
    u64::from_be(unsafe { ibv_get_device_guid(device) })
}
