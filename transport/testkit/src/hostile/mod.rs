//! Peers that break the rules of the session protocol: a node's own code behind a link that changes its
//! packets, so that its other side sees misbehaviour in otherwise correct packets.
//!
//! `dialer` has peers that are built by hand instead.
//!
//! Owns the changes of each kind of peer. A link in real time and a simulated network apply them to
//! datagrams. This module does no I/O, and draws only from the random numbers that it is given.

mod dialer;
pub mod frame;

pub use dialer::{Crowd, Decision, HandMadePeer, Hello, first_srq, post_frame};
pub use frame::{Announcement, HostilePeer};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use trunkline_roce::wire::{ICRC_LENGTH, IpUdp, Operation, Packet, icrc, pad_for};

/// A kind of misbehaviour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hostility {
    /// Never grants credit again, and so takes no replies.
    Stingy,
    /// Sends more than its grant.
    Beyond,
    /// Never reports that it has READ a large message.
    Unfinished,
    /// Announces large messages under unregistered keys.
    Unserved,
    /// Sends random bytes in place of headers.
    Garbage,
    /// READs memory beside the announced memory, with the same key.
    Prying,
    /// Always wants more credit, and releases no unused credit.
    Hoarding,
    /// Has the critical setting [`Hostility::SETTING`], which no version defines.
    Advanced,
}

impl Hostility {
    /// Kinds that always end a peer's session.
    pub const HOSTILE: [Self; 6] =
        [Self::Stingy, Self::Beyond, Self::Unfinished, Self::Unserved, Self::Garbage, Self::Prying];

    /// Number of the setting that an advanced peer has.
    pub const SETTING: u16 = 0x7abc;
}

impl fmt::Display for Hostility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

impl FromStr for Hostility {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Hoarding, Self::Advanced].into_iter().chain(Self::HOSTILE);
        all.into_iter().find(|one| one.to_string() == text).ok_or_else(|| {
            let names = Self::HOSTILE.map(|one| one.to_string()).join(", ");
            format!("{text:?} is not one of hoarding, advanced, {names}")
        })
    }
}

impl HostilePeer {
    /// Returns the packet that replaces a datagram sent by the peer's node; `None` for no change.
    pub fn outgoing(&mut self, source: SocketAddr, destination: SocketAddr, bytes: &[u8]) -> Option<Vec<u8>> {
        change(bytes, source, destination, |qp, srq, payload| self.change_outgoing(qp, srq, payload))
    }

    /// Returns the packet that the peer's node receives in place of a datagram; `None` for no change.
    #[must_use]
    pub fn incoming(&self, source: SocketAddr, destination: SocketAddr, bytes: &[u8]) -> Option<Vec<u8>> {
        change(bytes, source, destination, |_, _, payload| self.change_incoming(payload))
    }
}

impl Announcement {
    /// Parses the announcement in the first packet of a message, if there is one.
    #[must_use]
    pub fn of(packet: &Packet<'_>) -> Option<Self> {
        begins_message(packet).then(|| Self::parse(packet.payload)).flatten()
    }
}

/// Returns true if a packet begins a message of a session. QP 1 carries the connection manager's messages,
/// whose datagrams have another service.
fn begins_message(packet: &Packet<'_>) -> bool {
    let begins = [Operation::SEND_FIRST, Operation::SEND_ONLY].contains(&packet.bth.opcode.operation());
    begins && packet.deth.is_none()
}

