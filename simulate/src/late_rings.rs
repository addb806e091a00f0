//! Time in which threads with work stay asleep because their bell rings late.
//!
//! A call can wait for a late ring however well the nodes work. A bound close to a few round trips therefore
//! excludes the part of the call in which a ring was late: [`LateRings::total_until`] at its end, minus the
//! value at its start.

use std::cell::Cell;
use std::time::Duration;
use trunkline_verbs::Time;

/// Delays of rings so far.
#[derive(Debug, Default)]
pub(crate) struct LateRings {
    /// End of the last delay.
    end: Cell<Time>,
    /// Sum of all delays up to their ends. Overlapping delays count once.
    sum: Cell<Duration>,
}

impl LateRings {
    /// Adds a delay that begins now.
    pub(crate) fn add(&self, now: Time, end: Time) {
        let begin = self.end.get().max(now);
        self.sum.set(self.sum.get() + end.saturating_duration_since(begin));
        self.end.set(begin.max(end));
    }

    /// Returns the time until now in which at least one ring was late.
    pub(crate) fn total_until(&self, now: Time) -> Duration {
        self.sum.get() - self.end.get().saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_count_once_and_up_to_now() {
        let (rings, until) =
            (LateRings::default(), |rings: &LateRings, now| rings.total_until(Time(now)).as_nanos());
        rings.add(Time(10), Time(40));
        assert_eq!(until(&rings, 20), 10);
        rings.add(Time(20), Time(30));
        rings.add(Time(35), Time(50));
        assert_eq!(until(&rings, 36), 26);
        assert_eq!(until(&rings, 60), 40);
        rings.add(Time(70), Time(80));
        assert_eq!(until(&rings, 75), 45);
        assert_eq!(until(&rings, 90), 50);
    }
}
