//! Packets of live connections with another PSN, which an off-path attacker has to guess.
//!
//! A capture of one side provides everything else: opcodes, QP and SRQ numbers, keys. That is more than the
//! attacker can know.

use crate::Outcome;
use crate::tap::{Seen, Tap};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use trunkline_roce::wire::{ICRC_LENGTH, QP1};
use trunkline_testkit::Random;

/// Number of packets kept for each direction.
const KEPT: usize = 256;
/// Offsets of the PSN and of the destination QP in a packet.
const PSN: usize = 9;
const DESTINATION: usize = 5;

/// Packets of one session.
#[derive(Debug)]
pub(crate) struct Live {
    tap: Tap,
    server: IpAddr,
    to_server: VecDeque<Seen>,
    to_client: VecDeque<Seen>,
}

impl Live {
    /// Opens the capture that a client writes.
    pub(crate) fn open(capture: &Path, client: IpAddr, server: IpAddr) -> Outcome<Self> {
        let tap = Tap::open(capture, client, server)?;
        Ok(Self { tap, server, to_server: VecDeque::new(), to_client: VecDeque::new() })
    }

    /// Reads the packets since the last call.
    pub(crate) fn follow(&mut self) -> Outcome<()> {
        let Self { tap, server, to_server, to_client } = self;
        tap.follow(|seen| {
            if seen.bytes.get(DESTINATION..DESTINATION + 3) == Some(&QP1.get().to_be_bytes()[1..]) {
                return;
            }
            let kept =
                if seen.headers.destination.ip() == *server { &mut *to_server } else { &mut *to_client };
            if kept.len() == KEPT {
                kept.pop_front();
            }
            kept.push_back(seen.clone());
        })
    }

    /// Returns a packet with any PSN, without its ICRC, and its destination: the server, or the server's
    /// client.
    pub(crate) fn packet(&self, to_server: bool, random: &mut Random) -> Outcome<(Vec<u8>, SocketAddr)> {
        let kept = if to_server { &self.to_server } else { &self.to_client };
        if kept.is_empty() {
            return Err("no packet of the session was captured".into());
        }
        let seen = &kept[random.below(kept.len())];
        let mut bytes = seen.bytes[..seen.bytes.len().saturating_sub(ICRC_LENGTH)].to_vec();
        random.fill(&mut bytes[PSN..PSN + 3]);
        Ok((bytes, seen.headers.destination))
    }
}
