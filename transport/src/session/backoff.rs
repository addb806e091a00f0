//! Pauses between attempts to connect to a peer, and the failure reported to callers that do not wait.
//!
//! Owned by the peer's connection machine. It counts consecutive failures, by kind:
//!
//! | end | pause before the next attempt |
//! |---|---|
//! | an attempt that the peer's host or this host refused | 10 ms, doubling to 1.3 s |
//! | an unanswered attempt, which takes seconds | 1 s, doubling to 8 s |
//! | a session that was up for less than [`STABLE`] | 10 ms, doubling to 1.3 s |
//! | a session that was up for longer | none |
//! | an attempt that failed on this node, before it reached the peer | none |
//!
//! While a caller waits through the pauses, the next attempt begins early, so that a request is sent at least once a
//! second. It begins 750 ms after a refusal, or 300 ms after an unanswered attempt, whose last request was sent 600 ms
//! before its end. [`Pace`] limits the rate of such attempts by a node.
//!
//! Each pause is lengthened by up to a quarter, by an amount that differs between nodes and attempts. An established
//! session resets the count of failed attempts.
#![forbid(unsafe_code)]

use crate::PeerDown;
use std::collections::VecDeque;
use std::time::Duration;
use trunkline_machine::mutant;
use trunkline_verbs::Time;

/// First pause after a refused attempt, and the number of times that it doubles.
const REFUSED_FIRST: Duration = Duration::from_millis(10);
const REFUSED_DOUBLINGS: u32 = 7;
/// First pause after an unanswered attempt, and the number of times that it doubles. Pauses are longer because
/// callers wait for every attempt in progress, and an unanswered attempt takes seconds.
const UNANSWERED_FIRST: Duration = Duration::from_secs(1);
const UNANSWERED_DOUBLINGS: u32 = 3;
/// Longest pauses while a caller waits.
const REFUSED_WAITED: Duration = Duration::from_millis(750);
const UNANSWERED_WAITED: Duration = Duration::from_millis(300);
/// Maximum number of early attempts per second that a node begins.
const EARLY_PER_SECOND: usize = 64;
/// Minimum time for which a session was up if its end is not followed by a pause.
const STABLE: Duration = Duration::from_secs(1);
/// Number of consecutive transient failures that are not reported.
pub(super) const SILENT_FAILURES: u32 = 8;

/// Count of failures, and the resulting pause; see the module.
#[derive(Debug)]
pub(super) struct Backoff {
    /// Random number for this node and the peer.
    seed: u64,
    /// Number of consecutive failed attempts, and how many of the latest were unanswered.
    failures: u32,
    unanswered: u32,
    /// Number of consecutive sessions that were up only for a short time.
    short_lived: u32,
    not_before: Option<Time>,
    /// Earliest time of the next attempt while a caller waits.
    early: Option<Time>,
    /// Cause of the last failure; `None` if it is not reported.
    away: Option<PeerDown>,
}

