//! Pointers to C objects that may be destroyed while the Rust objects that refer to them still exist.
//!
//! A C function never receives a pointer to a destroyed object: a use holds the lock for reading, and the destruction holds
//! it for writing. Uses do not wait for each other. A use must not lock the same handle again. A use receives a [`Live`]
//! pointer, whose lifetime is that of the lock guard.

use std::ffi::c_int;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use trunkline_verbs::VerbsError;

/// A pointer to a libibverbs object that is not destroyed during `'a`.
pub(crate) struct Live<'a, T> {
    raw: NonNull<T>,
    lifetime: PhantomData<&'a T>,
}

impl<T> Clone for Live<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Live<'_, T> {}

impl<T> Live<'_, T> {
    /// # Safety
    /// libibverbs must have created the object, and the object must not be destroyed during `'a`.
    pub(crate) unsafe fn new(raw: NonNull<T>) -> Self {
        Self { raw, lifetime: PhantomData }
    }

    /// Returns the object as a pointer for C functions.
    pub(crate) fn raw(self) -> *mut T {
        self.raw.as_ptr()
    }
}

/// A libibverbs object, or `None` after its destruction.
pub(crate) struct Handle<T>(RwLock<Option<NonNull<T>>>);

// SAFETY: libibverbs lets any thread use its objects. The pointer is passed to its functions only, and the
// lock excludes all other threads while one thread destroys the object.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: libibverbs has its own locks for concurrent use of an object, and this lock excludes its
// destruction.
unsafe impl<T> Sync for Handle<T> {}

impl<T> Handle<T> {
    /// Takes over an object created by libibverbs.
    ///
    /// # Safety
    /// The object must not be destroyed yet, and must be destroyed only by this value.
    pub(crate) unsafe fn new(raw: NonNull<T>) -> Self {
        Self(RwLock::new(Some(raw)))
    }

    /// Calls `with` with the object, which is not destroyed during the call.
    ///
    /// # Errors
    /// Returns [`VerbsError::Gone`] if the object has been destroyed.
    #[inline]
    pub(crate) fn with<R>(&self, with: impl FnOnce(Live<'_, T>) -> R) -> Result<R, VerbsError> {
        let raw = self.0.read().unwrap_or_else(PoisonError::into_inner);
        match *raw {
            // SAFETY: `destroy` takes the pointer out under the same lock, which is held for reading.
            Some(raw) => Ok(with(unsafe { Live::new(raw) })),
            None => Err(VerbsError::Gone),
        }
    }

    /// Prevents the object's destruction until the guard is dropped. For calls that take several objects.
    ///
    /// # Errors
    /// Returns [`VerbsError::Gone`] if the object has been destroyed.
    pub(crate) fn hold(&self) -> Result<Held<'_, T>, VerbsError> {
        let guard = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let raw = guard.ok_or(VerbsError::Gone)?;
        Ok(Held { raw, _guard: guard })
    }

    /// Destroys the object with `destroy`, which returns the result of the libibverbs function: 0, or an errno if the
    /// object was not destroyed.
    ///
    /// # Errors
    /// Returns the error from `named` for the errno, or [`VerbsError::Gone`] if the object has already been destroyed.
    pub(crate) fn destroy(
        &self,
        destroy: impl FnOnce(Live<'_, T>) -> c_int,
        named: impl FnOnce(c_int) -> VerbsError,
    ) -> Result<(), VerbsError> {
        let mut raw = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let object = raw.ok_or(VerbsError::Gone)?;
        // SAFETY: the object is not destroyed yet, and the lock keeps other threads from destroying it.
        match destroy(unsafe { Live::new(object) }) {
            0 => {
                *raw = None;
                Ok(())
            }
            errno => Err(named(errno)),
        }
    }
}

/// A guard that prevents the destruction of a C object.
pub(crate) struct Held<'a, T> {
    raw: NonNull<T>,
    _guard: RwLockReadGuard<'a, Option<NonNull<T>>>,
}

impl<T> Held<'_, T> {
    /// Returns the object.
    pub(crate) fn raw(&self) -> *mut T {
        self.raw.as_ptr()
    }
}

/// Returns a pointer for a C structure, or null if `part` is `None`.
pub(crate) fn raw_or_null<T>(part: Option<&Held<'_, T>>) -> *mut T {
    part.map_or(std::ptr::null_mut(), Held::raw)
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handle").field(&self.0).finish()
    }
}

/// Logs that a destructor could not destroy an object.
pub(crate) fn dropped(what: &'static str, result: Result<(), VerbsError>) {
    match result {
        Ok(()) | Err(VerbsError::Gone) => {}
        Err(error) => {
            tracing::warn!(object = what, %error, "RDMA object not destroyed; it stays until the process exits")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destroyed_object_is_not_used() {
        let mut object = 7_u32;
        // SAFETY: the object lives longer than the handle, whose destructors here are no-ops.
        let handle = unsafe { Handle::new(NonNull::from(&mut object)) };
        let busy = handle.destroy(|_| 16, |_| VerbsError::Busy("in use"));
        assert_eq!(busy, Err(VerbsError::Busy("in use")));
        assert_eq!(handle.with(|object| object.raw().is_null()), Ok(false));
        assert!(!raw_or_null(handle.hold().ok().as_ref()).is_null());
        assert_eq!(handle.destroy(|_| 0, VerbsError::Os), Ok(()));
        assert_eq!(handle.with(|object| object.raw().is_null()), Err(VerbsError::Gone));
        assert!(handle.hold().is_err());
        assert_eq!(handle.destroy(|_| 0, VerbsError::Os), Err(VerbsError::Gone));
    }
}
