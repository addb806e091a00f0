//! Choice between polling again, yielding and sleeping for a poller without work.
//!
//! Polling pays only if the next event comes soon and the core is free. Both are measured:
//!
//! - A predictor, built like a branch predictor, estimates from the last gaps between events whether the next gap is
//!   short.
//! - If a round takes much longer than the CPU time that it uses, another thread ran or the cgroup's quota was used
//!   up, and the core counts as shared. The poller then sleeps whenever it has no work, and tries again after a while.
//!   It never yields to other programs, because a yield gives away a whole scheduler slice, usually 3 to 4 ms.
//!
//! On a free core, the poller yields between polls, so that other threads of the program, which run for microseconds,
//! do not wait for the end of a slice. If such threads ran during its last yields, it yields after each empty round,
//! since what it waits for may need this core.
#![forbid(unsafe_code)]

use std::time::Duration;
use trunkline_verbs::Time;

/// Number of empty polls before a poller yields.
const POLLS_BEFORE_YIELD: u32 = 20;
/// Minimum time before a poller yields. Answers through shared memory may arrive earlier. The time doubles after each
/// yield, because a yield is a system call, and usually no thread is ready soon after the previous one.
const TIME_BEFORE_YIELD: Duration = Duration::from_micros(20);
/// Duration of a round with a yield from which on another thread ran. A yield that returns at once takes less than a
/// microsecond, and an empty round of a poller one or two.
const YIELD_USED: Duration = Duration::from_micros(3);
/// Time without work after which a poller sleeps while it transfers a large message. Packets keep arriving,
/// and a poller that sleeps between packets is woken for each.
const TRANSFER_PATIENCE: Duration = Duration::from_millis(2);
/// Minimum time lost in a round that indicates another user of the core. Interrupts, and other threads of the program
/// between two sleeps, take less. A program that never sleeps takes at least its slice, 2 to 5 ms.
const TAKEN: Duration = Duration::from_micros(1500);
/// Interval at which the poller reads its CPU time, which is a system call.
const CPU_INTERVAL: Duration = Duration::from_millis(5);
/// Time of uninterrupted polling after which the core counts as free. It is longer than a scheduler slice.
const ALONE_AFTER: Duration = Duration::from_millis(10);
/// Time of polling, with yields, after which the retry interval is reset.
const SURELY_ALONE_AFTER: Duration = Duration::from_millis(20);
/// Longest time of polling after an event while polling is being retried, since another thread may wait for the core.
const CAUTIOUS_POLL: Duration = Duration::from_micros(50);
/// Time until a poller on a shared core polls again, doubled after each failure.
const FIRST_RETRY: Duration = Duration::from_millis(20);
const LAST_RETRY: Duration = Duration::from_secs(2);

/// Action after an empty round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// Poll again.
    Spin,
    /// Let other threads run, then poll again.
    Yield,
    /// Sleep until an event.
    Sleep,
}

/// Empty rounds of a poller, and its estimates of gaps and of the core's load.
#[derive(Debug)]
pub(super) struct Idle {
    /// Longest time of polling after an event.
    poll_for: Duration,
    simulated: bool,
    gaps: Gaps,
    core: SharedCore,
    gap: Option<Gap>,
}

/// The time since the last event.
#[derive(Debug)]
struct Gap {
    since: Time,
    /// True if the next event is expected within `poll_for`.
    is_short: bool,
    empty: u32,
    /// Time from the first empty round to the next yield.
    next_yield: Duration,
}

impl Idle {
    /// Creates the state of a poller that polls for at most this long after an event.
    pub(super) fn new(poll_for: Duration) -> Self {
        Self {
            poll_for,
            simulated: false,
            gaps: Gaps::default(),
            core: SharedCore {
                state: Sharing::Unknown(Duration::ZERO),
                retry: FIRST_RETRY,
                round: None,
                slept_since: None,
                read: None,
                yielded: false,
                used_yields: 0,
            },
            gap: None,
        }
    }

    /// Creates the state of a simulated machine. It sleeps after the first empty round, because polling would not
    /// affect other machines in virtual time, and the simulation must exercise the sleep.
    pub(super) fn simulated() -> Self {
        Self { simulated: true, ..Self::new(Duration::ZERO) }
    }

    /// Records the beginning of a round. `cpu_time` returns the CPU time that the poller has used.
    #[inline]
    pub(super) fn round(&mut self, now: Time, cpu_time: impl FnOnce() -> Option<Duration>) {
        self.core.round(now, self.gap.is_some(), cpu_time);
    }

    /// Records a round that began at `now` and did some work.
    pub(super) fn event(&mut self, now: Time) {
        if let Some(gap) = self.gap.take() {
            self.gaps.learn(now.saturating_duration_since(gap.since) <= self.poll_for);
        }
    }

