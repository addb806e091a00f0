//! The name of a peer within a node. Any module may use it.
#![forbid(unsafe_code)]

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The key of a peer node, which is the address that it listens on, with the UDP port of its software device if that
/// differs from this node's own. The key and the budget units charged to the peer persist across reconnects, even if
/// the peer was forgotten in the meantime.
///
/// Its text is `IP:PORT` or `IP:PORT/UDP_PORT`, such as `10.0.0.1:7000/4792` and `[fd00::1]:7000/4792`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerKey(Words);

/// The address in words, which make the comparison of keys for each message fast.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Words {
    /// Halves of the IP address. IPv4 is stored as IPv4-mapped IPv6.
    high: u64,
    low: u64,
    /// Port that the peer listens on in the upper half, and UDP port of its device in the lower half, where 0 stands
    /// for the port of this node's own device.
    ports: u32,
    hint: Hint,
}

/// The reason why a text does not name a peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidPeer {
    /// The text before the UDP port is not an IP address with a port.
    #[error(
        "invalid address {0:?}: expected IP:PORT or IP:PORT/UDP_PORT, such as 10.0.0.1:7000 or [fd00::1]:7000/4792"
    )]
    Address(String),
    /// The text has a slash without a valid UDP port after it.
    #[error(
        "invalid UDP port in {0:?}: expected a number from 1 to 65535 after the slash, such as 10.0.0.1:7000/4792, or no slash if \
         the server's device has the same UDP port as this node's"
    )]
    UdpPort(String),
}

/// Place of the peer in the tables of the poller that created the key. The tables verify it. It is not part of the
/// key's identity, so all hints compare equal.
#[derive(Clone, Copy)]
struct Hint(u32);

impl Hint {
    /// Hint of a key without a place.
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
    /// Creates the key of the peer that listens at `address` and whose device has the same UDP port as this node's.
    /// The address is made canonical: IPv4-mapped IPv6 becomes IPv4, and the flow label is dropped.
    #[must_use]
    #[inline]
    pub const fn new(address: SocketAddr) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let (high, low) = halves(ip.to_bits());
        Self(Words { high, low, ports: (address.port() as u32) << 16, hint: Hint::NOWHERE })
    }

    /// Returns the port that the peer listens on, and the UDP port of its device.
    #[inline]
    fn both_ports(self) -> (u16, u16) {
        let [a, b, c, d] = self.0.ports.to_be_bytes();
        (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
    }

    /// Returns the UDP port of the peer's device; `None` if it is the same as this node's.
    #[must_use]
    #[inline]
    pub fn udp_port(self) -> Option<u16> {
        Some(self.both_ports().1).filter(|port| *port != 0)
    }

    /// Returns the key with this UDP port. `None` and 0 stand for the port of this node's own device.
    #[must_use]
    pub fn with_udp_port(self, udp_port: Option<u16>) -> Self {
        let ports = self.0.ports & 0xffff_0000 | u32::from(udp_port.unwrap_or(0));
        Self(Words { ports, ..self.0 })
    }

    /// Returns this key as a node with the UDP port `own_udp_port` stores it.
    #[must_use]
    pub fn seen_from(self, own_udp_port: u16) -> Self {
        self.with_udp_port(self.udp_port().filter(|port| *port != own_udp_port))
    }

    /// Splits a text into a host with its port and the UDP port after a slash, if there is one.
    ///
    /// # Errors
    /// Returns [`InvalidPeer::UdpPort`] if the text has a slash without a number from 1 to 65535 after it.
    pub fn split_udp_port(text: &str) -> Result<(&str, Option<u16>), InvalidPeer> {
        let Some((host, port)) = text.split_once('/') else { return Ok((text, None)) };
        match port.parse() {
            Ok(port @ 1..) => Ok((host, Some(port))),
            _ => Err(InvalidPeer::UdpPort(text.to_owned())),
        }
    }

    /// Returns the address that the peer listens on.
    #[must_use]
    pub fn address(self) -> SocketAddr {
        SocketAddr::new(self.host(), self.both_ports().0)
    }

    /// Returns the IP address of the peer's host.
    #[must_use]
    pub fn host(self) -> IpAddr {
        let Words { high, low, .. } = self.0;
        Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).to_canonical()
    }

    /// Returns the range of all keys with this IP address.
    pub(crate) fn all_at(host: IpAddr) -> RangeInclusive<Self> {
        let key = |port| Self::new(SocketAddr::new(host, port)).with_udp_port(Some(port));
        key(0)..=key(u16::MAX)
    }

    /// Returns bits that differ between most peers, for a cache. A peer that can choose its address can also choose
    /// these bits.
    #[inline]
    pub(crate) fn mix(self) -> usize {
        let Words { high, low, ports, .. } = self.0;
        let bits = (high ^ low.rotate_left(32) ^ u64::from(ports.rotate_left(16)))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        usize::from(bits.to_le_bytes()[7])
    }

    /// Returns the key with this place as its hint.
    pub(crate) fn at(self, place: usize) -> Self {
        let hint = u32::try_from(place).map_or(Hint::NOWHERE, Hint);
        Self(Words { hint, ..self.0 })
    }

    /// Returns the peer's likely place in the tables of the poller that created the key. If unknown, the value
    /// exceeds all places.
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

