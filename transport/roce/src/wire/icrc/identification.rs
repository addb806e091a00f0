//! Finding the IPv4 identification that an ordinary UDP socket does not show (contract rocev2 5.7).
//!
//! A CRC is linear: flipping bits of the identification flips bits of the ICRC that depend on
//! nothing but which they are and how many bytes follow. So the packet's ICRC is computed once as
//! if the identification were 0, and the difference to the one that stands there is run back
//! through the register to the place of the identification. There it must be what two bytes alone
//! can make; 16 of its 32 bits say which two bytes, the other 16 say whether there are any.

use super::{IPV4_HEADER, IpUdp, UDP_HEADER, difference};
use crate::wire::ICRC_LENGTH;

/// The reflected polynomial.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// A linear map of the register: the images of its 32 bits.
type Map = [u32; 32];

/// Bytes of the IPv4 header behind the identification.
const BEHIND_IDENTIFICATION: usize = IPV4_HEADER - 6;

/// `BACK[k]` undoes 2^k zero bytes; 17 of them cover any IPv4 packet.
static BACK: [Map; 17] = powers_of_back();

/// The register one zero byte earlier.
const fn back_one(register: u32) -> u32 {
    let mut value = register;
    let mut bit = 0;
    while bit < 8 {
        // The polynomial's top bit is set, so the register's top bit tells if it was added.
        value = if value & 0x8000_0000 != 0 { (value ^ POLYNOMIAL) << 1 | 1 } else { value << 1 };
        bit += 1;
    }
    value
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

/// The one identification under which the packet's ICRC is right, if there is one; that of
/// `headers` is ignored. `Some(0)` also says that the packet is right as our own kind sends it.
/// A corrupted packet passes for one in 65,536. Over IPv6, which has no identification, the
/// answer is `Some(0)` or `None`.
///
/// The cost is that of [`super::check`] and some 200 instructions more when it fails; nothing is
/// kept between packets.
#[must_use]
pub fn solve_identification(headers: &IpUdp, payload_with_icrc: &[u8]) -> Option<u16> {
    let zero = IpUdp { v4_identification: 0, ..*headers };
    let mut register = difference(&zero, payload_with_icrc)?;
    if register == 0 {
        return Some(0);
    }
    headers.v4()?;
    let behind = BEHIND_IDENTIFICATION + UDP_HEADER + payload_with_icrc.len() - ICRC_LENGTH;
    if behind >> BACK.len() != 0 {
        return None; // No IPv4 packet is that long.
    }
    for (power, map) in BACK.iter().enumerate() {
        if behind >> power & 1 == 1 {
            register = apply(map, register);
        }
    }
    // Undoing two zero bytes gives the register in whose low half the two bytes went in, the
    // first of them lowest; nothing else may be left.
    let bytes = back_one(back_one(register));
    let [first, second, 0, 0] = bytes.to_le_bytes() else { return None };
    Some(u16::from_be_bytes([first, second]))
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
    fn back_undoes_a_zero_byte() {
        for register in [1, 0x8000_0000, 0xdebb_20e3, 0x1234_5678_u32] {
            let mut forward = register;
            for _ in 0..8 {
                forward = forward >> 1 ^ if forward & 1 == 1 { POLYNOMIAL } else { 0 };
            }
            assert_eq!(back_one(forward), register);
        }
    }

    #[test]
    fn finds_each_identification_at_each_length() {
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
    fn recovers_that_of_a_card_and_refuses_a_flipped_bit() {
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
    fn corrupted_packets_pass_for_one_in_65536() {
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
    fn ipv6_has_nothing_to_solve() {
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
