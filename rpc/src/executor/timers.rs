//! Timers for code on a poller or in the pool, implemented as a wheel of [`Deadlines`] with a waker for each timer.
//!
//! Each poller has its own timers, which usually only its thread accesses. The workers of a pool share one set of timers.
//! The owner fires the timers that are due, and sleeps at most until the next timer. Without timers, the check costs one
//! load.
//!
//! If a handler forks, it may set and drop timers in the child, where another worker of the parent may hold a lock. Timers
//! that the child cannot set or access are due at once.

use crate::node::fork_lock::ForkLock;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use trunkline_machine::rings::panics::catch;
use trunkline_transport::{DeadlineKey, Deadlines};
use trunkline_verbs::{Clock, Time};

/// Callback for a new timer that is due before all other timers.
type Earlier = Box<dyn Fn() + Send + Sync>;

/// The timers of one poller, or of a pool.
pub(crate) struct Timers {
    clock: Clock,
    /// `None` for a poller, which checks its timers before it sleeps.
    earlier: Option<Earlier>,
    waiting: ForkLock<Deadlines<Arc<Timer>>>,
    /// Time of the earliest timer, or a time before it, in nanoseconds.
    next: AtomicU64,
}

/// A waiter for a point in time.
#[derive(Debug)]
struct Timer {
    /// True if the timer has left the wheel. Changed under the lock of the wheel.
    is_due: AtomicBool,
    waker: ForkLock<Waker>,
}

/// Handle of a timer that has been set.
#[derive(Debug)]
pub(crate) struct SetTimer {
    /// `None` if the timer is not in the wheel.
    key: Option<DeadlineKey>,
    timer: Arc<Timer>,
}

impl SetTimer {
    /// Returns true if the timer has fired.
    pub(crate) fn is_due(&self) -> bool {
        // SYNC: timer-fired
        self.timer.is_due.load(Ordering::Acquire)
    }

    /// Sets the waker that the timer wakes from now on.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        let Some(mut own) = self.timer.waker.lock() else { return };
        if !own.will_wake(waker) {
            let earlier = std::mem::replace(&mut *own, waker.clone());
            drop(own);
            // Dropping a waker may run any code.
            drop(earlier);
        }
    }
}

impl Timers {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, earlier: None, waiting: ForkLock::default(), next: AtomicU64::new(Time::MAX.0) }
    }

    /// Creates timers for threads that may sleep while another thread sets a timer. `earlier` wakes one of these threads if
    /// the new timer is due before all other timers.
    pub(crate) fn shared(clock: Clock, earlier: impl Fn() + Send + Sync + 'static) -> Self {
        Self { earlier: Some(Box::new(earlier)), ..Self::new(clock) }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Sets a timer that wakes `waker`.
    pub(crate) fn set(&self, at: Time, waker: &Waker) -> SetTimer {
        let timer = Arc::new(Timer { is_due: AtomicBool::new(false), waker: ForkLock::new(waker.clone()) });
        let Some(mut waiting) = self.waiting.lock() else {
            timer.is_due.store(true, Ordering::Relaxed);
            waker.wake_by_ref();
            return SetTimer { key: None, timer };
        };
        let before = waiting.next();
        let key = waiting.add(self.clock.now(), at, Arc::clone(&timer));
        self.publish(&waiting);
        drop(waiting);
        if let Some(earlier) = self.earlier.as_ref().filter(|_| before.is_none_or(|before| at < before)) {
            earlier();
        }
        SetTimer { key: Some(key), timer }
    }

    pub(crate) fn remove(&self, set: &SetTimer) {
        let Some((mut waiting, key)) = self.waiting.lock().zip(set.key) else { return };
        // After a timer has fired, another timer may use its slot in the wheel.
        if !set.is_due() {
            let removed = waiting.remove(key);
            self.publish(&waiting);
            drop(waiting);
            drop(removed);
        }
    }

    /// Returns true if the timer has fired, or cannot fire because a forked child lost the wheel.
    pub(crate) fn is_due(&self, set: &SetTimer) -> bool {
        set.is_due() || self.waiting.is_lost()
    }

    /// Fires the timers that are due. Returns true if there were any, or if a forked child has lost its timers. The caller
    /// then polls the waiting futures.
    #[inline]
    pub(crate) fn fire(&self, now: Time) -> bool {
        self.next.load(Ordering::Relaxed) <= now.0 && self.fire_all(now)
    }

    #[cold]
    fn fire_all(&self, now: Time) -> bool {
        let mut any = false;
        while let Some(timer) = self.take(now) {
            any = true;
            let Some(waker) = timer.waker.lock().map(|waker| waker.clone()) else { continue };
            // The waker may belong to any executor, and may panic.
            let _ended = catch(|| waker.wake());
        }
        if self.waiting.is_lost() {
            // Prevents a busy loop of retries in a forked child.
            self.next.store(Time::MAX.0, Ordering::Relaxed);
            return true;
        }
        any
    }

    fn take(&self, now: Time) -> Option<Arc<Timer>> {
        let mut waiting = self.waiting.lock()?;
        let timer = waiting.due(now);
        if let Some(timer) = &timer {
            // SYNC: timer-fired
            timer.is_due.store(true, Ordering::Release);
        }
        self.publish(&waiting);
        timer
    }

    /// Returns the time of the next timer.
    #[inline]
    pub(crate) fn next(&self) -> Option<Time> {
        let next = self.next.load(Ordering::Relaxed);
        (next != Time::MAX.0).then_some(Time(next))
    }

    fn publish(&self, waiting: &Deadlines<Arc<Timer>>) {
        self.next.store(waiting.next().unwrap_or(Time::MAX).0, Ordering::Relaxed);
    }
}

