//! A shard under its lock, with the state that its callers need next to it.
//!
//! Owns the lock by which one thread at a time works on the shard, and the words by which its work changes
//! hands. In steady state only its poller takes the lock; other threads that need the shard wait for it.
//! Two shards share no cache line.
#![forbid(unsafe_code)]

use super::directory::ShardIndex;
use super::progress::Progress;
use super::shard::Shard;
use std::sync::atomic::{AtomicBool, Ordering};
use trunkline_machine::rings::owned::Owned;

/// A shard under its lock.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct ShardLock {
    pub(super) index: ShardIndex,
    pub(super) shard: Owned<Shard>,
    pub(super) progress: Progress,
    /// True if the shard has events that control has not taken.
    has_control_events: AtomicBool,
}

impl ShardLock {
    pub(super) fn new(index: ShardIndex, shard: Shard, progress: Progress) -> Self {
        Self { index, shard: Owned::new(shard), progress, has_control_events: AtomicBool::new(false) }
    }

    /// Sets the flag for control if the shard has events; returns true if it has. The caller is in a turn.
    pub(super) fn note_control_events(&self, shard: &Shard) -> bool {
        let has_control_events = shard.has_control_events();
        if has_control_events {
            self.has_control_events.store(true, Ordering::Release);
        }
        has_control_events
    }

    /// Clears the flag for control's events, for a caller that takes them; returns true if it was set.
    pub(super) fn take_note(&self) -> bool {
        self.has_control_events.load(Ordering::Acquire)
            && self.has_control_events.swap(false, Ordering::AcqRel)
    }
}
