//! Derives the IPv4 identification, which an ordinary UDP socket does not report (contract rocev2 5.7).
//!
//! A CRC is linear, so which bits of the ICRC change with a bit of the identification depends only on that bit's position
//! and on the number of bytes that follow. Therefore the ICRC is computed once as if the identification were 0, and its
//! difference from the packet's ICRC is run backwards through the register to the position of the identification. There, 16
//! of the 32 bits of the difference yield the two bytes of the identification, and the other 16 show whether two bytes can
//! cause the difference.

use super::{Flow, IPV4_HEADER, IpUdp, UDP_HEADER};
use crate::wire::ICRC_LENGTH;
use crc32fast::Hasher;

/// The CRC-32 polynomial, reflected.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// A linear map of the register, as the images of its 32 bits.
type Map = [u32; 32];

/// Number of bytes of the IPv4 header after the identification.
const AFTER_IDENTIFICATION: usize = IPV4_HEADER - 6;

/// `BACK[k]` reverses 2^k zero bytes. 17 maps suffice for any IPv4 packet.
static BACK: [Map; 17] = powers_of_back();

/// Returns the register's value before a zero byte was added.
pub(super) const fn back_one(register: u32) -> u32 {
    let mut value = register;
    let mut bit = 0;
    while bit < 8 {
        value = back_one_bit(value);
        bit += 1;
    }
    value
}

const fn back_one_bit(register: u32) -> u32 {
    // The polynomial's top bit is set, so the register's top bit shows whether the polynomial was added.
    if register & 0x8000_0000 != 0 { (register ^ POLYNOMIAL) << 1 | 1 } else { register << 1 }
}

const fn apply(map: &Map, register: u32) -> u32 {
    let mut sum = 0;
    let mut bit = 0;
    while bit < 32 {
        if register >> bit & 1 == 1 {
            sum ^= map[bit];
        }
        bit += 1;
    }
    sum
}

const fn powers_of_back() -> [Map; 17] {
    let mut maps = [[0; 32]; 17];
    let mut bit = 0;
    while bit < 32 {
        maps[0][bit] = back_one(1 << bit);
        bit += 1;
    }
    let mut power = 1;
    while power < 17 {
        let half = maps[power - 1];
        let mut bit = 0;
        while bit < 32 {
            maps[power][bit] = apply(&half, half[bit]);
            bit += 1;
        }
        power += 1;
    }
    maps
}

/// Returns the identification for which the packet's ICRC is valid, if there is one. The identification in `headers` is
/// ignored. Software devices send identification 0. One in 65,536 corrupted packets also has a solution. IPv6 has no
/// identification, so the result is `Some(0)` or `None`.
///
/// Costs as much as [`super::check`], plus about 200 instructions if the identification is not 0. No state is kept
/// between packets.
#[must_use]
pub fn solve_identification(headers: &IpUdp, payload_with_icrc: &[u8]) -> Option<u16> {
    let zero = IpUdp { v4_identification: 0, ..*headers };
    let difference = Flow::new(&zero).difference(payload_with_icrc)?;
    if difference != 0 {
        headers.v4()?;
    }
    identification_of(difference, payload_with_icrc.len())
}

/// Returns the identification of an IPv4 packet from the difference between its ICRC and the ICRC for identification 0, if
/// there is one. The packet has `length` bytes of UDP payload, including its ICRC.
#[must_use]
pub fn identification_of(difference: u32, length: usize) -> Option<u16> {
    let mut register = difference;
    if register == 0 {
        return Some(0);
    }
    let following = following(length);
    if following >> BACK.len() != 0 {
        return None; // No IPv4 packet is that long.
    }
    for (power, map) in BACK.iter().enumerate() {
        if following >> power & 1 == 1 {
            register = apply(map, register);
        }
    }
    // Reversing two zero bytes yields the register to whose low half the two bytes were added, with the first byte in the
    // lowest position. All other bits must be 0.
    let bytes = back_one(back_one(register));
    let [first, second, 0, 0] = bytes.to_le_bytes() else { return None };
    Some(u16::from_be_bytes([first, second]))
}

/// Returns the number of bytes from the identification to the ICRC.
const fn following(length: usize) -> usize {
    AFTER_IDENTIFICATION + UDP_HEADER + length.saturating_sub(ICRC_LENGTH)
}

/// Maximum number of segments in one send call. They have the identifications 0, 1, 2 and so on (contract rocev2 5.2).
pub const MAX_SEGMENTS: u16 = 64;

/// Differences of ICRCs for the identifications of segments. Caches the last length, because the segments of one call have
/// the same length.
#[derive(Debug, Clone, Default)]
pub struct SegmentDifferences {
    length: usize,
    /// Difference for each bit of the identification.
    bits: [u32; MAX_SEGMENTS.ilog2() as usize],
}

