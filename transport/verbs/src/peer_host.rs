//! Hosts of peers, to which all per-host limits apply.
//!
//! A sender may use many addresses. An IPv6 host may use a whole network, and a user of this host all of 127.0.0.0/8.
//! Therefore a /64 network counts as one host. All addresses of this host also count as one, except addresses where
//! processes of this user are registered. The device identifies these addresses.
#![forbid(unsafe_code)]

use crate::AddressOwner;
use std::net::IpAddr;

/// The host of a peer, for limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerHost {
    /// An IPv4 address, or any address of a process of this user on this host.
    Address(IpAddr),
    /// An IPv6 network, given by the first 64 bits of its addresses.
    Network(u64),
    /// All addresses of this host where no process of this user is registered.
    Unregistered,
}

impl PeerHost {
    /// Returns the host of a peer, given the peer's address and the owner of that address.
    #[must_use]
    pub fn new(address: IpAddr, owner: AddressOwner) -> Self {
        match (owner, address) {
            (AddressOwner::ThisHost, _) => Self::Unregistered,
            (AddressOwner::OtherHost, IpAddr::V6(v6)) => {
                let [a, b, c, d, e, f, g, h, ..] = v6.octets();
                Self::Network(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
            }
            (AddressOwner::ThisUser, _) | (AddressOwner::OtherHost, IpAddr::V4(_)) => Self::Address(address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(address: &str, owner: AddressOwner) -> PeerHost {
        PeerHost::new(address.parse().unwrap(), owner)
    }

    #[test]
    fn other_hosts_are_ipv4_addresses_and_ipv6_networks() {
        let host = |address| host(address, AddressOwner::OtherHost);
        assert_ne!(host("10.0.0.1"), host("10.0.0.2"));
        assert_eq!(host("fd00::1"), host("fd00::ffff:2:3:4"));
        assert_ne!(host("fd00::1"), host("fd00:0:0:1::1"));
    }

    #[test]
    fn addresses_of_this_host_are_one_host_except_addresses_of_this_user() {
        let all = ["127.0.0.1", "127.9.9.9", "10.0.0.1", "::1", "fd00::1", "fd00::2"];
        for (index, one) in all.iter().enumerate() {
            for other in &all[..index] {
                let same = |owner| host(one, owner) == host(other, owner);
                assert!(same(AddressOwner::ThisHost) && !same(AddressOwner::ThisUser), "{one}, {other}");
            }
        }
    }
}