impl Backoff {
    /// Creates the state without failures. `seed` is a random number for this node and the peer.
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, failures: 0, unanswered: 0, short_lived: 0, not_before: None, early: None, away: None }
    }

    /// Returns the time at which the next attempt may begin; `None` if it may begin now.
    pub(super) fn not_before(&self, now: Time) -> Option<Time> {
        self.not_before.filter(|until| *until > now)
    }

    /// Returns the time at which the next attempt may begin if a caller waits.
    pub(super) fn early(&self, now: Time) -> Time {
        self.early.map_or(now, |early| early.max(now))
    }

    /// Returns the cause of the last failure and the earliest time of the next attempt, if that is in the
    /// future.
    pub(super) fn away(&self, now: Time) -> Option<(PeerDown, Time)> {
        self.away.zip(self.not_before(now))
    }

    /// Replaces the cause of the last failure with a more specific one.
    pub(super) fn explain(&mut self, cause: PeerDown) {
        self.away = self.away.map(|_| cause);
    }

    /// Records that a session is up.
    pub(super) fn succeeded(&mut self) {
        (self.failures, self.unanswered, self.away) = (0, 0, None);
        (self.not_before, self.early) = (None, None);
    }

    /// Clears all failures, if the peer did not cause them.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.seed);
    }

    /// Records the end of an established session.
    pub(super) fn ended(&mut self, now: Time, up_since: Time) {
        let stable = now.saturating_duration_since(up_since) >= STABLE;
        self.short_lived = if stable { 0 } else { self.short_lived.saturating_add(1) };
        let pause = pause(REFUSED_FIRST, REFUSED_DOUBLINGS, self.short_lived);
        self.not_before = Some(now + self.with_jitter(pause, self.short_lived));
        self.early = Some(now + self.with_jitter(pause.min(REFUSED_WAITED), self.short_lived));
    }

    /// Records a failed attempt. Returns true if it is not reported, because it is `transient` and the next attempt
    /// is expected to succeed.
    pub(super) fn failed(&mut self, now: Time, cause: PeerDown, transient: bool) -> bool {
        if cause.is_of_this_node() {
            self.reset();
            return false;
        }
        self.failures = self.failures.saturating_add(1);
        let row = self.failures.max(self.short_lived);
        let refused = pause(REFUSED_FIRST, REFUSED_DOUBLINGS, row);
        let (pause, waited) = if matches!(
            cause,
            PeerDown::Unreachable | PeerDown::NoFurtherAnswer | PeerDown::NoConnectionBack
        ) {
            self.unanswered = self.unanswered.saturating_add(1);
            (pause(UNANSWERED_FIRST, UNANSWERED_DOUBLINGS, self.unanswered), UNANSWERED_WAITED)
        } else {
            self.unanswered = 0;
            (refused, REFUSED_WAITED)
        };
        let endless = mutant!(next_attempt_is_never_due).then_some(Duration::from_secs(3600));
        self.not_before = Some(now + endless.unwrap_or_else(|| self.with_jitter(pause, row)));
        self.early = Some(now + endless.unwrap_or_else(|| self.with_jitter(pause.min(waited), row)));
        let silent = transient && self.failures < SILENT_FAILURES;
        self.away = Some(cause).filter(|_| !silent);
        silent
    }

    /// Adds jitter, so that two nodes that failed at the same time do not collide again.
    fn with_jitter(&self, pause: Duration, row: u32) -> Duration {
        let part = u32::try_from(self.seed.rotate_left(row) % 256).unwrap_or(0);
        pause + pause * part / 1024
    }
}

/// Rate limit on a node's early attempts.
#[derive(Debug, Default)]
pub(super) struct Pace(VecDeque<Time>);

impl Pace {
    /// Returns the time of the next early attempt, and reserves it. Later calls get the same time or a later one.
    pub(super) fn reserve(&mut self, now: Time) -> Time {
        let earlier = if self.0.len() < EARLY_PER_SECOND { None } else { self.0.pop_front() };
        let at = earlier.map_or(now, |earlier| now.max(earlier + Duration::from_secs(1)));
        self.0.push_back(at);
        at
    }
}

