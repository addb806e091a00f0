//! Tables that all shards of a device read without a lock: memory by key, and SRQs.
//!
//! Owns the tables, and the registration of their readers. Each shard has a reader; programs and control write. A shard
//! holds its reader for one packet, or for one list of packets to send, so deregistering memory does not wait longer
//! than that.
#![forbid(unsafe_code)]

pub(super) mod directory;
pub(super) mod domain_table;
pub(super) mod gid_table;
pub(super) mod guid;
pub(super) mod keys;
pub(super) mod numbers;
pub(super) mod random;
pub(super) mod srqs;
pub(super) mod use_count;

use self::keys::Keys;
use self::numbers::Numbers;
use self::random::Random;
use self::srqs::Srqs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use trunkline_machine::rings::readers::{Reader, Readers};

/// Tables of a device.
#[derive(Debug)]
pub(super) struct Tables {
    readers: Arc<Readers>,
    /// Memory by key.
    pub(super) keys: Keys,
    /// SRQs by number.
    pub(super) srqs: Srqs,
    /// Number of completions that were lost because a CQ was full. Each shard compares this number with the number of
    /// lost completions that it has handled.
    overflows: AtomicU64,
}

impl Tables {
    /// Creates empty tables, for at most the given number of regions.
    pub(super) fn new(
        random: &mut Random,
        max_regions: u32,
        srq_numbers: impl FnOnce(&mut Random) -> Numbers,
    ) -> Self {
        let readers = Readers::new();
        let keys = Keys::new(&readers, random, max_regions);
        let srqs = Srqs::new(&readers, srq_numbers(random));
        Self { readers, keys, srqs, overflows: AtomicU64::new(0) }
    }

    /// Creates a reader.
    pub(super) fn reader(&self) -> Reader {
        Reader::new(&self.readers)
    }

    /// Counts a completion that a CQ has lost.
    pub(super) fn note_overflow(&self) {
        self.overflows.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of overflows so far.
    pub(super) fn overflows(&self) -> u64 {
        self.overflows.load(Ordering::Acquire)
    }

    /// Returns the number of receives posted to SRQs, including receives lent to shards.
    pub(super) fn posted_receives(&self) -> usize {
        self.srqs.posted(&self.reader().enter())
    }

    /// Runs an action while no other thread can register memory or create SRQs.
    #[cfg(test)]
    pub(super) fn with_writers_locked(&self, action: impl FnOnce()) {
        self.keys.with_writers_locked(|| self.srqs.with_writers_locked(action));
    }

    /// Closes the tables of a removed device. Look-ups and additions fail afterwards.
    pub(super) fn close(&self) {
        self.srqs.close();
        self.keys.close();
    }
}
