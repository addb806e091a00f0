//! The choice between the atomics of `core` and those of loom.
//!
//! Owns only this choice; every ring takes its atomics from here. The crate's own test build uses loom, which
//! works only inside `loom::model`, so a unit test that touches a ring must be a model. Everything
//! that links the crate, including its integration tests, gets the plain types.

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

/// Locks a mutex, even if an earlier holder panicked: the values under these locks are consistent between any
/// two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(not(test))]
mod plain {
    /// `core`'s cell behind the closure interface of loom's, which observes the start and end of each access.
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
