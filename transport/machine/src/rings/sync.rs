//! The choice between the atomics of `core` and loom.
//!
//! All rings take their atomics from here. The test build of this crate uses loom, which works only inside `loom::model`, so
//! a unit test that uses a ring must be a model. Crates that link this one, including its integration tests, get the plain
//! types.

#[cfg(test)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::Arc,
    sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Condvar, Mutex, MutexGuard},
    thread::yield_now,
};

#[cfg(not(test))]
pub(crate) use self::plain::UnsafeCell;
#[cfg(not(test))]
pub(crate) use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(test))]
pub(crate) use std::sync::Arc;
#[cfg(not(test))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(test))]
pub(crate) use std::thread::yield_now;

/// Locks a mutex, even if a thread panicked while it held the lock. The values under these locks are consistent between any
/// two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(not(test))]
mod plain {
    /// The cell of `core` with the closure interface of loom's cell, which observes the start and end of each
    /// access.
    #[derive(Debug)]
    pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(core::cell::UnsafeCell::new(value))
        }

        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}
