//! Addresses between C's form and Rust's.

use libc::{sockaddr_storage, socklen_t};
use nix::sys::socket::{SockaddrLike, SockaddrStorage};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr::from_ref;

/// An address in C's form, with its length.
#[derive(Clone, Copy)]
pub(super) struct CAddress(SockaddrStorage);

impl From<SocketAddr> for CAddress {
    fn from(address: SocketAddr) -> Self {
        Self(address.into())
    }
}

impl CAddress {
    /// For a C function that reads it, whatever its prototype says.
    pub(super) fn pointer(&self) -> *mut libc::sockaddr {
        self.0.as_ptr().cast_mut()
    }

    pub(super) fn length(&self) -> socklen_t {
        self.0.len()
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

    #[test]
    fn addresses_survive_the_round_trip() {
        for text in ["127.1.2.3:4791", "0.0.0.0:0", "[fd00::1:2]:65535", "[::]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let c = CAddress::from(address);
            // SAFETY: nix keeps addresses in a sockaddr_storage.
            assert_eq!(read(unsafe { &*c.pointer().cast() }), Some(address));
        }
        // SAFETY: a sockaddr_storage is numbers, for which zeroes are a value.
        assert_eq!(read(&unsafe { std::mem::zeroed() }), None);
    }
}
