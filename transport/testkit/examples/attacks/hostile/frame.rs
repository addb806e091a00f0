//! What a hostile peer changes in the frames of its messages.
//!
//! A frame begins the payload of a message: kind (1), version (1), source poller (2), messages that wait (2),
//! entries of a FIN (2), grant (4), released (4), length (4), all little endian.

use clap::ValueEnum;
use std::collections::BTreeMap;
use trunkline_testkit::Random;

/// Bytes of a frame's header.
const HEADER: usize = 24;
/// Kinds of frames.
const REQUEST: u8 = 2;
const FIN: u8 = 3;
const CREDIT: u8 = 4;
/// Position of the key in an announced message: after the header, its number, length and address.
const RKEY: usize = HEADER + 24;
/// Credit that is taken beyond what was granted: no more than a node could grant.
const BEYOND: u32 = 200;
/// Frames of a garbling peer that are left as they are before the first that is not.
const HONEST: u64 = 50;

/// A kind of misbehaviour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Hostility {
    /// Keeps to the protocol: an equally busy peer, for comparison.
    None,
    /// Never grants credit again: it takes no replies.
    Stingy,
    /// Sends more than it was granted.
    Beyond,
    /// Never reports that it has READ a large message.
    Unfinished,
    /// Announces large messages under keys that nothing is registered under.
    Unserved,
    /// Sends random bytes in place of headers.
    Garbage,
}

impl Hostility {
    pub(crate) const HOSTILE: [Self; 5] =
        [Self::Stingy, Self::Beyond, Self::Unfinished, Self::Unserved, Self::Garbage];
}

/// Changes frames.
#[derive(Debug)]
pub(super) struct Changer {
    hostility: Hostility,
    /// The first grant towards a target: a QP, an SRQ and a poller.
    grants: BTreeMap<(u32, u32, u16), [u8; 4]>,
    frames: u64,
    random: Random,
}

impl Changer {
    pub(super) fn new(hostility: Hostility) -> Self {
        Self { hostility, grants: BTreeMap::new(), frames: 0, random: Random::from_entropy() }
    }

    /// Changes the first payload of a message that is sent to a QP and an SRQ.
    pub(super) fn outgoing(&mut self, qp: u32, srq: u32, payload: &mut Vec<u8>) {
        if payload.len() < HEADER {
            return;
        }
        self.frames += 1;
        match self.hostility {
            Hostility::Stingy => {
                let target = u16::from_le_bytes([payload[20], payload[21]]);
                let now = [payload[8], payload[9], payload[10], payload[11]];
                let first = *self.grants.entry((qp, srq, target)).or_insert(now);
                payload[8..12].copy_from_slice(&first);
            }
            Hostility::Unfinished if payload[0] == FIN => {
                payload.truncate(HEADER);
                payload[0] = CREDIT;
                payload[6..8].fill(0);
                payload[16..20].fill(0);
            }
            Hostility::Unserved if payload[0] == REQUEST && payload.len() >= RKEY + 4 => {
                payload[RKEY] ^= 0xff
            }
            Hostility::Garbage if self.frames > HONEST => self.random.fill(&mut payload[..HEADER]),
            _ => {}
        }
    }

    /// Changes the first payload of a message that has come.
    pub(super) fn incoming(&self, payload: &mut [u8]) {
        if self.hostility == Hostility::Beyond && payload.len() >= HEADER {
            let grant = u32::from_le_bytes([payload[8], payload[9], payload[10], payload[11]]);
            payload[8..12].copy_from_slice(&grant.wrapping_add(BEYOND).to_le_bytes());
        }
    }
}
