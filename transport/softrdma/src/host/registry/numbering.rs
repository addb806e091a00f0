//! The host's key, which turns table indices into numbers on the wire.
//!
//! Owns the permutations of QP and SRQ numbers and of comm ids. All members use the same permutations, so each can
//! determine the owner of a number. `numbers` and the relay use them for each forwarded packet, so computed indices are
//! cached.
#![forbid(unsafe_code)]

use super::layout::NUMBER_KEY;
use crate::host::Segment;
use std::sync::atomic::{AtomicU64, Ordering};
use trunkline_roce::Permutation;
use trunkline_roce::cm::CommIds;

/// Size of the cache of indices, a power of two. The low bits of a number select the entry.
const KEPT: usize = 1024;

/// The permutations of a host.
#[derive(Debug)]
pub(in crate::host) struct Numbering {
    numbers: Permutation,
    comm_ids: CommIds,
    /// Entries of the cache: a number with [`FILLED`], and its index in the low half. Each word is valid
    /// independently.
    kept: Box<[AtomicU64]>,
}

/// Bit that distinguishes an entry from an empty word.
const FILLED: u64 = 1 << 63;

impl Numbering {
    /// Creates the numbering of a registry, whose lock the caller holds. The first member chooses the key with
    /// `random`.
    pub(in crate::host) fn of(registry: &Segment, random: impl Fn() -> u64) -> Self {
        let word = |index: usize| registry.word64(NUMBER_KEY + 8 * index);
        if [0, 1].iter().all(|index: &usize| word(*index).load(Ordering::Relaxed) == 0) {
            [0, 1].iter().for_each(|index| word(*index).store(random(), Ordering::Relaxed));
        }
        let keys = [0, 1].map(|index| word(index).load(Ordering::Relaxed));
        Self {
            numbers: Permutation::new(24, keys),
            comm_ids: CommIds::new(keys),
            kept: (0..KEPT).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Returns the QP or SRQ number of an index of 24 bits.
    pub(in crate::host) fn number_of(&self, index: u32) -> u32 {
        self.numbers.number_of(index)
    }

    /// Returns the index of a QP or SRQ number.
    pub(in crate::host) fn index_of(&self, number: u32) -> u32 {
        let tag = FILLED | u64::from(number) << 32;
        let word = &self.kept[number as usize % KEPT];
        let kept = word.load(Ordering::Relaxed);
        if let Ok(index) = u32::try_from(kept ^ tag) {
            return index;
        }
        let index = self.numbers.index_of(number);
        word.store(tag | u64::from(index), Ordering::Relaxed);
        index
    }

    /// Returns the numbering of comm ids.
    pub(in crate::host) fn comm_ids(&self) -> CommIds {
        self.comm_ids
    }
}
