//! Progress of a shutdown: what a poller still waits for before it reports and ends.
//!
//! Until the CM machine has closed the sessions the upper half may send, also to new peers: what it has open at the
//! beginning may need them to end.
#![forbid(unsafe_code)]

use crate::PeerKey;
use std::collections::BTreeSet;
use std::time::Duration;
use trunkline_mutants::mutant;
use trunkline_verbs::Time;

/// Time for which the last messages may be under way when the grace period is over.
const LINGER: Duration = Duration::from_millis(20);

/// Time for which the upper half's last messages may be under way after all others were delivered.
const LAST_MESSAGES: Duration = Duration::from_secs(1);

/// The state of a poller's end. Nothing of it goes back.
#[derive(Debug, Default)]
pub(super) struct Shutdown {
    /// When it stops waiting for what is under way; `None` before it was asked to shut down.
    deadline: Option<Time>,
    /// The upper half was notified.
    told: bool,
    /// The upper half was notified that the grace period is over.
    cut: bool,
    /// It has nothing open any more.
    idle: bool,
    /// The sessions, by peer and number, of which the upper half was notified that all that it has sent was delivered.
    told_sessions: BTreeSet<(PeerKey, u32)>,
    /// When it looked for further ones, in milliseconds.
    looked_ms: u64,
    /// When nothing was open or under way for the first time.
    settled: Option<Time>,
    /// The CM machine was notified that nothing is under way any more.
    drained: bool,
    /// The CM machine has closed all sessions.
    ended: bool,
}

impl Shutdown {
    /// The node shuts down. Only the first deadline counts.
    pub(super) fn begin(&mut self, deadline: Time) {
        self.deadline.get_or_insert(deadline);
    }

    pub(super) fn has_begun(&self) -> bool {
        self.deadline.is_some()
    }

    /// Returns true if the upper half must be notified now; `true` once.
    pub(super) fn must_tell(&mut self) -> bool {
        self.has_begun() && !std::mem::replace(&mut self.told, true)
    }

    /// Returns true if the upper half must be notified now that the grace period is over.
    pub(super) fn is_grace_over(&self, now: Time) -> bool {
        self.told && !self.cut && !self.drained && self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// The upper half was notified of that. Its last messages may leave if it `lingers`.
    pub(super) fn cut(&mut self, lingers: bool) {
        self.cut = true;
        self.deadline = self.deadline.map(|deadline| if lingers { deadline + LINGER } else { deadline });
    }

    /// If `idle` is true, the upper half has nothing open any more.
    pub(super) fn upper_is(&mut self, idle: bool) {
        self.idle = idle;
    }

    /// Returns true if sessions may settle now. Which do is a long question while handlers run, and is asked once in a
    /// millisecond then.
    pub(super) fn looks_for_settled(&mut self, now_ms: u64) -> bool {
        let looks = self.told && (self.idle || now_ms > self.looked_ms);
        if looks {
            self.looked_ms = now_ms;
        }
        looks
    }

    /// Returns true if the upper half has not been notified of a session.
    pub(super) fn is_untold(&self, session: (PeerKey, u32)) -> bool {
        !self.told_sessions.contains(&session)
    }

    /// The upper half is notified that all that it has sent in a session was delivered.
    pub(super) fn tell_session(&mut self, session: (PeerKey, u32)) {
        self.told_sessions.insert(session);
    }

    /// Records the time if nothing is open or under way any more.
    pub(super) fn settle(&mut self, quiet: bool, now: Time) {
        let is_idle = self.idle || mutant!(shutdown_does_not_wait_for_handlers);
        if self.told && quiet && is_idle {
            self.settled.get_or_insert(now);
        }
    }

    /// Returns true if the CM machine must be notified now that nothing is under way, or that time is up; `true` once.
    pub(super) fn must_report(&mut self, quiet: bool, now: Time) -> bool {
        let Some(deadline) = self.deadline.filter(|_| self.told && !self.drained) else { return false };
        let is_over = self.settled.is_some_and(|settled| quiet || now >= settled + LAST_MESSAGES);
        self.drained = is_over || self.cut && now >= deadline;
        self.drained
    }

    /// All sessions were closed. This may overtake the command to shut down.
    pub(super) fn end(&mut self, now: Time) {
        self.begin(now);
        self.ended = true;
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }
}