/// Returns the packet with its payload changed and its ICRC corrected, if it begins a message and anything
/// was changed.
fn change(
    bytes: &[u8],
    source: SocketAddr,
    destination: SocketAddr,
    with: impl FnOnce(u32, u32, &mut Vec<u8>),
) -> Option<Vec<u8>> {
    let packet = Packet::parse(bytes.get(..bytes.len().checked_sub(ICRC_LENGTH)?)?).ok()?;
    if !begins_message(&packet) {
        return None;
    }
    let srq = packet.xrceth.map_or(0, |(_, srq)| srq.get());
    let mut payload = packet.payload.to_vec();
    with(packet.bth.destination.get(), srq, &mut payload);
    if payload == packet.payload {
        return None;
    }
    let mut changed = Packet { payload: &payload, ..packet };
    changed.bth.pad = pad_for(payload.len());
    let mut out = Vec::new();
    changed.emit(&mut out);
    icrc::append(&IpUdp::new(source, destination), &mut out);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;
    use trunkline_roce::wire::Opcode;
    use trunkline_verbs::{Psn, QpNumber};

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn datagram(operation: Operation, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let opcode = Opcode::new(trunkline_roce::wire::Service::RC, operation);
        Packet::new(opcode, QpNumber::new(77), Psn::new(5), payload).emit(&mut bytes);
        icrc::append(&IpUdp::new(at("127.0.0.1:4791"), at("127.0.0.2:4791")), &mut bytes);
        bytes
    }

    fn leaves(peer: &mut HostilePeer, operation: Operation, payload: &[u8]) -> Option<Vec<u8>> {
        let (source, destination) = (at("127.0.0.1:4791"), at("127.0.0.2:4791"));
        let changed = peer.outgoing(source, destination, &datagram(operation, payload))?;
        assert!(icrc::check(&IpUdp::new(source, destination), &changed));
        let packet = Packet::parse(&changed[..changed.len() - ICRC_LENGTH]).unwrap();
        Some(packet.payload.to_vec())
    }

    #[test]
    fn a_stingy_peer_repeats_its_first_grant() {
        let mut peer = HostilePeer::new(Hostility::Stingy, Random(1));
        let frame = |grant: u8| {
            let mut frame = [0; 24];
            (frame[0], frame[4]) = (0x30, grant);
            frame
        };
        assert_eq!(leaves(&mut peer, Operation::SEND_ONLY, &frame(3)), None, "the first is as it was");
        let changed = leaves(&mut peer, Operation::SEND_ONLY, &frame(9)).unwrap();
        assert_eq!(changed, frame(3));
        assert_eq!(leaves(&mut peer, Operation::SEND_LAST, &frame(9)), None, "it begins no message");
    }

    #[test]
    fn a_fin_becomes_a_frame_that_finishes_nothing() {
        let mut peer = HostilePeer::new(Hostility::Unfinished, Random(1));
        let mut fin = [0; 24];
        (fin[0], fin[2]) = (2, 1);
        let changed = leaves(&mut peer, Operation::SEND_ONLY, &fin).unwrap();
        assert_eq!((changed.len(), changed[0]), (8, 0x0f));
    }

    #[test]
    fn a_prying_peer_reads_beside_what_is_announced_to_it() {
        let announcement = Announcement { rkey: 0x0bad_cafe, address: 0x7000, length: 40_000 };
        let mut frame = [0; 256];
        // A 32-byte header, then the message's number.
        frame[..2].copy_from_slice(&[0x40, 2]);
        frame[40..48].copy_from_slice(&announcement.length.to_le_bytes());
        frame[48..56].copy_from_slice(&announcement.address.to_le_bytes());
        frame[56..60].copy_from_slice(&announcement.rkey.to_le_bytes());
        let (source, destination) = (at("127.0.0.1:4791"), at("127.0.0.2:4791"));
        let parse =
            |bytes: &[u8]| Announcement::of(&Packet::parse(&bytes[..bytes.len() - ICRC_LENGTH]).unwrap());
        let sent = datagram(Operation::SEND_FIRST, &frame);
        assert_eq!(parse(&sent), Some(announcement));
        let changed = HostilePeer::new(Hostility::Prying, Random(1)).incoming(source, destination, &sent);
        let beside = Announcement { address: 0x7040, ..announcement };
        assert_eq!(parse(&changed.unwrap()), Some(beside));
        assert_eq!(parse(&datagram(Operation::SEND_LAST, &frame)), None, "it begins no message");
        for short in 0..60 {
            assert_eq!(parse(&datagram(Operation::SEND_ONLY, &frame[..short])), None, "{short} bytes");
        }
        frame[1] = 0;
        assert_eq!(parse(&datagram(Operation::SEND_ONLY, &frame)), None, "it announces nothing");
    }

    #[test]
    fn names_are_read_back() {
        for hostility in Hostility::HOSTILE {
            assert_eq!(hostility.to_string().parse(), Ok(hostility));
        }
        assert!("greedy".parse::<Hostility>().unwrap_err().contains("stingy"));
    }
}