    /// Counts an empty round at `now`. Calls `transferring` only if the poller would otherwise sleep.
    pub(super) fn empty_round(&mut self, now: Time, transferring: impl FnOnce() -> bool) -> Rest {
        if self.simulated {
            return Rest::Sleep;
        }
        let is_short = self.gaps.is_next_short();
        let first = Gap { since: now, is_short, empty: 0, next_yield: TIME_BEFORE_YIELD };
        let gap = self.gap.get_or_insert(first);
        gap.empty = gap.empty.saturating_add(1);
        let waited = now.saturating_duration_since(gap.since);
        let sharing = self.core.at(now);
        let is_retry = matches!(sharing, Sharing::Unknown(_)) && self.core.retry > FIRST_RETRY;
        let poll_for = if is_retry { self.poll_for.min(CAUTIOUS_POLL) } else { self.poll_for };
        let is_over = !gap.is_short || waited >= poll_for;
        if matches!(sharing, Sharing::Shared(_))
            || is_over && (waited >= TRANSFER_PATIENCE || !transferring())
        {
            self.core.sleeps(now);
            Rest::Sleep
        } else if matches!(sharing, Sharing::Alone(_))
            && (self.core.are_yields_used() || gap.empty > POLLS_BEFORE_YIELD && waited >= gap.next_yield)
        {
            gap.next_yield = TIME_BEFORE_YIELD.max(2 * waited);
            self.core.yielded = true;
            Rest::Yield
        } else {
            Rest::Spin
        }
    }
}

/// A predictor of gaps between events, with a counter for each pattern of the last gaps. For example, calls at a low
/// rate repeat a long gap, a gap until the answer, and a gap until its acknowledgement.
#[derive(Debug)]
struct Gaps {
    /// The last gaps as bits, the latest in the lowest bit. A set bit is a short gap.
    pattern: usize,
    /// Saturating counts of short gaps after each pattern. Above 1, a short gap is expected.
    counters: [u8; 1 << Self::LENGTH],
}

impl Default for Gaps {
    /// Expects short gaps, after which polling pays.
    fn default() -> Self {
        Self { pattern: 0, counters: [2; 1 << Self::LENGTH] }
    }
}

impl Gaps {
    /// Number of gaps in a pattern.
    const LENGTH: u32 = 4;

    fn is_next_short(&self) -> bool {
        self.counters[self.pattern] > 1
    }

    fn learn(&mut self, is_short: bool) {
        let counter = &mut self.counters[self.pattern];
        *counter = if is_short { (*counter + 1).min(3) } else { counter.saturating_sub(1) };
        self.pattern = (self.pattern << 1 | usize::from(is_short)) % self.counters.len();
    }
}

/// Estimate of whether other threads use the core.
#[derive(Debug)]
struct SharedCore {
    state: Sharing,
    /// Pause before the next attempt if the core is found to be shared again.
    retry: Duration,
    /// Beginning of the last round, unless the poller has slept since.
    round: Option<Time>,
    slept_since: Option<Time>,
    /// The last reading of the CPU time.
    read: Option<Reading>,
    /// True if the last round ended with a yield.
    yielded: bool,
    /// Saturating count of yields during which another thread ran. Above 1, the next yield is expected to be used.
    used_yields: u8,
}

/// A reading of the CPU time.
#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Time,
    cpu_time: Duration,
    /// Time asleep since this reading.
    slept: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sharing {
    /// The core was not measured yet. Contains the time of uninterrupted polling so far.
    Unknown(Duration),
    /// The core is free. Contains the time of uninterrupted polling so far.
    Alone(Duration),
    /// Another thread uses the core. Polling is tried again at this time.
    Shared(Time),
}

impl SharedCore {
    /// Records the beginning of a round. `polls` is true if the last round was empty.
    #[inline]
    fn round(&mut self, now: Time, polls: bool, cpu_time: impl FnOnce() -> Option<Duration>) {
        if let Some(since) = self.slept_since.take()
            && let Some(read) = &mut self.read
        {
            read.slept += now.saturating_duration_since(since);
        }
        let took =
            self.round.replace(now).map_or(Duration::ZERO, |before| now.saturating_duration_since(before));
        let is_old = self.read.is_none_or(|read| now.saturating_duration_since(read.at) >= CPU_INTERVAL);
        if took >= TAKEN || is_old {
            self.read_cpu_time(now, took, cpu_time());
        }
        if std::mem::take(&mut self.yielded) {
            let is_used = took >= YIELD_USED;
            self.used_yields =
                if is_used { (self.used_yields + 1).min(3) } else { self.used_yields.saturating_sub(1) };
        }
        match &mut self.state {
            Sharing::Unknown(without) if polls => {
                *without += took;
                if *without >= ALONE_AFTER {
                    self.state = Sharing::Alone(*without);
                }
            }
            Sharing::Alone(without) if polls && *without < SURELY_ALONE_AFTER => {
                *without += took;
                if *without >= SURELY_ALONE_AFTER {
                    self.retry = FIRST_RETRY;
                }
            }
            _ => {}
        }
    }

