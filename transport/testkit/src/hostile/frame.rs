//! Changes of a hostile peer to the frames of its messages.
//!
//! A frame begins the payload of a message: kind (1), flags (1), a word (2), grant (2), messages that wait (1), target
//! poller (1), all little endian. The word of a Credit frame is the released credit, the word of a FIN its entries. An
//! announcement follows the header, which has 8 bytes times the upper half of the kind.

use super::Hostility;
use crate::Random;
use std::collections::BTreeMap;

/// Bytes of a frame's header.
const HEADER: usize = 8;
/// Kinds of frames.
const CREDIT: u8 = 1;
const FIN: u8 = 2;
const SETTINGS: u8 = 3;
const BUNDLE: u8 = 4;
/// A kind that no version has, and that a receiver ignores.
const IGNORED: u8 = 0x0f;
/// Kinds from here on are the upper half's.
const UPPER: u8 = 0x10;
/// The flag of a frame that announces a large message.
const ANNOUNCES: u8 = 2;
/// Positions in an announcement: after its number are its length, address and key.
const LENGTH: usize = 8;
const ADDRESS: usize = 16;
const RKEY: usize = 24;
/// Bytes that a prying peer READs beside those announced to it.
const BESIDE: u64 = 64;
/// Credit that is taken beyond what was granted: no more than a node could grant.
const BEYOND: u16 = 200;
/// Frames of a garbling peer that are left as they are before the first that is not: fewer than it sends in any case.
const HONEST: u64 = 10;

/// Memory that a frame announces to its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Announcement {
    /// The key of the memory.
    pub rkey: u32,
    /// Address at which the sender's peer finds it.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
}

impl Announcement {
    /// Parses the announcement of a message whose first payload this is; `None` if it announces nothing.
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let payload = payload.get(announcement_at(payload)?..)?;
        let number = |at: usize| Some(u64::from_le_bytes(*payload.get(at..)?.first_chunk()?));
        let rkey = u32::from_le_bytes(*payload.get(RKEY..)?.first_chunk()?);
        Some(Self { rkey, address: number(ADDRESS)?, length: number(LENGTH)? })
    }
}

/// Returns the start of the announcement of a message with this first payload, if it has one.
fn announcement_at(payload: &[u8]) -> Option<usize> {
    let &[kind, flags, ..] = payload else { return None };
    (flags & ANNOUNCES != 0 && kind >= UPPER).then(|| usize::from(kind >> 4) * HEADER)
}

/// Changes frames.
#[derive(Debug)]
pub(super) struct Changer {
    hostility: Hostility,
    /// The first grant towards a target: a QP, an SRQ and a poller.
    grants: BTreeMap<(u32, u32, u8), [u8; 2]>,
    frames: u64,
    random: Random,
}

impl Changer {
    pub(super) fn new(hostility: Hostility, random: Random) -> Self {
        Self { hostility, grants: BTreeMap::new(), frames: 0, random }
    }

    /// Changes the first payload of a message that is sent to a QP and an SRQ.
    pub(super) fn outgoing(&mut self, qp: u32, srq: u32, payload: &mut Vec<u8>) {
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
                // It uses a credit, as a FIN does, so that the peer does not run out of credit itself.
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

    /// Fills the header of a frame, or of the first message in a bundle, with anything.
    fn garble(&mut self, payload: &mut [u8]) {
        let at = if payload[0] == BUNDLE && self.random.one_in(2) { HEADER } else { 0 };
        self.random.fill(&mut payload[at..at + HEADER]);
    }

    /// Changes the first payload of a message that has come.
    pub(super) fn incoming(&self, payload: &mut [u8]) {
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
