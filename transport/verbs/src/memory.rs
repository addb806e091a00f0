//! Memory that a device may read and write.
//!
//! Owns the bytes behind a registration. Devices, pollers and applications copy into and out of
//! it; because a NIC or another thread may write at the same time, no Rust reference to the
//! bytes is formed except by the two `unsafe` functions whose callers own the range.

use crate::IoAddress;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why an access was refused. Nothing was touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The range does not lie inside.
    #[error("the range lies outside of the memory")]
    OutOfBounds,
    /// An atomic's address is not a multiple of 8.
    #[error("the address of an atomic is not a multiple of 8")]
    Misaligned,
    /// The allocator refused.
    #[error("out of memory")]
    OutOfMemory,
}

/// Page size of allocations; also their alignment.
const PAGE: usize = 4096;

/// A block of bytes at a fixed address.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    length: usize,
    /// `Some` when the block was allocated here and is freed here.
    layout: Option<Layout>,
}

// SAFETY: the block is plain bytes without thread affinity, and every access goes through raw
// copies or atomics.
unsafe impl Send for Memory {}
// SAFETY: as for Send; concurrent copies may tear, which the module's contract states, and
// `slice`/`slice_mut` put exclusion on their callers.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates `length` zero bytes, page aligned. A length of 0 is allowed.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`].
    pub fn zeroed(length: usize) -> Result<Arc<Self>, MemoryError> {
        let layout = Layout::from_size_align(length.max(1), PAGE).map_err(|_| MemoryError::OutOfMemory)?;
        // SAFETY: the layout's size is at least 1.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(MemoryError::OutOfMemory)?;
        Ok(Arc::new(Self { start, length, layout: Some(layout) }))
    }

    /// Wraps memory that somebody else owns.
    ///
    /// # Safety
    /// `start .. start + length` must stay readable and writable, and be accessed by others only
    /// as the module describes, until the value is dropped.
    #[must_use]
    pub unsafe fn from_raw_parts(start: NonNull<u8>, length: usize) -> Arc<Self> {
        Arc::new(Self { start, length, layout: None })
    }

    /// Bytes in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The address that work requests and peers use for the byte at `offset`.
    #[must_use]
    pub fn address(&self, offset: usize) -> IoAddress {
        IoAddress(self.start.as_ptr().expose_provenance() as u64).plus(offset as u64)
    }

    /// The offset of an address, if `length` bytes from there lie inside.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn offset_of(&self, address: IoAddress, length: usize) -> Result<usize, MemoryError> {
        let offset = address.0.checked_sub(self.address(0).0).ok_or(MemoryError::OutOfBounds)?;
        let offset = usize::try_from(offset).map_err(|_| MemoryError::OutOfBounds)?;
        self.check(offset, length)?;
        Ok(offset)
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemoryError> {
        self.check(offset, into.len())?;
        // SAFETY: the source range was just checked, `into` is an exclusive slice of Rust's own,
        // so the two cannot overlap: `slice_mut` excludes other accesses to its range.
        unsafe { self.start.as_ptr().add(offset).copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        self.check(offset, from.len())?;
        // SAFETY: the destination range was just checked. `copy_from` allows an overlap, so a
        // `from` that was lent by `slice` is no hazard to the copy itself.
        unsafe { self.start.as_ptr().add(offset).copy_from(from.as_ptr(), from.len()) };
        Ok(())
    }

    /// The 8 bytes at `offset` as an atomic, in host order, through `apply`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::Misaligned`].
    pub fn atomic<R>(&self, offset: usize, apply: impl FnOnce(&AtomicU64) -> R) -> Result<R, MemoryError> {
        self.check(offset, 8)?;
        // SAFETY: the range was checked.
        let word = unsafe { self.start.as_ptr().add(offset) };
        if !word.addr().is_multiple_of(8) {
            return Err(MemoryError::Misaligned);
        }
        // SAFETY: inside the block, aligned to 8, and an AtomicU64 may be shared with other
        // atomics and, by the module's contract, with a device that writes.
        Ok(apply(unsafe { AtomicU64::from_ptr(word.cast()) }))
    }

    /// Reads the 8 bytes at `offset` at once, with acquire ordering, in host order.
    ///
    /// # Errors
    /// As [`Memory::atomic`].
    pub fn load(&self, offset: usize) -> Result<u64, MemoryError> {
        self.atomic(offset, |word| word.load(Ordering::Acquire))
    }

    /// Lends a range as a slice.
    ///
    /// # Safety
    /// Until the slice is gone no one, devices included, may write to the range.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub unsafe fn slice(&self, offset: usize, length: usize) -> Result<&[u8], MemoryError> {
        self.check(offset, length)?;
        // SAFETY: in bounds, initialised since allocation, and not written to by the caller's
        // promise.
        Ok(unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset), length) })
    }

    /// Lends a range as an exclusive slice.
    ///
    /// # Safety
    /// Until the slice is gone no one else, devices included, may read or write the range.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    #[allow(clippy::mut_from_ref, reason = "exclusion is the caller's promise")]
    pub unsafe fn slice_mut(&self, offset: usize, length: usize) -> Result<&mut [u8], MemoryError> {
        self.check(offset, length)?;
        // SAFETY: in bounds, initialised, exclusive by the caller's promise.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset), length) })
    }

    fn check(&self, offset: usize, length: usize) -> Result<(), MemoryError> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(()),
            _ => Err(MemoryError::OutOfBounds),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(layout) = self.layout {
            // SAFETY: allocated in `zeroed` with this layout, and nobody holds the block any more.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_stay_inside() {
        let memory = Memory::zeroed(16).unwrap();
        memory.write(4, b"abcd").unwrap();
        let mut out = [0; 4];
        memory.read(4, &mut out).unwrap();
        assert_eq!(&out, b"abcd");
        assert_eq!(memory.write(13, b"abcd"), Err(MemoryError::OutOfBounds));
        assert_eq!(memory.read(usize::MAX, &mut out), Err(MemoryError::OutOfBounds));
        assert_eq!(memory.offset_of(memory.address(16), 0), Ok(16));
        assert_eq!(memory.offset_of(memory.address(16), 1), Err(MemoryError::OutOfBounds));
        assert_eq!(memory.offset_of(IoAddress(0), 1), Err(MemoryError::OutOfBounds));
    }

    #[test]
    fn atomics_are_aligned_host_words() {
        let memory = Memory::zeroed(24).unwrap();
        memory.atomic(8, |word| word.fetch_add(7, Ordering::AcqRel)).unwrap();
        assert_eq!(memory.load(8), Ok(7));
        let mut bytes = [0; 8];
        memory.read(8, &mut bytes).unwrap();
        assert_eq!(u64::from_ne_bytes(bytes), 7);
        assert_eq!(memory.load(4), Err(MemoryError::Misaligned));
        assert_eq!(memory.load(24), Err(MemoryError::OutOfBounds));
    }
}
