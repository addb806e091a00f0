//! Time since a measurement began, in nanoseconds.

use std::time::{Duration, Instant};

/// Stopwatch that is started at the beginning of a measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the time since the start, in nanoseconds.
    pub(crate) fn now_ns(self) -> u64 {
        nanoseconds(self.0.elapsed())
    }
}

/// Converts a duration to nanoseconds. Durations above 584 years are clamped.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
