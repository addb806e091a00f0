//! Detects stops of the process. Peers close their sessions during a stop, which afterwards looks as if the peers had
//! ended. Only the process itself can detect a stop, so its machines compare each wake-up time with the requested
//! time.
//!
//! A machine that sleeps runs no code of the program, so a busy handler does not count.
#![forbid(unsafe_code)]

use crate::PeerDown;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use trunkline_verbs::Time;

/// Delay of a wake-up that always counts as a stop. A shorter delay counts if it is at least `session_loss_time`.
const LEAST: Duration = Duration::from_secs(2);
/// Time after a stop in which the ends of sessions are ascribed to it. A device detects a silent peer within 1.3 s.
const LASTS: Duration = Duration::from_secs(3);

/// The latest stop of the process.
#[derive(Debug)]
pub(crate) struct Stops {
    latest: Mutex<Option<Stop>>,
    /// Shortest delay that counts.
    least: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Stop {
    ended: Time,
    delay: Duration,
}

impl Stops {
    /// Creates the record of a node whose sessions end after `session_loss_time` of silence.
    pub(crate) fn new(session_loss_time: Duration) -> Self {
        Self { latest: Mutex::default(), least: session_loss_time.min(LEAST) }
    }

    /// Records a wake-up at `now` of a machine whose sleep was to end at `until` at the latest.
    pub(crate) fn woke(&self, until: Time, now: Time) {
        let delay = now.saturating_duration_since(until);
        if delay >= self.least {
            *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(Stop { ended: now, delay });
        }
    }

    /// Returns the cause of the end of a session that began at `began`. This is the latest stop of the process if the
    /// stop came after `began`, ended less than [`LASTS`] ago and explains `cause`. Otherwise it is `cause`.
    pub(crate) fn explain(&self, cause: PeerDown, began: Time, now: Time) -> PeerDown {
        let may_be_ours = matches!(
            cause,
            PeerDown::Closed
                | PeerDown::ClosedFor(_)
                | PeerDown::Died
                | PeerDown::Replaced
                | PeerDown::AccessRefused
        );
        if !may_be_ours {
            return cause;
        }
        let stop = *self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        stop.filter(|stop| {
            now.saturating_duration_since(stop.ended) <= LASTS && began + stop.delay <= stop.ended
        })
        .map_or(cause, |stop| PeerDown::Stopped { seconds: stop.delay.as_secs().max(1) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_ending_after_process_stop_are_ascribed_to_stop() {
        let (stops, until) = (Stops::new(Duration::from_secs(60)), Time(0) + Duration::from_secs(100));
        stops.woke(until, until + Duration::from_millis(1999));
        let woken = until + Duration::from_secs(14);
        let explain = |cause, now| stops.explain(cause, Time(0), now);
        assert_eq!(explain(PeerDown::Closed, woken), PeerDown::Closed, "a late wake-up is no stop");
        stops.woke(until, woken);
        let stopped = PeerDown::Stopped { seconds: 14 };
        for cause in [PeerDown::Closed, PeerDown::Died, PeerDown::Replaced, PeerDown::AccessRefused] {
            assert_eq!(explain(cause, woken + Duration::from_secs(1)), stopped);
        }
        assert_eq!(
            stopped.to_string(),
            "the session ended because this node was stopped for 14 s, as by SIGSTOP or for lack of CPU time"
        );
        assert_eq!(explain(PeerDown::Leaving, woken), PeerDown::Leaving);
        let later = woken + Duration::from_secs(4);
        assert_eq!(explain(PeerDown::Closed, later), PeerDown::Closed);
    }

    #[test]
    fn session_begun_after_stop_is_not_ascribed_to_stop() {
        let (stops, until) = (Stops::new(Duration::from_secs(60)), Time(0) + Duration::from_secs(100));
        let woken = until + Duration::from_secs(161);
        stops.woke(until, woken);
        let ended = woken + Duration::from_millis(600);
        assert_eq!(stops.explain(PeerDown::Closed, woken, ended), PeerDown::Closed);
        assert_eq!(stops.explain(PeerDown::Closed, until, ended), PeerDown::Stopped { seconds: 161 });
    }

    #[test]
    fn stop_is_reported_if_at_least_session_loss_time() {
        let (loss_time, until) = (Duration::from_millis(500), Time(0) + Duration::from_secs(100));
        for (delay, cause) in
            [(Duration::from_millis(499), PeerDown::Closed), (loss_time, PeerDown::Stopped { seconds: 1 })]
        {
            let stops = Stops::new(loss_time);
            stops.woke(until, until + delay);
            assert_eq!(stops.explain(PeerDown::Closed, Time(0), until + delay), cause);
        }
    }
}
