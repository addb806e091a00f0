//! A lock that the program takes in one call and releases in another.
//!
//! `ibv_start_poll` and `ibv_wr_start` give an object to the calling thread until `ibv_end_poll`,
//! `ibv_wr_complete` or `ibv_wr_abort`. A [`Turn`] holds the state that belongs to that thread in the
//! meantime.

use super::events::lock;
use std::cell::UnsafeCell;
use std::sync::{Condvar, Mutex, PoisonError};

/// The lock, and the value that belongs to the thread that has taken it.
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

    /// Takes the turn, and waits while another thread has it.
    pub(crate) fn take(&self) {
        let mut taken = lock(&self.taken);
        while *taken {
            taken = self.released.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken = true;
    }

    /// Ends the turn; one waiting thread gets it.
    pub(crate) fn release(&self) {
        *lock(&self.taken) = false;
        self.released.notify_one();
    }

    /// Runs `body` on the value.
    ///
    /// # Safety
    /// The calling thread has taken the turn, and `body` does not call this function.
    pub(crate) unsafe fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: only the thread that has the turn gets here, and only once at a time, by this
        // function's contract; so this is the only reference.
        body(unsafe { &mut *self.value.get() })
    }
}
