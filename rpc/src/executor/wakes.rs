//! Wakes tasks in other threads, with wakers collected in a poller's turn, and with wakers that wait for a change of shared
//! state.
//!
//! A bundle of replies must not cost two thread switches per reply. On a core that is shared with a poller, the kernel often
//! runs a woken thread at once. If the poller woke each waiter when its reply arrives, the waiter's thread would take one
//! reply and sleep again. A poller therefore collects the wakers of a turn and wakes them together. The first waiter that
//! runs wakes the others itself, which needs no system call inside one runtime.

use crate::node::fork_lock::ForkLock;
use crossbeam_queue::ArrayQueue;
use slab::Slab;
use std::cell::RefCell;
use std::sync::Arc;
use std::task::{Wake, Waker};
use trunkline_machine::rings::panics::catch;

/// Maximum number of collected wakers. Further tasks are woken at once.
const DEPTH: usize = 256;

thread_local! {
    /// The wakers of the poller that runs on this thread.
    static HERE: RefCell<Option<Arc<Wakes>>> = const { RefCell::new(None) };
}

/// Wakers of tasks in other threads, collected in a poller's turn.
#[derive(Debug)]
pub(crate) struct Wakes(ArrayQueue<Waker>);

impl Default for Wakes {
    fn default() -> Self {
        Self(ArrayQueue::new(DEPTH))
    }
}

impl Wakes {
    /// Begins a poller's turn on this thread. The turn ends when the guard is dropped.
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

/// Wakes a task. If a poller runs on this thread, the task is woken at the end of the turn, otherwise at once.
pub(crate) fn wake(waker: Waker) {
    // A thread whose locals have been destroyed is not in a poller's turn.
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

/// Returns a waker for the same task. If a poller uses it, the task is woken at the end of the turn.
#[must_use]
pub fn after_turn(waker: Waker) -> Waker {
    Waker::from(Arc::new(AfterTurn(waker)))
}

/// A task that is woken at the end of a poller's turn.
struct AfterTurn(Waker);

impl Wake for AfterTurn {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        wake(self.0.clone());
    }
}

/// Wakes a task on any executor. Catches a panic of the waker.
fn wake_now(waker: Waker) {
    let _ended = catch(|| waker.wake());
}

/// The turn of a poller on this thread. Dropping this value wakes the collected tasks.
#[derive(Debug)]
pub(crate) struct Collecting {
    /// Previous value. A simulation runs programs and pollers on one thread.
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

/// The wakers of waiting futures. An entry stays until its future removes it.
#[derive(Debug, Default)]
pub(crate) struct Waiters(ForkLock<Slab<Option<Waker>>>);

impl Waiters {
    /// Sets the waker of the future with this key, and assigns a key if the future has none.
    pub(crate) fn register(&self, key: &mut Option<usize>, waker: &Waker) {
        let waker = Some(waker.clone());
        let Some(mut waiting) = self.0.lock() else { return };
        let earlier = match key.and_then(|key| waiting.get_mut(key)) {
            Some(registered) => std::mem::replace(registered, waker),
            None => {
                *key = Some(waiting.insert(waker));
                None
            }
        };
        drop(waiting);
        // Dropping a waker may run any code, including code that ends futures waiting here.
        drop(earlier);
    }

    /// Removes the waker of a future, if any.
    pub(crate) fn remove(&self, key: &mut Option<usize>) {
        if let Some(key) = key.take() {
            let removed = self.0.lock().and_then(|mut waiting| waiting.try_remove(key));
            drop(removed);
        }
    }

