//! Timers of clients and handlers, by the virtual clock.
//!
//! A sleeper registers a waker here. The scheduler fires the timers that are due.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use trunkline_verbs::{Time, VirtualClock};

#[derive(Debug, Default)]
struct Waiting {
    wakers: BTreeMap<(Time, u64), Waker>,
    next: u64,
}

/// All timers of a run. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Timers {
    clock: Arc<VirtualClock>,
    waiting: Arc<Mutex<Waiting>>,
}

impl Timers {
    /// Creates a set without timers.
    pub(crate) fn new(clock: &Arc<VirtualClock>) -> Self {
        Self { clock: Arc::clone(clock), waiting: Arc::default() }
    }

    /// Returns the current time.
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Keeps the running machine or client busy for this time.
    pub(crate) fn block(&self, work: Duration) {
        self.clock.charge(work);
    }

    /// Returns a future that completes after this time.
    pub(crate) fn sleep(&self, duration: Duration) -> Sleep {
        Sleep { timers: self.clone(), until: self.now() + duration, key: None }
    }

    /// Returns the time of the next timer.
    pub(crate) fn next(&self) -> Option<Time> {
        self.lock().wakers.keys().next().map(|(until, _)| *until)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fires the oldest timer that is due, if one is.
    pub(crate) fn fire_one(&self, now: Time) -> bool {
        let waker = {
            let mut waiting = self.lock();
            match waiting.wakers.first_entry() {
                Some(first) if first.key().0 <= now => first.remove(),
                _ => return false,
            }
        };
        waker.wake();
        true
    }
}

/// A pause of a client or handler.
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
        self.timers.lock().wakers.insert(key, context.waker().clone());
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
