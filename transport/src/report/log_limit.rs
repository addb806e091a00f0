//! Limit on the log lines that a peer can cause.
//!
//! Used wherever a peer's frame or packet causes a log line, since the peer determines the rate.
#![forbid(unsafe_code)]

use std::time::Duration;
use trunkline_verbs::Time;

/// Number of lines that may be written in a burst, and the interval of the lines after it.
const BURST: u32 = 8;
const EVERY: Duration = Duration::from_secs(1);

/// Limit on log lines, which allows a burst of 8 and then one per second. Further lines are only counted.
#[derive(Debug, Default)]
pub struct LogLimit {
    written: u32,
    since: Option<Time>,
    suppressed: u64,
}

impl LogLimit {
    /// Returns the number of lines suppressed before this one, or `None` if no line may be written now.
    pub fn line(&mut self, now: Time) -> Option<u64> {
        let since = *self.since.get_or_insert(now);
        let passed = now.saturating_duration_since(since).as_secs() / EVERY.as_secs();
        if passed > 0 {
            self.written = self.written.saturating_sub(u32::try_from(passed).unwrap_or(u32::MAX));
            self.since = Some(now);
        }
        if self.written >= BURST {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_allows_burst_of_eight_lines_then_one_per_second() {
        let (mut limit, start) = (LogLimit::default(), Time(1_000_000));
        let written = (0..1000).filter(|_| limit.line(start).is_some()).count();
        assert_eq!(written, 8);
        assert_eq!(limit.line(start + EVERY / 2), None);
        assert_eq!(limit.line(start + EVERY), Some(993), "and says how many were suppressed");
        assert_eq!(limit.line(start + EVERY), None);
        let later = start + 100 * EVERY;
        assert_eq!((0..1000).filter(|_| limit.line(later).is_some()).count(), 8);
    }
}
