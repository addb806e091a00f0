//! A process that forks while it has a device open.
//!
//! The child has a copy of the card and shares its sockets, but not the background thread. The caller
//! of `fork` calls [`SoftDevice::hold`] before it, so that no lock of the card is taken by a thread that
//! the child does not have, and [`SoftDevice::forked`] in the child, where the thread starts again with
//! the first use. Only one of the two processes may go on using what was open.
#![forbid(unsafe_code)]

use super::card::Card;
use super::soft_device::SoftDevice;
use std::os::fd::BorrowedFd;
use std::sync::MutexGuard;

/// Nobody else works on the card while this exists.
#[derive(Debug)]
pub struct Held<'a> {
    _card: MutexGuard<'a, Card>,
}

impl SoftDevice {
    /// Waits until nobody is at work in the card, and keeps others out.
    pub fn hold(&self) -> Held<'_> {
        Held { _card: self.core().card() }
    }

    /// In the child of a fork: notes that the background thread is gone. Returns the eventfd by
    /// which it was woken, which is still the parent's: put a fresh one under its number.
    pub fn forked(&self) -> BorrowedFd<'_> {
        self.core().forked()
    }
}
