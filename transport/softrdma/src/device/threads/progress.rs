//! The handover of a shard's work between the program's pollers and the shard's background machine.
//!
//! Owns the words that hand the work from thread to thread. While a program polls, the machine checks once
//! per tick that polling continues, and packets do not wake the machine. A poller that sleeps on the shard's
//! own descriptors ([`super::wait`]) keeps the work. If there was no poll since the last check, or a program
//! arms a CQ to sleep on its channel, the machine does the work ([`super::background`]). This code must never
//! take the shard's lock, since its callers are in a turn.
#![forbid(unsafe_code)]

use super::wake_up::{WakePoller, WakeUp, Watcher};
use crate::device::shard::Shard;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use trunkline_machine::mutant;
use trunkline_machine::rings::handover::{Duty, Handover};
use trunkline_verbs::Time;

/// State shared by pollers and the background machine.
#[derive(Debug)]
pub(in crate::device) struct Progress {
    handover: Handover,
    /// Time at which the machine or poller that sleeps on an armed link wakes without a notification. Valid
    /// while there is a [`Watcher`], and written in a turn of the shard.
    sleeps_until_ns: AtomicU64,
    /// Version of the link's descriptors on which that machine or poller sleeps.
    watched_version: AtomicU64,
    stopping: AtomicBool,
    /// True in a child of a fork in which the background thread was not started again.
    orphan: AtomicBool,
    waker: Arc<WakeUp>,
}

impl Progress {
    /// Creates the state of a machine that `waker` wakes.
    pub(in crate::device) fn new(waker: Arc<WakeUp>) -> Self {
        Self {
            handover: Handover::new(),
            sleeps_until_ns: AtomicU64::new(0),
            watched_version: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            orphan: AtomicBool::new(false),
            waker,
        }
    }

    /// Records, in the child of a fork, that the background thread does not exist. Returns the waker.
    pub(in crate::device) fn forked(&self) -> BorrowedFd<'_> {
        self.orphan.store(true, Ordering::Relaxed);
        self.waker.descriptor().as_fd()
    }

    /// Returns true in a child of a fork in which the background thread was not started again.
    pub(in crate::device) fn is_orphan(&self) -> bool {
        self.orphan.load(Ordering::Relaxed)
    }

    /// Resets the state for a new background thread.
    pub(in crate::device) fn adopt(&self) {
        self.waker.watch(Watcher::Nobody);
        self.waker.forget_poller();
        self.sleeps_until_ns.store(0, Ordering::Relaxed);
        self.watched_version.store(0, Ordering::Relaxed);
        let _nobody_sleeps_yet = self.handover.arm();
        self.orphan.store(false, Ordering::Relaxed);
    }

    /// Records that a thread of the program polls.
    pub(in crate::device) fn note_poll(&self) {
        if self.handover.poller_entered() {
            self.waker.wake_background();
        }
    }

    /// Hands the work to the machine because a thread of the program sleeps on a channel. A poller that sleeps for the
    /// shard keeps the work instead.
    pub(in crate::device) fn hand_over(&self) {
        if self.waker.is(Watcher::Poller) {
            self.keep();
        } else if self.handover.arm() {
            self.waker.wake_background();
        }
    }

    /// Sets the poller that may sleep for the shard. Returns false if there is one already.
    pub(in crate::device) fn set_poller(&self, wake: WakePoller) -> bool {
        self.waker.set_poller(wake)
    }

    /// Removes the poller, and hands the work to the machine.
    pub(in crate::device) fn forget_poller(&self) {
        self.waker.forget_poller();
        self.hand_over();
    }

    /// Leaves the work to a poller that sleeps for the shard.
    fn keep(&self) {
        if self.handover.watch() {
            self.waker.wake_background();
        }
    }

    /// Wakes the machine or poller that sleeps for the shard if a change by another thread requires it. `version` is
    /// the version of the link's descriptors, and `deadline` the shard's next deadline.
    fn shard_changed(&self, version: u64, deadline: Option<Time>) {
        if version != self.watched_version.load(Ordering::Relaxed) {
            self.waker.wake();
            return;
        }
        let Some(deadline) = deadline else { return };
        if deadline.0 < self.sleeps_until_ns.load(Ordering::Relaxed) {
            // One wake-up is enough, even if many calls follow before the machine runs.
            self.sleeps_until_ns.store(0, Ordering::Relaxed);
            if !mutant!(earlier_deadline_wakes_nobody) {
                self.waker.wake();
            }
        }
    }

    /// Wakes the sleeping machine or poller if necessary, after a thread of the program has run an operation on the
    /// shard other than the shard's work, in the same turn. Rings that the operation has activated are not polled
    /// during the sleep.
    pub(in crate::device) fn acted(&self, shard: &mut Shard, deadline: impl FnOnce(&Shard) -> Option<Time>) {
        if self.waker.is(Watcher::Nobody) {
            return;
        }
        if shard.park_memory_again() {
            self.waker.wake();
        } else {
            self.shard_changed(shard.link().descriptors_version(), deadline(shard));
        }
    }

    /// Wakes the sleeping machine or poller if necessary, after another thread has done the shard's work, in the same
    /// turn. Receiving packets may have disarmed the link, which must be armed while a thread sleeps on the
    /// descriptors.
    pub(in crate::device) fn worked(
        &self,
        shard: &mut Shard,
        now: Time,
        deadline: impl FnOnce(&Shard) -> Option<Time>,
    ) {
        if self.waker.is(Watcher::Nobody) {
            return;
        }
        if !shard.stays_armed() && shard.arm_again(now) {
            self.waker.wake();
        } else {
            self.shard_changed(shard.link().descriptors_version(), deadline(shard));
        }
    }

    /// Returns true if the machine has the work, because a poller handed it over or the machine took it over.
    pub(in crate::device) fn has_handed_over(&self) -> bool {
        self.handover.is_background()
    }

    /// Determines whether the machine has to do the work, and records that the machine is awake. The flag is true if
    /// the machine was recorded as asleep.
    pub(in crate::device) fn check(&self) -> (Duty, bool) {
        let is_unwatched = self.waker.release(Watcher::Background);
        (self.handover.background_check(|| self.waker.is(Watcher::Poller)), is_unwatched)
    }

    /// Records, in a turn, that the machine or a poller goes to sleep on an armed link. `version` is the
    /// version of the link's descriptors.
    pub(in crate::device) fn falls_asleep(&self, watcher: Watcher, version: u64, until: Option<Time>) {
        self.watched_version.store(version, Ordering::Relaxed);
        self.sleeps_until_ns.store(until.unwrap_or(Time::MAX).0, Ordering::Relaxed);
        self.waker.watch(watcher);
        if watcher == Watcher::Poller {
            self.keep();
        }
    }

    /// Records that the poller that slept for the shard is awake.
    pub(in crate::device) fn poller_awake(&self) {
        self.waker.release(Watcher::Poller);
    }

    /// Returns true unless a thread sleeps for the shard.
    pub(in crate::device) fn is_unwatched(&self) -> bool {
        self.waker.is(Watcher::Nobody)
    }

    /// Requests that the machine end.
    pub(in crate::device) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.waker.wake_background();
    }

    pub(in crate::device) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Returns the descriptor that wakes the machine.
    pub(in crate::device) fn waker(&self) -> RawFd {
        self.waker.descriptor().as_raw_fd()
    }

    /// Clears the descriptor after it has woken the machine, so that it can do so again.
    pub(in crate::device) fn clear_waker(&self) {
        let _empty = self.waker.descriptor().read();
    }
}
