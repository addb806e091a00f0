//! A shard under its word, with the state that its callers need next to it.
//!
//! Owns the word by which one thread at a time works on the shard, and the words by which its work changes
//! hands. In steady state only its poller takes the word; other threads that need the shard take the same
//! word. Two shards share no cache line.
#![forbid(unsafe_code)]

use super::directory::ShardIndex;
use super::progress::Progress;
use super::shard::Shard;
use std::sync::atomic::{AtomicBool, Ordering};
use trunkline_machine::rings::owned::Owned;

/// A shard under its word.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct ShardLock {
    pub(super) index: ShardIndex,
    pub(super) shard: Owned<Shard>,
    pub(super) progress: Progress,
    /// True if the shard has findings that control has not taken.
    has_found: AtomicBool,
}

impl ShardLock {
    pub(super) fn new(index: ShardIndex, shard: Shard, progress: Progress) -> Self {
        Self { index, shard: Owned::new(shard), progress, has_found: AtomicBool::new(false) }
    }

    /// Sets the flag for control if the shard has findings; returns true if it has. The caller is in a turn.
    pub(super) fn note_found(&self, shard: &Shard) -> bool {
        let has_found = shard.has_found();
        if has_found {
            self.has_found.store(true, Ordering::Release);
        }
        has_found
    }

    /// Clears the flag for control's findings, for a caller that takes them; returns true if it was set.
    pub(super) fn take_note(&self) -> bool {
        self.has_found.load(Ordering::Acquire) && self.has_found.swap(false, Ordering::AcqRel)
    }
}
