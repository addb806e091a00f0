//! Queries of the GID table. Errors are returned as in rdma-core's `libibverbs/device.c`: `ibv_query_gid` returns -1 and
//! sets errno, `_ibv_query_gid_ex` returns a positive error number, and `_ibv_query_gid_table` a negative one.

use crate::abi::*;
use crate::border::{Errno, Handle, Out, OutBytes, guarded, status, value};
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::if_nametoindex;
use std::ffi::{c_int, c_uint};
use std::net::IpAddr;
use trunkline_verbs::{Device, GidEntry, GidKind};

/// Returns the entry at an index, or `ENODATA` if the slot is empty.
fn entry(context: Handle<'_, ibv_context>, port: u32, index: u32) -> Result<GidEntry, Errno> {
    let device = &context.device;
    let port = device.port(u8::try_from(port).map_err(|_| Errno::EINVAL)?)?;
    if index >= u32::from(port.gid_table_length) {
        return Err(Errno::EINVAL);
    }
    device.gid_table().into_iter().find(|entry| u32::from(entry.index) == index).ok_or(Errno::ENODATA)
}

/// Returns the index of the network interface that has an address, or 0 if there is none. All addresses in 127.0.0.0/8
/// belong to the loopback interface.
fn interface_index(interfaces: &[InterfaceAddress], ip: IpAddr) -> u32 {
    let has_address = |interface: &&InterfaceAddress| {
        let address = interface.address.as_ref();
        let own = address.and_then(|address| match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(v4), _) => Some(IpAddr::from(v4.ip())),
            (None, v6) => v6.map(|v6| v6.ip().into()),
        });
        own.is_some_and(|own| {
            own == ip || own.is_ipv4() && own.is_loopback() && ip.is_ipv4() && ip.is_loopback()
        })
    };
    let found = interfaces.iter().find(has_address);
    found.map_or(0, |found| if_nametoindex(found.interface_name.as_str()).unwrap_or(0))
}

fn interfaces() -> Vec<InterfaceAddress> {
    getifaddrs().map(Iterator::collect).unwrap_or_default()
}

fn converted(from: &GidEntry, port: u32, interfaces: &[InterfaceAddress]) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: from.gid.0 },
        gid_index: u32::from(from.index),
        port_num: port,
        gid_type: match from.kind {
            GidKind::RoceV1 => IBV_GID_TYPE_ROCE_V1,
            GidKind::RoceV2 => IBV_GID_TYPE_ROCE_V2,
        },
        ndev_ifindex: interface_index(interfaces, from.gid.ip()),
    }
}

/// `ibv_query_gid(3)`: on failure, returns -1 and sets `errno`. The GID of an empty slot is zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    value(|| {
        let index = u32::try_from(index).map_err(|_| Errno::EINVAL)?;
        // SAFETY: as `ibv_query_gid(3)` requires, the program passes an open context, and memory for the GID.
        let (context, gid) = unsafe { (Handle::new(context)?, Out::new(gid)?) };
        let found = match entry(context, u32::from(port), index) {
            Ok(found) => ibv_gid { raw: found.gid.0 },
            Err(Errno::ENODATA) => ibv_gid::default(),
            Err(errno) => return Err(errno),
        };
        gid.write(found);
        Ok(0)
    })
}

/// Implements `ibv_query_gid_ex(3)`: returns 0 or a positive error number.
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
        // SAFETY: as `ibv_query_gid_ex(3)` requires, the program passes an open context, and memory
        // of `entry_size` bytes for the entry.
        let (context, out) = unsafe { (Handle::new(context)?, OutBytes::new(entry_out, entry_size)?) };
        out.write(&converted(&entry(context, port, index)?, port, &interfaces()));
        Ok(())
    })
}

/// Implements `ibv_query_gid_table(3)`: returns the number of entries or a negative error number.
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
        // SAFETY: as `ibv_query_gid_table(3)` requires, the program passes an open context.
        let Ok(context) = (unsafe { Handle::new(context) }) else { return -(libc::EINVAL as isize) };
        let table = context.device.gid_table();
        if table.len() > max_entries {
            return -(libc::EINVAL as isize);
        }
        let size = table.len() * entry_size;
        // SAFETY: as `ibv_query_gid_table(3)` requires, the program passes an array of
        // `max_entries` elements of `entry_size` bytes. The table has no more entries.
        let Ok(out) = (unsafe { OutBytes::new(entries, size) }) else { return -(libc::EINVAL as isize) };
        let interfaces = interfaces();
        for (at, from) in table.iter().enumerate() {
            out.write_at(at * entry_size, entry_size, &converted(from, 1, &interfaces));
        }
        isize::try_from(table.len()).unwrap_or(isize::MAX)
    })
}

/// Returns the type of a GID as a number, as in sysfs: 0 for RoCE v1 and empty slots, 1 for RoCE v2.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: c_uint,
    kind: *mut c_uint,
) -> c_int {
    value(|| {
        // SAFETY: by rdma-core's contract the program passes a context that it has not closed, and memory
        // for the type.
        let (context, kind) = unsafe { (Handle::new(context)?, Out::new(kind)?) };
        let number = match entry(context, u32::from(port), index) {
            Ok(GidEntry { kind: GidKind::RoceV2, .. }) => 1,
            Ok(_) | Err(Errno::ENODATA) => 0,
            Err(errno) => return Err(errno),
        };
        kind.write(number);
        Ok(0)
    })
}

/// `ibv_resolve_eth_l2_from_gid`: `EOPNOTSUPP`, because only the host resolves MAC addresses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    _attr: *mut ibv_ah_attr,
    _eth_mac: *mut u8,
    _vid: *mut u16,
) -> c_int {
    value(|| Err(Errno::EOPNOTSUPP))
}