impl From<SocketAddr> for PeerKey {
    fn from(address: SocketAddr) -> Self {
        Self::new(address)
    }
}

impl FromStr for PeerKey {
    type Err = InvalidPeer;

    fn from_str(text: &str) -> Result<Self, InvalidPeer> {
        let (address, udp_port) = Self::split_udp_port(text)?;
        let address = address.parse::<SocketAddr>().map_err(|_| InvalidPeer::Address(text.to_owned()))?;
        Ok(Self::new(address).with_udp_port(udp_port))
    }
}

impl fmt::Display for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.udp_port() {
            None => fmt::Display::fmt(&self.address(), f),
            Some(port) => f.pad(&format!("{}/{port}", self.address())),
        }
    }
}

impl fmt::Debug for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> PeerKey {
        text.parse().unwrap()
    }

    #[test]
    fn ipv4_mapped_address_is_same_peer() {
        assert_eq!(key("[::ffff:10.0.0.1]:7"), key("10.0.0.1:7"));
        assert_ne!(key("10.0.0.1:7"), key("10.0.0.1:8"));
        assert_eq!(key("10.0.0.1:7").host(), key("10.0.0.1:8").host());
        assert_eq!(key("[::1]:7").to_string(), "[::1]:7");
    }

    #[test]
    fn peer_address_round_trips() {
        for text in ["10.1.2.3:7471", "[fe80::1:2:3]:1", "[::10.0.0.1]:65535", "0.0.0.0:0"] {
            assert_eq!(key(text).address(), text.parse().unwrap());
        }
        assert_eq!(key("[::ffff:10.0.0.1]:7").address(), "10.0.0.1:7".parse().unwrap());
    }

    #[test]
    fn udp_port_is_part_of_name_and_of_its_text() {
        for text in ["10.0.0.1:7000/4792", "[fd00::1]:7000/1", "[fd00::1]:0/65535", "10.0.0.1:7000"] {
            assert_eq!(key(text).to_string(), text);
        }
        let [own, other] = ["10.0.0.1:7000", "10.0.0.1:7000/4792"].map(key);
        assert_eq!((own.udp_port(), other.udp_port()), (None, Some(4792)));
        assert_eq!((own.address(), other.with_udp_port(None)), (other.address(), own));
        assert!(own < other && other < key("10.0.0.1:7001"));
        let mut mixed = (0..64).map(|port| own.with_udp_port(Some(port)).mix()).collect::<Vec<_>>();
        mixed.dedup();
        assert!(mixed.len() > 1);
        assert_eq!(format!("{other:>20}|{own:>20}"), "  10.0.0.1:7000/4792|       10.0.0.1:7000");
    }

    #[test]
    fn keys_of_host_cover_all_ports_of_address() {
        let all = PeerKey::all_at("10.0.0.1".parse().unwrap());
        let texts = ["10.0.0.1:0", "10.0.0.1:0/1", "10.0.0.1:65535", "10.0.0.1:65535/65535"];
        assert!(texts.map(key).iter().all(|key| all.contains(key)));
        assert!(["10.0.0.0:65535/65535", "10.0.0.2:0"].map(key).iter().all(|key| !all.contains(key)));
    }

    #[test]
    fn invalid_text_is_refused_with_form() {
        for text in
            ["10.0.0.1:7000/0", "10.0.0.1:7000/70000", "10.0.0.1:7000/abc", "10.0.0.1:7000/", "[::1]:7/8/9"]
        {
            let error = text.parse::<PeerKey>().unwrap_err();
            assert_eq!(error, InvalidPeer::UdpPort(text.to_owned()));
            assert!(error.to_string().contains("from 1 to 65535"), "{error}");
        }
        for text in ["", "10.0.0.1", "10.0.0.1/4792", "shop:7000/4792", "/4792"] {
            assert_eq!(text.parse::<PeerKey>(), Err(InvalidPeer::Address(text.to_owned())));
        }
    }

    #[test]
    fn hint_does_not_affect_comparison() {
        let (a, b) = (key("10.0.0.1:7"), key("10.0.0.1:7").at(3));
        assert_eq!((a, a.cmp(&b), b.hint()), (b, Ordering::Equal, 3));
        assert!(key("10.0.0.1:6").at(9) < a && a < key("10.0.0.2:0").at(0));
    }
}
