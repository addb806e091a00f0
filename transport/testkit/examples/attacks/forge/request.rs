//! Forged connection requests with valid fields, including the private data of the session protocol.

use super::socket::{Forger, Sink};
use crate::Outcome;
use crate::honest::PORT;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use trunkline_roce::wire::cm::CmMessage;
use trunkline_roce::wire::{ICRC_LENGTH, Mad, Packet, ROCE_PORT, mad_packet};
use trunkline_testkit::{Hello, Random, wait_until};
use trunkline_verbs::Psn;

/// Version of the session protocol that is tried first.
const VERSION: u8 = 2;
/// Rejection reason for an unsupported version.
const OTHER_VERSION: u8 = 2;

/// The claimed sender of requests, and the fields of its requests.
#[derive(Debug, Clone)]
pub(crate) struct Dialer {
    pub(crate) claimed: IpAddr,
    pub(crate) victim: SocketAddr,
    pub(crate) hello: Hello,
}

impl Dialer {
    pub(crate) fn new(claimed: IpAddr, victim: SocketAddr, is_xrc: bool, version: u8) -> Self {
        let hello = Hello { is_rc: !is_xrc, version, ..Hello::new(PORT, 0) };
        Self { claimed, victim, hello }
    }

    /// Builds the first request of a new incarnation of the claimed node. The packet has no ICRC.
    pub(crate) fn request(&mut self, random: &mut Random) -> Vec<u8> {
        self.hello.epoch = random.next() | 1;
        self.repeat(random).1
    }

    /// Builds another request of the same incarnation. Returns its comm id and the packet.
    pub(crate) fn repeat(&self, random: &mut Random) -> (u32, Vec<u8>) {
        let (id, mad) = self.hello.request(self.claimed, self.victim, random);
        let mut packet = Vec::new();
        mad_packet(Psn::new(self.hello.port.into()), &mad.to_bytes()).emit(&mut packet);
        (id, packet)
    }

    /// Returns the destination of requests: UDP port 4791 of the victim.
    pub(crate) fn port_of_victim(&self) -> SocketAddr {
        SocketAddr::new(self.victim.ip(), ROCE_PORT)
    }
}

/// Returns the connection-manager message in a packet. The packet is given without its ICRC.
pub(crate) fn message_in(body: &[u8]) -> Option<CmMessage> {
    let packet = Packet::parse(body).ok()?;
    Mad::from_packet(&packet).as_ref().map(CmMessage::parse)
}

/// Returns the session protocol version that a node speaks. A node that does not speak [`VERSION`] reports its own version
/// when it rejects the request.
pub(crate) fn version_of(own: IpAddr, victim: SocketAddr, is_xrc: bool, random: &mut Random) -> Outcome<u8> {
    let (mut forger, sink) = (Forger::at(own)?, Sink::at(own)?);
    let mut dialer = Dialer::new(own, victim, is_xrc, VERSION);
    let request = dialer.request(random);
    forger.send(&request, dialer.port_of_victim())?;
    let reply = wait_until("a reply to a connection request", Duration::from_secs(5), || {
        let caught = [forger.caught(), sink.caught()];
        caught.into_iter().find(|caught| caught.packets > 0).map(|caught| caught.last)
    });
    match message_in(&reply[..reply.len().saturating_sub(ICRC_LENGTH)]) {
        Some(CmMessage::Rej(rej)) if rej.private.starts_with(b"TRNK") && rej.private[5] == OTHER_VERSION => {
            Ok(rej.private[4])
        }
        _ => Ok(VERSION),
    }
}
