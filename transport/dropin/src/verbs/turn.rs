//! A lock that a program takes in one call and releases in another.
//!
//! `ibv_start_poll` and `ibv_wr_start` give an object to the calling thread until `ibv_end_poll`, `ibv_wr_complete` or
//! `ibv_wr_abort`. A [`Turn`] holds the state that belongs to the thread during this time.

use super::events::lock;
use std::cell::UnsafeCell;
use std::sync::{Condvar, Mutex, PoisonError};

/// A lock, and the value that belongs to the thread holding it.
#[derive(Debug, Default)]
pub(crate) struct Turn<T> {
    taken: Mutex<bool>,
    released: Condvar,
    value: UnsafeCell<T>,
}

impl<T> Turn<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { taken: Mutex::new(false), released: Condvar::new(), value: UnsafeCell::new(value) }
    }

    /// Takes the lock. Blocks while another thread holds it.
    pub(crate) fn take(&self) {
        let mut taken = lock(&self.taken);
        while *taken {
            taken = self.released.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken = true;
    }

    /// Releases the lock and wakes one waiting thread.
    pub(crate) fn release(&self) {
        *lock(&self.taken) = false;
        self.released.notify_one();
    }

    /// Calls `body` with the value.
    ///
    /// # Safety
    /// The calling thread must hold the lock, and `body` must not call this function.
    pub(crate) unsafe fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: by this function's contract only the thread that holds the lock gets here, and `body` does
        // not call this function, so this is the only reference.
        body(unsafe { &mut *self.value.get() })
    }
}
