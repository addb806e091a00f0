//! Forged datagrams: right in everything that needs no secret, the ICRC included.
//!
//! Owns how a forged datagram is put together and how a datagram is read. `attacker` and `strangers` decide what
//! to forge, and `network` carries it.

use std::net::{IpAddr, SocketAddr};
use trunkline_roce::wire::cm::CmMessage;
use trunkline_roce::wire::{ICRC_LENGTH, IpUdp, Mad, Packet, ROCE_PORT, icrc, mad_packet};
use trunkline_verbs::Psn;

/// The UDP port that forgers have, as another user of a host. Nothing may be sent there.
pub(crate) const PORT: u16 = 6666;

/// A forged datagram.
#[derive(Debug)]
pub(crate) struct Forged {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

impl Forged {
    /// A packet, which is given without its ICRC.
    pub(crate) fn packet(source: SocketAddr, destination: SocketAddr, mut packet: Vec<u8>) -> Self {
        icrc::append(&IpUdp::new(source, destination), &mut packet);
        Self { source, destination, bytes: packet }
    }

    /// A MAD to QP 1 at an address.
    pub(crate) fn mad(source: SocketAddr, victim: IpAddr, psn: Psn, mad: &Mad) -> Self {
        let mut packet = Vec::new();
        mad_packet(psn, &mad.to_bytes()).emit(&mut packet);
        Self::packet(source, SocketAddr::new(victim, ROCE_PORT), packet)
    }
}

/// A datagram's packet without its ICRC, if it is long enough to have one.
pub(crate) fn packet_of(datagram: &[u8]) -> Option<&[u8]> {
    datagram.len().checked_sub(ICRC_LENGTH).map(|length| &datagram[..length])
}

/// The message of the connection manager that a packet, without its ICRC, carries.
pub(crate) fn cm_message_of(packet: &[u8]) -> Option<CmMessage> {
    Mad::from_packet(&Packet::parse(packet).ok()?).as_ref().map(CmMessage::parse)
}
