//! When a poller yields, and when it goes to sleep.
//!
//! A poller that spins on a shared core starves its neighbours. Unless it is known to have the core to
//! itself, it yields after a few empty polls, at growing intervals, and soon sleeps. A poller alone on its
//! core spins longer.
#![forbid(unsafe_code)]

use std::time::Duration;
use trunkline_verbs::Time;

/// Empty polls before a poller that shares its core yields.
const POLLS_BEFORE_YIELD: u32 = 20;
/// Minimum time before a poller that shares its core yields. Polls of shared memory finish before any answer
/// can have come, and yielding to a busy program costs a time slice of that program, usually a millisecond.
/// Each further yield follows after twice the time: a yield is a system call, and gives the core to every
/// thread that is ready, so that the next one at once finds none.
const TIME_BEFORE_YIELD: Duration = Duration::from_micros(20);
/// Time without work after which a poller that shares its core sleeps. Another thread of the core, such as a
/// tokio runtime, makes its next calls within this time, and waking the poller for each of them costs more
/// than yielding. A yield to a program that never sleeps takes longer than this, so the poller sleeps after
/// one.
const SHARED_PATIENCE: Duration = Duration::from_micros(400);
/// Time without work after which a poller with a core to itself sleeps.
const ALONE_PATIENCE: Duration = Duration::from_millis(1);

/// Time without work after which a poller sleeps that is transferring a large message. Packets keep arriving,
/// and a poller that sleeps between them is woken for each.
const TRANSFER_PATIENCE: Duration = Duration::from_millis(2);

/// Action after an empty round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// Poll again.
    Spin,
    /// Let others run, then poll again.
    Yield,
    /// Sleep until something comes.
    Sleep,
}

/// Counter of empty rounds, and the time of the first.
#[derive(Debug)]
pub(super) struct Idle {
    alone: bool,
    simulated: bool,
    empty: u32,
    since: Option<Time>,
    /// Time from the first empty round to the next yield.
    next_yield: Duration,
}

impl Idle {
    pub(super) fn new(alone: bool) -> Self {
        Self { alone, simulated: false, empty: 0, since: None, next_yield: TIME_BEFORE_YIELD }
    }

    /// Creates the state of a simulated machine. It sleeps after the first empty round: virtual CPU time
    /// costs other machines nothing, and going to sleep is what the simulation must exercise.
    pub(super) fn simulated() -> Self {
        Self { simulated: true, ..Self::new(false) }
    }

    /// Resets the count, after a round that did something or after sleep.
    pub(super) fn reset(&mut self) {
        self.empty = 0;
        self.since = None;
        self.next_yield = TIME_BEFORE_YIELD;
    }

    /// Counts an empty round at `now`. Calls `transferring` only if the poller would otherwise sleep.
    pub(super) fn empty_round(&mut self, now: Time, transferring: impl FnOnce() -> bool) -> Rest {
        if self.simulated {
            return Rest::Sleep;
        }
        self.empty = self.empty.saturating_add(1);
        let since = *self.since.get_or_insert(now);
        let patience = if self.alone { ALONE_PATIENCE } else { SHARED_PATIENCE };
        let waited = now.saturating_duration_since(since);
        if waited >= patience && (waited >= TRANSFER_PATIENCE || !transferring()) {
            Rest::Sleep
        } else if !self.alone && self.empty > POLLS_BEFORE_YIELD && waited >= self.next_yield {
            self.next_yield = 2 * waited;
            Rest::Yield
        } else {
            Rest::Spin
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poller_that_shares_its_core_yields_then_sleeps() {
        let start = Time(1_000_000);
        let mut idle = Idle::new(false);
        assert!((0..30).all(|_| idle.empty_round(start, || false) == Rest::Spin), "fast polls");
        assert_eq!(idle.empty_round(start + TIME_BEFORE_YIELD, || false), Rest::Yield);
        assert_eq!(idle.empty_round(start + TIME_BEFORE_YIELD * 3 / 2, || false), Rest::Spin);
        assert_eq!(idle.empty_round(start + TIME_BEFORE_YIELD * 2, || false), Rest::Yield);
        idle.reset();
        idle.empty_round(start, || false);
        assert_eq!(idle.empty_round(start + TIME_BEFORE_YIELD, || false), Rest::Spin, "slow polls");
        assert_eq!(idle.empty_round(start + SHARED_PATIENCE, || false), Rest::Sleep);
        idle.reset();
        assert_eq!(idle.empty_round(start + SHARED_PATIENCE, || false), Rest::Spin);
    }

    #[test]
    fn one_that_is_alone_spins_longer() {
        let start = Time(1_000_000);
        let mut idle = Idle::new(true);
        assert!((0..1000).all(|_| idle.empty_round(start, || false) == Rest::Spin));
        assert_eq!(idle.empty_round(start + SHARED_PATIENCE, || false), Rest::Spin);
        assert_eq!(idle.empty_round(start + ALONE_PATIENCE, || false), Rest::Sleep);
    }

    #[test]
    fn nobody_sleeps_in_the_middle_of_a_transfer_nor_waits_for_ever() {
        let start = Time(1_000_000);
        for alone in [false, true] {
            let mut idle = Idle::new(alone);
            for _ in 0..30 {
                idle.empty_round(start, || true);
            }
            let rest = idle.empty_round(start + ALONE_PATIENCE, || true);
            assert_eq!(rest, if alone { Rest::Spin } else { Rest::Yield });
            assert_eq!(idle.empty_round(start + TRANSFER_PATIENCE, || true), Rest::Sleep);
        }
    }
}
