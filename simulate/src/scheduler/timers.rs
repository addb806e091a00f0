//! Timers of clients and handlers on the virtual clock, and the total delay of late bells.
//!
//! A sleeping task registers a waker. The scheduler fires each timer when its time has come.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use trunkline_verbs::{Time, VirtualClock};

#[derive(Debug, Default)]
struct Waiting {
    /// Wakers with their processes, by time and by number among all wakers for this time.
    wakers: BTreeMap<(Time, u64), (Option<u64>, Waker)>,
    next: u64,
}

/// All timers of a run. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Timers {
    /// Process whose handlers set timers through this handle; `None` for programs.
    process: Option<u64>,
    clock: Arc<VirtualClock>,
    waiting: Arc<Mutex<Waiting>>,
}

impl Timers {
    pub(crate) fn new(clock: &Arc<VirtualClock>) -> Self {
        Self { process: None, clock: Arc::clone(clock), waiting: Arc::default() }
    }

    /// Returns a handle to the same timers for the handlers in a process.
    pub(crate) fn of(&self, process: u64) -> Self {
        Self { process: Some(process), ..self.clone() }
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Keeps the running machine or client busy for the given time.
    pub(crate) fn block(&self, work: Duration) {
        self.clock.charge(work);
    }

    /// Returns a future that completes after the given time.
    pub(crate) fn sleep(&self, duration: Duration) -> Sleep {
        Sleep { timers: self.clone(), until: self.now() + duration, key: None }
    }

    pub(crate) fn next(&self) -> Option<Time> {
        self.lock().wakers.keys().next().map(|(until, _)| *until)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fires the earliest timer whose time has come, if any. Returns its process.
    pub(crate) fn fire_one(&self, now: Time) -> Option<u64> {
        let (process, waker) = {
            let mut waiting = self.lock();
            let first = waiting.wakers.first_entry().filter(|first| first.key().0 <= now)?;
            first.remove()
        };
        waker.wake();
        process
    }
}

#[derive(Debug)]
pub(crate) struct Sleep {
    timers: Timers,
    until: Time,
    key: Option<(Time, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.timers.now() >= self.until {
            return Poll::Ready(());
        }
        let key = match self.key {
            Some(key) => key,
            None => {
                let mut waiting = self.timers.lock();
                waiting.next += 1;
                (self.until, waiting.next)
            }
        };
        self.key = Some(key);
        let waker = (self.timers.process, context.waker().clone());
        self.timers.lock().wakers.insert(key, waker);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.timers.lock().wakers.remove(&key);
        }
    }
}

/// Total time during which threads with work are asleep because of a late bell.
///
/// A late bell can delay any call. A limit of a few round trips therefore excludes the part of the call during which a
/// bell was late. This part is the difference between [`LateRings::total_until`] at the end and at the start of the call.
#[derive(Debug, Default)]
pub(crate) struct LateRings {
    /// End of the last delay.
    end: Cell<Time>,
    /// Sum of all delays up to their ends. Overlapping delays count once.
    sum: Cell<Duration>,
}

impl LateRings {
    /// Adds a delay that starts now.
    pub(crate) fn add(&self, now: Time, end: Time) {
        let begin = self.end.get().max(now);
        self.sum.set(self.sum.get() + end.saturating_duration_since(begin));
        self.end.set(begin.max(end));
    }

    /// Returns the total time before `now` during which at least one bell was late.
    pub(crate) fn total_until(&self, now: Time) -> Duration {
        self.sum.get() - self.end.get().saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_delays_are_counted_once_up_to_now() {
        let (rings, until) =
            (LateRings::default(), |rings: &LateRings, now| rings.total_until(Time(now)).as_nanos());
        rings.add(Time(10), Time(40));
        assert_eq!(until(&rings, 20), 10);
        rings.add(Time(20), Time(30));
        rings.add(Time(35), Time(50));
        assert_eq!(until(&rings, 36), 26);
        assert_eq!(until(&rings, 60), 40);
        rings.add(Time(70), Time(80));
        assert_eq!(until(&rings, 75), 45);
        assert_eq!(until(&rings, 90), 50);
    }
}
