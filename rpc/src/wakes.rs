//! A bundle of replies must not cost two switches of threads for each reply.
//!
//! On a core that a poller shares, the kernel often runs a woken thread at once. If the poller woke each waiter when its
//! reply comes, that thread would find one reply and sleep again. So a poller collects the wakers of a turn and then wakes
//! them together. The first waiter to run wakes the rest itself: within one runtime that needs no system call.

use crossbeam_queue::ArrayQueue;
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::task::{Wake, Waker};
use trunkline_rings::panics::catch;

/// Wakers that are collected. Further ones are woken at once.
const DEPTH: usize = 256;

thread_local! {
    /// The wakers of the poller that runs on this thread.
    static HERE: RefCell<Option<Arc<Wakes>>> = const { RefCell::new(None) };
}

/// Wakers of a poller's turn, of tasks in other threads.
pub(crate) struct Wakes(ArrayQueue<Waker>);

impl Default for Wakes {
    fn default() -> Self {
        Self(ArrayQueue::new(DEPTH))
    }
}

impl Wakes {
    /// Begins a poller's turn on this thread, until the guard is dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> Collecting {
        Collecting { outer: HERE.with(|here| here.borrow_mut().replace(Arc::clone(self))) }
    }

    /// Returns true if no wakers have been collected.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Wakes all tasks whose wakers have been collected.
    pub(crate) fn wake_all(&self) {
        while let Some(waker) = self.0.pop() {
            wake_now(waker);
        }
    }
}

/// Wakes a task: with the others of the turn if a poller runs on this thread, and at once otherwise.
pub(crate) fn wake(waker: Waker) {
    // A thread whose locals are gone is in no poller's turn.
    let mut waker = Some(waker);
    let _ = HERE.try_with(|here| {
        if let (Ok(here), Some(taken)) = (here.try_borrow(), waker.take()) {
            waker = match &*here {
                Some(wakes) => wakes.0.push(taken).err(),
                None => Some(taken),
            };
        }
    });
    if let Some(waker) = waker {
        wake_now(waker);
    }
}

/// Returns a waker of the same task. A poller that uses it wakes the task at the end of its turn.
#[must_use]
pub fn after_turn(waker: Waker) -> Waker {
    Waker::from(Arc::new(AfterTurn(waker)))
}

/// A task that pollers wake with others.
struct AfterTurn(Waker);

impl Wake for AfterTurn {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        wake(self.0.clone());
    }
}

/// Wakes a task, which may be any program's.
fn wake_now(waker: Waker) {
    let _ended = catch(|| waker.wake());
}

impl fmt::Debug for Wakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Wakes").field(&self.0.len()).finish()
    }
}

/// The turn of a poller on this thread. Dropping it wakes what was collected.
#[derive(Debug)]
pub(crate) struct Collecting {
    /// Previous value: a simulation runs programs and pollers on one thread.
    outer: Option<Arc<Wakes>>,
}

impl Drop for Collecting {
    fn drop(&mut self) {
        let wakes = HERE.with(|here| std::mem::replace(&mut *here.borrow_mut(), self.outer.take()));
        if let Some(wakes) = wakes {
            wakes.wake_all();
        }
    }
}
