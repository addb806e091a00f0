//! A process that forks while it has a device open.
//!
//! The child has a copy of the device and shares its sockets, but not the background threads. The caller of
//! `fork` first calls [`SoftDevice::hold`], so that neither control nor a shard is in use by a thread that
//! the child does not have. It calls [`SoftDevice::forked`] in the child, where the threads start again with
//! the first use. Only one of the two processes may continue to use the open objects.
#![forbid(unsafe_code)]

use super::control::Control;
use super::shard::Shard;
use super::soft_device::SoftDevice;
use std::os::fd::BorrowedFd;
use std::sync::MutexGuard;
use trunkline_machine::rings::owned::Turn;

/// Keeps all other threads out of the device while it exists.
#[derive(Debug)]
pub struct Held<'a> {
    _shards: Vec<Turn<'a, Shard>>,
    _control: MutexGuard<'a, Control>,
}

impl SoftDevice {
    /// Waits until no thread is working in the device, and keeps other threads out.
    pub fn hold(&self) -> Held<'_> {
        let control = self.core().control();
        Held { _shards: self.core().shards().map(|lock| lock.shard.enter()).collect(), _control: control }
    }

    /// Records in the child of a fork that the background threads do not exist. Returns the eventfds that
    /// woke them, which still belong to the parent: put a fresh one under each number.
    pub fn forked(&self) -> Vec<BorrowedFd<'_>> {
        self.core().forked()
    }
}
