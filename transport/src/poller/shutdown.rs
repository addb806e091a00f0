//! Progress of a shutdown, with the events that a poller awaits before it ends.
//!
//! The driver may send until the CM machine has closed the sessions, also to new peers, because work that was open
//! when the shutdown began may depend on these messages.
#![forbid(unsafe_code)]

use super::Transport;
use crate::{PeerKey, SessionNumber};
use std::collections::BTreeSet;
use std::time::Duration;
use trunkline_machine::mutant;
use trunkline_verbs::Time;

/// Time for which the last messages may be in flight after the grace period.
const LINGER: Duration = Duration::from_millis(20);

/// Time for which the driver's last messages may be in flight after all other messages were delivered.
const LAST_MESSAGES: Duration = Duration::from_secs(1);

/// State of a poller's shutdown, which only moves forward.
#[derive(Debug, Default)]
pub(super) struct Shutdown {
    /// Time at which the poller stops waiting for work in progress; `None` before a shutdown.
    deadline: Option<Time>,
    /// True if the driver was notified of the shutdown.
    told: bool,
    /// True if the driver was notified that the grace period is over.
    cut: bool,
    /// True if the driver is idle.
    idle: bool,
    /// Sessions, by peer and number, whose complete delivery was reported to the driver.
    told_sessions: BTreeSet<(PeerKey, u32)>,
    /// Time of the last search for quiet sessions, in milliseconds.
    looked_ms: u64,
    /// Time at which the poller first became quiet with an idle driver.
    settled: Option<Time>,
    /// True if the CM machine was notified that the poller has drained.
    drained: bool,
    /// True if the CM machine has closed all sessions.
    ended: bool,
}

impl Shutdown {
    /// Begins the shutdown. The earliest deadline applies.
    pub(super) fn begin(&mut self, deadline: Time) {
        // Do not shorten the time for the last messages once the grace period is over.
        if !self.cut {
            self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.deadline.is_some()
    }

    /// Returns true, once, if the driver must be notified of the shutdown now.
    pub(super) fn must_tell(&mut self) -> bool {
        self.has_begun() && !std::mem::replace(&mut self.told, true)
    }

    /// Returns true if the driver must now be notified that the grace period is over.
    pub(super) fn is_grace_over(&self, now: Time) -> bool {
        self.told && !self.cut && !self.drained && self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Records that the driver was notified of the end of the grace period. If `lingers` is true, the last
    /// messages may still be sent.
    pub(super) fn cut(&mut self, lingers: bool) {
        self.cut = true;
        self.deadline = self.deadline.map(|deadline| if lingers { deadline + LINGER } else { deadline });
    }

    /// Records whether the driver is idle.
    pub(super) fn driver_is(&mut self, idle: bool) {
        self.idle = idle;
    }

    /// Returns true if the poller should now search for sessions that may settle. The search is slow while handlers
    /// run, so it is then made once per millisecond.
    pub(super) fn looks_for_settled(&mut self, now_ms: u64) -> bool {
        let looks = self.told && (self.idle || now_ms > self.looked_ms);
        if looks {
            self.looked_ms = now_ms;
        }
        looks
    }

    /// Returns true if the complete delivery in the session has not been reported to the driver.
    pub(super) fn is_untold(&self, session: (PeerKey, u32)) -> bool {
        !self.told_sessions.contains(&session)
    }

    /// Records that the complete delivery in a session was reported to the driver.
    pub(super) fn tell_session(&mut self, session: (PeerKey, u32)) {
        self.told_sessions.insert(session);
    }

    /// Records the time if the poller is quiet and the driver is idle.
    pub(super) fn settle(&mut self, quiet: bool, now: Time) {
        let is_idle = self.idle || mutant!(shutdown_does_not_wait_for_handlers);
        if self.told && quiet && is_idle {
            self.settled.get_or_insert(now);
        }
    }

    /// Returns true, once, if the CM machine must be notified that the poller has drained or that the grace
    /// period is over.
    pub(super) fn must_report(&mut self, quiet: bool, now: Time) -> bool {
        let Some(deadline) = self.deadline.filter(|_| self.told && !self.drained) else { return false };
        let is_over = self.settled.is_some_and(|settled| quiet || now >= settled + LAST_MESSAGES);
        self.drained = is_over || self.cut && now >= deadline;
        self.drained
    }

    /// Records that all sessions are closed, possibly before the command to shut down.
    pub(super) fn end(&mut self, now: Time) {
        self.deadline.get_or_insert(now);
        self.ended = true;
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }
}

impl Transport {
    /// Returns true once the node shuts down. In every round, the driver then calls the functions below, in their
    /// order, between [`Transport::flush_round`] and [`Transport::end_turn`].
    #[inline]
    #[must_use]
    pub fn is_shutting_down(&self) -> bool {
        self.shutdown.has_begun()
    }

    /// Returns true, once, when the shutdown begins and open work should end. Messages may still be sent, also to new
    /// peers, until the sessions are closed. The sessions are closed when the drivers of all pollers are drained or the
    /// grace period is over.
    pub fn begins_shutdown(&mut self) -> bool {
        self.shutdown.must_tell()
    }

    /// Returns true, once, when the grace period is over. The driver ends the work that peers can still be notified of.
    #[must_use]
    pub fn is_grace_over(&self) -> bool {
        self.shutdown.is_grace_over(self.res.time.now())
    }

    /// Records that the driver has ended its work. If `has_told` is true, final messages to peers may still
    /// be sent.
    pub fn cut(&mut self, has_told: bool) {
        self.shutdown.cut(has_told);
    }

    /// Records whether the driver is idle, and returns the sessions without work in flight. During its grace period, a
    /// node waits until its drivers are idle and its sessions have finished their work. A stalled peer does not delay
    /// other peers.
    pub fn settling(&mut self, is_drained: bool) -> Vec<(PeerKey, SessionNumber)> {
        self.shutdown.driver_is(is_drained);
        let (quiet, now) = (self.is_quiet(), self.res.time.now());
        self.shutdown.settle(quiet, now);
        if !self.res.events.is_empty() || !self.shutdown.looks_for_settled(self.res.time.now_ms()) {
            return Vec::new();
        }
        let quiet = self.trunks.quiet_sessions().into_iter();
        let untold = quiet.filter(|session| self.shutdown.is_untold(*session));
        untold.map(|(peer, number)| (peer, SessionNumber(number))).collect()
    }

    /// Records that the driver has no open work for the peer of a quiet session. Returns true if everything sent to
    /// the peer was delivered, and false if the session lost a message whose outcome is not reported. Sessions are
    /// closed once later messages are also delivered, or a second after all peers have settled.
    pub fn settle(&mut self, peer: PeerKey, session: SessionNumber) -> bool {
        self.shutdown.tell_session((peer, session.0));
        !self.res.events.has_lost(peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Time {
        Time::default() + Duration::from_secs(seconds)
    }

    #[test]
    fn earliest_deadline_applies_until_grace_period_is_over() {
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