    pub(crate) fn wake_all(&self) {
        let Some(mut waiting) = self.0.lock() else { return };
        let wakers = waiting.iter_mut().filter_map(|(_, waker)| waker.take()).collect::<Vec<_>>();
        drop(waiting);
        wakers.into_iter().for_each(wake_now);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().map_or(0, |waiting| waiting.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A task that counts how often it is woken.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Count {
        fn woken(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A waker that wakes the other wakers of its turn, like a task that runs immediately.
    struct RunsAtOnce(Arc<Wakes>);

    impl Wake for RunsAtOnce {
        fn wake(self: Arc<Self>) {
            self.0.wake_all();
        }
    }

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker that panics");
        }
    }

    fn woken(tasks: &[Arc<Count>]) -> Vec<usize> {
        tasks.iter().map(|task| task.woken()).collect()
    }

    #[test]
    fn each_task_is_woken_once_despite_misbehaving_first_waker() {
        let of_poller = Arc::<Wakes>::default();
        for first in [
            // The waker of a task that was dropped before it ran.
            Waker::noop().clone(),
            Waker::from(Arc::new(Panics)),
            Waker::from(Arc::new(RunsAtOnce(Arc::clone(&of_poller)))),
        ] {
            let tasks: [Arc<Count>; 3] = Default::default();
            let turn = of_poller.enter();
            wake(first);
            tasks.iter().for_each(|task| wake(Arc::clone(task).into()));
            assert_eq!(woken(&tasks), [0; 3]);
            drop(turn);
            assert_eq!(woken(&tasks), [1; 3]);
            assert!(of_poller.is_empty());
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the task of a real thread is tested")]
    fn wake_all_of_another_thread_wakes_tasks_during_turn() {
        let of_poller = Arc::<Wakes>::default();
        let task = Arc::<Count>::default();
        let turn = of_poller.enter();
        wake(Arc::clone(&task).into());
        let here = Arc::clone(&of_poller);
        std::thread::spawn(move || here.wake_all()).join().unwrap();
        assert_eq!(task.woken(), 1);
        drop(turn);
        assert_eq!(task.woken(), 1);
    }

    #[test]
    fn panicking_turn_wakes_its_tasks() {
        let task = Arc::<Count>::default();
        let ended = catch(|| {
            let _turn = Arc::<Wakes>::default().enter();
            wake(Arc::clone(&task).into());
            panic!("a turn that panics");
        });
        assert!(ended.is_err());
        assert_eq!(task.woken(), 1);
    }

    #[test]
    fn tasks_beyond_queue_and_outside_of_turns_are_woken_at_once() {
        let of_poller = Arc::<Wakes>::default();
        let (within, beyond): (Arc<Count>, Arc<Count>) = Default::default();
        let turn = of_poller.enter();
        (0..DEPTH).for_each(|_| wake(Arc::clone(&within).into()));
        wake(Arc::clone(&beyond).into());
        assert_eq!((within.woken(), beyond.woken()), (0, 1));
        drop(turn);
        assert_eq!((within.woken(), beyond.woken()), (DEPTH, 1));
        wake(Arc::clone(&beyond).into());
        assert_eq!(beyond.woken(), 2);
    }

    #[test]
    fn wakers_for_end_of_turn_are_collected() {
        let of_poller = Arc::<Wakes>::default();
        let task = Arc::<Count>::default();
        let waker = after_turn(Arc::clone(&task).into());
        waker.wake_by_ref();
        assert_eq!(task.woken(), 1);
        let turn = of_poller.enter();
        waker.wake();
        assert_eq!(task.woken(), 1);
        drop(turn);
        assert_eq!(task.woken(), 2);
        assert_eq!(Arc::strong_count(&task), 1);
    }

    #[test]
    fn each_registration_is_woken_once_until_removal() {
        let (waiters, counts) = (Waiters::default(), [(); 2].map(|()| Arc::<Count>::default()));
        let mut keys = [None, None];
        for (key, count) in keys.iter_mut().zip(&counts) {
            let waker = Waker::from(Arc::clone(count));
            waiters.register(key, &waker);
            waiters.register(key, &waker);
        }
        let woken = || counts.each_ref().map(|count| count.woken());
        waiters.wake_all();
        waiters.wake_all();
        assert_eq!(woken(), [1, 1]);
        waiters.register(&mut keys[0], &Waker::from(Arc::clone(&counts[0])));
        waiters.remove(&mut keys[1]);
        waiters.wake_all();
        assert_eq!((woken(), keys[1]), ([2, 1], None));
        waiters.remove(&mut keys[0]);
        assert_eq!(waiters.len(), 0);
    }
}
