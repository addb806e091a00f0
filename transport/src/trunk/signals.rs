//! Choice of the work requests that are signalled.
//!
//! A completion costs an acknowledgement and a CQ entry. Most frames do not need one, because the peer's reply or the
//! end of the session decides their outcome. A doorbell is therefore signalled only if its completion is awaited, or if
//! enough work or time has passed. After a pause, a keepalive follows unsignalled work, and its completion covers all
//! earlier work.
#![forbid(unsafe_code)]

use std::time::Duration;
use trunkline_verbs::Time;

/// Number of work requests after which a work request is signalled.
const UNSIGNALED: usize = 16;
/// Time after a signalled work request after which the next work request is signalled.
const INTERVAL: Duration = Duration::from_micros(200);
/// Time from the last unsignalled work request to the keepalive that follows it.
pub(crate) const PAUSE: Duration = Duration::from_micros(500);

/// Unsignalled work requests of an INI since the last signalled one.
#[derive(Debug, Default)]
pub(super) struct Signals {
    /// Number of work requests posted since the last signalled one.
    unsignaled: usize,
    /// Time of the last signalled work request.
    signaled: Time,
    /// Time of the last work request posted without a signal.
    posted: Time,
}

impl Signals {
    /// Records a doorbell of `count` work requests. Returns true if the last one must be signalled, which is always the
    /// case if `is_awaited`.
    #[inline]
    pub(super) fn post(&mut self, count: usize, is_awaited: bool, now: Time) -> bool {
        let is_signaled = is_awaited
            || self.unsignaled + count >= UNSIGNALED
            || now.saturating_duration_since(self.signaled) >= INTERVAL;
        if is_signaled {
            (self.unsignaled, self.signaled) = (0, now);
        } else {
            self.unsignaled += count;
            self.posted = now;
        }
        is_signaled
    }

    /// Returns the time at which a keepalive must follow the last work request; `None` if the request was
    /// signalled.
    #[inline]
    pub(super) fn due(&self) -> Option<Time> {
        (self.unsignaled > 0).then(|| self.posted + PAUSE)
    }

    /// Discards the counts of work requests that will not complete.
    pub(super) fn clear(&mut self) {
        self.unsignaled = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time(1_000_000_000);

    fn after_us(us: u64) -> Time {
        START + Duration::from_micros(us)
    }

    #[test]
    fn every_sixteenth_work_request_is_signaled() {
        let mut signals = Signals::default();
        assert!(signals.post(1, false, START), "the first one");
        let signaled = (1..=48).filter(|_| signals.post(1, false, START)).collect::<Vec<_>>();
        assert_eq!(signaled, [16, 32, 48]);
        assert!(!signals.post(10, false, START));
        assert!(signals.post(7, false, START), "of one doorbell, the last one");
        assert!(signals.post(16, false, START));
    }

    #[test]
    fn awaited_work_is_signaled_and_restarts_count() {
        let mut signals = Signals::default();
        signals.post(1, true, START);
        assert!(!signals.post(15, false, START));
        assert!(signals.post(1, true, START));
        assert_eq!(signals.due(), None);
        assert!(!signals.post(15, false, START));
    }

    #[test]
    fn work_at_low_rates_is_signaled() {
        let mut signals = Signals::default();
        for call in 0..10 {
            assert!(signals.post(1, false, after_us(200 * call)));
        }
        assert!(!signals.post(1, false, after_us(1999)));
        assert!(signals.post(1, false, after_us(2000)));
    }

    #[test]
    fn pause_after_work_without_signal_is_limited() {
        let mut signals = Signals::default();
        signals.post(1, false, START);
        assert_eq!(signals.due(), None);
        signals.post(1, false, after_us(30));
        signals.post(1, false, after_us(70));
        assert_eq!(signals.due(), Some(after_us(570)));
        signals.post(1, true, after_us(570));
        assert_eq!(signals.due(), None);
    }
}
