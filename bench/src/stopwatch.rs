//! Nanoseconds since a measurement began.

use std::time::{Duration, Instant};

/// Started when a measurement begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts it.
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since then, in nanoseconds.
    pub(crate) fn now_ns(self) -> u64 {
        nanoseconds(self.0.elapsed())
    }
}

/// A duration in nanoseconds; the longest that fit are 584 years.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
