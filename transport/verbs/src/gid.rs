//! Global identifiers (GIDs), the addresses of a RoCE port.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// A 128-bit port address. For RoCE v2 it is the IPv6 address, or `::ffff:a.b.c.d` for IPv4
/// (contract rocev2 8.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Returns the IP address of the GID.
    #[must_use]
    pub fn ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Self(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Ipv6Addr::from(self.0))
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The encapsulation of packets to a GID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GidKind {
    /// InfiniBand or RoCE v1 (Ethertype 0x8915).
    RoceV1,
    /// RoCE v2 (UDP port 4791).
    RoceV2,
}

/// A used entry of a port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidEntry {
    /// Index in the table.
    pub index: u16,
    /// The address.
    pub gid: Gid,
    /// Encapsulation of packets to the address.
    pub kind: GidKind,
}
