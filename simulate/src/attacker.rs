//! An attacker off the path: it sends what it likes from any address, and sees nothing of others' packets.
//!
//! Owns what it forges, and the rules of what nobody may send because of it. The network has it observe
//! datagrams, from which it takes shapes only: opcodes, QP numbers and keys, as if it had guessed all of them.
//! What protects a session is what it must not take from there: PSNs, epochs, communication ids. A PSN near
//! a live one would be a lucky guess, whose odds docs/security.md has, and is left out.
//!
//! | rule | broken when |
//! |---|---|
//! | nothing is diverted | a packet goes to the attacker's own UDP port |
//! | nothing is amplified | more than 1.2 bytes go to the address that it claims for each byte sent |

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use trunkline_roce::wire::cm::{ADDRESS_HEADER_BYTES, CmMessage, Dreq, Ids, Rej, Req};
use trunkline_roce::wire::{Bth, ICRC_LENGTH, IpUdp, Mad, Packet, QP1, ROCE_PORT, icrc, mad_packet};
use trunkline_softrdma::link::Datagram;
use trunkline_verbs::{Psn, QpNumber, RejectReason};

/// The UDP port that it has, as another user of a host.
pub(crate) const PORT: u16 = 6666;
/// An address that it claims in requests, and that belongs to nobody.
const CLAIMED: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 7, 7, 66));
/// Shapes kept of packets, and of connection requests.
const KEPT: usize = 64;
/// Distance from a live PSN within which a guess counts as lucky.
const LUCKY: u32 = 1 << 14;
/// All PSNs and QP numbers.
const MASK_24: u32 = 0xff_ffff;
/// Position of the PSN in a packet.
const PSN: usize = 9;
/// The private data of a session: its length, and where its epoch, its number and the echo are.
const EPOCH: usize = ADDRESS_HEADER_BYTES + 8;
const NUMBER: usize = ADDRESS_HEADER_BYTES + 16;
const ECHO: usize = ADDRESS_HEADER_BYTES + 20;
/// Tenths of a byte that may be sent to the claimed address for each that it sent.
const GAIN_TENTHS: u64 = 12;

/// What it forges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forgery {
    /// A packet of a connection with another PSN: a request, an acknowledgement or a READ response.
    Packet,
    /// A connection request of a new incarnation of an honest node, or of a node that does not exist.
    Request,
    /// Another message of the connection manager, with guessed ids.
    Message,
}

/// A datagram as it was seen.
#[derive(Debug, Clone)]
struct Shape {
    source: SocketAddr,
    destination: SocketAddr,
    /// Without the ICRC.
    body: Vec<u8>,
}

