//! Finds the UDP datagram in a captured frame.

use super::skip::Skip;
use super::{Frame, link};
use crate::wire::{IpUdp, ROCE_PORT};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A UDP datagram and the header fields that its ICRC covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Addresses, ports and IPv4 identification.
    pub headers: IpUdp,
    /// The UDP payload. For RoCE it is a packet with its ICRC.
    pub payload: &'a [u8],
}

const PROTOCOL_UDP: u8 = 17;
const NEXT_HEADER_FRAGMENT: u8 = 44;
const IPV6_HEADER: usize = 40;
const UDP_HEADER: usize = 8;

/// The IP header fields that are used here.
struct Ip<'a> {
    source: IpAddr,
    destination: IpAddr,
    v4_identification: u16,
    v4_dont_fragment: bool,
    /// The bytes from the UDP header to the end of the IP packet.
    payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Extracts the UDP datagram from a frame.
    ///
    /// # Errors
    /// The reason why the frame contains no complete UDP datagram.
    pub fn from_frame(frame: &Frame<'a>) -> Result<Self, Skip> {
        let packet = link::ip_packet(frame.link, frame.bytes)?;
        let ip = match packet.first().ok_or(Skip::CutShort)? >> 4 {
            4 => ipv4(packet)?,
            6 => ipv6(packet)?,
            _ => return Err(Skip::NotIp),
        };
        let udp: &[u8; UDP_HEADER] = ip.payload.first_chunk().ok_or(Skip::Malformed)?;
        let word = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
        // Bytes of the IP packet past the UDP length do not belong to the datagram.
        let payload = ip.payload.get(UDP_HEADER..usize::from(word(4))).ok_or(Skip::Malformed)?;
        let headers = IpUdp {
            source: SocketAddr::new(ip.source, word(0)),
            destination: SocketAddr::new(ip.destination, word(2)),
            v4_identification: ip.v4_identification,
            v4_dont_fragment: ip.v4_dont_fragment,
        };
        Ok(Self { headers, payload })
    }

    /// Returns true if the source or the destination port is 4791.
    #[must_use]
    pub const fn is_on_roce_port(&self) -> bool {
        self.headers.source.port() == ROCE_PORT || self.headers.destination.port() == ROCE_PORT
    }
}

fn ipv4(packet: &[u8]) -> Result<Ip<'_>, Skip> {
    let header: &[u8; 20] = packet.first_chunk().ok_or(Skip::CutShort)?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let address = |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
    let header_length = usize::from(header[0] & 0x0f) * 4;
    let total = usize::from(word(2));
    if header_length < 20 || total < header_length {
        return Err(Skip::Malformed);
    }
    // More fragments follow, or this is not the first.
    if word(6) & 0x3fff != 0 {
        return Err(Skip::Fragment);
    }
    if header[9] != PROTOCOL_UDP {
        return Err(Skip::NotUdp);
    }
    Ok(Ip {
        source: address(12).into(),
        destination: address(16).into(),
        v4_identification: word(4),
        v4_dont_fragment: word(6) & 0x4000 != 0,
        payload: packet.get(header_length..total).ok_or(Skip::CutShort)?,
    })
}

fn ipv6(packet: &[u8]) -> Result<Ip<'_>, Skip> {
    let header: &[u8; IPV6_HEADER] = packet.first_chunk().ok_or(Skip::CutShort)?;
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&header[at..at + 16]);
        Ipv6Addr::from(octets)
    };
    match header[6] {
        PROTOCOL_UDP => {}
        NEXT_HEADER_FRAGMENT => return Err(Skip::Fragment),
        _ => return Err(Skip::NotUdp),
    }
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    Ok(Ip {
        source: address(8).into(),
        destination: address(24).into(),
        // IPv6 has neither field. These values are constant for a flow.
        v4_identification: 0,
        v4_dont_fragment: true,
        payload: packet.get(IPV6_HEADER..IPV6_HEADER + length).ok_or(Skip::CutShort)?,
    })
}
