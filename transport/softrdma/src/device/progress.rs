//! Owner of a shard's work: the words between the program's pollers and the shard's background machine.
//!
//! Owns the words by which the work changes hands. While a program polls, the machine checks once per
//! tick whether it still does, and packets do not wake it. When nobody has polled for a tick, or a
//! program arms a CQ to go to sleep, the machine does the work ([`super::background`]). It must never
//! take the shard's word: callers are in a turn.
#![forbid(unsafe_code)]

use super::shard::Shard;
use super::wake_up::WakeUp;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use trunkline_mutants::mutant;
use trunkline_rings::handover::{Duty, Handover};
use trunkline_verbs::Time;

/// The words between pollers and the background machine.
#[derive(Debug)]
pub(super) struct Progress {
    handover: Handover,
    /// The machine sleeps, or is about to, on the descriptors of an armed link. Written in a turn of the
    /// shard when it becomes true.
    watching: AtomicBool,
    /// Time at which the sleeping machine wakes by itself.
    sleeps_until_ns: AtomicU64,
    /// Version of the link's descriptors that it watches.
    watched_version: AtomicU64,
    stopping: AtomicBool,
    /// True if this process is a child that has no background thread yet.
    orphan: AtomicBool,
    waker: Arc<WakeUp>,
}

impl Progress {
    /// The words of a machine that `waker` wakes.
    pub(super) fn new(waker: Arc<WakeUp>) -> Self {
        Self {
            handover: Handover::new(),
            watching: AtomicBool::new(false),
            sleeps_until_ns: AtomicU64::new(0),
            watched_version: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            orphan: AtomicBool::new(false),
            waker,
        }
    }

    /// In the child of a fork: there is no thread any more. Returns the waker.
    pub(super) fn forked(&self) -> BorrowedFd<'_> {
        self.orphan.store(true, Ordering::Relaxed);
        self.waker.descriptor().as_fd()
    }

    /// Returns true if a background thread is missing since a fork.
    pub(super) fn is_orphan(&self) -> bool {
        self.orphan.load(Ordering::Relaxed)
    }

    /// A new thread is about to begin, as the first one did.
    pub(super) fn adopt(&self) {
        self.watching.store(false, Ordering::Relaxed);
        self.sleeps_until_ns.store(0, Ordering::Relaxed);
        self.watched_version.store(0, Ordering::Relaxed);
        let _nobody_sleeps_yet = self.handover.arm();
        self.orphan.store(false, Ordering::Relaxed);
    }

    /// A poller is at work.
    pub(super) fn note_poll(&self) {
        if self.handover.poller_entered() {
            self.waker.wake();
        }
    }

    /// A poller goes to sleep.
    pub(super) fn hand_over(&self) {
        if self.handover.arm() {
            self.waker.wake();
        }
    }

    /// After a thread of the program has changed the shard, in its turn. `version` is the version of the link's descriptors,
    /// `deadline` when the shard wants to be called.
    pub(super) fn shard_changed(&self, version: u64, deadline: Option<Time>) {
        let watched = self.watched_version.load(Ordering::Relaxed);
        if self.watching.load(Ordering::Relaxed) && version != watched {
            self.waker.wake();
            return;
        }
        let Some(deadline) = deadline else { return };
        if deadline.0 < self.sleeps_until_ns.load(Ordering::Relaxed) {
            // Woken once is enough, however many calls follow before it runs.
            self.sleeps_until_ns.store(0, Ordering::Relaxed);
            if !mutant!(earlier_deadline_wakes_nobody) {
                self.waker.wake();
            }
        }
    }

    /// After a thread of the program has done something to the shard other than its work, in its turn. Rings that it has begun
    /// to look into are looked into by nobody while the machine sleeps.
    pub(super) fn acted(&self, shard: &mut Shard, deadline: impl FnOnce(&Shard) -> Option<Time>) {
        if !self.watching.load(Ordering::Relaxed) {
            return;
        }
        if shard.has_found_more_in_memory() {
            self.waker.wake();
        } else {
            self.shard_changed(shard.link().descriptors_version(), deadline(shard));
        }
    }

    /// After a poller has done the shard's work, in its turn. Packets that it took off the link
    /// may have ended the link's arming; a thread that sleeps on the descriptors relies on it.
    pub(super) fn worked(&self, shard: &mut Shard, deadline: impl FnOnce(&Shard) -> Option<Time>) {
        if !self.watching.load(Ordering::Relaxed) {
            return;
        }
        if !shard.stays_armed() && shard.arm() {
            self.waker.wake();
        } else {
            self.shard_changed(shard.link().descriptors_version(), deadline(shard));
        }
    }

    /// Returns true if a poller has handed the work over, or the machine has taken it.
    pub(super) fn has_handed_over(&self) -> bool {
        self.handover.is_background()
    }

    /// The machine begins to decide whose the work is; from here on it does not watch.
    pub(super) fn check(&self) -> Duty {
        self.watching.store(false, Ordering::Relaxed);
        self.sleeps_until_ns.store(0, Ordering::Relaxed);
        self.handover.background_check()
    }

    /// The machine watches descriptors of this version.
    pub(super) fn watches(&self, version: u64) {
        self.watched_version.store(version, Ordering::Relaxed);
    }

    /// The machine, which is still in its turn, goes to sleep on an armed link.
    pub(super) fn falls_asleep(&self, until: Option<Time>) {
        self.sleeps_until_ns.store(until.unwrap_or(Time::MAX).0, Ordering::Relaxed);
        self.watching.store(true, Ordering::Relaxed);
    }

    /// Has the machine end.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Returns true if the machine is to end.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The descriptor that wakes the machine.
    pub(super) fn waker(&self) -> RawFd {
        self.waker.descriptor().as_raw_fd()
    }

    /// The machine was woken by its descriptor, which can be written again.
    pub(super) fn clear_waker(&self) {
        let _empty = self.waker.descriptor().read();
    }
}
