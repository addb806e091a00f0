//! The name of a peer within a node. Any module may use it.
#![forbid(unsafe_code)]

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The key of a peer node: the address that it listens on. It stays the same over reconnects, even if the
/// peer was forgotten in the meantime, and so do charges to the peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerKey(Words);

/// The address in words, since keys are compared for each message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Words {
    /// Halves of the IP address. IPv4 is stored as IPv4-mapped IPv6.
    high: u64,
    low: u64,
    port: u16,
    hint: Hint,
}

/// Place of the peer in the tables of the poller that made the key, which verify it. It is not part of the
/// name: all hints compare equal.
#[derive(Clone, Copy)]
struct Hint(u32);

impl Hint {
    /// Hint of a key that no poller made.
    const NOWHERE: Self = Self(u32::MAX);
}

impl PartialEq for Hint {
    #[inline]
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Hint {}

impl PartialOrd for Hint {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Hint {
    #[inline]
    fn cmp(&self, _: &Self) -> Ordering {
        Ordering::Equal
    }
}

impl Hash for Hint {
    #[inline]
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl PeerKey {
    /// Creates the key of the peer that listens at `address`, in canonical form: IPv4 inside of IPv6 becomes IPv4,
    /// and the flow label is dropped.
    #[must_use]
    #[inline]
    pub const fn new(address: SocketAddr) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let (high, low) = halves(ip.to_bits());
        Self(Words { high, low, port: address.port(), hint: Hint::NOWHERE })
    }

    /// Returns the address that the peer listens on.
    #[must_use]
    pub fn address(self) -> SocketAddr {
        SocketAddr::new(self.host(), self.0.port)
    }

    /// Returns the IP address of the peer's host.
    #[must_use]
    pub fn host(self) -> IpAddr {
        let Words { high, low, .. } = self.0;
        Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).to_canonical()
    }

    /// Returns bits that differ between most peers, for a cache. A peer that chooses its address can choose
    /// these bits, too.
    #[inline]
    pub(crate) fn mix(self) -> usize {
        let Words { high, low, port, .. } = self.0;
        let bits = (high ^ low.rotate_left(32) ^ u64::from(port)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        usize::from(bits.to_le_bytes()[7])
    }

    /// Returns the key with this place as its hint.
    pub(crate) fn at(self, place: usize) -> Self {
        let hint = u32::try_from(place).map_or(Hint::NOWHERE, Hint);
        Self(Words { hint, ..self.0 })
    }

    /// Returns the place at which tables of the poller that made the key may have the peer. It is beyond all
    /// places if unknown.
    #[inline]
    pub(crate) fn hint(self) -> usize {
        usize::try_from(self.0.hint.0).unwrap_or(usize::MAX)
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the two halves")]
const fn halves(bits: u128) -> (u64, u64) {
    ((bits >> 64) as u64, bits as u64)
}

#[cfg(test)]
impl PeerKey {
    /// Returns one of several test peers, each on a separate host.
    pub(crate) fn numbered(number: u32) -> Self {
        Self::new((std::net::Ipv4Addr::from(number), 1).into())
    }
}

impl fmt::Display for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.address(), f)
    }
}

impl fmt::Debug for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.address(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> PeerKey {
        PeerKey::new(text.parse().unwrap())
    }

    #[test]
    fn all_spellings_of_an_address_are_one_peer() {
        assert_eq!(key("[::ffff:10.0.0.1]:7"), key("10.0.0.1:7"));
        assert_ne!(key("10.0.0.1:7"), key("10.0.0.1:8"));
        assert_eq!(key("10.0.0.1:7").host(), key("10.0.0.1:8").host());
        assert_eq!(key("[::1]:7").to_string(), "[::1]:7");
    }

    #[test]
    fn the_address_comes_back_as_it_was() {
        for text in ["10.1.2.3:7471", "[fe80::1:2:3]:1", "[::10.0.0.1]:65535", "0.0.0.0:0"] {
            assert_eq!(key(text).address(), text.parse().unwrap());
        }
        assert_eq!(key("[::ffff:10.0.0.1]:7").address(), "10.0.0.1:7".parse().unwrap());
    }

    #[test]
    fn a_hint_is_no_part_of_the_name() {
        let (a, b) = (key("10.0.0.1:7"), key("10.0.0.1:7").at(3));
        assert_eq!((a, a.cmp(&b), b.hint()), (b, Ordering::Equal, 3));
        assert!(key("10.0.0.1:6").at(9) < a && a < key("10.0.0.2:0").at(0));
    }
}
