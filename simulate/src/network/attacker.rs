//! An off-path attacker that forges packets of live sessions without seeing their traffic.
//!
//! Owns the forged packets, and checks that nodes do not send to the attacker's UDP port. The attacker copies only
//! opcodes, QP numbers and keys from the network's datagrams, as if it had guessed them. It must not copy PSNs and
//! communication IDs, because they protect a session. A forged PSN is never near a live one: this would be a lucky guess,
//! whose probability is given in docs/book/src/why/security.md.

use super::forged::{Forged, PORT, packet_of};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use trunkline_roce::wire::cm::{Answered, CmMessage, Dreq, Ids, Rej};
use trunkline_roce::wire::{Bth, QP1};
use trunkline_softrdma::link::Datagram;
use trunkline_verbs::{Psn, RejectReason};

/// Maximum number of packet shapes kept.
const KEPT: usize = 64;
/// Distance from a live PSN below which a guess counts as lucky.
const LUCKY: u32 = 1 << 14;
/// Mask for PSNs and QP numbers, which have 24 bits.
const MASK_24: u32 = 0xff_ffff;
const PSN: usize = 9;

/// Endpoints and contents of an observed datagram.
#[derive(Debug, Clone)]
struct Shape {
    source: SocketAddr,
    destination: SocketAddr,
    /// Packet without its ICRC.
    body: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Attacker {
    random: fastrand::Rng,
    packets: Vec<Shape>,
    /// Last PSN sent to each QP, by address and QP number.
    live: BTreeMap<(IpAddr, u32), u32>,
    diverted: Option<String>,
}

impl Attacker {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            packets: Vec::new(),
            live: BTreeMap::new(),
            diverted: None,
        }
    }

    /// Records the shape of a datagram sent by an honest node.
    pub(crate) fn observe(&mut self, datagram: &Datagram<'_>) {
        let Datagram { source, destination, bytes } = *datagram;
        if destination.port() == PORT && self.diverted.is_none() {
            self.diverted = Some(format!("{} bytes from {source} went to the attacker", bytes.len()));
        }
        let Some(body) = packet_of(bytes) else { return };
        let Ok(bth) = Bth::parse(body) else { return };
        if bth.destination == QP1 {
            return;
        }
        self.live.insert((destination.ip(), bth.destination.get()), bth.psn.get());
        let shape = Shape { source, destination, body: body.to_vec() };
        if self.packets.len() < KEPT {
            self.packets.push(shape);
        } else {
            let at = self.random.usize(..KEPT);
            self.packets[at] = shape;
        }
    }

    pub(crate) fn broken(&self) -> Option<&str> {
        self.diverted.as_deref()
    }

    /// Forges a packet for a connection with a guessed PSN, which is a request, an acknowledgement or a READ response.
    /// Returns `None` if no packet has been observed.
    pub(crate) fn packet(&mut self) -> Option<Forged> {
        let shape = self.random.choice(&self.packets)?.clone();
        let bth = Bth::parse(&shape.body).ok()?;
        let live = *self.live.get(&(shape.destination.ip(), bth.destination.get()))?;
        let psn = live.wrapping_add(self.random.u32(LUCKY..MASK_24 - LUCKY)) & MASK_24;
        let mut body = shape.body.clone();
        body[PSN..PSN + 3].copy_from_slice(&psn.to_be_bytes()[1..]);
        Some(Forged::packet(self.source_of(&shape), shape.destination, body))
    }

    /// Returns the address of another user on the host, or of another host that claims port 4791.
    fn source_of(&mut self, shape: &Shape) -> SocketAddr {
        let port = if self.random.bool() { PORT } else { shape.source.port() };
        SocketAddr::new(shape.source.ip(), port)
    }

    /// Forges a connection manager message with guessed IDs. Returns `None` if no packet has been observed.
    pub(crate) fn message(&mut self) -> Option<Forged> {
        let shape = self.random.choice(&self.packets)?.clone();
        let (local_id, remote_id) = (self.random.u32(1..), self.random.u32(1..));
        let message = match self.random.u8(..4) {
            0 => CmMessage::Dreq(Dreq {
                local_id,
                remote_id,
                qpn: Bth::parse(&shape.body).ok()?.destination,
                reserved_11: 0,
                private: [0; 220],
            }),
            1 => CmMessage::Rej(Rej {
                local_id,
                remote_id,
                answered: Answered::REQ,
                reserved_8: 0,
                info_length: 0,
                reserved_9: false,
                reason: RejectReason::STALE_CONNECTION,
                info: [0; 72],
                private: [0; 148],
            }),
            2 => CmMessage::Rtu(Ids { local_id, remote_id, private: [0; 224] }),
            _ => CmMessage::Drep(Ids { local_id, remote_id, private: [0; 224] }),
        };
        let psn = Psn::new(self.random.u32(..MASK_24));
        let mad = message.mad(self.random.u64(..));
        Some(Forged::mad(self.source_of(&shape), shape.destination.ip(), psn, &mad))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn packet_to_attacker_breaks_rule() {
        let mut attacker = Attacker::new(1);
        let bytes = [0; 64];
        let (source, honest) = (at("127.7.7.1:4791"), at("127.7.7.2:4791"));
        attacker.observe(&Datagram { source, destination: honest, bytes: &bytes });
        assert_eq!(attacker.broken(), None);
        let destination = SocketAddr::new(honest.ip(), PORT);
        attacker.observe(&Datagram { source, destination, bytes: &bytes });
        assert!(attacker.broken().is_some());
    }
}
