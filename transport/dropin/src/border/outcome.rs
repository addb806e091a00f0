//! Conversion of results and panics of exported functions to error numbers, return values and pointers.
//!
//! Every exported function runs its body through one of these functions. A panic is a bug in this library. The program then
//! gets `EIO` instead of undefined behaviour.
#![forbid(unsafe_code)]

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use trunkline_verbs::{PostError, VerbsError};

/// An error number of `<errno.h>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const EAGAIN: Self = Self(libc::EAGAIN);
    pub(crate) const EFAULT: Self = Self(libc::EFAULT);
    pub(crate) const EINVAL: Self = Self(libc::EINVAL);
    pub(crate) const EIO: Self = Self(libc::EIO);
    pub(crate) const ENODATA: Self = Self(libc::ENODATA);
    pub(crate) const EOPNOTSUPP: Self = Self(libc::EOPNOTSUPP);

    /// Sets the calling thread's `errno` to this number.
    pub(crate) fn set(self) {
        nix::errno::Errno::set_raw(self.0);
    }
}

impl From<VerbsError> for Errno {
    fn from(error: VerbsError) -> Self {
        Self(error.errno())
    }
}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        Self(error.cause.errno())
    }
}

impl From<nix::errno::Errno> for Errno {
    fn from(error: nix::errno::Errno) -> Self {
        Self(error as c_int)
    }
}

/// Runs `body` and returns its result, or `fallback` if it panics.
pub(crate) fn guarded<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(fallback)
}

/// Runs `body`. Returns 0 on success, and a positive error number on failure.
pub(crate) fn status(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match guarded(Err(Errno::EIO), body) {
        Ok(()) => 0,
        Err(errno) => {
            errno.set();
            errno.0
        }
    }
}

/// Runs `body` and returns its value. On failure, sets `errno` and returns -1.
pub(crate) fn value(body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    guarded(Err(Errno::EIO), body).unwrap_or_else(|errno| {
        errno.set();
        -1
    })
}

/// Runs `body` and returns its pointer. On failure, sets `errno` and returns NULL.
pub(crate) fn object<T>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    guarded(Err(Errno::EIO), body).unwrap_or_else(|errno| {
        errno.set();
        null_mut()
    })
}

/// Returns the pointer that a C function returned. If it is NULL, returns the `errno` that the function set.
pub(crate) fn made<T>(pointer: *mut T) -> Result<*mut T, Errno> {
    if pointer.is_null() { Err(Errno(nix::errno::Errno::last_raw())) } else { Ok(pointer) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_becomes_error_number() {
        assert_eq!(status(|| panic!("a bug")), libc::EIO);
        assert_eq!(value(|| panic!("a bug")), -1);
        assert_eq!(nix::errno::Errno::last_raw(), libc::EIO);
        assert!(object::<u8>(|| panic!("a bug")).is_null());
    }
}