impl SegmentDifferences {
    /// Returns the exclusive-or of the ICRCs of an IPv4 packet with this identification, which is below [`MAX_SEGMENTS`],
    /// and with identification 0. The packet has `length` bytes of UDP payload, including its ICRC.
    pub fn of(&mut self, identification: u16, length: usize) -> u32 {
        if self.length != length {
            self.set_length(length);
        }
        let mut sum = 0;
        for (bit, difference) in self.bits.iter().enumerate() {
            sum ^= if identification >> bit & 1 == 1 { *difference } else { 0 };
        }
        sum
    }

    fn set_length(&mut self, length: usize) {
        // The identification's second byte is added to the register. A zero byte follows for it and for each byte after it.
        static ZEROS: [u8; 4096] = [0; 4096];
        let mut crc = Hasher::new_with_initial(!1);
        let mut rest = following(length) + 1;
        while rest > 0 {
            let part = rest.min(ZEROS.len());
            crc.update(&ZEROS[..part]);
            rest -= part;
        }
        let mut difference = !crc.finalize();
        for bit in &mut self.bits {
            *bit = difference;
            difference = back_one_bit(difference);
        }
        self.length = length;
    }
}

#[cfg(test)]
mod tests {
    use super::super::append;
    use super::*;

    fn flow() -> IpUdp {
        let address = |text: &str| text.parse().expect("an address with its port");
        IpUdp::new(address("10.77.0.1:49441"), address("10.77.0.2:4791"))
    }

    #[test]
    fn back_one_undoes_zero_byte() {
        for register in [1, 0x8000_0000, 0xdebb_20e3, 0x1234_5678_u32] {
            let mut forward = register;
            for _ in 0..8 {
                forward = forward >> 1 ^ if forward & 1 == 1 { POLYNOMIAL } else { 0 };
            }
            assert_eq!(back_one(forward), register);
        }
    }

    #[test]
    fn each_identification_is_found_at_each_length() {
        for length in [0, 1, 4, 12, 16, 44, 276, 1068, 4140, 65_000] {
            for identification in [0, 1, 2, 0x80, 0x100, 0x718c, 0x8000, 0xffff] {
                let headers = IpUdp { v4_identification: identification, ..flow() };
                let mut packet = vec![0x5a; length];
                append(&headers, &mut packet);
                assert_eq!(solve_identification(&flow(), &packet), Some(identification), "{length} bytes");
            }
        }
    }

    #[test]
    fn segments_differ_by_their_identification_at_each_length() {
        let mut differences = SegmentDifferences::default();
        for length in [4, 16, 276, 4140, 65_000, 16] {
            let packet = vec![0x5a; length - ICRC_LENGTH];
            let of = |v4_identification| Flow::new(&IpUdp { v4_identification, ..flow() }).icrc(&packet);
            for identification in 0..MAX_SEGMENTS {
                let difference = of(identification) ^ of(0);
                assert_eq!(differences.of(identification, length), difference, "{length} bytes");
                assert_eq!(identification_of(difference, length), Some(identification));
            }
        }
    }

    #[test]
    fn identification_of_physical_nic_is_found_and_flipped_bit_refused() {
        // contract rocev2 4.7
        let address = |text: &str| text.parse().expect("an address with its port");
        let headers = IpUdp::new(address("10.0.17.1:0"), address("10.0.18.1:4791"));
        let mut packet = vec![0x81, 0, 0xff, 0xff, 0x40, 0, 1, 0x18];
        packet.extend([0; 20]);
        packet.extend([0x82, 0xfd, 0x00, 0x2a]);
        assert_eq!(solve_identification(&headers, &packet), Some(0x718c));
        assert_eq!(solve_identification(&IpUdp { v4_dont_fragment: false, ..headers }, &packet), None);
        packet[20] ^= 1;
        assert_eq!(solve_identification(&headers, &packet), None);
    }

    #[test]
    fn one_in_65536_corrupted_packets_has_solution() {
        let mut packet = vec![0x5a; 100];
        append(&flow(), &mut packet);
        let mut passed = 0;
        for corruption in 1..=0x0004_0000_u32 {
            let mut wrong = packet.clone();
            let value = corruption.wrapping_mul(0x9e37_79b1).to_le_bytes();
            wrong[60..64].iter_mut().zip(value).for_each(|(byte, flip)| *byte ^= flip);
            passed += u32::from(solve_identification(&flow(), &wrong).is_some());
        }
        // Four are expected among 2^18.
        assert!(passed <= 20, "{passed} passed");
    }

    #[test]
    fn identification_of_ipv6_packet_is_0_or_none() {
        let address = |text: &str| text.parse().expect("an address with its port");
        let headers = IpUdp::new(address("[fe80::1]:49476"), address("[fe80::2]:4791"));
        let mut packet = vec![0x5a; 16];
        append(&headers, &mut packet);
        assert_eq!(solve_identification(&headers, &packet), Some(0));
        packet[12] ^= 1;
        assert_eq!(solve_identification(&headers, &packet), None);
        assert_eq!(solve_identification(&headers, &[1, 2, 3]), None);
    }
}
