//! The card under its lock, with what its callers need next to it.
//!
//! Owns the lock, the words by which the card's work changes hands, and the clock. The objects of a
//! device and its background machine share it.
#![forbid(unsafe_code)]

use super::card::Card;
use super::progress::Progress;
use std::sync::Mutex;
use trunkline_machine::Runtime;
use trunkline_verbs::Time;

/// See the module.
#[derive(Debug)]
pub(super) struct CardLock {
    pub(super) card: Mutex<Card>,
    pub(super) progress: Progress,
    pub(super) runtime: Runtime,
}

impl CardLock {
    /// The time now, by the device's clock.
    pub(super) fn now(&self) -> Time {
        self.runtime.clock().now()
    }
}
