//! The shard of each QP.
//!
//! Owns the numbers of QPs, and the shard of each existing QP. Control looks up the shard of a QP here, and so does a
//! shard that receives a packet for a QP of another shard. Packets that arrive at the shard of their QP do not need a
//! look-up.
#![forbid(unsafe_code)]

use super::numbers::{NumberMap, Numbers};
use crate::device::MAX_QPS;
use crate::device::threads::signal::lock;
use std::sync::Mutex;
use trunkline_verbs::VerbsError;

/// Maximum number of shards of a device.
pub(in crate::device) const MAX_SHARDS: usize = 32;

/// Index of a shard of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::device) struct ShardIndex(pub(in crate::device) u8);

impl ShardIndex {
    /// The first shard, which exists on each device. It owns the device's port (4791 by default) and the QPs shared
    /// between processes, and receives the messages from other processes.
    pub(in crate::device) const FIRST: Self = Self(0);

    /// Returns the index as a `usize`.
    pub(in crate::device) fn place(self) -> usize {
        usize::from(self.0)
    }
}

/// Numbers and shards of a device's QPs.
#[derive(Debug)]
pub(in crate::device) struct QpDirectory(Mutex<Entries>);

#[derive(Debug)]
struct Entries {
    homes: NumberMap<ShardIndex>,
    numbers: Numbers,
}

impl QpDirectory {
    pub(in crate::device) fn new(numbers: Numbers) -> Self {
        Self(Mutex::new(Entries { homes: NumberMap::default(), numbers }))
    }

    /// Takes a number for a new QP of a shard. Numbers for which `taken` returns true are skipped.
    pub(in crate::device) fn take_number(
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
    pub(in crate::device) fn enter(&self, number: u32, home: ShardIndex) {
        lock(&self.0).homes.insert(number, home);
    }

    /// Removes a QP, and frees its number.
    pub(in crate::device) fn leave(&self, number: u32) {
        let Entries { homes, numbers } = &mut *lock(&self.0);
        if homes.remove(number).is_some() {
            numbers.free(number);
        }
    }

    #[cfg(test)]
    pub(in crate::device) fn with_locked(&self, action: impl FnOnce()) {
        let _entries = lock(&self.0);
        action();
    }

    /// Returns the shard of a QP.
    pub(in crate::device) fn home(&self, number: u32) -> Option<ShardIndex> {
        lock(&self.0).homes.get(number).copied()
    }
}
