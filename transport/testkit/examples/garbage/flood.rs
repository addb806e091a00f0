//! The three floods: their packets and their rate.

use crate::Outcome;
use crate::forge::Forge;
use crate::sender::{Sender, port_of};
use crate::tap::{Seen, Tap};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use trunkline_roce::wire::{ICRC_LENGTH, IpUdp, QP1, icrc};
use trunkline_testkit::Random;

/// The kind of a flood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flood {
    /// Random bytes.
    Random,
    /// Changed real packets with the ICRC of the original.
    Stale,
    /// Changed real packets with a correct ICRC.
    Right,
}

impl Flood {
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "random" => Some(Self::Random),
            "stale" => Some(Self::Stale),
            "right" => Some(Self::Right),
            _ => None,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Stale => "stale",
            Self::Right => "right",
        }
    }
}

/// Length of the longest random datagram in bytes, longer than the device accepts.
const LONGEST: usize = 4400;
/// Number of packets between two readings of the clock.
const BURST: u64 = 25;
/// Number of attempts to choose or forge a packet that is allowed.
const TRIES: usize = 1000;

/// One flood against one victim.
#[derive(Debug)]
pub(super) struct Attack<'a> {
    pub(super) flood: Flood,
    pub(super) victim: IpAddr,
    /// Capture and sender for each peer of the victims.
    pub(super) ways: &'a mut [(Sender, Tap)],
    pub(super) forge: &'a mut Forge,
    pub(super) random: &'a mut Random,
}

impl Attack<'_> {
    /// Sends `packets`, at most evenly spread over the time `over`.
    pub(super) fn run(&mut self, packets: u64, over: Duration) -> Outcome<Duration> {
        let start = Instant::now();
        let mut sent = 0;
        while sent < packets {
            let due = over.mul_f64(sent as f64 / packets as f64);
            if let Some(wait) = due.checked_sub(start.elapsed()) {
                std::thread::sleep(wait);
            }
            let Self { ways, forge, random, .. } = self;
            for (_, tap) in &mut **ways {
                tap.follow(|seen| forge.learn(seen, random))?;
            }
            for _ in 0..BURST.min(packets - sent) {
                self.one()?;
                sent += 1;
            }
        }
        Ok(start.elapsed())
    }

    fn one(&mut self) -> Outcome<()> {
        let way = self.random.below(self.ways.len());
        let Some(seen) = self.real(way) else { return Err("no packet of the exchange was captured".into()) };
        let sender = &self.ways[way].0;
        let from = sender.choose(self.random, seen.headers.source.port());
        let source = sender.source(from)?;
        // Some go to the port of the exchange, some to port 4791.
        let to = if self.random.one_in(3) { port_of(self.victim) } else { seen.headers.destination };
        let bytes = if self.flood == Flood::Random {
            // Short packets have the same effect as long ones and cost less.
            let longest = if self.random.one_in(20) { LONGEST } else { 300 };
            let mut bytes = vec![0; self.random.below(longest)];
            self.random.fill(&mut bytes);
            bytes
        } else {
            self.changed(&IpUdp::new(source, to), &seen)
        };
        self.ways[way].0.send(from, to, &bytes)
    }

    /// Returns a recent real packet, preferably one that may be sent with a correct ICRC.
    fn real(&mut self, way: usize) -> Option<Seen> {
        let last = &self.ways[way].1.last;
        let mut seen = None;
        for _ in 0..TRIES {
            seen = last.get(self.random.below(last.len()));
            let body = seen.map(|seen| &seen.bytes[..seen.bytes.len().saturating_sub(ICRC_LENGTH)]);
            if self.flood != Flood::Right || body.is_some_and(|body| !self.forge.is_protected(body)) {
                break;
            }
        }
        seen.cloned()
    }

    fn changed(&mut self, headers: &IpUdp, seen: &Seen) -> Vec<u8> {
        let real = &seen.bytes[..seen.bytes.len().saturating_sub(ICRC_LENGTH)];
        let is_mad = real.get(5..8) == Some(&QP1.get().to_be_bytes()[1..]);
        for _ in 0..TRIES {
            let mut bytes = real.to_vec();
            self.forge.change(&mut bytes, self.random);
            if self.flood == Flood::Stale {
                // The ICRC of the real packet for this source.
                let crc = icrc::icrc(headers, real).to_le_bytes();
                if icrc::icrc(headers, &bytes).to_le_bytes() == crc {
                    continue; // only bytes outside the ICRC were changed
                }
                bytes.extend(crc);
                return bytes;
            }
            if !self.forge.is_protected(&bytes) && (!is_mad || self.random.one_in(4)) {
                icrc::append(headers, &mut bytes);
                return bytes;
            }
        }
        vec![0; 4]
    }
}
