//! Use counts of objects. An object in use cannot be destroyed.
//!
//! Owns the use count of an object. Objects take a [`UseGuard`] on each object that they use, and drop it
//! when they are destroyed. An object checks its count before it is destroyed. The count does not keep an
//! object alive: the `Arc` inside the guard does.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use trunkline_verbs::VerbsError;

/// Value of the count after the object was destroyed.
const DESTROYED: usize = usize::MAX;

/// Number of other objects that use an object.
#[derive(Debug, Default)]
pub(in crate::device) struct UseCount(AtomicUsize);

impl UseCount {
    /// Counts another user.
    fn increment(&self) -> Result<(), VerbsError> {
        // SYNC: use_count
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
                (count != DESTROYED).then(|| count + 1)
            })
            .map(drop)
            .map_err(|_| VerbsError::Gone)
    }

    fn decrement(&self) {
        // SYNC: use_count
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Marks the object as destroyed.
    ///
    /// # Errors
    /// Returns [`VerbsError::Busy`] with `why` while the object has users, or [`VerbsError::Gone`] if it was already
    /// destroyed.
    pub(in crate::device) fn retire(&self, why: &'static str) -> Result<(), VerbsError> {
        // SYNC: use_count
        match self.0.compare_exchange(0, DESTROYED, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(DESTROYED) => Err(VerbsError::Gone),
            Err(_) => Err(VerbsError::Busy(why)),
        }
    }

    /// Marks the object as destroyed regardless of the count, when its last `Arc` is dropped and users cannot
    /// exist. Returns true if it was already destroyed.
    pub(in crate::device) fn retire_at_drop(&self) -> bool {
        // SYNC: use_count
        self.0.swap(DESTROYED, Ordering::AcqRel) == DESTROYED
    }
}

/// An object whose users are counted.
pub(in crate::device) trait Counted {
    /// Returns the object's count.
    fn use_count(&self) -> &UseCount;
}

/// Use of an object, which keeps the object alive.
#[derive(Debug)]
pub(in crate::device) struct UseGuard<T: Counted>(Arc<T>);

impl<T: Counted> UseGuard<T> {
    /// Counts a use of `object`.
    ///
    /// # Errors
    /// [`VerbsError::Gone`] if the object was destroyed.
    pub(in crate::device) fn new(object: Arc<T>) -> Result<Self, VerbsError> {
        object.use_count().increment()?;
        Ok(Self(object))
    }
}

impl<T: Counted> std::ops::Deref for UseGuard<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Counted> Drop for UseGuard<T> {
    fn drop(&mut self) {
        self.0.use_count().decrement();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Thing(UseCount);

    impl Counted for Thing {
        fn use_count(&self) -> &UseCount {
            &self.0
        }
    }

    #[test]
    fn used_object_is_busy_and_destroyed_object_is_gone() {
        let thing = Arc::new(Thing::default());
        let guard = UseGuard::new(Arc::clone(&thing)).unwrap();
        assert_eq!(thing.0.retire("in use"), Err(VerbsError::Busy("in use")));
        drop(guard);
        assert_eq!(thing.0.retire("in use"), Ok(()));
        assert_eq!(thing.0.retire("in use"), Err(VerbsError::Gone));
        assert_eq!(UseGuard::new(thing).unwrap_err(), VerbsError::Gone);
    }
}