    /// Compares the CPU time used since the last reading with the time that has passed. `took` is the duration of the
    /// last round.
    #[cold]
    fn read_cpu_time(&mut self, now: Time, took: Duration, cpu_time: Option<Duration>) {
        let Some(cpu_time) = cpu_time else { return };
        let before = self.read.replace(Reading { at: now, cpu_time, slept: Duration::ZERO });
        let Some(before) = before else { return };
        let awake = now.saturating_duration_since(before.at).saturating_sub(before.slept);
        let taken = awake.saturating_sub(cpu_time.saturating_sub(before.cpu_time));
        // Require a long round, so that short waits since the last reading do not count.
        if took >= TAKEN && taken >= TAKEN.max(took / 2) {
            self.state = Sharing::Shared(now + self.retry);
            self.retry = (2 * self.retry).min(LAST_RETRY);
        }
    }

    /// Returns true if another thread ran during the last yields.
    fn are_yields_used(&self) -> bool {
        self.used_yields > 1
    }

    fn sleeps(&mut self, now: Time) {
        self.round = None;
        self.slept_since = Some(now);
    }

    fn at(&mut self, now: Time) -> Sharing {
        if matches!(self.state, Sharing::Shared(again) if again <= now) {
            self.state = Sharing::Unknown(Duration::ZERO);
        }
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL_FOR: Duration = Duration::from_micros(400);
    const POLL: Duration = Duration::from_micros(1);

    /// A poller with a clock.
    struct Run {
        idle: Idle,
        now: Time,
        cpu_time: Duration,
    }

    impl Run {
        fn new() -> Self {
            Self { idle: Idle::new(POLL_FOR), now: Time(1_000_000), cpu_time: Duration::ZERO }
        }

        /// Uses the CPU for this long.
        fn run(&mut self, length: Duration) {
            self.now += length;
            self.cpu_time += length;
        }

        fn empty_round(&mut self, is_transferring: bool) -> Rest {
            self.idle.round(self.now, || Some(self.cpu_time));
            self.idle.empty_round(self.now, || is_transferring)
        }

        fn event(&mut self) {
            self.idle.round(self.now, || Some(self.cpu_time));
            self.idle.event(self.now);
        }

        /// Polls without finding work until the poller stops spinning, at most for `longest`.
        fn poll(&mut self, longest: Duration) -> Option<Rest> {
            let until = self.now + longest;
            while self.now < until {
                match self.empty_round(false) {
                    Rest::Spin => self.run(POLL),
                    other => return Some(other),
                }
            }
            None
        }

        /// Waits for an event, polling as long as the poller does. Returns true if it slept.
        fn gap(&mut self, length: Duration) -> bool {
            let until = self.now + length;
            let mut slept = false;
            while self.now < until && !slept {
                match self.empty_round(false) {
                    Rest::Sleep => slept = true,
                    Rest::Spin | Rest::Yield => self.run(POLL),
                }
            }
            self.now = until;
            self.event();
            slept
        }

        /// Polls until the core counts as the poller's own.
        fn alone() -> Self {
            let mut run = Self::new();
            while !matches!(run.idle.core.state, Sharing::Alone(_)) {
                run.gap(Duration::from_micros(100));
            }
            run
        }
    }

    #[test]
    fn poller_with_short_gaps_polls_until_first_long_gap() {
        let mut run = Run::new();
        assert!((0..100).all(|_| !run.gap(Duration::from_micros(300))));
        let begin = run.now;
        while run.poll(POLL_FOR * 2) == Some(Rest::Yield) {}
        assert_eq!(run.now - begin, POLL_FOR);
    }

    #[test]
    fn poller_with_long_gaps_sleeps_at_once() {
        let mut run = Run::new();
        for _ in 0..10 {
            run.gap(Duration::from_millis(10));
        }
        assert_eq!(run.empty_round(false), Rest::Sleep);
        run.now += Duration::from_millis(10);
        run.event();
        for _ in 0..10 {
            run.gap(Duration::from_micros(50));
        }
        assert!(!run.gap(Duration::from_micros(50)), "it polls again when gaps are short");
    }

    #[test]
    fn poller_sleeps_before_calls_and_polls_for_answers() {
        let mut run = Run::new();
        let mut call = || {
            let slept = [run.gap(Duration::from_millis(10)), run.gap(Duration::from_micros(50))];
            let begin = run.now;
            let rest = run.poll(POLL_FOR);
            (slept, rest, run.now - begin)
        };
        for _ in 0..10 {
            call();
        }
        for _ in 0..10 {
            assert_eq!(call(), ([true, false], Some(Rest::Sleep), Duration::ZERO));
        }
    }

    #[test]
    fn poller_yields_only_on_its_own_core() {
        let mut run = Run::new();
        run.gap(Duration::from_micros(50));
        assert_eq!(run.poll(POLL_FOR / 2), None, "nothing is known of the core");
        let mut run = Run::alone();
        assert_eq!(run.poll(POLL_FOR), Some(Rest::Yield));
        let begin = run.now;
        run.run(POLL);
        assert_eq!(run.poll(POLL_FOR), Some(Rest::Yield));
        assert!(run.now - begin >= TIME_BEFORE_YIELD, "each after twice the time");
    }

    #[test]
    fn poller_yields_after_each_empty_round_while_yields_are_used() {
        let mut run = Run::alone();
        for _ in 0..2 {
            assert_eq!(run.poll(POLL_FOR), Some(Rest::Yield));
            run.now += YIELD_USED;
        }
        assert_eq!(run.empty_round(false), Rest::Yield);
        run.run(POLL);
        assert_eq!(run.empty_round(false), Rest::Spin, "no thread was ready");
    }

    #[test]
    fn poller_on_taken_core_sleeps_and_retries_at_growing_intervals() {
        let mut run = Run::alone();
        run.empty_round(false);
        run.now += Duration::from_millis(4);
        assert_eq!(run.empty_round(true), Rest::Sleep, "even during a transfer");
        run.event();
        for retry in [FIRST_RETRY, 2 * FIRST_RETRY] {
            let taken = run.now;
            while run.gap(Duration::from_micros(50)) {
                run.idle.gaps = Gaps::default();
            }
            assert!(run.now - taken >= retry);
            let begin = run.now;
            assert_eq!(run.poll(POLL_FOR), Some(Rest::Sleep));
            assert_eq!(run.now - begin, CAUTIOUS_POLL);
            run.event();
            run.empty_round(false);
            run.now += TAKEN;
            assert_eq!(run.empty_round(false), Rest::Sleep);
            assert_eq!(run.idle.core.retry, 4 * retry, "each after twice the time");
            run.event();
        }
    }

    #[test]
    fn retry_interval_is_reset_only_after_cheap_yields() {
        let mut run = Run::alone();
        for (more, retry) in [(0, 2), (20, 4), (0, 2)] {
            run.empty_round(false);
            run.now += TAKEN;
            assert_eq!(run.empty_round(false), Rest::Sleep);
            assert_eq!(run.idle.core.retry, retry * FIRST_RETRY);
            run.now += run.idle.core.retry;
            run.event();
            run.idle.gaps = Gaps::default();
            while !matches!(run.idle.core.state, Sharing::Alone(_)) {
                run.gap(CAUTIOUS_POLL / 2);
            }
            let until = run.now + Duration::from_millis(more);
            while run.now < until {
                run.gap(CAUTIOUS_POLL / 2);
            }
        }
    }

    #[test]
    fn core_taken_from_round_with_work_is_shared_and_long_handler_takes_none() {
        let mut run = Run::alone();
        run.run(Duration::from_millis(4));
        run.event();
        assert!(matches!(run.idle.core.state, Sharing::Alone(_)));
        run.run(POLL);
        run.now += Duration::from_millis(4);
        run.event();
        assert_eq!(run.empty_round(false), Rest::Sleep);
    }

    #[test]
    fn short_waits_of_shared_program_do_not_take_core() {
        let mut run = Run::alone();
        for _ in 0..10_000 {
            run.run(Duration::from_micros(10));
            run.now += Duration::from_micros(20);
            run.event();
        }
        assert!(matches!(run.idle.core.state, Sharing::Alone(_)));
    }

    #[test]
    fn poller_waits_limited_time_for_transfer() {
        let mut run = Run::alone();
        let begin = run.now;
        let mut rest = Rest::Spin;
        while rest != Rest::Sleep {
            rest = run.empty_round(true);
            run.run(POLL);
        }
        assert_eq!(run.now - begin, TRANSFER_PATIENCE + POLL);
    }

    #[test]
    fn sleep_does_not_count_as_taken_core() {
        let mut run = Run::alone();
        for _ in 0..20 {
            run.gap(Duration::from_millis(5));
        }
        assert!(matches!(run.idle.core.state, Sharing::Alone(_)));
    }
}
