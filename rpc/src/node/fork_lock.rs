//! A lock that cannot deadlock a forked child.
//!
//! A forked child gets a copy of the lock, but not the thread that may have held it. Values that are shared between a
//! program and a node, and that may be used in a forked process, therefore use such a lock. The child tries to lock for one
//! second and then proceeds without the value.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use trunkline_verbs::fork::Process;

/// Number of attempts of a forked child, [`BETWEEN`] apart. Threads of the child hold the lock for a much shorter time.
const ATTEMPTS: usize = 1000;
const BETWEEN: Duration = Duration::from_millis(1);

/// A mutex without poisoning. After its holder panics, the value stays unchanged.
#[derive(Debug, Default)]
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lock for a value that may be used after a fork.
#[derive(Debug)]
pub(crate) struct ForkLock<T> {
    process: Process,
    /// True if a forked child has given up. Each later call then makes a single attempt.
    is_lost: AtomicBool,
    value: Mutex<T>,
}

impl<T> ForkLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { process: Process::current(), is_lost: AtomicBool::new(false), value: Mutex::new(value) }
    }

    /// Locks the value. Returns `None` in a forked child if a thread of the parent held the lock at the time of the fork.
    #[inline]
    pub(crate) fn lock(&self) -> Option<MutexGuard<'_, T>> {
        if self.process.is_forked() {
            return self.lock_in_child();
        }
        Some(self.value.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns true if a forked child has given up locking.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    #[cold]
    #[expect(clippy::disallowed_methods, reason = "a simulation does not fork")]
    fn lock_in_child(&self) -> Option<MutexGuard<'_, T>> {
        let attempts = if self.is_lost.load(Ordering::Relaxed) { 1 } else { ATTEMPTS };
        for attempt in 1..=attempts {
            let guard = match self.value.try_lock() {
                Ok(guard) => guard,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    if attempt < attempts {
                        std::thread::sleep(BETWEEN);
                    }
                    continue;
                }
            };
            self.is_lost.store(false, Ordering::Relaxed);
            return Some(guard);
        }
        self.is_lost.store(true, Ordering::Relaxed);
        None
    }
}

impl<T: Default> Default for ForkLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_testkit::{in_forked_child, runs_alone};

    #[test]
    fn forked_child_gets_lock_unless_held_at_fork() {
        if !runs_alone(module_path!(), "forked_child_gets_lock_unless_held_at_fork") {
            return;
        }
        let (free, held) = (ForkLock::new(1), ForkLock::new(2));
        // Simulates a thread of the parent that holds the lock.
        let guard = held.lock();
        in_forked_child(|| {
            assert_eq!(free.lock().as_deref(), Some(&1));
            assert!(held.lock().is_none() && held.lock().is_none());
        });
        drop(guard);
        in_forked_child(|| assert_eq!(held.lock().as_deref(), Some(&2)));
        assert_eq!(held.lock().as_deref(), Some(&2));
    }
}
