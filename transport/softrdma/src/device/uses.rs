//! Who leans on an object: the counts behind `Busy`.
//!
//! Owns the count of one object. Objects take a [`Hold`] on each object they are made of and let it
//! go when they are destroyed; an object asks its count before it goes. It must never be asked
//! for anything but counts: what a hold protects is kept alive by the `Arc` inside it.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use trunkline_verbs::VerbsError;

/// The count of an object that was destroyed.
const DESTROYED: usize = usize::MAX;

/// How many other objects lean on this one.
#[derive(Debug, Default)]
pub(super) struct Uses(AtomicUsize);

impl Uses {
    /// Counts one more user.
    fn enter(&self) -> Result<(), VerbsError> {
        // SYNC: uses
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
                (count != DESTROYED).then(|| count + 1)
            })
            .map(drop)
            .map_err(|_| VerbsError::Gone)
    }

    fn leave(&self) {
        // SYNC: uses
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Marks the object as destroyed.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] with `why` while there are users, [`VerbsError::Gone`] the second time.
    pub(super) fn retire(&self, why: &'static str) -> Result<(), VerbsError> {
        // SYNC: uses
        match self.0.compare_exchange(0, DESTROYED, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(DESTROYED) => Err(VerbsError::Gone),
            Err(_) => Err(VerbsError::Busy(why)),
        }
    }

    /// Marks it as destroyed whatever the count, when the last `Arc` is gone and there is
    /// nobody left to lean on it. Answers whether it was destroyed before.
    pub(super) fn retire_at_drop(&self) -> bool {
        // SYNC: uses
        self.0.swap(DESTROYED, Ordering::AcqRel) == DESTROYED
    }
}

/// An object that others lean on.
pub(super) trait Used {
    /// Its count.
    fn uses(&self) -> &Uses;
}

/// One use of an object, which keeps it alive too.
#[derive(Debug)]
pub(super) struct Hold<T: Used>(Arc<T>);

impl<T: Used> Hold<T> {
    /// Leans on `object`.
    ///
    /// # Errors
    /// [`VerbsError::Gone`] when it was destroyed.
    pub(super) fn on(object: Arc<T>) -> Result<Self, VerbsError> {
        object.uses().enter()?;
        Ok(Self(object))
    }
}

impl<T: Used> std::ops::Deref for Hold<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Used> Drop for Hold<T> {
    fn drop(&mut self) {
        self.0.uses().leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Thing(Uses);

    impl Used for Thing {
        fn uses(&self) -> &Uses {
            &self.0
        }
    }

    #[test]
    fn a_held_object_is_busy_and_a_destroyed_one_cannot_be_held() {
        let thing = Arc::new(Thing::default());
        let hold = Hold::on(Arc::clone(&thing)).unwrap();
        assert_eq!(thing.0.retire("held"), Err(VerbsError::Busy("held")));
        drop(hold);
        assert_eq!(thing.0.retire("held"), Ok(()));
        assert_eq!(thing.0.retire("held"), Err(VerbsError::Gone));
        assert_eq!(Hold::on(thing).unwrap_err(), VerbsError::Gone);
    }
}
