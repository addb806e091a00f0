//! Addresses between C's form and Rust's.

use libc::{AF_INET, AF_INET6, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr::from_ref;

/// An address in C's form, with its length.
#[derive(Clone, Copy)]
pub(super) struct CAddress {
    storage: sockaddr_storage,
    length: socklen_t,
}

impl From<SocketAddr> for CAddress {
    fn from(address: SocketAddr) -> Self {
        // SAFETY: a sockaddr_storage is numbers, for which zeroes are a value.
        let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
        let place = &raw mut storage;
        let length = match address {
            SocketAddr::V4(v4) => {
                let c = sockaddr_in {
                    sin_family: family(AF_INET),
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: a sockaddr_storage has room and alignment for every kind of address.
                unsafe { place.cast::<sockaddr_in>().write(c) };
                size_of::<sockaddr_in>()
            }
            SocketAddr::V6(v6) => {
                let c = sockaddr_in6 {
                    sin6_family: family(AF_INET6),
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: as above.
                unsafe { place.cast::<sockaddr_in6>().write(c) };
                size_of::<sockaddr_in6>()
            }
        };
        Self { storage, length: socklen_t::try_from(length).unwrap_or(0) }
    }
}

impl CAddress {
    /// For a C function that reads it, whatever its prototype says.
    pub(super) fn pointer(&self) -> *mut libc::sockaddr {
        from_ref(&self.storage).cast::<libc::sockaddr>().cast_mut()
    }

    pub(super) fn length(&self) -> socklen_t {
        self.length
    }
}

/// The address in a place of librdmacm's; `None` if none was written there.
pub(super) fn read(place: &sockaddr_storage) -> Option<SocketAddr> {
    let raw = from_ref(place);
    match i32::from(place.ss_family) {
        AF_INET => {
            // SAFETY: a sockaddr_storage holds every kind of address, and any bits are one.
            let v4 = unsafe { raw.cast::<sockaddr_in>().read() };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { raw.cast::<sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
        }
        _ => None,
    }
}

fn family(number: i32) -> libc::sa_family_t {
    libc::sa_family_t::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_round_trip() {
        for text in ["127.1.2.3:4791", "0.0.0.0:0", "[fd00::1:2]:65535", "[::]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let c = CAddress::from(address);
            assert_eq!(read(&c.storage), Some(address));
        }
        // SAFETY: as in `from`.
        assert_eq!(read(&unsafe { std::mem::zeroed() }), None);
    }
}
