//! The invariant CRC (ICRC) at the end of each packet (contract rocev2 §4, 5.7).
//!
//! This module defines which IP and UDP header fields the ICRC covers. Senders, receivers and the capture tools call it. It
//! never allocates, except that [`append`] grows the given vector.

mod identification;

pub use identification::{MAX_SEGMENTS, SegmentDifferences, identification_of, solve_identification};

use super::layout::bth::CONGESTION;
use crc32fast::Hasher;
use identification::back_one;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// Register value after eight bytes of ones, which replace the LRH (contract rocev2 4.2, 4.4).
const SEED: u32 = 0xdebb_20e3;

/// Four bytes that change a register of 0 to the seed. Zero bytes before them have no effect.
const LRH: [u8; 4] = back_one(back_one(back_one(back_one(SEED)))).to_le_bytes();

/// Initial value of a CRC whose register starts at 0.
const ZERO: u32 = !0;

const UDP_HEADER: usize = 8;
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const PROTOCOL_UDP: u8 = 17;

/// All fields of the IP and UDP headers that the ICRC covers, except the lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IpUdp {
    /// Sender's address and UDP port.
    pub source: SocketAddr,
    /// Receiver's address and UDP port.
    pub destination: SocketAddr,
    /// IPv4 identification. An ordinary socket does not report it to the receiver.
    pub v4_identification: u16,
    /// IPv4 flag "don't fragment".
    pub v4_dont_fragment: bool,
}

impl IpUdp {
    /// Creates the headers of a packet that an unconnected socket with path MTU discovery sends, with DF set and
    /// identification 0 (contract rocev2 5.1).
    #[must_use]
    pub const fn new(source: SocketAddr, destination: SocketAddr) -> Self {
        Self { source, destination, v4_identification: 0, v4_dont_fragment: true }
    }

    /// Returns the addresses, if both are IPv4.
    pub(crate) const fn v4(&self) -> Option<(Ipv4Addr, Ipv4Addr)> {
        match (self.source, self.destination) {
            (SocketAddr::V4(source), SocketAddr::V4(destination)) => Some((*source.ip(), *destination.ip())),
            _ => None,
        }
    }

    /// Returns the addresses as IPv6. If only one is IPv4, it is converted to its IPv4-mapped form.
    pub(crate) const fn v6(&self) -> (Ipv6Addr, Ipv6Addr) {
        (as_v6(self.source), as_v6(self.destination))
    }
}

const fn as_v6(address: SocketAddr) -> Ipv6Addr {
    match address {
        SocketAddr::V4(v4) => v4.ip().to_ipv6_mapped(),
        SocketAddr::V6(v6) => *v6.ip(),
    }
}

/// Maximum length of the IP and UDP headers, in bytes.
const HEADERS_MAX: usize = IPV6_HEADER + UDP_HEADER;

/// Block size of a CRC computation, in bytes. An incomplete block costs as much as several blocks.
const BLOCK: usize = 16;

/// Offset of a packet, after the zero bytes that complete the first block, the replacement of the LRH, and the masked
/// headers.
const PACKET: usize = (BLOCK + LRH.len() + HEADERS_MAX).next_multiple_of(BLOCK);

/// Maximum size in bytes of a packet that is appended to the masked headers before the CRC is computed. A CRC has a fixed
/// cost, so a small packet takes a single CRC over everything.
const TOGETHER: usize = 256 - PACKET;

/// Buffer for the masked headers and a small packet.
type Together = [u8; PACKET + TOGETHER];

/// Computes the ICRCs of packets with the same headers before the BTH, apart from the lengths. Writes those headers only
/// once.
#[derive(Debug, Clone)]
pub struct Flow {
    headers: IpUdp,
    /// Zero bytes, the replacement of the LRH, the masked headers, and space for the start of a packet.
    bytes: Together,
    /// Length in bytes of the masked headers and of the replacement of the LRH.
    before: usize,
    /// CRC of an empty input.
    empty: Hasher,
}

