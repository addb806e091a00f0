//! Memory that the program lends to the library for one call.
//!
//! Only the constructors are unsafe. Each states its conditions, and the exported function that calls it derives them from
//! its manual page. `'a` must not outlast the call, because the program may reuse the memory when the function returns.

use super::Errno;
use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A structure, array or C string that the library reads.
#[derive(Debug)]
pub(crate) struct In<'a, T: ?Sized>(&'a T);

impl<T: ?Sized> Clone for In<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for In<'_, T> {}

impl<'a, T> In<'a, T> {
    /// Wraps a required structure. Returns `EINVAL` if the pointer is null.
    ///
    /// # Safety
    /// `pointer` must be null, or be aligned and point to a `T` that is not changed during `'a`.
    pub(crate) unsafe fn new(pointer: *const T) -> Result<Self, Errno> {
        // SAFETY: this function's contract is the same.
        unsafe { Self::optional(pointer) }.ok_or(Errno::EINVAL)
    }

    /// Wraps an optional structure. Returns `None` if the pointer is null.
    ///
    /// # Safety
    /// Same as [`Self::new`].
    pub(crate) unsafe fn optional(pointer: *const T) -> Option<Self> {
        // SAFETY: `as_ref` checks for null; other pointers are valid by this function's contract.
        unsafe { pointer.as_ref() }.map(Self)
    }
}

impl<'a, T> In<'a, [T]> {
    /// Wraps an array of `length` elements. If `length` is 0, the pointer is ignored. Otherwise a null pointer is `EINVAL`.
    ///
    /// # Safety
    /// If `length` is not 0, `pointer` must be null, or be aligned and point to `length` elements that are not changed
    /// during `'a`.
    pub(crate) unsafe fn array(pointer: *const T, length: usize) -> Result<Self, Errno> {
        if length == 0 {
            return Ok(Self(&[]));
        }
        if pointer.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: neither null nor empty, and valid by this function's contract.
        Ok(Self(unsafe { std::slice::from_raw_parts(pointer, length) }))
    }
}

impl<'a> In<'a, CStr> {
    /// Wraps a C string. Returns `EINVAL` if the pointer is null.
    ///
    /// # Safety
    /// `pointer` must be null, or point to characters that end with a zero and are not changed during `'a`.
    pub(crate) unsafe fn text(pointer: *const c_char) -> Result<Self, Errno> {
        if pointer.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: not null, and valid by this function's contract.
        Ok(Self(unsafe { CStr::from_ptr(pointer) }))
    }
}

impl<T: ?Sized> Deref for In<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
    }
}

/// A structure that contains the requested values before a call and the granted values after it.
#[derive(Debug)]
pub(crate) struct InOut<'a, T>(&'a mut T);

impl<'a, T> InOut<'a, T> {
    /// Wraps a required structure. Returns `EINVAL` if the pointer is null.
    ///
    /// # Safety
    /// `pointer` must be null, or be aligned and point to a `T` that is not accessed elsewhere during `'a`.
    pub(crate) unsafe fn new(pointer: *mut T) -> Result<Self, Errno> {
        // SAFETY: this function's contract is the same.
        unsafe { Self::optional(pointer) }.ok_or(Errno::EINVAL)
    }

    /// Wraps an optional structure. Returns `None` if the pointer is null.
    ///
    /// # Safety
    /// Same as [`Self::new`].
    pub(crate) unsafe fn optional(pointer: *mut T) -> Option<Self> {
        // SAFETY: `as_mut` checks for null; other pointers are valid by this function's contract.
        unsafe { pointer.as_mut() }.map(Self)
    }
}

impl<T> Deref for InOut<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
    }
}

impl<T> DerefMut for InOut<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0
    }
}

/// Memory for a result. The memory may be uninitialised, so no reference to it is created.
#[derive(Debug)]
pub(crate) struct Out<'a, T> {
    place: NonNull<T>,
    lent: PhantomData<&'a mut T>,
}

impl<T> Out<'_, T> {
    /// Wraps memory for a required result. Returns `EINVAL` if the pointer is null.
    ///
    /// # Safety
    /// `pointer` must be null, or be aligned and point to memory for a `T` that is not used elsewhere during `'a`.
    pub(crate) unsafe fn new(pointer: *mut T) -> Result<Self, Errno> {
        // SAFETY: this function's contract is the same.
        unsafe { Self::optional(pointer) }.ok_or(Errno::EINVAL)
    }

    /// Wraps memory for an optional result. Returns `None` if the pointer is null.
    ///
    /// # Safety
    /// Same as [`Self::new`].
    pub(crate) unsafe fn optional(pointer: *mut T) -> Option<Self> {
        NonNull::new(pointer).map(|place| Self { place, lent: PhantomData })
    }

    /// Stores the result.
    pub(crate) fn write(&self, value: T) {
        // SAFETY: by the constructor's contract this is memory for a `T`, which only the library uses.
        unsafe { self.place.write(value) };
    }
}

/// Memory for an array of results.
#[derive(Debug)]
pub(crate) struct OutArray<'a, T> {
    start: *mut T,
    length: usize,
    lent: PhantomData<&'a mut [T]>,
}

