//! A lock that cannot deadlock a forked child.
//!
//! A child has a copy of the lock, but not of the thread that may have held it. Values that a program shares with a node and
//! may use in a forked process have such a lock: the child tries to lock for a second, and then continues without the value.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use trunkline_verbs::fork::Process;

/// Number of attempts of a forked child, and the time between two attempts. Threads of the child hold the lock for much less.
const ATTEMPTS: usize = 1000;
const BETWEEN: Duration = Duration::from_millis(1);

/// A mutex without poisoning: after a panic of the holder the value stays as it is.
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

/// A lock of a value that may outlive a fork.
#[derive(Debug)]
pub(crate) struct ForkLock<T> {
    process: Process,
    /// True if a forked child has given up. Each later call makes a single attempt.
    is_lost: AtomicBool,
    value: Mutex<T>,
}

impl<T> ForkLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { process: Process::current(), is_lost: AtomicBool::new(false), value: Mutex::new(value) }
    }

    /// Locks the value. Returns `None` in a forked child if a thread of the parent held the lock during the fork.
    #[inline]
    pub(crate) fn lock(&self) -> Option<MutexGuard<'_, T>> {
        if self.process.is_forked() {
            return self.lock_in_child();
        }
        Some(self.value.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns true in a forked child that has given up.
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
        // As if held by a thread that the child lacks.
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
