//! Finds the IP packet in a captured frame.

use super::LinkType;
use super::skip::Skip;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Ethertypes of VLAN tags, which are 802.1Q, 802.1ad and the older number for a second tag.
const ETHERTYPES_VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const VLAN_TAGS_MAX: usize = 2;

/// Returns the bytes from the IP header on. The caller must check the IP version in them.
pub(super) fn ip_packet(link: LinkType, bytes: &[u8]) -> Result<&[u8], Skip> {
    match link {
        LinkType::ETHERNET => ethernet(bytes),
        LinkType::RAW | LinkType::RAW_OLD | LinkType::IPV4 | LinkType::IPV6 => Ok(bytes),
        // The number of the address family differs between systems, so the caller decides by the IP version.
        LinkType::NULL | LinkType::LOOP => bytes.get(4..).ok_or(Skip::CutShort),
        LinkType::LINUX_SLL => cooked(bytes, 14, 16),
        LinkType::LINUX_SLL2 => cooked(bytes, 0, 20),
        _ => Err(Skip::UnknownLink),
    }
}

fn ethernet(bytes: &[u8]) -> Result<&[u8], Skip> {
    let mut at = 12;
    for _ in 0..=VLAN_TAGS_MAX {
        let ethertype = u16_at(bytes, at)?;
        if !ETHERTYPES_VLAN.contains(&ethertype) {
            return if_ip(ethertype, bytes, at + 2);
        }
        at += 4;
    }
    Err(Skip::NotIp)
}

/// Skips a header of Linux cooked capture, whose versions differ in the offset of the protocol and in the
/// length of the header.
fn cooked(bytes: &[u8], protocol_at: usize, length: usize) -> Result<&[u8], Skip> {
    if_ip(u16_at(bytes, protocol_at)?, bytes, length)
}

fn if_ip(ethertype: u16, bytes: &[u8], start: usize) -> Result<&[u8], Skip> {
    match ethertype {
        ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => bytes.get(start..).ok_or(Skip::CutShort),
        _ => Err(Skip::NotIp),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, Skip> {
    let bytes = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or(Skip::CutShort)?;
    Ok(u16::from_be_bytes(*bytes))
}
