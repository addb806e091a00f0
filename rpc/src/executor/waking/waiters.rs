//! Wakers of futures that wait for a change of a state that has no owner among the pollers.
//!
//! The state changes before [`Waiters::wake_all`], and a future reads it after [`Waiters::register`]. Both take the same
//! lock, so that no future misses the change. In a forked child whose parent held that lock, no future is woken.

use crate::node::fork_lock::ForkLock;
use slab::Slab;
use std::task::Waker;
use trunkline_machine::rings::panics::catch;

/// The wakers of waiting futures. A woken future keeps its entry until it removes it.
#[derive(Debug, Default)]
pub(crate) struct Waiters(ForkLock<Slab<Option<Waker>>>);

impl Waiters {
    /// Sets the waker of a future with this key, and gives it a key if it has none.
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
        // Dropping a waker may run any code, which may end futures that wait here.
        drop(earlier);
    }

    /// Removes the waker of a future, if it has one.
    pub(crate) fn remove(&self, key: &mut Option<usize>) {
        if let Some(key) = key.take() {
            let removed = self.0.lock().and_then(|mut waiting| waiting.try_remove(key));
            drop(removed);
        }
    }

    /// Wakes all futures.
    pub(crate) fn wake_all(&self) {
        let Some(mut waiting) = self.0.lock() else { return };
        let wakers = waiting.iter_mut().filter_map(|(_, waker)| waker.take()).collect::<Vec<_>>();
        drop(waiting);
        for waker in wakers {
            // The waker may belong to any executor, and may panic.
            let _ended = catch(|| waker.wake());
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().map_or(0, |waiting| waiting.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[derive(Default)]
    struct Count(AtomicU32);

    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_registration_is_woken_once_until_it_is_removed() {
        let (waiters, counts) = (Waiters::default(), [(); 2].map(|()| Arc::<Count>::default()));
        let mut keys = [None, None];
        for (key, count) in keys.iter_mut().zip(&counts) {
            let waker = Waker::from(Arc::clone(count));
            waiters.register(key, &waker);
            waiters.register(key, &waker);
        }
        let woken = || counts.each_ref().map(|count| count.0.load(Ordering::Relaxed));
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
