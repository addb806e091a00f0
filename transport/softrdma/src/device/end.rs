//! A process that ends while it has a device open.
//!
//! For the one who learns of the end of a process: [`SoftDevice::part_from_all`], as late as possible.
//! It must not wait for anybody who may never go on.
#![forbid(unsafe_code)]

use super::soft_device::SoftDevice;
use std::time::Duration;

/// How long whoever is at work in the card may take to leave it.
const PATIENCE: Duration = Duration::from_millis(200);

impl SoftDevice {
    /// Tells the peers of all connections that the process ends, once: nobody is left to say it again.
    /// Does nothing in the child of a fork that has not used the device.
    pub fn part_from_all(&self) {
        self.core().act_at_the_end(PATIENCE, |card, now| card.part_from_all(now));
    }
}