/// A forged datagram.
#[derive(Debug)]
pub(crate) struct Forged {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

/// The attacker of a run.
#[derive(Debug)]
pub(crate) struct Attacker {
    random: fastrand::Rng,
    packets: Vec<Shape>,
    requests: Vec<Shape>,
    /// The last PSN towards a QP.
    live: BTreeMap<(IpAddr, u32), u32>,
    /// Bytes that it sent in the name of the claimed address, and that went there.
    claimed_bytes: u64,
    drawn_bytes: u64,
    diverted: Option<String>,
}

impl Attacker {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            packets: Vec::new(),
            requests: Vec::new(),
            live: BTreeMap::new(),
            claimed_bytes: 0,
            drawn_bytes: 0,
            diverted: None,
        }
    }

    /// A datagram that an honest node sends.
    pub(crate) fn observe(&mut self, datagram: &Datagram<'_>) {
        let Datagram { source, destination, bytes } = *datagram;
        if destination.port() == PORT && self.diverted.is_none() {
            self.diverted = Some(format!("{} bytes from {source} went to the attacker", bytes.len()));
        }
        if destination.ip() == CLAIMED {
            self.drawn_bytes += bytes.len() as u64;
        }
        let Some(body) = bytes.len().checked_sub(ICRC_LENGTH).map(|length| &bytes[..length]) else { return };
        let Ok(bth) = Bth::parse(body) else { return };
        let shape = || Shape { source, destination, body: body.to_vec() };
        if bth.destination == QP1 {
            if matches!(message(body), Some(CmMessage::Req(_))) {
                keep(&mut self.requests, shape(), &mut self.random);
            }
        } else {
            self.live.insert((destination.ip(), bth.destination.get()), bth.psn.get());
            keep(&mut self.packets, shape(), &mut self.random);
        }
    }

    /// Something forged, once there is a shape for it.
    pub(crate) fn forge(&mut self, forgery: Forgery) -> Option<Forged> {
        let (source, destination, mut bytes) = match forgery {
            Forgery::Packet => self.packet()?,
            Forgery::Request => self.request()?,
            Forgery::Message => self.message()?,
        };
        icrc::append(&IpUdp::new(source, destination), &mut bytes);
        if source.ip() == CLAIMED {
            self.claimed_bytes += bytes.len() as u64;
        }
        Some(Forged { source, destination, bytes })
    }

    /// The rule that honest nodes have broken, if they have.
    pub(crate) fn broken(&self) -> Option<String> {
        let is_amplified = self.drawn_bytes * 10 > self.claimed_bytes * GAIN_TENTHS;
        let amplified = || {
            let (drawn, sent) = (self.drawn_bytes, self.claimed_bytes);
            format!("{sent} bytes of strangers drew {drawn} bytes to the address that they claim")
        };
        self.diverted.clone().or_else(|| is_amplified.then(amplified))
    }

    /// As another user of the host, or as another host that claims port 4791.
    fn source_of(&mut self, shape: &Shape) -> SocketAddr {
        let port = if self.random.bool() { PORT } else { shape.source.port() };
        SocketAddr::new(shape.source.ip(), port)
    }

    fn packet(&mut self) -> Option<(SocketAddr, SocketAddr, Vec<u8>)> {
        let shape = self.random.choice(&self.packets)?.clone();
        let bth = Bth::parse(&shape.body).ok()?;
        let live = *self.live.get(&(shape.destination.ip(), bth.destination.get()))?;
        let psn = live.wrapping_add(self.random.u32(LUCKY..MASK_24 - LUCKY)) & MASK_24;
        let mut body = shape.body.clone();
        body[PSN..PSN + 3].copy_from_slice(&psn.to_be_bytes()[1..]);
        Some((self.source_of(&shape), shape.destination, body))
    }

    fn request(&mut self) -> Option<(SocketAddr, SocketAddr, Vec<u8>)> {
        let shape = self.random.choice(&self.requests)?.clone();
        let Some(CmMessage::Req(seen)) = message(&shape.body) else { return None };
        let mut request = Req { local_id: self.random.u32(1..), ..seen };
        request.ca_guid ^= u64::from(self.random.bool());
        request.qpn = QpNumber::new(self.random.u32(2..MASK_24));
        request.starting_psn = Psn::new(self.random.u32(..MASK_24));
        request.private[EPOCH..NUMBER].copy_from_slice(&self.random.u64(1..).to_be_bytes());
        request.private[NUMBER..ECHO].copy_from_slice(&self.random.u32(1..4).to_be_bytes());
        // It answers no session, and has no proof of its address.
        request.private[ECHO..ECHO + 12].fill(0);
        Some((self.source_of(&shape), shape.destination, self.mad(CmMessage::Req(request))))
    }

    fn message(&mut self) -> Option<(SocketAddr, SocketAddr, Vec<u8>)> {
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
                answered: trunkline_roce::wire::cm::Answered::REQ,
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
        let destination = SocketAddr::new(shape.destination.ip(), ROCE_PORT);
        Some((self.source_of(&shape), destination, self.mad(message)))
    }

    fn mad(&mut self, message: CmMessage) -> Vec<u8> {
        let bytes = message.mad(self.random.u64(..)).to_bytes();
        let mut body = Vec::new();
        mad_packet(Psn::new(self.random.u32(..MASK_24)), &bytes).emit(&mut body);
        body
    }
}

fn message(body: &[u8]) -> Option<CmMessage> {
    Mad::from_packet(&Packet::parse(body).ok()?).as_ref().map(CmMessage::parse)
}

/// Keeps a shape, in place of another one when there are enough.
fn keep(shapes: &mut Vec<Shape>, shape: Shape, random: &mut fastrand::Rng) {
    if shapes.len() < KEPT {
        shapes.push(shape);
    } else {
        let at = random.usize(..KEPT);
        shapes[at] = shape;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn what_goes_to_the_attacker_breaks_a_rule() {
        let mut attacker = Attacker::new(1);
        let bytes = [0; 64];
        let (source, honest) = (at("127.7.7.1:4791"), at("127.7.7.2:4791"));
        attacker.observe(&Datagram { source, destination: honest, bytes: &bytes });
        assert_eq!(attacker.broken(), None);
        let destination = SocketAddr::new(honest.ip(), PORT);
        attacker.observe(&Datagram { source, destination, bytes: &bytes });
        assert!(attacker.broken().is_some());

        let mut attacker = Attacker::new(1);
        attacker.claimed_bytes = 100;
        let destination = SocketAddr::new(CLAIMED, ROCE_PORT);
        attacker.observe(&Datagram { source, destination, bytes: &bytes });
        assert_eq!(attacker.broken(), None);
        attacker.observe(&Datagram { source, destination, bytes: &bytes });
        assert!(attacker.broken().is_some());
    }

    #[test]
    fn forged_packets_name_live_qps_and_miss_live_psns() {
        let mut attacker = Attacker::new(2);
        assert!(attacker.forge(Forgery::Packet).is_none() && attacker.forge(Forgery::Request).is_none());
        let mut body = Vec::new();
        Packet::new(trunkline_roce::wire::Opcode(0x04), QpNumber::new(77), Psn::new(5), b"12345678")
            .emit(&mut body);
        let (source, destination) = (at("127.7.7.1:4791"), at("127.7.7.2:4791"));
        icrc::append(&IpUdp::new(source, destination), &mut body);
        attacker.observe(&Datagram { source, destination, bytes: &body });
        for _ in 0..100 {
            let forged = attacker.forge(Forgery::Packet).unwrap();
            let bth = Bth::parse(&forged.bytes).unwrap();
            let distance = bth.psn.get().wrapping_sub(5) & MASK_24;
            assert!(bth.destination.get() == 77 && (LUCKY..=MASK_24 - LUCKY).contains(&distance));
            assert!(icrc::check(&IpUdp::new(forged.source, forged.destination), &forged.bytes));
        }
    }
}
