//! The packets of the three floods, and the addresses from which they claim to come.
//!
//! Any socket can bind any address in 127.0.0.0/8, so the peer's address with another port is always available. The peer's
//! own port requires a raw socket. Without permission to open one, the packets from that port are omitted, and the run
//! reports it.

use super::exchange::Exchanges;
use crate::forge::{Forger, RawForger, Seen, Tap, paced};
use crate::{Outcome, Plan};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use trunkline_roce::wire::{IpUdp, ROCE_PORT, icrc};
use trunkline_testkit::Random;

/// The kind of packets in a flood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flood {
    /// Random bytes.
    Random,
    /// Real packets that were changed and carry the ICRC of the original.
    Stale,
    /// Real packets that were changed and carry a correct ICRC.
    Right,
}

/// Maximum length of a random datagram, in bytes. It exceeds the length that the device accepts.
const LONGEST: usize = 4400;
/// Number of packets between two reads of the captures.
const FOLLOWED: u64 = 25;
/// Maximum number of attempts to choose or forge a permitted packet.
const TRIES: usize = 1000;
/// Number of sockets with the peer's address. The number of sockets with other addresses is the same.
const SOCKETS: usize = 4;

/// The packets of a victim's peer, and the sockets that impersonate the peer.
#[derive(Debug)]
pub(super) struct Way {
    tap: Tap,
    peer: IpAddr,
    /// The sockets with the peer's address, followed by those with other addresses.
    forgers: Vec<Forger>,
    pub(super) raw: Option<RawForger>,
}

impl Way {
    pub(super) fn new(tap: Tap, peer: IpAddr, random: &mut Random) -> Outcome<Self> {
        let mut forgers = (0..SOCKETS).map(|_| Forger::at(peer)).collect::<Result<Vec<_>, _>>()?;
        for _ in 0..SOCKETS {
            let other = Ipv4Addr::new(127, random.byte(), random.byte(), 1 + random.byte() % 250);
            forgers.push(Forger::at(other.into())?);
        }
        Ok(Self { tap, peer, forgers, raw: RawForger::new().ok() })
    }

    /// Returns the number of datagrams that the kernel accepted.
    pub(super) fn sent(&self) -> u64 {
        let raw = self.raw.as_ref().map_or(0, |raw| raw.sent);
        self.forgers.iter().map(|forger| forger.sent).sum::<u64>() + raw
    }

    /// Chooses the socket for a packet. `None` stands for the raw socket with the peer's own port, which is chosen most
    /// often if it exists.
    fn choose(&self, random: &mut Random) -> Option<usize> {
        match random.below(8) {
            0 => Some(SOCKETS + random.below(SOCKETS)),
            1 => Some(random.below(SOCKETS)),
            _ if self.raw.is_some() => None,
            _ => Some(random.below(SOCKETS)),
        }
    }
}

impl Exchanges {
    /// Sends the number of packets in `plan` to the victims. Returns the time taken.
    pub(super) fn flood(&mut self, flood: Flood, plan: &Plan, random: &mut Random) -> Outcome<Duration> {
        paced(plan.packets, plan.over(), |number| {
            if number.is_multiple_of(FOLLOWED) {
                let Self { ways, forge, .. } = self;
                for way in ways {
                    way.tap.follow(|seen| forge.learn(seen, random))?;
                }
            }
            self.one(flood, random)
        })
    }

    fn one(&mut self, flood: Flood, random: &mut Random) -> Outcome<()> {
        let index = random.below(self.ways.len());
        let Some(seen) = self.real(flood, index, random) else {
            return Err("no packet of the exchange was captured".into());
        };
        let way = &self.ways[index];
        let socket = way.choose(random);
        let source =
            socket.map_or(SocketAddr::new(way.peer, seen.headers.source.port()), |at| way.forgers[at].own);
        // Some packets go to the port of the exchange, the others to port 4791.
        let is_to_port = random.one_in(3);
        let to = if is_to_port { SocketAddr::new(self.victim, ROCE_PORT) } else { seen.headers.destination };
        let bytes = if flood == Flood::Random {
            // Short packets have the same effect as long ones and cost less.
            let longest = if random.one_in(20) { LONGEST } else { 300 };
            let mut bytes = vec![0; random.below(longest)];
            random.fill(&mut bytes);
            bytes
        } else {
            self.changed(flood, &IpUdp::new(source, to), &seen, random)
        };
        let Way { forgers, raw, .. } = &mut self.ways[index];
        match (socket, raw) {
            (Some(at), _) => forgers[at].send_bytes(&bytes, to),
            (None, Some(raw)) => raw.send(source, to, &bytes),
            (None, None) => Ok(()),
        }
    }

    /// Returns a recent real packet. For [`Flood::Right`], prefers packets that do not name protected objects.
    fn real(&self, flood: Flood, way: usize, random: &mut Random) -> Option<Seen> {
        let mut seen = None;
        for _ in 0..TRIES {
            seen = self.ways[way].tap.any(true, random);
            if flood != Flood::Right || seen.is_some_and(|seen| !self.forge.is_protected(seen.body())) {
                break;
            }
        }
        seen.cloned()
    }

    fn changed(&self, flood: Flood, headers: &IpUdp, seen: &Seen, random: &mut Random) -> Vec<u8> {
        let real = seen.body();
        for _ in 0..TRIES {
            let mut bytes = real.to_vec();
            self.forge.change(&mut bytes, random);
            if flood == Flood::Stale {
                // The ICRC of the real packet, recomputed for this source.
                let crc = icrc::icrc(headers, real).to_le_bytes();
                if icrc::icrc(headers, &bytes).to_le_bytes() == crc {
                    continue; // only bytes that the ICRC does not cover were changed
                }
                bytes.extend(crc);
                return bytes;
            }
            if !self.forge.is_protected(&bytes) && (!seen.is_management() || random.one_in(4)) {
                icrc::append(headers, &mut bytes);
                return bytes;
            }
        }
        vec![0; 4]
    }
}
