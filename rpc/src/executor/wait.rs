//! Waits for a future on a thread that has other work at certain times, such as firing timers.

use crate::node::fork_lock::Lock;
use std::cell::Cell;
use std::pin::pin;
use std::sync::{Arc, Condvar, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

thread_local! {
    /// Parker kept for the thread's next wait. Absent during a wait, and after the thread's locals have been destroyed.
    static KEPT: Cell<Option<Arc<Parker>>> = const { Cell::new(None) };
}

/// Parker of one thread. Unlike `std::thread::park`, it works after the thread's locals have been destroyed, for example in
/// destructors of other locals and in `atexit` handlers.
#[derive(Default)]
struct Parker {
    state: Lock<ParkerState>,
    changed: Condvar,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum ParkerState {
    #[default]
    Awake,
    Asleep,
    /// The parker has been woken since the last check.
    Rung,
}

impl Parker {
    /// Returns the thread's parker, or a new parker if the thread is already waiting or its locals have been destroyed.
    fn take() -> Arc<Self> {
        let parker = KEPT.try_with(Cell::take).ok().flatten().unwrap_or_default();
        // A waker from an earlier wait may have woken the parker.
        *parker.state.lock() = ParkerState::Awake;
        parker
    }

    /// Keeps a parker for the thread's next wait.
    fn keep(parker: Arc<Self>) {
        let _has_no_locals = KEPT.try_with(|kept| kept.set(Some(parker)));
    }

    /// Returns true if the parker has been woken since the last check.
    fn is_rung(&self) -> bool {
        std::mem::take(&mut *self.state.lock()) == ParkerState::Rung
    }

    /// Sleeps until woken, at most for `most`. May return early.
    fn park(&self, most: Option<Duration>) {
        let mut state = self.state.lock();
        if *state == ParkerState::Rung {
            return;
        }
        *state = ParkerState::Asleep;
        let mut state = match most {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(most) => self.changed.wait_timeout(state, most).unwrap_or_else(PoisonError::into_inner).0,
        };
        if *state == ParkerState::Asleep {
            *state = ParkerState::Awake;
        }
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Waking a thread that does not sleep would cost a system call.
        if std::mem::replace(&mut *self.state.lock(), ParkerState::Rung) == ParkerState::Asleep {
            self.changed.notify_one();
        }
    }
}

/// Determines how long the thread may sleep before it polls the future again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// The thread sleeps until the future is woken.
    Forever,
    /// The thread sleeps at most for this time.
    For(Duration),
    /// The wait ends without an outcome.
    GiveUp,
}

/// Waits for a future on this thread, and calls `look` before each sleep. Returns `None` if `look` gives up.
pub(crate) fn wait<F: Future>(future: F, mut look: impl FnMut() -> Rest) -> Option<F::Output> {
    let mut future = pin!(future);
    let parker = Parker::take();
    let waker = Waker::from(Arc::clone(&parker));
    let mut context = Context::from_waker(&waker);
    let outcome = loop {
        if let Poll::Ready(outcome) = future.as_mut().poll(&mut context) {
            break Some(outcome);
        }
        if !sleep(&parker, &mut look) {
            break None;
        }
    };
    Parker::keep(parker);
    outcome
}

/// Sleeps until the parker is woken. Returns false if `look` gives up.
fn sleep(parker: &Parker, look: &mut impl FnMut() -> Rest) -> bool {
    while !parker.is_rung() {
        let rest = look();
        if parker.is_rung() {
            break;
        }
        match rest {
            Rest::Forever => parker.park(None),
            Rest::For(time) => {
                parker.park(Some(time));
                // This call only clears the flag, because the future is polled next anyway.
                let _is_rung = parker.is_rung();
                break;
            }
            Rest::GiveUp => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, poll_fn, ready};

    #[test]
    fn wait_ends_when_future_is_ready_or_given_up() {
        assert_eq!(wait(ready(3), || Rest::Forever), Some(3));
        assert_eq!(wait(pending::<()>(), || Rest::GiveUp), None);
        let mut looks = 0;
        let looked = wait(pending::<()>(), || {
            looks += 1;
            if looks == 3 { Rest::GiveUp } else { Rest::For(Duration::from_micros(1)) }
        });
        assert_eq!((looked, looks), (None, 3));
        let (mut polls, mut looks) = (0, 0);
        let never_woken = poll_fn(|_| {
            polls += 1;
            if polls == 2 { Poll::Ready(polls) } else { Poll::Pending }
        });
        let look = || {
            looks += 1;
            if looks == 3 { Rest::GiveUp } else { Rest::For(Duration::ZERO) }
        };
        assert_eq!(wait(never_woken, look), Some(2), "it is polled again after the time");
        let (mut polls, mut waker) = (0, None);
        let woken = poll_fn(|context| {
            polls += 1;
            waker = Some(context.waker().clone());
            if polls == 2 { Poll::Ready(polls) } else { Poll::Pending }
        });
        let mut woken = Box::pin(woken);
        let other = poll_fn(move |context| {
            let outcome = woken.as_mut().poll(context);
            context.waker().wake_by_ref();
            outcome
        });
        assert_eq!(wait(other, || unreachable!("it was woken")), Some(2));
    }
}
