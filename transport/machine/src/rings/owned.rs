//! A value that one thread at a time works on, for one turn. It is the lock of a shard.
//!
//! The lock word is on a separate cache line. A poller tries the lock once per turn. If no other thread needs the
//! value, locking and unlocking cost one read-modify-write each, of an uncontended line. Other threads that need the
//! value, such as control or a second thread of the program, wait for the same lock.
//!
//! ```text
//!   word      meaning                      try_enter   enter                     leave
//!   FREE      no thread                    -> HELD     -> HELD                   -
//!   HELD      one thread                   fails       -> AWAITED, waits         -> FREE
//!   AWAITED   one thread, others may wait  fails       waits                     -> FREE, wakes one
//! ```

use core::fmt;
use core::ops::{Deref, DerefMut};

use crossbeam_utils::CachePadded;

use crate::rings::sync::{AtomicU32, Condvar, Mutex, Ordering, UnsafeCell, lock};

const FREE: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;

/// A value that one thread at a time works on.
pub struct Owned<T> {
    word: CachePadded<AtomicU32>,
    /// Mutex of the condition variable on which threads wait.
    waiting: Mutex<()>,
    freed: Condvar,
    value: CachePadded<UnsafeCell<T>>,
}

// SAFETY: at most one turn exists at a time, because of the word, whose acquire and release order the
// accesses of successive turns. The value is thus only moved between threads, and T: Send suffices.
unsafe impl<T: Send> Sync for Owned<T> {}
// SAFETY: moving or dropping an `Owned` on another thread moves a T, which is Send.
unsafe impl<T: Send> Send for Owned<T> {}

impl<T> Owned<T> {
    /// Creates an unlocked value.
    pub fn new(value: T) -> Self {
        Self {
            word: CachePadded::new(AtomicU32::new(FREE)),
            waiting: Mutex::new(()),
            freed: Condvar::new(),
            value: CachePadded::new(UnsafeCell::new(value)),
        }
    }

    /// Begins a turn; returns `None` if another thread is in a turn.
    #[inline]
    pub fn try_enter(&self) -> Option<Turn<'_, T>> {
        // SYNC: owned-word
        self.word
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| self.turn())
    }

    /// Begins a turn. Waits while another thread is in a turn.
    pub fn enter(&self) -> Turn<'_, T> {
        self.try_enter().unwrap_or_else(|| self.wait())
    }

    #[cold]
    fn wait(&self) -> Turn<'_, T> {
        let mut waiting = lock(&self.waiting);
        // SYNC: owned-word
        while self.word.swap(AWAITED, Ordering::Acquire) != FREE {
            waiting = self.freed.wait(waiting).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        drop(waiting);
        self.turn()
    }

    fn turn(&self) -> Turn<'_, T> {
        Turn { owned: self, value: self.value.with_mut(|value| value) }
    }
}

impl<T> fmt::Debug for Owned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owned").field("word", &self.word.load(Ordering::Relaxed)).finish_non_exhaustive()
    }
}

/// Exclusive access to the value until the turn is dropped.
pub struct Turn<'a, T> {
    owned: &'a Owned<T>,
    value: *mut T,
}

impl<T> Deref for Turn<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the pointer comes from the live cell of `owned`, and no other turn exists, because of the
        // word.
        unsafe { &*self.value }
    }
}

impl<T> DerefMut for Turn<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: same as in `deref`, and this turn is borrowed mutably.
        unsafe { &mut *self.value }
    }
}

impl<T: fmt::Debug> fmt::Debug for Turn<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> Drop for Turn<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Record the last access for loom.
        self.owned.value.with_mut(|_| ());
        // SYNC: owned-word
        if self.owned.word.swap(FREE, Ordering::Release) == AWAITED {
            // Lock the mutex before notifying, because the thread that set AWAITED may hold it and not wait yet.
            let waiting = lock(&self.owned.waiting);
            self.owned.freed.notify_one();
            drop(waiting);
        }
    }
}
