//! An observer of a node, called from time to time on the CM machine's thread.
#![forbid(unsafe_code)]

use std::fmt;
use trunkline_verbs::Time;

/// An observer of a node. The CM machine calls it from time to time, so it must not block.
pub trait Watch: Send + Sync + fmt::Debug {
    /// Observes the node. Returns the time of the next call.
    fn look(&self, now: Time) -> Time;
}
