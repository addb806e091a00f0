//! Whose the card's work is: the words between the program's pollers and the background machine.
//!
//! Owns the words by which the work changes hands. While a program polls, the machine checks once per
//! tick whether it still does, and packets do not wake it. When nobody has polled for a tick, or a
//! program arms a CQ to go to sleep, the machine does the work ([`super::background`]). It must never
//! take the card's lock: callers hold it.
#![forbid(unsafe_code)]

use super::card::Card;
use super::signal::event_fd;
use nix::sys::eventfd::EventFd;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use trunkline_machine::{Runtime, Sleeper, Waker};
use trunkline_mutants::mutant;
use trunkline_rings::handover::{Duty, Handover};
use trunkline_verbs::Time;

/// The words between pollers and the background machine.
#[derive(Debug)]
pub(super) struct Progress {
    handover: Handover,
    /// The machine sleeps, or is about to, on the descriptors of an armed link. Written under the
    /// card's lock when it becomes true.
    watching: AtomicBool,
    /// When the sleeping machine wakes by itself.
    sleeps_until_ns: AtomicU64,
    /// Which version of the link's descriptors it watches.
    watched_version: AtomicU64,
    stopping: AtomicBool,
    /// This process is a child that has no background thread yet.
    orphan: AtomicBool,
    waker: WakeUp,
}

/// What wakes the machine.
#[derive(Debug)]
enum WakeUp {
    Descriptor(EventFd),
    /// In a simulation, which has no descriptors.
    Bell(Waker),
}

impl Progress {
    /// The words, and what the machine sleeps on in a simulation.
    pub(super) fn new(runtime: &Runtime) -> io::Result<(Self, Option<Sleeper>)> {
        let (sleeper, waker) = if runtime.is_simulated() {
            let (sleeper, bell) = runtime.sleeper()?;
            (Some(sleeper), WakeUp::Bell(bell))
        } else {
            (None, WakeUp::Descriptor(event_fd()?))
        };
        let progress = Self {
            handover: Handover::new(),
            watching: AtomicBool::new(false),
            sleeps_until_ns: AtomicU64::new(0),
            watched_version: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            orphan: AtomicBool::new(false),
            waker,
        };
        Ok((progress, sleeper))
    }

    /// In the child of a fork: there is no thread any more. Returns the waker.
    pub(super) fn forked(&self) -> BorrowedFd<'_> {
        self.orphan.store(true, Ordering::Relaxed);
        self.descriptor().as_fd()
    }

    /// Whether a background thread is missing since a fork.
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
            self.wake();
        }
    }

    /// A poller goes to sleep.
    pub(super) fn hand_over(&self) {
        if self.handover.arm() {
            self.wake();
        }
    }

    /// After a thread of the program has changed the card, under its lock.
    pub(super) fn card_changed(&self, card: &Card, now: Time) {
        let watched = self.watched_version.load(Ordering::Relaxed);
        if self.watching.load(Ordering::Relaxed) && card.descriptors_version() != watched {
            self.wake();
            return;
        }
        let Some(deadline) = card.deadline(now) else { return };
        if deadline.0 < self.sleeps_until_ns.load(Ordering::Relaxed) {
            // Woken once is enough, however many calls follow before it runs.
            self.sleeps_until_ns.store(0, Ordering::Relaxed);
            if !mutant!(earlier_deadline_wakes_nobody) {
                self.wake();
            }
        }
    }

    /// After a poller has done the card's work, under its lock. What it took off the link may have
    /// ended the link's arming; a thread that sleeps on the descriptors relies on it.
    pub(super) fn worked(&self, card: &mut Card, now: Time) {
        if !self.watching.load(Ordering::Relaxed) {
            return;
        }
        if !card.stays_armed() && card.arm() {
            self.wake();
        } else {
            self.card_changed(card, now);
        }
    }

    /// Whether a poller has handed the work over, or the machine has taken it.
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

    /// The machine, which still has the card's lock, goes to sleep on an armed link.
    pub(super) fn falls_asleep(&self, until: Option<Time>) {
        self.sleeps_until_ns.store(until.unwrap_or(Time::MAX).0, Ordering::Relaxed);
        self.watching.store(true, Ordering::Relaxed);
    }

    /// Has the machine end.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether the machine is to end.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The descriptor that wakes the machine.
    pub(super) fn waker(&self) -> RawFd {
        self.descriptor().as_raw_fd()
    }

    /// The machine was woken by its descriptor, which can be written again.
    pub(super) fn clear_waker(&self) {
        let _empty = self.descriptor().read();
    }

    fn descriptor(&self) -> &EventFd {
        match &self.waker {
            WakeUp::Descriptor(fd) => fd,
            WakeUp::Bell(_) => panic!("nobody waits on a descriptor in a simulation"),
        }
    }

    fn wake(&self) {
        match &self.waker {
            WakeUp::Bell(bell) => bell.wake(),
            WakeUp::Descriptor(fd) => {
                // Fails only when the counter is full, and then the thread wakes anyway.
                let _full = fd.write(1);
            }
        }
    }
}
