//! Service ids and the address header, which rdma_cm puts into CM messages (contract rocev2 §11).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use trunkline_verbs::PortSpace;

/// The service that a REQ or SIDR_REQ requests, 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// Creates the service id of a port (contract rocev2 11.1).
    #[must_use]
    pub const fn new(space: PortSpace, port: u16) -> Self {
        // `u64::from` is not const yet.
        #[allow(clippy::cast_lossless, reason = "a widening cast, in a const function")]
        let port = port as u64;
        Self(space.prefix() << 16 | port)
    }

    /// Returns the port space and the port, if the port space is supported.
    #[must_use]
    pub fn space_and_port(self) -> Option<(PortSpace, u16)> {
        let prefix = self.0 >> 16;
        let space = PortSpace::ALL.into_iter().find(|space| space.prefix() == prefix)?;
        u16::try_from(self.0 & 0xffff).ok().map(|port| (space, port))
    }
}

/// Length in bytes of the header that rdma_cm puts in front of the private data of a REQ or SIDR_REQ.
pub const ADDRESS_HEADER_BYTES: usize = 36;

/// rdma_cm's address header (contract rocev2 11.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressHeader {
    /// Version of the header, 0.
    pub version: u8,
    /// The IP version, 4 or 6, in the high four bits. This node sends 0 in the low four bits.
    pub ip_version: u8,
    /// The initiator's port.
    pub source_port: u16,
    /// The initiator's address. An IPv4 address is in the last four bytes.
    pub source: [u8; 16],
    /// The responder's address, in the same format.
    pub destination: [u8; 16],
}

impl AddressHeader {
    /// Creates the header for a connection between two addresses of the same family. The destination's family becomes the IP
    /// version.
    #[must_use]
    pub fn new(source: SocketAddr, destination: IpAddr) -> Self {
        let ip_version = if destination.is_ipv4() { 0x40 } else { 0x60 };
        let field = |ip: IpAddr| match ip {
            IpAddr::V4(v4) => u128::from(v4.to_bits()).to_be_bytes(),
            IpAddr::V6(v6) => v6.octets(),
        };
        Self {
            version: 0,
            ip_version,
            source_port: source.port(),
            source: field(source.ip()),
            destination: field(destination),
        }
    }

    /// Parses the first 36 bytes. Every message with such a header has more than 36 bytes of private data.
    #[must_use]
    pub fn parse<const N: usize>(private: &[u8; N]) -> Self {
        const { assert!(N >= ADDRESS_HEADER_BYTES) };
        let mut header = Self {
            version: private[0],
            ip_version: private[1],
            source_port: u16::from_be_bytes([private[2], private[3]]),
            source: [0; 16],
            destination: [0; 16],
        };
        header.source.copy_from_slice(&private[4..20]);
        header.destination.copy_from_slice(&private[20..36]);
        header
    }

    /// Writes the first 36 bytes.
    pub fn emit<const N: usize>(&self, private: &mut [u8; N]) {
        const { assert!(N >= ADDRESS_HEADER_BYTES) };
        private[0] = self.version;
        private[1] = self.ip_version;
        private[2..4].copy_from_slice(&self.source_port.to_be_bytes());
        private[4..20].copy_from_slice(&self.source);
        private[20..36].copy_from_slice(&self.destination);
    }

    /// Returns source and destination, or `None` when the version or the IP version is unknown (contract
    /// rocev2 11.4).
    #[must_use]
    pub fn addresses(&self) -> Option<(SocketAddr, IpAddr)> {
        let ip: fn([u8; 16]) -> IpAddr = match (self.version, self.ip_version >> 4) {
            (0, 4) => |field| Ipv4Addr::new(field[12], field[13], field[14], field[15]).into(),
            (0, 6) => |field| Ipv6Addr::from(field).into(),
            _ => return None,
        };
        Some((SocketAddr::new(ip(self.source), self.source_port), ip(self.destination)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_ids_are_port_space_and_port() {
        assert_eq!(ServiceId::new(PortSpace::Tcp, 7471).0, 0x0106_1d2f);
        assert_eq!(ServiceId::new(PortSpace::Ib, 7471).0, 0x013f_1d2f);
        assert_eq!(ServiceId(0x013f_1d2f).space_and_port(), Some((PortSpace::Ib, 7471)));
        assert_eq!(ServiceId(0x0001_013f_1d2f).space_and_port(), None);
        assert_eq!(ServiceId(0x0111_1d2f).space_and_port(), Some((PortSpace::Udp, 7471)));
        assert_eq!(ServiceId(0x0002_1d2f).space_and_port(), None);
    }

    #[test]
    fn address_headers_contain_both_addresses() {
        for (source, destination) in [
            ("10.77.0.2:60687".parse().unwrap(), "10.77.0.1".parse().unwrap()),
            ("[fe80::2]:1".parse::<SocketAddr>().unwrap(), "fe80::1".parse::<IpAddr>().unwrap()),
        ] {
            let header = AddressHeader::new(source, destination);
            let mut private = [0; ADDRESS_HEADER_BYTES];
            header.emit(&mut private);
            assert_eq!(AddressHeader::parse(&private), header);
            assert_eq!(header.addresses(), Some((source, destination)));
            assert_eq!(AddressHeader { version: 1, ..header }.addresses(), None);
            assert_eq!(AddressHeader { ip_version: 0x50, ..header }.addresses(), None);
        }
    }
}
