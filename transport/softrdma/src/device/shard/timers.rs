//! Deadlines of QPs.
//!
//! Owns a heap of the QPs' deadlines. When a deadline moves to a later time, as with each acknowledgement, its entry
//! stays where it is. The entry then expires early, which has no effect on the engine, and the QP is added again with
//! its new deadline.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use trunkline_verbs::Time;

/// Heap of deadlines.
#[derive(Debug, Default)]
pub(super) struct Timers(BinaryHeap<Reverse<(Time, u32)>>);

/// Time of a QP's current entry in the heap.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Scheduled(Option<Time>);

impl Timers {
    /// Schedules a wake-up of the QP no later than `when`; does nothing if an earlier entry exists.
    pub(super) fn schedule(&mut self, number: u32, scheduled: &mut Scheduled, when: Option<Time>) {
        let Some(when) = when else { return };
        if scheduled.0.is_none_or(|earlier| when < earlier) {
            scheduled.0 = Some(when);
            self.0.push(Reverse((when, number)));
        }
    }

    /// Returns the earliest time at which an entry may expire.
    pub(super) fn next(&self) -> Option<Time> {
        self.0.peek().map(|Reverse((when, _))| *when)
    }

    /// Takes the next expired entry.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<Due> {
        let Reverse((when, number)) = *self.0.peek().filter(|Reverse((when, _))| *when <= now)?;
        self.0.pop();
        Some(Due { number, when })
    }
}

/// An entry that has expired.
#[derive(Debug, Clone, Copy)]
pub(super) struct Due {
    /// Number of the QP.
    pub(super) number: u32,
    when: Time,
}

impl Due {
    /// Returns true if this is the QP's current entry, and clears it. Returns false for a stale entry.
    pub(super) fn accept(self, scheduled: &mut Scheduled) -> bool {
        let current = scheduled.0 == Some(self.when);
        if current {
            scheduled.0 = None;
        }
        current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_deadline_replaces_later_one() {
        let mut timers = Timers::default();
        let mut scheduled = Scheduled::default();
        timers.schedule(7, &mut scheduled, Some(Time(20)));
        timers.schedule(7, &mut scheduled, Some(Time(30)));
        timers.schedule(7, &mut scheduled, Some(Time(10)));
        timers.schedule(7, &mut scheduled, None);
        assert_eq!(timers.next(), Some(Time(10)));
        assert!(timers.pop_due(Time(9)).is_none());
        assert!(timers.pop_due(Time(25)).unwrap().accept(&mut scheduled));
        assert!(!timers.pop_due(Time(25)).unwrap().accept(&mut scheduled), "left behind");
        assert!(timers.pop_due(Time(25)).is_none());
    }
}
