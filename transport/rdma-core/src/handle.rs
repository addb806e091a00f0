//! Pointers to C objects that may be destroyed while others still hold the Rust object around them.
//!
//! Owns the rule that no C function gets a pointer whose object is gone: a use holds the lock for
//! reading, the destruction for writing. Uses never wait for one another, and nothing may use the
//! same handle again inside a use.

use std::ffi::c_int;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use trunkline_verbs::VerbsError;

/// A C object of libibverbs.
pub(crate) struct Handle<T>(RwLock<Option<NonNull<T>>>);

// SAFETY: libibverbs' objects may be used from any thread; the pointer is given to its functions
// only, and those that destroy it exclude all others by the lock.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as for Send; libibverbs locks inside.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    /// Takes the object over.
    pub(crate) fn new(raw: NonNull<T>) -> Self {
        Self(RwLock::new(Some(raw)))
    }

    /// Lets `with` use the object, which stays alive meanwhile.
    ///
    /// # Errors
    /// [`VerbsError::Gone`] when it was destroyed.
    #[inline]
    pub(crate) fn with<R>(&self, with: impl FnOnce(*mut T) -> R) -> Result<R, VerbsError> {
        let raw = self.0.read().unwrap_or_else(PoisonError::into_inner);
        match *raw {
            Some(raw) => Ok(with(raw.as_ptr())),
            None => Err(VerbsError::Gone),
        }
    }

    /// Keeps the object alive until the answer is dropped, for a call that takes several objects.
    ///
    /// # Errors
    /// [`VerbsError::Gone`] when it was destroyed.
    pub(crate) fn hold(&self) -> Result<Held<'_, T>, VerbsError> {
        let guard = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let raw = guard.ok_or(VerbsError::Gone)?;
        Ok(Held { raw, _guard: guard })
    }

    /// Destroys it by `destroy`, which answers as libibverbs does: 0, or an errno, and then the
    /// object lives on.
    ///
    /// # Errors
    /// What `named` makes of the errno; [`VerbsError::Gone`] when it was destroyed before.
    pub(crate) fn destroy(
        &self,
        destroy: impl FnOnce(*mut T) -> c_int,
        named: impl FnOnce(c_int) -> VerbsError,
    ) -> Result<(), VerbsError> {
        let mut raw = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let object = raw.ok_or(VerbsError::Gone)?;
        match destroy(object.as_ptr()) {
            0 => {
                *raw = None;
                Ok(())
            }
            errno => Err(named(errno)),
        }
    }
}

/// A C object that cannot be destroyed now.
pub(crate) struct Held<'a, T> {
    raw: NonNull<T>,
    _guard: RwLockReadGuard<'a, Option<NonNull<T>>>,
}

impl<T> Held<'_, T> {
    /// The object.
    pub(crate) fn raw(&self) -> *mut T {
        self.raw.as_ptr()
    }
}

/// What C takes for a part that may be absent: null then.
pub(crate) fn raw_or_null<T>(part: Option<&Held<'_, T>>) -> *mut T {
    part.map_or(std::ptr::null_mut(), Held::raw)
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handle").field(&self.0).finish()
    }
}

/// What a destructor makes of the answer of its object's own `destroy`.
pub(crate) fn dropped(what: &'static str, result: Result<(), VerbsError>) {
    match result {
        Ok(()) | Err(VerbsError::Gone) => {}
        Err(error) => tracing::warn!(%error, "cannot free {what}; it stays until the process ends"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destroyed_object_is_used_no_more() {
        let mut object = 7_u32;
        let handle = Handle::new(NonNull::from(&mut object));
        let busy = handle.destroy(|_| 16, |_| VerbsError::Busy("in use"));
        assert_eq!(busy, Err(VerbsError::Busy("in use")));
        assert_eq!(handle.with(|raw| raw.is_null()), Ok(false));
        assert!(!raw_or_null(handle.hold().ok().as_ref()).is_null());
        assert_eq!(handle.destroy(|_| 0, VerbsError::Os), Ok(()));
        assert_eq!(handle.with(|raw| raw.is_null()), Err(VerbsError::Gone));
        assert!(handle.hold().is_err());
        assert_eq!(handle.destroy(|_| 0, VerbsError::Os), Err(VerbsError::Gone));
    }
}
