//! Timers, kept in a few sorted lists and a timer wheel.
//!
//! Adding and removing takes constant time, and allocates only when the number of deadlines reaches a new maximum. A
//! deadline is the start of a call plus its time limit, and programs use few different limits. Most deadlines are
//! therefore appended to one of a few sorted lists, the *runs*. The others are stored in the wheel, which divides
//! time into ticks of about a millisecond. Each of the 64 lists of the first level covers one tick, each list of the
//! second level 64 ticks, and so on. A deadline moves to a finer level as its time approaches. Expiry times are
//! exact.
//!
//! Each poller has its own deadlines, without locks.
#![forbid(unsafe_code)]

use slab::Slab;
use trunkline_verbs::Time;

/// Binary logarithm of the length of a tick in nanoseconds.
const TICK_BITS: u32 = 20;
/// Binary logarithm of the number of lists of a level.
const LEVEL_BITS: u32 = 6;
const LISTS: usize = 1 << LEVEL_BITS;
/// Number of levels. Four cover 4.9 hours; later deadlines are in one list.
const LEVELS: u32 = 4;
/// Number of runs, the lists to which deadlines are appended in order.
const RUNS: usize = 4;
/// Index that marks a missing entry.
const NONE: usize = usize::MAX;

/// Key of a deadline, valid until it expires or is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadlineKey(usize);

/// Items with their deadlines.
#[derive(Debug)]
pub struct Deadlines<T> {
    entries: Slab<Deadline<T>>,
    runs: [Run; RUNS],
    /// Number of entries in the wheel.
    in_wheel: usize,
    /// Lower bound of the deadlines in the wheel. The earliest one may have been removed.
    earliest: Time,
    /// Current tick, never later than the current time.
    tick: u64,
    levels: [Level; LEVELS as usize],
    /// Entries beyond the range of the levels.
    far: List,
}

#[derive(Debug)]
struct Deadline<T> {
    at: Time,
    value: T,
    place: Row,
    before: usize,
    after: usize,
}

/// List that an entry is in.
#[derive(Debug, Clone, Copy)]
enum Row {
    Run(usize),
    Near { level: u32, list: usize },
    Far,
}

/// First and last entry of a list.
#[derive(Debug, Clone, Copy)]
struct List {
    first: usize,
    last: usize,
}

impl List {
    const EMPTY: Self = Self { first: NONE, last: NONE };
}

/// Entries, sorted by their times.
#[derive(Debug, Clone, Copy)]
struct Run {
    list: List,
    /// Upper bound of the times in the list. Reset to zero when the only entry is removed.
    last: Time,
}

impl Run {
    const EMPTY: Self = Self { list: List::EMPTY, last: Time(0) };
}

#[derive(Debug)]
struct Level {
    /// Bit mask of the lists that are not empty.
    occupied: u64,
    lists: [List; LISTS],
}

impl<T> Default for Deadlines<T> {
    fn default() -> Self {
        let level = || Level { occupied: 0, lists: [List::EMPTY; LISTS] };
        Self {
            entries: Slab::new(),
            runs: [Run::EMPTY; RUNS],
            in_wheel: 0,
            earliest: Time::MAX,
            tick: 0,
            levels: std::array::from_fn(|_| level()),
            far: List::EMPTY,
        }
    }
}

