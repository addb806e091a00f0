//! Functions that bind ids to addresses, resolve addresses and routes, and set options.

use super::fields::Id;
use super::sockaddr;
use super::synchronous::begin;
use crate::abi::*;
use crate::border::{Errno, Handle, In, value};
use crate::verbs::events::lock;
use libc::sockaddr as c_sockaddr;
use std::ffi::{c_int, c_void};
use trunkline_verbs::CmOption;

/// `rdma_bind_addr(3)`: binds an id to an address of this host. Port 0 chooses a free port.
///
/// # Safety
/// The id is not destroyed, and `address` points to an address.
#[unsafe(export_name = "trunkline_rdma_bind_addr")]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, address: *mut c_sockaddr) -> c_int {
    value(|| {
        // SAFETY: the program upholds this function's contract.
        let (id, address) = unsafe { (Handle::new(id)?, sockaddr::read(address)?) };
        id.endpoint.bind(address.ok_or(Errno::EINVAL)?)?;
        id.show_addresses()?;
        Ok(0)
    })
}

/// `rdma_resolve_addr(3)`: finds the local address from which the peer can be reached. The host's routing table is read
/// immediately, so the timeout is ignored.
///
/// # Safety
/// The id is not destroyed; `source` and `destination` are null or point to addresses.
#[unsafe(export_name = "trunkline_rdma_resolve_addr")]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    source: *mut c_sockaddr,
    destination: *mut c_sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    value(|| {
        // SAFETY: the program upholds this function's contract.
        let (id, source, destination) =
            unsafe { (Handle::new(id)?, sockaddr::read(source)?, sockaddr::read(destination)?) };
        resolve_address(id, source, destination.ok_or(Errno::EINVAL)?)?;
        Ok(0)
    })
}

/// Like [`rdma_resolve_addr`].
pub(super) fn resolve_address(
    id: Id<'_>,
    source: Option<std::net::SocketAddr>,
    destination: std::net::SocketAddr,
) -> Result<(), Errno> {
    begin(id, |endpoint| endpoint.resolve_address(source, destination))
}

/// `rdma_resolve_route(3)`: finds the route to the peer. A timeout of 0 is `EINVAL`, as in the kernel.
///
/// # Safety
/// The id is not destroyed.
#[unsafe(export_name = "trunkline_rdma_resolve_route")]
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int {
    value(|| {
        if timeout_ms == 0 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the program upholds this function's contract.
        let id = unsafe { Handle::new(id)? };
        resolve_route(id)?;
        Ok(0)
    })
}

/// Like [`rdma_resolve_route`].
pub(super) fn resolve_route(id: Id<'_>) -> Result<(), Errno> {
    begin(id, |endpoint| endpoint.resolve_route())
}

/// `rdma_set_option(3)`. Path records cannot be set, because the host's routing table determines paths.
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
        // SAFETY: the program upholds this function's contract.
        let id = unsafe { Handle::new(id)? };
        match (level, name) {
            (RDMA_OPTION_ID, _) => {}
            (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => return Err(Errno::EOPNOTSUPP),
            _ => return Err(Errno(libc::ENOSYS)),
        }
        // SAFETY: the program upholds this function's contract.
        let bytes: In<'_, [u8]> = unsafe { In::array(option.cast(), length)? };
        let byte = || fixed(&bytes).map(|[byte]| byte);
        let flag = || fixed(&bytes).map(|bytes| c_int::from_ne_bytes(bytes) != 0);
        let option = match name {
            RDMA_OPTION_ID_TOS => CmOption::TypeOfService(byte()?),
            RDMA_OPTION_ID_REUSEADDR => CmOption::ReuseAddress(flag()?),
            RDMA_OPTION_ID_AFONLY => CmOption::AddressFamilyOnly(flag()?),
            RDMA_OPTION_ID_ACK_TIMEOUT => CmOption::AckTimeout(byte()?),
            _ => return Err(Errno(libc::ENOSYS)),
        };
        id.endpoint.set_option(option)?;
        if let CmOption::TypeOfService(class) = option {
            lock(&id.facts).traffic_class = class;
        }
        Ok(0)
    })
}

/// Returns the value of an option if its size is exactly `N` bytes.
fn fixed<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Errno> {
    bytes.try_into().map_err(|_| Errno::EINVAL)
}