/// Returns the pause after a number of consecutive failures of a kind.
fn pause(first: Duration, doublings: u32, row: u32) -> Duration {
    match row.checked_sub(1) {
        Some(earlier) => first * (1 << earlier.min(doublings)),
        None => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time(1_000_000);

    /// Returns the pauses after `count` attempts that fail with `cause`, each at the end of the previous
    /// pause.
    fn pauses(backoff: &mut Backoff, cause: PeerDown, count: usize) -> Vec<Duration> {
        let mut now = START;
        let mut all = Vec::new();
        for _ in 0..count {
            assert!(!backoff.failed(now, cause, false));
            let (why, until) = backoff.away(now).expect("it is away");
            assert_eq!(why, cause);
            all.push(until - now);
            now = until;
            assert_eq!(backoff.away(now), None, "the next attempt is due");
        }
        all
    }

    fn within(pause: Duration, least_ms: u64) -> bool {
        let least = Duration::from_millis(least_ms);
        (least..=least + least / 4).contains(&pause)
    }

    #[test]
    fn pauses_double_to_limit_and_are_longer_without_answer() {
        for seed in [0, 0x1234_5678_9abc_def0, u64::MAX] {
            let refused = pauses(&mut Backoff::new(seed), PeerDown::NotListening, 10);
            let expected = [10, 20, 40, 80, 160, 320, 640, 1280, 1280, 1280];
            assert!(refused.iter().zip(expected).all(|(pause, ms)| within(*pause, ms)), "{refused:?}");
            let mut backoff = Backoff::new(seed);
            let unanswered = pauses(&mut backoff, PeerDown::Unreachable, 6);
            let expected = [1000, 2000, 4000, 8000, 8000, 8000];
            assert!(unanswered.iter().zip(expected).all(|(pause, ms)| within(*pause, ms)), "{unanswered:?}");
            // The host is back before its program, and then fails again.
            let refused = pauses(&mut backoff, PeerDown::NotListening, 1);
            assert!(within(refused[0], 640), "{refused:?}");
            let unanswered = pauses(&mut backoff, PeerDown::Unreachable, 1);
            assert!(within(unanswered[0], 1000), "{unanswered:?}");
        }
    }

    #[test]
    fn waiting_caller_has_attempt_each_second() {
        // Time between the last request of an attempt that fails and its end.
        let causes = [(PeerDown::NotListening, 0), (PeerDown::Unreachable, 600)];
        for (cause, request_ms) in causes {
            let (mut backoff, mut now) = (Backoff::new(u64::MAX), START);
            for _ in 0..20 {
                backoff.failed(now, cause, false);
                let next = backoff.early(now);
                let apart = next - now + Duration::from_millis(request_ms);
                assert!(apart <= Duration::from_secs(1), "{cause}: {apart:?}");
                now = next;
            }
            let whole = backoff.not_before(now).expect("the whole pause is longer");
            assert!(whole - now > Duration::from_millis(400), "{cause}");
        }
        let mut backoff = Backoff::new(u64::MAX);
        for _ in 0..20 {
            backoff.succeeded();
            backoff.ended(START, START);
        }
        assert!(backoff.early(START) - START <= Duration::from_secs(1), "sessions that end at once");
        assert!(backoff.not_before(START) > Some(START + Duration::from_secs(1)));
    }

    #[test]
    fn node_makes_at_most_64_early_attempts_per_second() {
        let mut pace = Pace::default();
        let mut now = START;
        let mut all = Vec::new();
        for step in 0..1000 {
            all.push(pace.reserve(now));
            now += Duration::from_millis(step % 7);
        }
        assert_eq!(all[..64].iter().filter(|at| **at < START + Duration::from_secs(1)).count(), 64);
        assert!(all.windows(2).all(|pair| pair[0] <= pair[1]), "the first to ask is the first to dial");
        assert!(all.windows(65).all(|some| some[64] - some[0] >= Duration::from_secs(1)));
    }

    #[test]
    fn retry_pauses_of_nodes_with_different_seeds_differ() {
        let pause = |seed| pauses(&mut Backoff::new(seed), PeerDown::Unreachable, 1);
        assert_ne!(pause(1), pause(2));
    }

    #[test]
    fn established_session_resets_backoff() {
        let mut backoff = Backoff::new(7);
        pauses(&mut backoff, PeerDown::Unreachable, 5);
        backoff.failed(START, PeerDown::Unreachable, false);
        backoff.succeeded();
        assert_eq!((backoff.not_before(START), backoff.away(START)), (None, None));
        // After a short session there is a pause, but callers do not get the cause of an absent peer.
        let now = START + Duration::from_millis(300);
        backoff.ended(now, START);
        assert!(within(backoff.not_before(now).expect("a pause") - now, 10));
        assert_eq!(backoff.away(now), None);
        assert!(
            backoff.failed(now, PeerDown::Refused("stale"), true),
            "the first transient failure of a row"
        );
        backoff.succeeded();
        backoff.ended(now + STABLE, now);
        assert_eq!(backoff.not_before(now + STABLE), None, "it was up for long enough");
    }

    #[test]
    fn first_transient_failures_are_not_reported() {
        let mut backoff = Backoff::new(7);
        for _ in 1..SILENT_FAILURES {
            assert!(backoff.failed(START, PeerDown::Refused("stale"), true));
            assert_eq!(backoff.away(START), None, "callers wait");
        }
        assert!(!backoff.failed(START, PeerDown::Refused("stale"), true));
        assert!(backoff.away(START).is_some());
    }

    #[test]
    fn permanent_failures_have_no_pause() {
        let mut backoff = Backoff::new(7);
        let cause = PeerDown::NoAddress { listens_on: ([127, 0, 0, 1], 7471).into() };
        assert!(!backoff.failed(START, cause, false));
        assert_eq!(backoff.not_before(START), None);
    }
}
