//! A shard with its lock, and the state that callers need beside it.
//!
//! Owns the lock that admits one thread at a time to the shard, and the words that hand the shard's work from thread to
//! thread. In steady state, only the shard's poller takes the lock; other threads that need the shard wait for it. Two
//! shards do not share a cache line.
#![forbid(unsafe_code)]

use crate::device::shard::Shard;
use crate::device::tables::directory::ShardIndex;
use crate::device::threads::progress::Progress;
use std::sync::atomic::{AtomicBool, Ordering};
use trunkline_machine::rings::owned::Owned;

/// A shard with its lock.
#[derive(Debug)]
#[repr(align(128))]
pub(in crate::device) struct ShardLock {
    pub(in crate::device) index: ShardIndex,
    pub(in crate::device) shard: Owned<Shard>,
    pub(in crate::device) progress: Progress,
    /// True if the shard has events that control has not taken.
    has_control_events: AtomicBool,
}

impl ShardLock {
    pub(in crate::device) fn new(index: ShardIndex, shard: Shard, progress: Progress) -> Self {
        Self { index, shard: Owned::new(shard), progress, has_control_events: AtomicBool::new(false) }
    }

    /// Sets the flag for control if the shard has events, and returns true if it has any. The caller is in a
    /// turn.
    pub(in crate::device) fn note_control_events(&self, shard: &Shard) -> bool {
        let has_control_events = shard.has_control_events();
        if has_control_events {
            self.has_control_events.store(true, Ordering::Release);
        }
        has_control_events
    }

    /// Clears the flag for control. Call it before taking the events. Returns true if the flag was set.
    pub(in crate::device) fn take_note(&self) -> bool {
        self.has_control_events.load(Ordering::Acquire)
            && self.has_control_events.swap(false, Ordering::AcqRel)
    }
}