impl Flow {
    /// Creates the state for packets with these headers.
    #[must_use]
    pub fn new(headers: &IpUdp) -> Self {
        let mut bytes: Together = [0; _];
        let length = if headers.v4().is_some() { IPV4_HEADER + UDP_HEADER } else { HEADERS_MAX };
        let before = LRH.len() + length;
        let (lrh, masked) = bytes[PACKET - before..PACKET].split_at_mut(LRH.len());
        lrh.copy_from_slice(&LRH);
        put_headers(masked, headers);
        Self { headers: *headers, bytes, before, empty: Hasher::new_with_initial(ZERO) }
    }

    /// Returns the headers of the flow.
    #[must_use]
    pub const fn headers(&self) -> &IpUdp {
        &self.headers
    }

    /// Returns the ICRC of a packet, which begins with the BTH and does not contain the ICRC yet. On the wire, the least
    /// significant byte comes first.
    #[must_use]
    pub fn icrc(&mut self, payload_without_icrc: &[u8]) -> u32 {
        let masked = &mut self.bytes[PACKET - (self.before - LRH.len())..PACKET];
        put_lengths(masked, payload_without_icrc.len().saturating_add(super::ICRC_LENGTH));
        let (first, rest) = payload_without_icrc.split_at(payload_without_icrc.len().min(TOGETHER));
        let end = PACKET + first.len();
        self.bytes[PACKET..end].copy_from_slice(first);
        if first.len() > CONGESTION {
            self.bytes[PACKET + CONGESTION] = 0xff;
        }
        let blocks = (self.before + first.len()).next_multiple_of(BLOCK);
        let mut crc = self.empty.clone();
        crc.update(&self.bytes[end - blocks..end]);
        if !rest.is_empty() {
            crc.update(rest);
        }
        crc.finalize()
    }

    /// Returns true if a packet ends with a valid ICRC, and `false` for packets shorter than an ICRC.
    #[must_use]
    pub fn check(&mut self, payload_with_icrc: &[u8]) -> bool {
        self.difference(payload_with_icrc) == Some(0)
    }

    /// Returns the exclusive-or of the packet's ICRC and the valid one. It is 0 for a valid packet, and `None` for fewer
    /// than four bytes. If senders compute the ICRC over certain other headers, all packets of equal length have the same
    /// difference.
    pub fn difference(&mut self, payload_with_icrc: &[u8]) -> Option<u32> {
        let (packet, found) = payload_with_icrc.split_last_chunk()?;
        Some(u32::from_le_bytes(*found) ^ self.icrc(packet))
    }
}

/// Writes the masked headers without their lengths.
fn put_headers(masked: &mut [u8], headers: &IpUdp) {
    if let Some((source, destination)) = headers.v4() {
        let (ip, udp) = masked.split_at_mut(IPV4_HEADER);
        let flags: u16 = if headers.v4_dont_fragment { 0x4000 } else { 0 };
        // Type of service, time to live and checksum are masked.
        ip[..2].copy_from_slice(&[0x45, 0xff]);
        ip[4..6].copy_from_slice(&headers.v4_identification.to_be_bytes());
        ip[6..8].copy_from_slice(&flags.to_be_bytes());
        ip[8..12].copy_from_slice(&[0xff, PROTOCOL_UDP, 0xff, 0xff]);
        ip[12..16].copy_from_slice(&source.octets());
        ip[16..].copy_from_slice(&destination.octets());
        put_udp(udp, headers);
    } else {
        let (ip, udp) = masked.split_at_mut(IPV6_HEADER);
        let (source, destination) = headers.v6();
        // Traffic class, flow label and hop limit are masked.
        ip[..4].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff]);
        ip[6..8].copy_from_slice(&[PROTOCOL_UDP, 0xff]);
        ip[8..24].copy_from_slice(&source.octets());
        ip[24..].copy_from_slice(&destination.octets());
        put_udp(udp, headers);
    }
}

/// Writes a UDP header whose checksum is masked, without its length.
fn put_udp(udp: &mut [u8], headers: &IpUdp) {
    udp[..2].copy_from_slice(&headers.source.port().to_be_bytes());
    udp[2..4].copy_from_slice(&headers.destination.port().to_be_bytes());
    udp[6..8].copy_from_slice(&[0xff, 0xff]);
}

