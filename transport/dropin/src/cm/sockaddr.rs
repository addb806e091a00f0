//! Conversions between C and Rust socket addresses.

use crate::border::Errno;
use libc::{
    AF_INET, AF_INET6, sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t,
};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Returns the address at `pointer`, or `None` if the pointer is null.
///
/// # Safety
/// `pointer` is null, or points to an address of the length that its family implies.
pub(super) unsafe fn read(pointer: *const sockaddr) -> Result<Option<SocketAddr>, Errno> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: this function's contract; the family is the first field of every kind of address.
    let family = unsafe { pointer.cast::<sa_family_t>().read_unaligned() };
    match i32::from(family) {
        AF_INET => {
            // SAFETY: this function's contract, for this family.
            let v4 = unsafe { pointer.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Ok(Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into()))
        }
        AF_INET6 => {
            // SAFETY: this function's contract, for this family.
            let v6 = unsafe { pointer.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Ok(Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into()))
        }
        // librdmacm supports the same families.
        _ => Err(Errno::EINVAL),
    }
}

/// Like [`read`], but takes the length that the program passes. As in the kernel, a length that does not match the address
/// family is `EINVAL`.
///
/// # Safety
/// `pointer` is null, or points to `given` bytes that may be read.
pub(super) unsafe fn read_sized(
    pointer: *const sockaddr,
    given: socklen_t,
) -> Result<Option<SocketAddr>, Errno> {
    let given = usize::try_from(given).unwrap_or(0);
    if pointer.is_null() {
        return Ok(None);
    }
    if given < size_of::<sa_family_t>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: this function's contract; the family is the first field of every kind of address.
    let family = unsafe { pointer.cast::<sa_family_t>().read_unaligned() };
    match length(i32::from(family)) {
        // SAFETY: this function's contract; the length is the one that the family implies.
        Some(length) if length == given => unsafe { read(pointer) },
        _ => Err(Errno::EINVAL),
    }
}

/// Returns the address in a C storage, or `None` if the storage contains no address.
pub(super) fn load(storage: &sockaddr_storage) -> Option<SocketAddr> {
    // SAFETY: a storage has room for an address of any family.
    unsafe { read(std::ptr::from_ref(storage).cast()) }.ok().flatten()
}

/// Converts an address to its storage in C.
pub(super) fn stored(address: SocketAddr) -> sockaddr_storage {
    let mut storage = zeroed();
    let place = &raw mut storage;
    match address {
        SocketAddr::V4(v4) => {
            let c = sockaddr_in {
                sin_family: family(AF_INET),
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: a storage has the size and alignment for an address of any family.
            unsafe { place.cast::<sockaddr_in>().write(c) };
        }
        SocketAddr::V6(v6) => {
            let c = sockaddr_in6 {
                sin6_family: family(AF_INET6),
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: a storage has the size and alignment for an address of any family.
            unsafe { place.cast::<sockaddr_in6>().write(c) };
        }
    }
    storage
}

/// Returns a storage that contains no address. Its family is 0.
pub(super) fn zeroed() -> sockaddr_storage {
    // SAFETY: zeros are valid for the numbers of a storage.
    unsafe { std::mem::zeroed() }
}

/// Returns the size of an address of this family, in bytes.
pub(super) fn length(family: i32) -> Option<usize> {
    match family {
        AF_INET => Some(size_of::<sockaddr_in>()),
        AF_INET6 => Some(size_of::<sockaddr_in6>()),
        _ => None,
    }
}

fn family(number: i32) -> sa_family_t {
    sa_family_t::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_through_conversions() {
        for address in ["127.1.2.3:4711", "[fe80::1]:9", "0.0.0.0:0"] {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(load(&stored(address)), Some(address));
        }
        let storage = zeroed();
        // SAFETY: a storage has room for an address of any family.
        assert_eq!(unsafe { read((&raw const storage).cast()) }, Err(Errno::EINVAL));
        // SAFETY: null is allowed.
        assert_eq!(unsafe { read(std::ptr::null()) }, Ok(None));
    }
}