impl<T> Deadlines<T> {
    /// Returns the number of deadlines.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the time of the next call of [`Self::due`], a lower bound of the deadlines; `None` if empty.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        let of_wheel = (self.in_wheel > 0).then_some(self.earliest);
        let first = |run: &Run| self.entries.get(run.list.first).map(|entry| entry.at);
        self.runs.iter().filter_map(first).chain(of_wheel).min()
    }

    /// Adds an item that expires at the given time.
    #[inline]
    pub fn add(&mut self, now: Time, at: Time, value: T) -> DeadlineKey {
        for (number, run) in self.runs.iter_mut().enumerate() {
            if run.last <= at {
                let (place, before) = (Row::Run(number), run.list.last);
                let key = self.entries.insert(Deadline { at, value, place, before, after: NONE });
                (run.list.last, run.last) = (key, at);
                match self.entries.get_mut(before) {
                    Some(before) => before.after = key,
                    None => run.list.first = key,
                }
                return DeadlineKey(key);
            }
        }
        self.add_to_wheel(now, at, value)
    }

    #[inline(never)]
    fn add_to_wheel(&mut self, now: Time, at: Time, value: T) -> DeadlineKey {
        if self.in_wheel == 0 {
            self.tick = tick_of(now);
            self.earliest = Time::MAX;
        }
        self.in_wheel += 1;
        self.earliest = self.earliest.min(at);
        let key = self.entries.insert(Deadline { at, value, place: Row::Far, before: NONE, after: NONE });
        self.link(key, at);
        DeadlineKey(key)
    }

    /// Removes an item that has not expired.
    #[inline]
    pub fn remove(&mut self, DeadlineKey(key): DeadlineKey) -> Option<T> {
        let &Deadline { place, before, after, .. } = self.entries.get(key)?;
        match self.entries.get_mut(before) {
            Some(entry) => entry.after = after,
            None => self.list(place).first = after,
        }
        match self.entries.get_mut(after) {
            Some(entry) => entry.before = before,
            None => self.list(place).last = before,
        }
        match place {
            // The list becomes empty, so earlier deadlines may be appended to it.
            Row::Run(run) if before == NONE && after == NONE => self.runs[run].last = Time(0),
            Row::Run(_) => {}
            Row::Near { .. } | Row::Far => self.left_wheel(place, before == NONE && after == NONE),
        }
        self.entries.try_remove(key).map(|entry| entry.value)
    }

    fn left_wheel(&mut self, place: Row, was_alone: bool) {
        self.in_wheel -= 1;
        if let Row::Near { level, list } = place
            && was_alone
        {
            self.level_mut(level).occupied &= !(1 << list);
        }
    }

    /// Removes and returns an expired item.
    pub fn due(&mut self, now: Time) -> Option<T> {
        for run in 0..RUNS {
            let first = self.runs[run].list.first;
            if self.entries.get(first).is_some_and(|entry| entry.at <= now) {
                return self.remove(DeadlineKey(first));
            }
        }
        while self.earliest <= now && self.in_wheel > 0 {
            let mut earliest = self.next_list();
            let mut at = self.level(0).lists[index(self.tick, 0)].first;
            while let Some(entry) = self.entries.get(at) {
                if entry.at <= now {
                    return self.remove(DeadlineKey(at));
                }
                earliest = earliest.min(entry.at);
                at = entry.after;
            }
            self.earliest = earliest;
            if earliest <= now {
                self.advance(tick_of(earliest));
            }
        }
        None
    }

    /// Returns the start of the next nonempty list after the list of the current tick.
    fn next_list(&self) -> Time {
        for level in 0..LEVELS {
            // A level contains entries only for the current round, and none before the current list.
            let later = u64::MAX.checked_shl(to_u32(index(self.tick, level)) + 1).unwrap_or(0);
            let lists = self.level(level).occupied & later;
            if lists != 0 {
                let round = self.tick >> (level * LEVEL_BITS) >> LEVEL_BITS << LEVEL_BITS;
                return start_of((round | u64::from(lists.trailing_zeros())) << (level * LEVEL_BITS));
            }
        }
        if self.far.first == NONE { Time::MAX } else { start_of(self.next_round()) }
    }

    /// Returns the first tick after those that the levels currently cover.
    fn next_round(&self) -> u64 {
        ((self.tick >> (LEVELS * LEVEL_BITS)) + 1) << (LEVELS * LEVEL_BITS)
    }

    /// Advances to this tick, over empty lists only.
    fn advance(&mut self, tick: u64) {
        let is_next_round = tick >= self.next_round();
        self.tick = tick;
        if is_next_round {
            let far = std::mem::replace(&mut self.far, List::EMPTY);
            self.link_again(far);
        }
        for level in (1..LEVELS).rev() {
            let list = index(tick, level);
            let entries = &mut self.level_mut(level).lists[list];
            let entries = std::mem::replace(entries, List::EMPTY);
            self.level_mut(level).occupied &= !(1 << list);
            self.link_again(entries);
        }
    }

    fn link_again(&mut self, list: List) {
        let mut next = list.first;
        while let Some(entry) = self.entries.get(next) {
            let (key, at) = (next, entry.at);
            next = entry.after;
            self.link(key, at);
        }
    }

    /// Appends an entry to the list that it belongs to now.
    fn link(&mut self, key: usize, at: Time) {
        let tick = tick_of(at).max(self.tick);
        let differs_from = 63 - (tick ^ self.tick | 1).leading_zeros();
        let level = differs_from / LEVEL_BITS;
        let place = if level < LEVELS { Row::Near { level, list: index(tick, level) } } else { Row::Far };
        let list = self.list(place);
        let before = std::mem::replace(&mut list.last, key);
        if before == NONE {
            list.first = key;
        }
        if let Some(entry) = self.entries.get_mut(before) {
            entry.after = key;
        }
        if let Row::Near { level, list } = place {
            self.level_mut(level).occupied |= 1 << list;
        }
        if let Some(entry) = self.entries.get_mut(key) {
            (entry.place, entry.before, entry.after) = (place, before, NONE);
        }
    }

    fn list(&mut self, place: Row) -> &mut List {
        match place {
            Row::Run(run) => &mut self.runs[run].list,
            Row::Near { level, list } => &mut self.level_mut(level).lists[list],
            Row::Far => &mut self.far,
        }
    }

    fn level(&self, level: u32) -> &Level {
        &self.levels[level as usize]
    }

    fn level_mut(&mut self, level: u32) -> &mut Level {
        &mut self.levels[level as usize]
    }
}

