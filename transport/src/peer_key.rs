//! The name of a peer within a node. Everything may use it.
#![forbid(unsafe_code)]

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// A peer node as this node's pollers know it: by the address that it listens on. So the key stays the same over
/// reconnects, also when the peer was forgotten meanwhile, and what is charged to it stays charged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerKey(SocketAddr);

impl PeerKey {
    /// The peer that listens at `address`, in any spelling of it: IPv4 inside of IPv6 is IPv4, and there is no
    /// flow label.
    #[must_use]
    pub const fn new(address: SocketAddr) -> Self {
        Self(SocketAddr::new(address.ip().to_canonical(), address.port()))
    }

    /// Where the peer listens.
    #[must_use]
    pub fn address(self) -> SocketAddr {
        self.0
    }

    /// The host of the peer, by its IP address.
    #[must_use]
    pub fn host(self) -> IpAddr {
        self.0.ip()
    }
}

#[cfg(test)]
impl PeerKey {
    /// One of several peers of a test, each on a host of its own.
    pub(crate) fn numbered(number: u32) -> Self {
        Self::new((std::net::Ipv4Addr::from(number), 1).into())
    }
}

impl fmt::Display for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings_of_an_address_are_one_peer() {
        let key = |text: &str| PeerKey::new(text.parse().unwrap());
        assert_eq!(key("[::ffff:10.0.0.1]:7"), key("10.0.0.1:7"));
        assert_ne!(key("10.0.0.1:7"), key("10.0.0.1:8"));
        assert_eq!(key("10.0.0.1:7").host(), key("10.0.0.1:8").host());
        assert_eq!(key("[::1]:7").to_string(), "[::1]:7");
    }
}
