//! Where ids are: binding, resolving, options.

use super::event::complete;
use super::id::IdObject;
use super::sockaddr;
use crate::abi::*;
use crate::border::{Errno, value};
use libc::sockaddr as c_sockaddr;
use std::ffi::{c_int, c_void};
use trunkline_verbs::CmOption;

/// Binds an id to an own address. Port 0 picks a free one.
///
/// # Safety
/// The id is not destroyed, and `address` points to an address.
#[unsafe(export_name = "trunkline_rdma_bind_addr")]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, address: *mut c_sockaddr) -> c_int {
    value(|| {
        // SAFETY: the caller's promise.
        let (id, address) = unsafe { (IdObject::of(id)?, sockaddr::read(address)?) };
        id.endpoint.bind(address.ok_or(Errno::EINVAL)?)?;
        id.show_addresses()?;
        Ok(0)
    })
}

/// Finds the own address for a peer. The host's routing answers at once, so no time-out is
/// needed.
///
/// # Safety
/// The id is not destroyed, `source` is null or points to an address, `destination` points to
/// one.
#[unsafe(export_name = "trunkline_rdma_resolve_addr")]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut c_sockaddr,
    destination: *mut c_sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    value(|| {
        // SAFETY: the caller's promise.
        let (id, source, destination) =
            unsafe { (IdObject::of(id)?, sockaddr::read(source)?, sockaddr::read(destination)?) };
        resolve_address(id, source, destination.ok_or(Errno::EINVAL)?)?;
        Ok(0)
    })
}

pub(super) fn resolve_address(
    id: &IdObject,
    source: Option<std::net::SocketAddr>,
    destination: std::net::SocketAddr,
) -> Result<(), Errno> {
    id.endpoint.resolve_address(source, destination)?;
    complete(id)
}

/// Finds the way to the peer. The kernel takes no time at all for a mistake.
///
/// # Safety
/// The id is not destroyed.
#[unsafe(export_name = "trunkline_rdma_resolve_route")]
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int {
    value(|| {
        if timeout_ms == 0 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller's promise.
        let id = unsafe { IdObject::of(id) }?;
        resolve_route(id)?;
        Ok(0)
    })
}

pub(super) fn resolve_route(id: &IdObject) -> Result<(), Errno> {
    id.endpoint.resolve_route()?;
    complete(id)
}

/// Sets an option. Path records are not among them: the host's routing knows the paths.
///
/// # Safety
/// The id is not destroyed, and `length` bytes at `option` may be read.
#[unsafe(export_name = "trunkline_rdma_set_option")]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    option: *mut c_void,
    length: usize,
) -> c_int {
    value(|| {
        // SAFETY: the caller's promise.
        let id = unsafe { IdObject::of(id) }?;
        match (level, name) {
            (RDMA_OPTION_ID, _) => {}
            (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => return Err(Errno::EOPNOTSUPP),
            _ => return Err(Errno(libc::ENOSYS)),
        }
        // SAFETY: the caller's promise.
        let byte = || unsafe { fixed::<1>(option, length) }.map(|[byte]| byte);
        // SAFETY: the caller's promise.
        let flag = || unsafe { fixed::<4>(option, length) }.map(|bytes| c_int::from_ne_bytes(bytes) != 0);
        let option = match name {
            RDMA_OPTION_ID_TOS => CmOption::TypeOfService(byte()?),
            RDMA_OPTION_ID_REUSEADDR => CmOption::ReuseAddress(flag()?),
            RDMA_OPTION_ID_AFONLY => CmOption::AddressFamilyOnly(flag()?),
            RDMA_OPTION_ID_ACK_TIMEOUT => CmOption::AckTimeout(byte()?),
            _ => return Err(Errno(libc::ENOSYS)),
        };
        id.endpoint.set_option(option)?;
        Ok(0)
    })
}

/// The bytes of an option that has exactly `N`.
///
/// # Safety
/// `length` bytes at `option` may be read.
unsafe fn fixed<const N: usize>(option: *const c_void, length: usize) -> Result<[u8; N], Errno> {
    if option.is_null() || length != N {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { option.cast::<[u8; N]>().read() })
}
