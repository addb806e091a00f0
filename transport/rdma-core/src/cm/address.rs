//! Conversions between Rust and C socket addresses.

use libc::{sockaddr_storage, socklen_t};
use nix::sys::socket::{SockaddrIn, SockaddrIn6, SockaddrLike, SockaddrStorage};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr::from_ref;

/// A C address with the length that its family requires, because the kernel accepts no other length. nix's
/// `SockaddrStorage` has the length of the largest family.
#[derive(Clone, Copy)]
pub(super) enum CAddress {
    V4(SockaddrIn),
    V6(SockaddrIn6),
}

impl From<SocketAddr> for CAddress {
    fn from(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(v4) => Self::V4(v4.into()),
            SocketAddr::V6(v6) => Self::V6(v6.into()),
        }
    }
}

impl CAddress {
    /// Returns the address for a C function that only reads it, even if the function's prototype does not say `const`.
    pub(super) fn pointer(&self) -> *mut libc::sockaddr {
        match self {
            Self::V4(v4) => v4.as_ptr(),
            Self::V6(v6) => v6.as_ptr(),
        }
        .cast_mut()
    }

    pub(super) fn length(&self) -> socklen_t {
        match self {
            Self::V4(v4) => v4.len(),
            Self::V6(v6) => v6.len(),
        }
    }
}

/// Returns the address in a storage of librdmacm, or `None` if the storage is empty.
pub(super) fn read(storage: &sockaddr_storage) -> Option<SocketAddr> {
    // SAFETY: a storage has room for an address of any family, and any bits are valid for it.
    let address = unsafe { SockaddrStorage::from_raw(from_ref(storage).cast(), None) }?;
    let v4 = address.as_sockaddr_in().map(|v4| SocketAddrV4::from(*v4).into());
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddrV6::from(*v6).into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{sockaddr_in, sockaddr_in6};

    #[test]
    fn addresses_round_trip_through_conversions() {
        for text in ["127.1.2.3:4791", "0.0.0.0:0", "[fd00::1:2]:65535", "[::]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let c = CAddress::from(address);
            let exact = if address.is_ipv4() { size_of::<sockaddr_in>() } else { size_of::<sockaddr_in6>() };
            assert_eq!(usize::try_from(c.length()), Ok(exact));
            let mut place = zeroed();
            // SAFETY: a storage has room for an address of any family.
            unsafe {
                c.pointer().cast::<u8>().copy_to_nonoverlapping((&raw mut place).cast(), exact);
            }
            assert_eq!(read(&place), Some(address));
        }
        assert_eq!(read(&zeroed()), None);
    }

    fn zeroed() -> sockaddr_storage {
        // SAFETY: zeros are valid for the numbers of a storage.
        unsafe { std::mem::zeroed() }
    }
}
