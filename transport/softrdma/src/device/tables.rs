//! Tables that all shards of a device read without a lock: memory by key, and SRQs.
//!
//! Owns the tables, and who reads them. Each shard has a reader; programs and control write. A shard enters its
//! reader for one packet, or one list of packets to send, so that a deregistration of memory waits no
//! longer than that.
#![forbid(unsafe_code)]

use super::keys::Keys;
use super::numbers::Numbers;
use super::random::Random;
use super::srqs::Srqs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use trunkline_rings::readers::{Reader, Readers};

/// See the module.
#[derive(Debug)]
pub(super) struct Tables {
    readers: Arc<Readers>,
    /// Memory by key.
    pub(super) keys: Keys,
    /// SRQs by number.
    pub(super) srqs: Srqs,
    /// Completions lost for want of room in a CQ, which each shard has to look for.
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

    /// One more reader.
    pub(super) fn reader(&self) -> Reader {
        Reader::new(&self.readers)
    }

    /// A CQ has lost a completion.
    pub(super) fn note_overflow(&self) {
        self.overflows.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of overflows so far.
    pub(super) fn overflows(&self) -> u64 {
        self.overflows.load(Ordering::Acquire)
    }

    /// Receives that are posted in all SRQs, lent or not.
    pub(super) fn posted_receives(&self) -> usize {
        self.srqs.posted(&self.reader().enter())
    }

    /// Does something while nobody can register memory or make an SRQ.
    #[cfg(test)]
    pub(super) fn with_writers_locked(&self, action: impl FnOnce()) {
        self.keys.with_writers_locked(|| self.srqs.with_writers_locked(action));
    }

    /// The device is removed: nothing is found any more, and nothing can be added.
    pub(super) fn close(&self) {
        self.srqs.close();
        self.keys.close();
    }
}
