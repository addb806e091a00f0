//! Addresses between C's form and Rust's.

use libc::{sockaddr_storage, socklen_t};
use nix::sys::socket::{SockaddrIn, SockaddrIn6, SockaddrLike, SockaddrStorage};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr::from_ref;

/// An address in C's form: of its own family's length, since the kernel takes no other. nix's
/// `SockaddrStorage` says the length of all its room.
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
    /// For a C function that reads it, whatever its prototype says.
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

/// The address in a place of librdmacm's; `None` if none was written there.
pub(super) fn read(place: &sockaddr_storage) -> Option<SocketAddr> {
    // SAFETY: a sockaddr_storage has room for every kind of address, and any bits are one.
    let address = unsafe { SockaddrStorage::from_raw(from_ref(place).cast(), None) }?;
    let v4 = address.as_sockaddr_in().map(|v4| SocketAddrV4::from(*v4).into());
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddrV6::from(*v6).into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{sockaddr_in, sockaddr_in6};

    #[test]
    fn addresses_survive_the_round_trip() {
        for text in ["127.1.2.3:4791", "0.0.0.0:0", "[fd00::1:2]:65535", "[::]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let c = CAddress::from(address);
            let exact = if address.is_ipv4() { size_of::<sockaddr_in>() } else { size_of::<sockaddr_in6>() };
            assert_eq!(usize::try_from(c.length()), Ok(exact));
            let mut place = zeroed();
            // SAFETY: the place has room for every kind of address.
            unsafe {
                c.pointer().cast::<u8>().copy_to_nonoverlapping((&raw mut place).cast(), exact);
            }
            assert_eq!(read(&place), Some(address));
        }
        assert_eq!(read(&zeroed()), None);
    }

    fn zeroed() -> sockaddr_storage {
        // SAFETY: a sockaddr_storage is numbers, for which zeroes are a value.
        unsafe { std::mem::zeroed() }
    }
}
