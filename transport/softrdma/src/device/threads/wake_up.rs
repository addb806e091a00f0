//! Wake-up of the machine or poller that sleeps for a shard.
//!
//! Owns the handle of the shard's background machine, the handle of the poller that may sleep in its place,
//! and the record of which of the two sleeps. The record is written in a turn of the shard, before the
//! machine or poller that prepares to sleep checks for work a last time.
#![forbid(unsafe_code)]

use super::signal::event_fd;
use nix::sys::eventfd::EventFd;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use trunkline_machine::{Runtime, Sleeper, Waker};

/// The machine or poller that sleeps, or is about to sleep, on the descriptors of an armed link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::device) enum Watcher {
    /// Neither of the two.
    Nobody,
    /// The background machine.
    Background,
    /// A poller of the program.
    Poller,
}

/// Function that wakes a poller that sleeps for the shard.
pub(in crate::device) type WakePoller = Arc<dyn Fn() + Send + Sync>;

/// The handles that wake the machines of a shard.
pub(in crate::device) struct WakeUp {
    background: Handle,
    poller: Mutex<Option<WakePoller>>,
    watcher: AtomicU8,
}

enum Handle {
    Descriptor(EventFd),
    /// The waker in a simulation, which does not use descriptors.
    Bell(Waker),
}

impl WakeUp {
    /// Creates the handles. Also returns the object that the background machine sleeps on in a simulation.
    pub(in crate::device) fn new(runtime: &Runtime) -> io::Result<(Self, Option<Sleeper>)> {
        let (background, sleeper) = if runtime.is_simulated() {
            let (sleeper, bell) = runtime.sleeper()?;
            (Handle::Bell(bell), Some(sleeper))
        } else {
            (Handle::Descriptor(event_fd()?), None)
        };
        let watcher = AtomicU8::new(Watcher::Nobody as u8);
        Ok((Self { background, poller: Mutex::new(None), watcher }, sleeper))
    }

    /// Returns the descriptor that wakes the background machine.
    pub(in crate::device) fn descriptor(&self) -> &EventFd {
        match &self.background {
            Handle::Descriptor(fd) => fd,
            Handle::Bell(_) => panic!("nobody waits on a descriptor in a simulation"),
        }
    }

    /// Sets the poller that may sleep for the shard. Returns false if another poller is set.
    pub(in crate::device) fn set_poller(&self, wake: WakePoller) -> bool {
        let mut poller = super::signal::lock(&self.poller);
        let is_first = poller.is_none();
        poller.get_or_insert(wake);
        is_first
    }

    /// Removes the poller.
    pub(in crate::device) fn forget_poller(&self) {
        self.release(Watcher::Poller);
        *super::signal::lock(&self.poller) = None;
    }

    /// Returns true if `watcher` sleeps for the shard.
    pub(in crate::device) fn is(&self, watcher: Watcher) -> bool {
        self.watcher.load(Ordering::Acquire) == watcher as u8
    }

    /// Records that a machine is about to sleep, in a turn of the shard.
    pub(in crate::device) fn watch(&self, watcher: Watcher) {
        // SYNC: shard-watcher
        self.watcher.store(watcher as u8, Ordering::SeqCst);
    }

    /// Records that `watcher` is awake. Returns true if it was recorded as asleep.
    pub(in crate::device) fn release(&self, watcher: Watcher) -> bool {
        let (from, to) = (watcher as u8, Watcher::Nobody as u8);
        let was = self.watcher.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        was.is_ok()
    }

    /// Wakes the machine that sleeps for the shard, or the background machine if none sleeps.
    pub(in crate::device) fn wake(&self) {
        // SYNC: shard-watcher
        if self.watcher.load(Ordering::SeqCst) == Watcher::Poller as u8
            && let Some(wake) = super::signal::lock(&self.poller).as_ref()
        {
            return wake();
        }
        self.wake_background();
    }

    pub(in crate::device) fn wake_background(&self) {
        match &self.background {
            Handle::Bell(bell) => bell.wake(),
            Handle::Descriptor(fd) => {
                // The write fails only if the counter is full, and then the thread wakes anyway.
                let _full = fd.write(1);
            }
        }
    }
}

impl fmt::Debug for WakeUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakeUp").field("watcher", &self.watcher).finish_non_exhaustive()
    }
}