/// Writes the lengths into masked headers, for a UDP payload of the given size, including the ICRC. Payloads
/// longer than 65,535 bytes cannot be sent and count as 65,535.
fn put_lengths(masked: &mut [u8], udp_payload_length: usize) {
    let udp_length = clamp(udp_payload_length.saturating_add(UDP_HEADER)).to_be_bytes();
    if masked.len() == HEADERS_MAX {
        masked[4..6].copy_from_slice(&udp_length);
        masked[IPV6_HEADER + 4..IPV6_HEADER + 6].copy_from_slice(&udp_length);
    } else {
        let total = clamp(udp_payload_length.saturating_add(IPV4_HEADER + UDP_HEADER));
        masked[2..4].copy_from_slice(&total.to_be_bytes());
        masked[IPV4_HEADER + 4..IPV4_HEADER + 6].copy_from_slice(&udp_length);
    }
}

fn clamp(length: usize) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}

/// Returns the ICRC of a single packet, like [`Flow::icrc`].
#[must_use]
pub fn icrc(headers: &IpUdp, payload_without_icrc: &[u8]) -> u32 {
    Flow::new(headers).icrc(payload_without_icrc)
}

/// Returns the [`Flow::difference`] of management datagrams whose ICRC covers `covered` in place of `headers`.
#[must_use]
pub fn mad_difference(headers: &IpUdp, covered: &IpUdp) -> u32 {
    // A CRC is linear, so the bytes common to both packets cancel out.
    let packet = [0; super::MAD_PACKET_BYTES];
    icrc(headers, &packet) ^ icrc(covered, &packet)
}

/// Appends the ICRC to a packet.
pub fn append(headers: &IpUdp, packet: &mut Vec<u8>) {
    let crc = icrc(headers, packet);
    packet.extend_from_slice(&crc.to_le_bytes());
}

