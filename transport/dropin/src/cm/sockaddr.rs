//! Addresses between C's shapes and Rust's.

use crate::border::Errno;
use libc::{
    AF_INET, AF_INET6, sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t,
};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Reads the address that a program points to; `None` for a null pointer.
///
/// # Safety
/// `pointer` is null or points to an address as long as its family says.
pub(super) unsafe fn read(pointer: *const sockaddr) -> Result<Option<SocketAddr>, Errno> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the family is the first field of every kind of address.
    let family = unsafe { pointer.cast::<sa_family_t>().read_unaligned() };
    match i32::from(family) {
        AF_INET => {
            // SAFETY: the caller's promise, for this family.
            let v4 = unsafe { pointer.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Ok(Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into()))
        }
        AF_INET6 => {
            // SAFETY: the caller's promise, for this family.
            let v6 = unsafe { pointer.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Ok(Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into()))
        }
        // librdmacm knows no length for it, and none is none of an address.
        _ => Err(Errno::EINVAL),
    }
}

/// As [`read`], for calls that say the address's length: the kernel takes that of its family only.
///
/// # Safety
/// `pointer` is null or `given` bytes there may be read.
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
    // SAFETY: the caller's promise; the family is the first field of every kind of address.
    let family = unsafe { pointer.cast::<sa_family_t>().read_unaligned() };
    match length(i32::from(family)) {
        // SAFETY: the caller's promise, for a length that is the family's.
        Some(length) if length == given => unsafe { read(pointer) },
        _ => Err(Errno::EINVAL),
    }
}

/// Writes an address as C keeps it.
pub(super) fn write(address: SocketAddr, into: &mut sockaddr_storage) {
    *into = zeroed();
    let place: *mut sockaddr_storage = into;
    match address {
        SocketAddr::V4(v4) => {
            let c = sockaddr_in {
                sin_family: family(AF_INET),
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: a sockaddr_storage has room and alignment for every kind of address.
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
            // SAFETY: a sockaddr_storage has room and alignment for every kind of address.
            unsafe { place.cast::<sockaddr_in6>().write(c) };
        }
    }
}

/// An address of no family.
pub(super) fn zeroed() -> sockaddr_storage {
    // SAFETY: a sockaddr_storage is numbers only.
    unsafe { std::mem::zeroed() }
}

/// Bytes that an address of this family takes.
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
    fn addresses_survive_the_way_to_c_and_back() {
        for address in ["127.1.2.3:4711", "[fe80::1]:9", "0.0.0.0:0"] {
            let address: SocketAddr = address.parse().unwrap();
            let mut storage = zeroed();
            write(address, &mut storage);
            // SAFETY: `storage` is large enough for any family.
            let back = unsafe { read((&raw const storage).cast()) };
            assert_eq!(back, Ok(Some(address)));
        }
        let storage = zeroed();
        // SAFETY: as above.
        assert_eq!(unsafe { read((&raw const storage).cast()) }, Err(Errno::EINVAL));
        // SAFETY: null is allowed.
        assert_eq!(unsafe { read(std::ptr::null()) }, Ok(None));
    }
}