impl fmt::Debug for Timers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.waiting.lock().map(|waiting| waiting.len());
        f.debug_struct("Timers").field("waiting", &waiting).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;
    use trunkline_testkit::{in_forked_child, runs_alone};
    use trunkline_verbs::VirtualClock;

    #[derive(Debug, Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn timers_fire_once_in_time_and_are_removed_on_drop() {
        let clock = VirtualClock::new();
        clock.set(Time(1_000));
        let wakes = Arc::new(Count::default());
        let of_timers = Arc::clone(&wakes);
        let timers = Timers::shared(Clock::simulated(clock), move || Arc::clone(&of_timers).wake());
        assert!(timers.next().is_none() && !timers.fire(Time(u64::MAX - 1)));
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let late = timers.set(Time(9_000), &waker);
        let early = timers.set(Time(5_000), &waker);
        let dropped = timers.set(Time(6_000), &waker);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 2, "two were the earliest");
        assert!(!timers.fire(Time(4_999)) && !early.is_due());
        assert!(timers.fire(Time(5_000)) && early.is_due() && !late.is_due());
        timers.remove(&dropped);
        // Another timer now uses the slot of the fired timer in the wheel.
        let next = timers.set(Time(8_000), &waker);
        timers.remove(&early);
        assert!(timers.fire(Time(10_000)) && next.is_due() && late.is_due() && !dropped.is_due());
        assert_eq!((count.0.load(Ordering::Relaxed), timers.next()), (3, None));
        assert_eq!(timers.waiting.lock().unwrap().len(), 0);
    }

    #[test]
    fn locked_timers_are_due_at_once_in_forked_child() {
        if !runs_alone(module_path!(), "locked_timers_are_due_at_once_in_forked_child") {
            return;
        }
        let clock = Clock::simulated(VirtualClock::new());
        let timers = Timers::new(clock);
        let earlier = timers.set(Time(1_000), Waker::noop());
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        // Simulates threads of the parent that hold the locks.
        let _held = (timers.waiting.lock(), earlier.timer.waker.lock());
        in_forked_child(|| {
            let set = timers.set(Time(500), &waker);
            assert!(set.is_due() && count.0.load(Ordering::Relaxed) == 1);
            earlier.set_waker(&waker);
            assert!(timers.fire(Time(2_000)) && timers.is_due(&earlier));
            assert!(timers.next().is_none() && !timers.fire(Time(3_000)), "it is not tried again and again");
            [&set, &earlier].into_iter().for_each(|set| timers.remove(set));
        });
    }
}
