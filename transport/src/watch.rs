//! Looks after a node from time to time, on the CM machine's thread.
#![forbid(unsafe_code)]

use std::fmt;
use trunkline_verbs::Time;

/// Looks after a node from time to time. The CM machine calls it, so it must not block.
pub trait Watch: Send + Sync + fmt::Debug {
    /// Looks, now; returns when to look again.
    fn look(&self, now: Time) -> Time;
}
