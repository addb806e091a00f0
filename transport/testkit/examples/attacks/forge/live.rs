//! Packets of live connections, changed in what an attacker off the path has to guess: their PSN.
//!
//! A capture of one side gives everything else: opcodes, QP and SRQ numbers, keys. That is more than the
//! attacker can know.

use crate::Outcome;
use crate::tap::{Seen, Tap};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use trunkline_roce::wire::{ICRC_LENGTH, QP1};
use trunkline_testkit::Random;

/// Packets kept of each direction.
const KEPT: usize = 256;
/// Position of the PSN in a packet, and of the destination QP.
const PSN: usize = 9;
const DESTINATION: usize = 5;

/// The packets of one session.
#[derive(Debug)]
pub(crate) struct Live {
    tap: Tap,
    server: IpAddr,
    to_server: VecDeque<Seen>,
    to_client: VecDeque<Seen>,
}

impl Live {
    /// Taps the capture that a client writes.
    pub(crate) fn open(capture: &Path, client: IpAddr, server: IpAddr) -> Outcome<Self> {
        let tap = Tap::open(capture, client, server)?;
        Ok(Self { tap, server, to_server: VecDeque::new(), to_client: VecDeque::new() })
    }

    /// Takes note of the packets since the last time.
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

    /// A packet with any PSN, without its ICRC, and where it goes; to the server or to its client.
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