impl<T> OutArray<'_, T> {
    /// Wraps memory for `length` elements. If `length` is 0, the pointer is ignored. Otherwise a null pointer is `EINVAL`.
    ///
    /// # Safety
    /// If `length` is not 0, `start` must be null, or be aligned and point to memory for `length` elements that is not used
    /// elsewhere during `'a`.
    pub(crate) unsafe fn new(start: *mut T, length: usize) -> Result<Self, Errno> {
        if length > 0 && start.is_null() {
            return Err(Errno::EINVAL);
        }
        Ok(Self { start, length, lent: PhantomData })
    }

    /// Stores the element at `index`, which is less than the length.
    pub(crate) fn write(&self, index: usize, value: T) {
        assert!(index < self.length);
        // SAFETY: the element is inside of the array, which only the library uses by the constructor's contract.
        unsafe { self.start.add(index).write(value) };
    }
}

/// Memory for a result. The program passes its size, because its header may be older or newer than this library. The memory
/// may have any alignment.
#[derive(Debug)]
pub(crate) struct OutBytes<'a>(OutArray<'a, u8>);

impl OutBytes<'_> {
    /// Wraps memory of `size` bytes. Returns `EINVAL` if the pointer is null and `size` is not 0.
    ///
    /// # Safety
    /// If `size` is not 0, `start` must be null or point to `size` bytes that are not used elsewhere during `'a`.
    pub(crate) unsafe fn new<T>(start: *mut T, size: usize) -> Result<Self, Errno> {
        // SAFETY: bytes need no alignment, and the pointer is valid by this function's contract.
        Ok(Self(unsafe { OutArray::new(start.cast(), size)? }))
    }

    /// Stores as much of `value` as fits into the `size` bytes at `offset`, and fills the remaining bytes with zeros. The
    /// `size` bytes must be within the memory.
    pub(crate) fn write_at<T: Copy>(&self, offset: usize, size: usize, value: &T) {
        assert!(offset.checked_add(size).is_some_and(|end| end <= self.0.length));
        let known = size.min(size_of::<T>());
        // SAFETY: the part is inside the memory, which only the library uses by the constructor's contract;
        // `value` is a reference, so it does not overlap the memory and has `known` bytes.
        unsafe {
            let start = self.0.start.add(offset);
            start.copy_from_nonoverlapping(std::ptr::from_ref(value).cast(), known);
            start.add(known).write_bytes(0, size - known);
        }
    }

    /// Stores as much of `value` as fits into the memory, and fills the remaining bytes with zeros.
    pub(crate) fn write<T: Copy>(&self, value: &T) {
        self.write_at(0, self.0.length, value);
    }

    /// Stores a text and a terminating zero. Returns `EINVAL` if they do not fit.
    pub(crate) fn write_text(&self, text: &[u8]) -> Result<(), Errno> {
        if text.len() >= self.0.length {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the text and its end fit into the memory, which only the library uses by the
        // constructor's contract.
        unsafe {
            self.0.start.copy_from_nonoverlapping(text.as_ptr(), text.len());
            self.0.start.add(text.len()).write(0);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::{null, null_mut};

    #[test]
    fn null_is_refused_where_value_is_required() {
        // SAFETY: null is allowed everywhere.
        unsafe {
            assert_eq!(In::<u32>::new(null()).err(), Some(Errno::EINVAL));
            assert!(In::<u32>::optional(null()).is_none());
            assert_eq!(In::array(null::<u32>(), 1).err(), Some(Errno::EINVAL));
            assert!(In::array(null::<u32>(), 0).unwrap().is_empty());
            assert_eq!(In::text(null()).err(), Some(Errno::EINVAL));
            assert_eq!(InOut::<u32>::new(null_mut()).err(), Some(Errno::EINVAL));
            assert_eq!(Out::<u32>::new(null_mut()).err(), Some(Errno::EINVAL));
            assert_eq!(OutArray::<u32>::new(null_mut(), 1).err(), Some(Errno::EINVAL));
            assert!(OutBytes::new::<u32>(null_mut(), 0).is_ok());
        }
    }

    #[test]
    fn result_fits_into_smaller_and_larger_memory() {
        let mut memory = [0xff_u8; 12];
        // SAFETY: the array is this test's own.
        let bytes = unsafe { OutBytes::new(memory.as_mut_ptr(), 10) }.unwrap();
        bytes.write_at(0, 2, &[1_u8, 2, 3, 4]);
        bytes.write_at(2, 6, &[5_u8, 6, 7, 8]);
        assert_eq!(memory, [1, 2, 5, 6, 7, 8, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    }

    #[test]
    fn text_is_stored_only_with_terminator() {
        let mut memory = [0xff_u8; 4];
        // SAFETY: the array is this test's own.
        let bytes = unsafe { OutBytes::new(memory.as_mut_ptr(), 4) }.unwrap();
        assert_eq!(bytes.write_text(b"four"), Err(Errno::EINVAL));
        assert_eq!(bytes.write_text(b"abc"), Ok(()));
        assert_eq!(memory, *b"abc\0");
    }
}
