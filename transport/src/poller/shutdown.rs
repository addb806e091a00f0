//! Progress of a shutdown: what a poller still waits for before it reports and ends.
//!
//! The upper half may send until the CM machine has closed the sessions, also to new peers: work that was
//! open when the shutdown began may depend on it.
#![forbid(unsafe_code)]

use crate::PeerKey;
use std::collections::BTreeSet;
use std::time::Duration;
use trunkline_machine::mutant;
use trunkline_verbs::Time;

/// Time for which the last messages may be in flight after the grace period.
const LINGER: Duration = Duration::from_millis(20);

/// Time for which the upper half's last messages may be in flight after all others were delivered.
const LAST_MESSAGES: Duration = Duration::from_secs(1);

/// State of a poller's shutdown. No step of it is undone.
#[derive(Debug, Default)]
pub(super) struct Shutdown {
    /// Time at which the poller stops waiting for work in progress; `None` before a shutdown.
    deadline: Option<Time>,
    /// True if the upper half was notified of the shutdown.
    told: bool,
    /// True if the upper half was notified that the grace period is over.
    cut: bool,
    /// True if the upper half has nothing open.
    idle: bool,
    /// Sessions, by peer and number, whose complete delivery was reported to the upper half.
    told_sessions: BTreeSet<(PeerKey, u32)>,
    /// Time of the last search for such sessions, in milliseconds.
    looked_ms: u64,
    /// Time at which nothing was open or in flight for the first time.
    settled: Option<Time>,
    /// True if the CM machine was notified that nothing is in flight.
    drained: bool,
    /// True if the CM machine has closed all sessions.
    ended: bool,
}

impl Shutdown {
    /// Begins the shutdown. The earliest deadline counts.
    pub(super) fn begin(&mut self, deadline: Time) {
        // Once the grace period is over, the last messages keep their time.
        if !self.cut {
            self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.deadline.is_some()
    }

    /// Returns true if the upper half must be notified now; `true` once.
    pub(super) fn must_tell(&mut self) -> bool {
        self.has_begun() && !std::mem::replace(&mut self.told, true)
    }

    /// Returns true if the upper half must now be notified that the grace period is over.
    pub(super) fn is_grace_over(&self, now: Time) -> bool {
        self.told && !self.cut && !self.drained && self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Records that notification. If `lingers` is true, the last messages may still leave.
    pub(super) fn cut(&mut self, lingers: bool) {
        self.cut = true;
        self.deadline = self.deadline.map(|deadline| if lingers { deadline + LINGER } else { deadline });
    }

    /// Records whether the upper half is idle: nothing is open any more.
    pub(super) fn upper_is(&mut self, idle: bool) {
        self.idle = idle;
    }

    /// Returns true if sessions may settle now. Finding them is slow while handlers run, so it is tried once
    /// per millisecond then.
    pub(super) fn looks_for_settled(&mut self, now_ms: u64) -> bool {
        let looks = self.told && (self.idle || now_ms > self.looked_ms);
        if looks {
            self.looked_ms = now_ms;
        }
        looks
    }

    /// Returns true if delivery in the session was not yet reported to the upper half.
    pub(super) fn is_untold(&self, session: (PeerKey, u32)) -> bool {
        !self.told_sessions.contains(&session)
    }

    /// Records that delivery in a session was reported to the upper half.
    pub(super) fn tell_session(&mut self, session: (PeerKey, u32)) {
        self.told_sessions.insert(session);
    }

    /// Records the time if nothing is open or in flight any more.
    pub(super) fn settle(&mut self, quiet: bool, now: Time) {
        let is_idle = self.idle || mutant!(shutdown_does_not_wait_for_handlers);
        if self.told && quiet && is_idle {
            self.settled.get_or_insert(now);
        }
    }

    /// Returns true if the CM machine must be notified now that nothing is in flight, or that time is up;
    /// `true` once.
    pub(super) fn must_report(&mut self, quiet: bool, now: Time) -> bool {
        let Some(deadline) = self.deadline.filter(|_| self.told && !self.drained) else { return false };
        let is_over = self.settled.is_some_and(|settled| quiet || now >= settled + LAST_MESSAGES);
        self.drained = is_over || self.cut && now >= deadline;
        self.drained
    }

    /// Records that all sessions were closed. This may come before the command to shut down.
    pub(super) fn end(&mut self, now: Time) {
        self.deadline.get_or_insert(now);
        self.ended = true;
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Time {
        Time::default() + Duration::from_secs(seconds)
    }

    #[test]
    fn earliest_deadline_counts_until_the_grace_period_is_over() {
        let mut shutdown = Shutdown::default();
        for deadline in [10, 5, 7] {
            shutdown.begin(seconds(deadline));
        }
        assert!(
            shutdown.must_tell() && !shutdown.is_grace_over(seconds(4)) && shutdown.is_grace_over(seconds(5))
        );
        shutdown.cut(true);
        shutdown.begin(seconds(1));
        assert!(!shutdown.must_report(false, seconds(5)), "the last messages are in flight");
        assert!(shutdown.must_report(false, seconds(5) + LINGER));
    }
}
