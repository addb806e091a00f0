//! A process that forks while it has a device open.
//!
//! The child has a copy of the card and shares its sockets, but not the background threads. The caller
//! of `fork` calls [`SoftDevice::hold`] before it, so that neither control nor a shard is in use by a thread that
//! the child does not have, and [`SoftDevice::forked`] in the child, where the threads start again with
//! the first use. Only one of the two processes may go on using what was open.
#![forbid(unsafe_code)]

use super::control::Control;
use super::shard::Shard;
use super::soft_device::SoftDevice;
use std::os::fd::BorrowedFd;
use std::sync::MutexGuard;
use trunkline_rings::owned::Turn;

/// Nobody else works on the card while this exists.
#[derive(Debug)]
pub struct Held<'a> {
    _shards: Vec<Turn<'a, Shard>>,
    _control: MutexGuard<'a, Control>,
}

impl SoftDevice {
    /// Waits until nobody is at work in the card, and keeps others out.
    pub fn hold(&self) -> Held<'_> {
        let control = self.core().control();
        Held { _shards: self.core().shards().map(|lock| lock.shard.enter()).collect(), _control: control }
    }

    /// In the child of a fork: notes that the background threads are gone. Returns the eventfds by
    /// which they were woken, which are still the parent's: put a fresh one under each number.
    pub fn forked(&self) -> Vec<BorrowedFd<'_>> {
        self.core().forked()
    }
}
