//! The shard of each QP.
//!
//! Owns the numbers of QPs, and the shard of each existing QP. Control looks up the shard of a QP here, and
//! so does a shard that receives a packet for a QP that it does not have. Packets that arrive at the right
//! shard need no look-up.
#![forbid(unsafe_code)]

use super::limits::MAX_QPS;
use super::numbers::{NumberMap, Numbers};
use super::signal::lock;
use std::sync::Mutex;
use trunkline_verbs::VerbsError;

/// Maximum number of shards of a device.
pub(super) const MAX_SHARDS: usize = 32;

/// Index of a shard of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ShardIndex(pub(super) u8);

impl ShardIndex {
    /// The shard that each device has: it has port 4791, the messages of other processes, and the QPs that
    /// they share.
    pub(super) const FIRST: Self = Self(0);

    /// Returns the index in a list.
    pub(super) fn place(self) -> usize {
        usize::from(self.0)
    }
}

/// Numbers and shards of a device's QPs.
#[derive(Debug)]
pub(super) struct QpDirectory(Mutex<Entries>);

#[derive(Debug)]
struct Entries {
    homes: NumberMap<ShardIndex>,
    numbers: Numbers,
}

impl QpDirectory {
    pub(super) fn new(numbers: Numbers) -> Self {
        Self(Mutex::new(Entries { homes: NumberMap::default(), numbers }))
    }

    /// Takes a number for a new QP of a shard; skips numbers that are `taken`.
    pub(super) fn take_number(
        &self,
        home: ShardIndex,
        taken: impl Fn(u32) -> bool,
    ) -> Result<u32, VerbsError> {
        let Entries { homes, numbers } = &mut *lock(&self.0);
        if homes.len() >= MAX_QPS {
            return Err(VerbsError::OutOfResources("the device holds no more QPs"));
        }
        loop {
            let number = numbers.take(home.0, |number| homes.contains(number))?;
            if !taken(number) {
                return Ok(number);
            }
        }
    }

    /// Records the shard of a new QP.
    pub(super) fn enter(&self, number: u32, home: ShardIndex) {
        lock(&self.0).homes.insert(number, home);
    }

    /// Removes a QP, and frees its number.
    pub(super) fn leave(&self, number: u32) {
        let Entries { homes, numbers } = &mut *lock(&self.0);
        if homes.remove(number).is_some() {
            numbers.free(number);
        }
    }

    #[cfg(test)]
    pub(super) fn with_locked(&self, action: impl FnOnce()) {
        let _entries = lock(&self.0);
        action();
    }

    /// Returns the shard of a QP.
    pub(super) fn home(&self, number: u32) -> Option<ShardIndex> {
        lock(&self.0).homes.get(number).copied()
    }
}
