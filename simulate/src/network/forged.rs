//! Forged datagrams, which are correct except for secrets and have a valid ICRC.
//!
//! This module builds and parses forged datagrams. `attacker` and `strangers` choose their contents, and `network`
//! delivers them.

use std::net::{IpAddr, SocketAddr};
use trunkline_roce::wire::cm::CmMessage;
use trunkline_roce::wire::{ICRC_LENGTH, IpUdp, Mad, Packet, ROCE_PORT, icrc, mad_packet};
use trunkline_verbs::Psn;

/// UDP port of forgers that act as another user of a host. Nodes must not send to this port.
pub(crate) const PORT: u16 = 6666;

#[derive(Debug)]
pub(crate) struct Forged {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

impl Forged {
    /// Creates a datagram from a packet without its ICRC.
    pub(crate) fn packet(source: SocketAddr, destination: SocketAddr, mut packet: Vec<u8>) -> Self {
        icrc::append(&IpUdp::new(source, destination), &mut packet);
        Self { source, destination, bytes: packet }
    }

    /// Creates a datagram that contains a MAD for QP 1 at the address of the victim.
    pub(crate) fn mad(source: SocketAddr, victim: IpAddr, psn: Psn, mad: &Mad) -> Self {
        let mut packet = Vec::new();
        mad_packet(psn, &mad.to_bytes()).emit(&mut packet);
        Self::packet(source, SocketAddr::new(victim, ROCE_PORT), packet)
    }
}

/// Returns the packet in a datagram without its ICRC, or `None` if the datagram is too short.
pub(crate) fn packet_of(datagram: &[u8]) -> Option<&[u8]> {
    datagram.len().checked_sub(ICRC_LENGTH).map(|length| &datagram[..length])
}

/// Returns the connection manager message in a packet without its ICRC.
pub(crate) fn cm_message_of(packet: &[u8]) -> Option<CmMessage> {
    Mad::from_packet(&Packet::parse(packet).ok()?).as_ref().map(CmMessage::parse)
}
