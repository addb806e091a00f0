//! Waiting for a future on a thread that has something else to do at certain times.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

/// Wakes a thread that is parked.
struct Unpark {
    thread: Thread,
    is_rung: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // SYNC: parked-future-woken
        self.is_rung.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// How long the thread may sleep before `look` wants to be called again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Until the future is woken.
    Forever,
    /// So long at most.
    For(Duration),
    /// It waits no more.
    GiveUp,
}

/// Waits for a future on this thread, which calls `look` before it sleeps. `None` once that gives up.
pub(crate) fn wait<F: Future>(future: F, mut look: impl FnMut() -> Rest) -> Option<F::Output> {
    let mut future = pin!(future);
    let unpark = Arc::new(Unpark { thread: thread::current(), is_rung: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&unpark));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(outcome) = future.as_mut().poll(&mut context) {
            return Some(outcome);
        }
        // SYNC: parked-future-woken
        while !unpark.is_rung.swap(false, Ordering::SeqCst) {
            let rest = look();
            if unpark.is_rung.swap(false, Ordering::SeqCst) {
                break;
            }
            match rest {
                Rest::Forever => thread::park(),
                Rest::For(time) => thread::park_timeout(time),
                Rest::GiveUp => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, poll_fn, ready};

    #[test]
    fn a_future_is_waited_for_until_it_is_ready_or_given_up() {
        assert_eq!(wait(ready(3), || Rest::Forever), Some(3));
        assert_eq!(wait(pending::<()>(), || Rest::GiveUp), None);
        let mut looks = 0;
        let looked = wait(pending::<()>(), || {
            looks += 1;
            if looks == 3 { Rest::GiveUp } else { Rest::For(Duration::from_micros(1)) }
        });
        assert_eq!((looked, looks), (None, 3));
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
