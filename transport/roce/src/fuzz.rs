//! Properties that hold for any input bytes, as plain functions.
//!
//! Fuzzers call these functions, and so does `cargo test` with a corpus and a short seeded mutation run. They panic only if
//! a property does not hold.

use crate::pcap::{Datagram, PcapReader, RoceFilter};
use crate::wire::cm::CmMessage;
use crate::wire::{Bth, ICRC_LENGTH, IpUdp, MAD_BYTES, Mad, Packet, icrc};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// Checks a UDP payload without ICRC. A packet that parses must be emitted as bytes that parse to the same packet, and as
/// the input itself if the pad bytes are zero.
pub fn packet(data: &[u8]) {
    let bth = Bth::parse(data);
    let parsed = match Packet::parse(data) {
        Ok(parsed) => parsed,
        Err(error) => {
            // An answer to a malformed packet needs its header.
            assert!(!error.is_answerable() || bth.is_ok());
            return;
        }
    };
    let mut emitted = Vec::new();
    parsed.emit(&mut emitted);
    assert_eq!(emitted.len(), parsed.emitted_len());
    assert_eq!(emitted.len(), data.len());
    assert_eq!(Packet::parse(&emitted), Ok(parsed));
    let (kept, pad) = data.split_at(data.len() - usize::from(parsed.bth.pad));
    assert_eq!(emitted[..kept.len()], *kept);
    assert!(pad.iter().any(|byte| *byte != 0) || emitted == data);
    checksum(data);
    if let Ok(bytes) = parsed.payload.try_into() {
        mad(bytes);
    }
}

/// Checks that a MAD and its CM message are emitted unchanged, with any content.
pub fn mad(data: &[u8; MAD_BYTES]) {
    let mad = Mad::parse(data);
    assert_eq!(mad.to_bytes(), *data);
    let message = CmMessage::parse(&mad);
    assert_eq!(message.data(), mad.data, "{message:?}");
    assert_eq!(message.attribute(), mad.header.attribute);
}

/// Checks that an appended ICRC is valid, and that the packet's identification is found.
fn checksum(data: &[u8]) {
    let v4 = |end| SocketAddr::new(Ipv4Addr::new(127, 0, 0, end).into(), 4791);
    let v6 = |end| SocketAddr::new(Ipv6Addr::from(u128::from(end)).into(), 4791);
    // The identification is arbitrary. Here it varies with the input.
    let v4_identification = u16::try_from(data.len() & 0xffff).unwrap_or(0).rotate_left(9);
    let hidden = IpUdp::new(v4(1), v4(2));
    let sent = IpUdp { v4_identification, ..hidden };
    if data.len() > usize::from(u16::MAX) - 28 - ICRC_LENGTH {
        return; // No IPv4 packet is that long.
    }
    for headers in [sent, IpUdp::new(v6(1_u8), v6(2))] {
        let mut whole = data.to_vec();
        icrc::append(&headers, &mut whole);
        assert!(icrc::check(&headers, &whole));
        assert_eq!(icrc::solve_identification(&headers, &whole), Some(headers.v4_identification));
    }
    let mut whole = data.to_vec();
    icrc::append(&sent, &mut whole);
    assert_eq!(icrc::solve_identification(&hidden, &whole), Some(v4_identification));
}

/// Checks that reading a capture file ends, and that each datagram is inside its frame.
pub fn capture(data: &[u8]) {
    let Ok(mut reader) = PcapReader::new(data) else { return };
    let mut filter = RoceFilter::default();
    let mut frames = 0;
    while let Ok(Some(frame)) = reader.next_frame() {
        frames += 1;
        assert_eq!(frame.number, frames);
        assert!(frame.bytes.len() <= data.len());
        let Ok(datagram) = Datagram::from_frame(&frame) else { continue };
        assert!(datagram.payload.len() + 28 <= frame.bytes.len());
        if filter.takes(&datagram) {
            let end = datagram.payload.len().saturating_sub(ICRC_LENGTH);
            packet(&datagram.payload[..end]);
        }
    }
    // The shortest block or record is 12 bytes long.
    assert!(frames <= data.len() as u64 / 12);
}
