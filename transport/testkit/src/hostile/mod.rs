//! Peers that violate the session protocol. They are real nodes behind a link that changes their packets, so the other side
//! receives invalid frames in valid packets.
//!
//! The peers in `dialer` are instead built directly on verbs.
//!
//! This module defines the changes for each kind of peer. A real-time link and the simulated network apply them to
//! datagrams. The module performs no I/O, and takes all randomness from a given generator.

mod dialer;
pub mod frame;
mod reads;

pub use dialer::{Crowd, Decision, HandMadePeer, Hello, first_srq, post_frame};
pub use frame::{Announcement, HostilePeer};
pub use reads::{Guess, GuessedReads, ReadSource};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use trunkline_roce::wire::{ICRC_LENGTH, IpUdp, Operation, Packet, icrc, pad_for};

/// A kind of misbehaviour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hostility {
    /// Never grants credit again, and therefore receives no further replies.
    Stingy,
    /// Sends more messages than its grant allows.
    Beyond,
    /// Never reports that it has READ a large message.
    Unfinished,
    /// Announces large messages with unregistered keys.
    Unserved,
    /// Sends random bytes instead of headers.
    Garbage,
    /// READs memory beyond the announced memory, with the same key.
    Prying,
    /// Always requests more credit, and does not release unused credit.
    Hoarding,
    /// Sends the critical setting [`Hostility::SETTING`], which is not defined in any version.
    Advanced,
}

impl Hostility {
    /// The kinds that always lose their session.
    pub const HOSTILE: [Self; 6] =
        [Self::Stingy, Self::Beyond, Self::Unfinished, Self::Unserved, Self::Garbage, Self::Prying];

    /// Number of the setting that an advanced peer sends.
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
    /// Returns the packet to send instead of a datagram from the peer's node, or `None` if the datagram is unchanged.
    pub fn outgoing(&mut self, source: SocketAddr, destination: SocketAddr, bytes: &[u8]) -> Option<Vec<u8>> {
        change(bytes, source, destination, |qp, srq, payload| self.change_outgoing(qp, srq, payload))
    }

    /// Returns the packet to deliver to the peer's node instead of a datagram, or `None` if the datagram is unchanged.
    #[must_use]
    pub fn incoming(&self, source: SocketAddr, destination: SocketAddr, bytes: &[u8]) -> Option<Vec<u8>> {
        change(bytes, source, destination, |_, _, payload| self.change_incoming(payload))
    }
}

impl Announcement {
    /// Parses the announcement in a packet that begins a message, if there is one.
    #[must_use]
    pub fn of(packet: &Packet<'_>) -> Option<Self> {
        begins_message(packet).then(|| Self::parse(packet.payload)).flatten()
    }
}

/// Returns true if `packet` is the first packet of a session's message. Packets with a DETH are UD datagrams, which belong
/// to the connection manager.
fn begins_message(packet: &Packet<'_>) -> bool {
    let begins = [Operation::SEND_FIRST, Operation::SEND_ONLY].contains(&packet.bth.opcode.operation());
    begins && packet.deth.is_none()
}

/// Returns the packet with a changed payload and a correct ICRC. Returns `None` if the packet does not begin a message or
/// the payload is unchanged.
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
    change_packet(bytes, source, destination, |packet| {
        packet.payload = &payload;
        packet.bth.pad = pad_for(payload.len());
    })
}

/// Changes the packet in a datagram and corrects the ICRC.
fn change_packet<'a>(
    bytes: &'a [u8],
    source: SocketAddr,
    destination: SocketAddr,
    with: impl FnOnce(&mut Packet<'a>),
) -> Option<Vec<u8>> {
    let mut packet = Packet::parse(bytes.get(..bytes.len().checked_sub(ICRC_LENGTH)?)?).ok()?;
    with(&mut packet);
    let mut out = Vec::new();
    packet.emit(&mut out);
    icrc::append(&IpUdp::new(source, destination), &mut out);
    Some(out)
}
