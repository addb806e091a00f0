//! The GID table, with the return conventions of contract verbs-abi.

use super::objects::context_of;
use crate::abi::*;
use crate::border::{Errno, guarded, status, value};
use std::ffi::{c_int, c_uint};
use trunkline_verbs::{Device, GidEntry, GidKind};

/// The entry at an index; `ENODATA` for an empty slot.
unsafe fn entry(context: *mut ibv_context, port: u32, index: u32) -> Result<GidEntry, Errno> {
    // SAFETY: an opened context of the caller's.
    let device = unsafe { &context_of(context).device };
    let port = device.port(u8::try_from(port).map_err(|_| Errno::EINVAL)?)?;
    if index >= u32::from(port.gid_table_length) {
        return Err(Errno::EINVAL);
    }
    device.gid_table().into_iter().find(|entry| u32::from(entry.index) == index).ok_or(Errno::ENODATA)
}

fn converted(from: &GidEntry, port: u32) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: from.gid.0 },
        gid_index: u32::from(from.index),
        port_num: port,
        gid_type: match from.kind {
            GidKind::RoceV1 => IBV_GID_TYPE_ROCE_V1,
            GidKind::RoceV2 => IBV_GID_TYPE_ROCE_V2,
        },
        ndev_ifindex: 0,
    }
}

/// `ibv_query_gid(3)`: -1 and errno; an empty slot is a GID of zeros.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    value(|| {
        let index = u32::try_from(index).map_err(|_| Errno::EINVAL)?;
        // SAFETY: passed on from the caller.
        let found = match unsafe { entry(context, u32::from(port), index) } {
            Ok(found) => ibv_gid { raw: found.gid.0 },
            Err(Errno::ENODATA) => ibv_gid::default(),
            Err(errno) => return Err(errno),
        };
        // SAFETY: the caller's place for it.
        unsafe { gid.write(found) };
        Ok(0)
    })
}

/// What the header makes of `ibv_query_gid_ex(3)`: 0 or a positive error number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry_out: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    status(|| {
        if flags != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: passed on from the caller.
        let found = converted(&unsafe { entry(context, port, index)? }, port);
        // SAFETY: the caller's place has `entry_size` bytes.
        unsafe { put(entry_out.cast(), &found, entry_size) };
        Ok(())
    })
}

/// Writes an entry to a place of another size.
unsafe fn put(place: *mut u8, entry: &ibv_gid_entry, size: usize) {
    // SAFETY: the caller's promise: `size` bytes.
    unsafe {
        place.write_bytes(0, size);
        let known = size.min(size_of::<ibv_gid_entry>());
        place.copy_from_nonoverlapping(std::ptr::from_ref(entry).cast(), known);
    }
}

/// What the header makes of `ibv_query_gid_table(3)`: how many, or a negative error number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    guarded(-(libc::EIO as isize), || {
        if flags != 0 {
            return -(libc::EOPNOTSUPP as isize);
        }
        // SAFETY: an opened context of the caller's.
        let table = unsafe { &context_of(context).device }.gid_table();
        if table.len() > max_entries {
            return -(libc::EINVAL as isize);
        }
        for (at, from) in table.iter().enumerate() {
            // SAFETY: the caller's array has `max_entries` elements of `entry_size` bytes.
            unsafe { put(entries.cast::<u8>().add(at * entry_size), &converted(from, 1), entry_size) };
        }
        isize::try_from(table.len()).unwrap_or(isize::MAX)
    })
}

/// How packets of a GID travel, as sysfs has it: 0 is RoCE v1, which is also the answer for an
/// empty slot, 1 is RoCE v2.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: c_uint,
    kind: *mut c_uint,
) -> c_int {
    value(|| {
        // SAFETY: passed on from the caller.
        let answer = match unsafe { entry(context, u32::from(port), index) } {
            Ok(GidEntry { kind: GidKind::RoceV2, .. }) => 1,
            Ok(_) | Err(Errno::ENODATA) => 0,
            Err(errno) => return Err(errno),
        };
        // SAFETY: the caller's place for it.
        unsafe { kind.write(answer) };
        Ok(0)
    })
}

/// `ibv_resolve_eth_l2_from_gid`: this device sends by routes of the host, it knows no MAC address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    _attr: *mut ibv_ah_attr,
    _eth_mac: *mut u8,
    _vid: *mut u16,
) -> c_int {
    value(|| Err(Errno::EOPNOTSUPP))
}
