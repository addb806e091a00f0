//! What the background thread shares with the objects of a device.
//!
//! Owns the card's lock, the words by which its work changes hands, and the clock.
#![forbid(unsafe_code)]

use super::card::Card;
use super::progress::Progress;
use std::sync::Mutex;
use trunkline_machine::Runtime;
use trunkline_verbs::Time;

/// See the module.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) card: Mutex<Card>,
    pub(super) progress: Progress,
    pub(super) runtime: Runtime,
}

impl Shared {
    /// The time now, by the device's clock.
    pub(super) fn now(&self) -> Time {
        self.runtime.clock().now()
    }
}
