//! The changes that a hostile peer makes to the frames of its messages.
//!
//! The payload of a message begins with a frame header: kind (1 byte), flags (1), a word (2), grant (2), number of waiting
//! messages (1) and target poller (1), all little endian. In a Credit frame, the word is the released credit. In a FIN, it
//! is the number of entries. An announcement follows the header, or the time left if there is one.

use super::Hostility;
use crate::Random;
use std::collections::BTreeMap;

/// Length of a frame's header in bytes.
const HEADER: usize = 8;
/// Kind of a frame that grants credit.
pub const CREDIT: u8 = 1;
/// Kind of a frame that reports that large messages have been READ.
pub const FIN: u8 = 2;
/// Kind of the first frame of each lane.
pub const SETTINGS: u8 = 3;
const BUNDLE: u8 = 4;
/// A kind that is not defined in any version, and that receivers ignore.
const IGNORED: u8 = 0x0f;
/// First kind that belongs to the upper layer.
const UPPER: u8 = 0x10;
/// Flag that makes a receiver end the session if it does not support the frame's kind.
pub const CRITICAL: u8 = 1;
/// Flag for a frame that announces a large message.
pub const ANNOUNCES: u8 = 2;
/// Flag for a frame that contains the time left, and the size of the time in bytes.
const TIME_LEFT: u8 = 4;
const TIME_LEFT_BYTES: usize = 4;
/// Initial grant for each pair of nodes.
pub const FIRST_GRANT: u16 = u16::MAX - 998;
/// Offsets of the length, the address and the key in an announcement. An announcement begins with its number.
const LENGTH: usize = 8;
const ADDRESS: usize = 16;
const RKEY: usize = 24;
/// Number of bytes beyond the announced memory that a prying peer READs.
const BESIDE: u64 = 64;
/// Number of credits used beyond the grant, at most the number that a node can grant.
const BEYOND: u16 = 200;
/// Number of frames that a garbling peer leaves unchanged before its first change. Every peer sends more frames than this.
const HONEST: u64 = 10;

/// Builds a frame with a correct header.
#[must_use]
pub fn build(kind: u8, flags: u8, word: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![kind, flags];
    frame.extend(word.to_le_bytes());
    frame.extend(FIRST_GRANT.to_le_bytes());
    frame.extend([0; 2]);
    frame.extend(payload);
    frame
}

/// Memory that a frame announces to its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Announcement {
    /// Remote key of the memory.
    pub rkey: u32,
    /// Address of the memory, as used by the receiver in a READ.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
}

impl Announcement {
    /// Parses the announcement in the first payload of a message. Returns `None` if the message is not announced.
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let payload = payload.get(announcement_at(payload)?..)?;
        let number = |at: usize| Some(u64::from_le_bytes(*payload.get(at..)?.first_chunk()?));
        let rkey = u32::from_le_bytes(*payload.get(RKEY..)?.first_chunk()?);
        Some(Self { rkey, address: number(ADDRESS)?, length: number(LENGTH)? })
    }
}

/// Returns the offset of the announcement in the first payload of a message, if the message is announced.
fn announcement_at(payload: &[u8]) -> Option<usize> {
    let &[kind, flags, ..] = payload else { return None };
    let timed = if flags & TIME_LEFT == 0 { 0 } else { TIME_LEFT_BYTES };
    (flags & ANNOUNCES != 0 && kind >= UPPER).then_some(HEADER + timed)
}

/// A peer whose datagrams are changed.
#[derive(Debug)]
pub struct HostilePeer {
    hostility: Hostility,
    /// First grant to each target. A target is a QP, an SRQ and a poller.
    grants: BTreeMap<(u32, u32, u8), [u8; 2]>,
    frames: u64,
    random: Random,
}

impl HostilePeer {
    /// Creates a peer that has not sent any frames.
    #[must_use]
    pub const fn new(hostility: Hostility, random: Random) -> Self {
        Self { hostility, grants: BTreeMap::new(), frames: 0, random }
    }

    /// Changes the first payload of a message to a QP and an SRQ.
    pub(super) fn change_outgoing(&mut self, qp: u32, srq: u32, payload: &mut Vec<u8>) {
        if payload.len() < HEADER {
            return;
        }
        self.frames += 1;
        match self.hostility {
            Hostility::Stingy => {
                let now = [payload[4], payload[5]];
                let first = *self.grants.entry((qp, srq, payload[7])).or_insert(now);
                payload[4..6].copy_from_slice(&first);
            }
            Hostility::Unfinished if payload[0] == FIN => {
                // Send an ignored frame instead of the FIN. It consumes one credit, as the FIN would, so that the hostile
                // peer does not run out of credit.
                payload.truncate(HEADER);
                payload[0] = IGNORED;
            }
            Hostility::Unserved => {
                let announcement = announcement_at(payload).and_then(|at| payload.get_mut(at..));
                announcement.into_iter().flatten().skip(RKEY).take(1).for_each(|byte| *byte ^= 0xff);
            }
            Hostility::Hoarding => {
                payload[6] = 0xff;
                if payload[0] == CREDIT {
                    payload[2..4].fill(0);
                }
            }
            Hostility::Advanced if payload[0] == SETTINGS => {
                let critical = Hostility::SETTING | 0x8000;
                payload.extend([critical.to_le_bytes(), [0, 0]].concat());
            }
            Hostility::Garbage if self.frames > HONEST => self.garble(payload),
            _ => {}
        }
    }

    /// Fills the header of a frame, or of the first message in a bundle, with random bytes.
    fn garble(&mut self, payload: &mut [u8]) {
        let at = if payload[0] == BUNDLE && self.random.one_in(2) { HEADER } else { 0 };
        self.random.fill(&mut payload[at..at + HEADER]);
    }

    /// Changes the first payload of a received message.
    pub(super) fn change_incoming(&self, payload: &mut [u8]) {
        if self.hostility == Hostility::Prying
            && let Some(Announcement { address, .. }) = Announcement::parse(payload)
            && let Some(at) = announcement_at(payload)
        {
            let beside = address.wrapping_add(BESIDE).to_le_bytes();
            payload[at + ADDRESS..at + RKEY].copy_from_slice(&beside);
        }
        if self.hostility == Hostility::Beyond && payload.len() >= HEADER {
            let grant = u16::from_le_bytes([payload[4], payload[5]]);
            payload[4..6].copy_from_slice(&grant.wrapping_add(BEYOND).to_le_bytes());
        }
    }
}
