//! The key of the host, by which places in tables become numbers on the wire.
//!
//! Owns the permutations of QP and SRQ numbers and of communication ids, which are the same for all members: each
//! finds out whose a number is. `numbers` and the relay call it for each packet that is handed on, so indices that
//! were computed are kept.
#![forbid(unsafe_code)]

use super::Segment;
use super::layout::NUMBER_KEY;
use std::sync::atomic::{AtomicU64, Ordering};
use trunkline_roce::Permutation;
use trunkline_roce::cm::CommIds;

/// Numbers whose index is kept, each in the place that its low bits name: a power of two.
const KEPT: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(super) struct Numbering {
    numbers: Permutation,
    comm_ids: CommIds,
    /// A number, with [`FILLED`], and its index in the low half; each word is whole by itself.
    kept: Box<[AtomicU64]>,
}

/// Tells a number from an empty word.
const FILLED: u64 = 1 << 63;

impl Numbering {
    /// Returns the numbering of a registry. The caller holds its lock. The first member chooses the key by `random`.
    pub(super) fn of(registry: &Segment, random: impl Fn() -> u64) -> Self {
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

    /// The QP or SRQ number of an index of 24 bits.
    pub(super) fn number_of(&self, index: u32) -> u32 {
        self.numbers.number_of(index)
    }

    /// The index of a QP or SRQ number.
    pub(super) fn index_of(&self, number: u32) -> u32 {
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

    /// Returns the numbering of communication ids.
    pub(super) fn comm_ids(&self) -> CommIds {
        self.comm_ids
    }
}
