//! Future events, ordered by time.
//!
//! Each event has at most one time. From this time on, the event is possible, until it is taken or gets another time. The
//! cost per event is logarithmic in the number of events.

use std::collections::{BTreeMap, BTreeSet};
use trunkline_verbs::Time;

#[derive(Debug)]
pub(crate) struct Agenda<E> {
    times: BTreeMap<E, Time>,
    /// Events that are not possible yet.
    later: BTreeSet<(Time, E)>,
    possible: Vec<E>,
}

impl<E: Ord + Copy> Agenda<E> {
    pub(crate) fn new() -> Self {
        Self { times: BTreeMap::new(), later: BTreeSet::new(), possible: Vec::new() }
    }

    /// Sets or removes the time of an event. Returns true if this changes the time at which the event is possible.
    pub(crate) fn set(&mut self, event: E, time: Option<Time>, now: Time) -> bool {
        let time = time.map(|time| time.max(now));
        let earlier = self.times.get(&event).copied();
        if earlier.map(|earlier| earlier.max(now)) == time {
            return false;
        }
        if let Some(earlier) = earlier
            && !self.later.remove(&(earlier, event))
        {
            self.possible.retain(|possible| *possible != event);
        }
        match time {
            Some(time) => {
                self.times.insert(event, time);
                self.later.insert((time, event));
            }
            None => drop(self.times.remove(&event)),
        }
        true
    }

    pub(crate) fn possible(&mut self, now: Time) -> usize {
        while let Some(&(time, event)) = self.later.first()
            && time <= now
        {
            self.later.pop_first();
            self.possible.push(event);
        }
        self.possible.len()
    }

    pub(crate) fn take(&mut self, index: usize) -> E {
        let event = self.possible.swap_remove(index);
        self.times.remove(&event);
        event
    }

    /// Returns the time of the next event that is not possible yet.
    pub(crate) fn next(&self) -> Option<Time> {
        self.later.first().map(|(time, _)| *time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_is_possible_from_its_time_until_taken_or_reset() {
        let mut agenda = Agenda::new();
        assert!(agenda.set('a', Some(Time(30)), Time(10)) && agenda.set('b', Some(Time(20)), Time(10)));
        assert_eq!((agenda.possible(Time(10)), agenda.next()), (0, Some(Time(20))));
        assert!(agenda.set('a', Some(Time(15)), Time(10)), "earlier than before");
        assert_eq!((agenda.possible(Time(20)), agenda.next()), (2, None));
        assert!(!agenda.set('a', Some(Time(5)), Time(20)), "it is possible already");
        assert!(agenda.set('b', Some(Time(40)), Time(20)) && agenda.set('b', None, Time(20)));
        assert_eq!((agenda.possible(Time(50)), agenda.take(0)), (1, 'a'));
        assert_eq!((agenda.possible(Time(50)), agenda.next()), (0, None));
        assert!(agenda.set('a', Some(Time(0)), Time(50)), "it was taken");
        assert_eq!(agenda.possible(Time(50)), 1);
        assert!(agenda.set('a', None, Time(50)));
        assert_eq!(agenda.possible(Time(50)), 0);
    }
}