fn tick_of(time: Time) -> u64 {
    time.0 >> TICK_BITS
}

/// Returns the start of a tick, at most the maximum time.
fn start_of(tick: u64) -> Time {
    Time(if tick.leading_zeros() < TICK_BITS { u64::MAX } else { tick << TICK_BITS })
}

/// Returns the index of the list of a level that a tick belongs to.
#[expect(clippy::cast_possible_truncation, reason = "less than 64")]
fn index(tick: u64, level: u32) -> usize {
    (tick >> (level * LEVEL_BITS)) as usize % LISTS
}

#[expect(clippy::cast_possible_truncation, reason = "less than 64")]
fn to_u32(list: usize) -> u32 {
    list as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Returns all expired items, sorted.
    fn all_due(deadlines: &mut Deadlines<u32>, now: Time) -> Vec<u32> {
        let mut due = std::iter::from_fn(|| deadlines.due(now)).collect::<Vec<_>>();
        due.sort_unstable();
        due
    }

    #[derive(Debug, Clone)]
    enum Step {
        Add(u64),
        Remove(usize),
        Pass(u64),
        /// Advance the clock to [`Deadlines::next`].
        Sleep,
    }

    /// Returns durations from zero to days.
    fn duration() -> impl Strategy<Value = u64> {
        (0..50_u32, any::<u64>()).prop_map(|(bits, number)| number & ((1 << bits) - 1))
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => duration().prop_map(Step::Add),
            2 => any::<usize>().prop_map(Step::Remove),
            2 => duration().prop_map(Step::Pass),
            2 => Just(Step::Sleep),
        ]
    }

    proptest! {
        #[test]
        fn deadlines_are_due_at_their_time_unless_removed(
            start in duration(),
            steps in proptest::collection::vec(step(), 1..200),
        ) {
            let mut now = Time(start);
            let (mut deadlines, mut model) = (Deadlines::default(), BTreeMap::new());
            for (number, step) in (0..).zip(steps) {
                match step {
                    Step::Add(after) => {
                        let at = now.plus_ns(after);
                        model.insert(number, (at, deadlines.add(now, at, number)));
                    }
                    Step::Remove(which) if !model.is_empty() => {
                        let number = *model.keys().nth(which % model.len()).expect("there are so many");
                        let (_, key) = model.remove(&number).expect("it is there");
                        prop_assert_eq!(deadlines.remove(key), Some(number));
                    }
                    Step::Remove(_) => {}
                    Step::Pass(ns) => now = now.plus_ns(ns),
                    Step::Sleep => {
                        let earliest = model.values().map(|(at, _)| *at).min();
                        prop_assert_eq!(deadlines.next().is_some(), earliest.is_some());
                        prop_assert!(deadlines.next() <= earliest);
                        now = now.max(deadlines.next().unwrap_or(now));
                    }
                }
                let expected = model.iter().filter(|(_, (at, _))| *at <= now).map(|(number, _)| *number);
                let expected = expected.collect::<Vec<_>>();
                model.retain(|_, (at, _)| *at > now);
                prop_assert_eq!(all_due(&mut deadlines, now), expected);
                prop_assert_eq!(deadlines.len(), model.len());
                // A caller that sleeps until `next` makes progress with each call.
                prop_assert!(deadlines.next().is_none_or(|next| next > now));
            }
        }
    }

    #[test]
    fn deadline_causes_few_earlier_wakeups() {
        let mut deadlines = Deadlines::default();
        let (mut now, at) = (Time(123), Time(60_000_000_000));
        // Occupy the runs with other deadlines.
        for later in (1..=RUNS as u64).rev() {
            deadlines.add(now, Time(at.0 + later), 0);
        }
        let _soon = deadlines.add(now, Time(200), 1);
        let _late = deadlines.add(now, at, 2);
        assert_eq!(deadlines.next(), Some(Time(200)));
        let mut looks = 0;
        while deadlines.in_wheel > 0 {
            now = deadlines.next().expect("it is not empty");
            looks += 1;
            while deadlines.due(now).is_some() {}
        }
        assert_eq!(now, at);
        assert!(looks <= 6, "{looks}");
    }
}