/// Returns true if a packet ends with a valid ICRC, and `false` for packets shorter than an ICRC.
#[must_use]
pub fn check(headers: &IpUdp, payload_with_icrc: &[u8]) -> bool {
    Flow::new(headers).check(payload_with_icrc)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses hexadecimal and ignores blanks.
    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
        digits.chunks(2).map(|pair| u8::try_from(pair[0] << 4 | pair[1]).expect("two digits")).collect()
    }

    fn headers(source: &str, destination: &str, identification: u16) -> IpUdp {
        let address = |text: &str| text.parse().expect("an address with its port");
        let v4_identification = identification;
        IpUdp { v4_identification, ..IpUdp::new(address(source), address(destination)) }
    }

    #[test]
    fn seed_is_crc_of_eight_bytes_of_ones() {
        let mut hasher = Hasher::new();
        hasher.update(&[0xff; 8]);
        assert_eq!(hasher.finalize(), !SEED);
        for zeros in 0..BLOCK {
            let mut hasher = Hasher::new_with_initial(ZERO);
            hasher.update(&[0; BLOCK][..zeros]);
            hasher.update(&LRH);
            assert_eq!(hasher.finalize(), !SEED, "after {zeros} zero bytes");
        }
    }

    /// The captures in `tests/vectors` contain IPv4 packets from a kernel.
    #[test]
    fn icrcs_match_other_implementations() {
        let congestion = format!("8100ffff 40000118 00000000 {}", "00".repeat(16));
        let cases = [
            // contract rocev2 4.6 B: a kernel's acknowledgement over IPv6
            (
                headers("[fe80::5054:ff:fe00:1]:49476", "[fe80::5054:ff:fe00:2]:4791", 0),
                "1100ffff 00000012 0088986d 1f000001",
                [0x37, 0x91, 0x5a, 0xe6],
            ),
            // contract rocev2 4.7: a ConnectX-4 Lx; DF set, byte 4 of the BTH is 0x40
            (headers("10.0.17.1:0", "10.0.18.1:4791", 0x718c), &congestion, [0x82, 0xfd, 0x00, 0x2a]),
            // contract rocev2 4.7: scapy's second example, an unreliable connection
            (
                headers("192.168.0.7:49152", "192.168.0.7:4791", 1144),
                "2460ffff 000000d3 00cf1710 4630818be28935d90e9a955054 01be885e500000",
                [0x78, 0xf3, 0x53, 0xf3],
            ),
            // contract rocev2 4.8: an extended reliable connection
            (
                headers("10.77.0.1:49443", "10.77.0.2:4791", 0),
                "a440ffff 00000011 80123456 0000abcd 68656c6c6f2078726320313662797465",
                [0xb6, 0x01, 0x6e, 0xcb],
            ),
        ];
        for (headers, packet, expected) in cases {
            assert_eq!(icrc(&headers, &hex(packet)).to_le_bytes(), expected, "{headers:?}");
        }
    }

    #[test]
    fn flow_icrc_matches_icrc_of_whole_packet_at_any_length() {
        for headers in
            [headers("[fe80::1]:49476", "[fe80::2]:4791", 0), headers("10.0.0.1:50000", "10.0.0.2:4791", 7)]
        {
            let packet: Vec<u8> = (0..600).map(|at: u32| at.to_le_bytes()[0] ^ 0x5a).collect();
            let mut flow = Flow::new(&headers);
            // Long and short packets alternate, to detect leftovers of the previous packet.
            for length in (0..packet.len()).zip((0..packet.len()).rev()).flat_map(|(low, high)| [low, high]) {
                let mut masked = vec![0; if headers.v4().is_some() { 28 } else { 48 }];
                put_headers(&mut masked, &headers);
                put_lengths(&mut masked, length + 4);
                let mut crc = Hasher::new();
                crc.update(&[0xff; 8]);
                crc.update(&masked);
                for (at, byte) in packet[..length].iter().enumerate() {
                    crc.update(&[if at == CONGESTION { 0xff } else { *byte }]);
                }
                let expected = crc.finalize();
                assert_eq!(icrc(&headers, &packet[..length]), expected, "{length} bytes");
                assert_eq!(flow.icrc(&packet[..length]), expected, "{length} bytes after others");
            }
        }
    }

    #[test]
    fn icrc_difference_of_headers_is_equal_for_all_packets() {
        let here = headers("198.51.100.1:40000", "10.0.0.2:4791", 0);
        for covered in
            [headers("10.0.0.1:4791", "10.0.0.2:4791", 0), headers("[fd00::1]:4791", "[fd00::2]:5000", 0)]
        {
            let difference = mad_difference(&here, &covered);
            for byte in [0, 0x5a] {
                let mut packet = vec![byte; super::super::MAD_PACKET_BYTES];
                append(&covered, &mut packet);
                assert_eq!(Flow::new(&here).difference(&packet), Some(difference));
            }
            assert_ne!(difference, 0);
        }
    }

    #[test]
    fn covered_bits_change_icrc_and_masked_bits_do_not() {
        let good = headers("10.0.0.1:50000", "10.0.0.2:4791", 7);
        let mut packet = hex("a440ffff 00000011 80123456 0000abcd 01020304");
        append(&good, &mut packet);
        assert!(check(&good, &packet));
        for wrong in [
            headers("10.0.0.3:50000", "10.0.0.2:4791", 7),
            headers("10.0.0.1:50001", "10.0.0.2:4791", 7),
            headers("10.0.0.1:50000", "10.0.0.2:4792", 7),
            headers("10.0.0.1:50000", "10.0.0.2:4791", 8),
            IpUdp { v4_dont_fragment: false, ..good },
        ] {
            assert!(!check(&wrong, &packet), "{wrong:?}");
        }
        for byte in 0..packet.len() {
            packet[byte] ^= 1;
            assert_eq!(check(&good, &packet), byte == CONGESTION, "byte {byte}");
            packet[byte] ^= 1;
        }
        for short in 0..4 {
            assert!(!check(&good, &packet[..short]));
        }
    }
}
