//! Memory that a device may read and write.
//!
//! [`Memory`] holds the bytes of a registration. Devices, pollers and applications copy to and from it. A NIC or another
//! thread may write at the same time, so only the two `unsafe` functions form Rust references to the bytes, and their
//! callers guarantee exclusion for the range.

use crate::{IoAddress, copy, headroom};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Error of an access or an allocation. A refused access neither reads nor changes the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The range is not inside the memory.
    #[error("the range is not inside the memory")]
    OutOfBounds,
    /// An atomic's address is not a multiple of 8.
    #[error("the address of an atomic is not a multiple of 8")]
    Misaligned,
    /// The allocator has no memory left, or a limit of the process leaves too little.
    #[error("out of memory")]
    OutOfMemory,
}

/// Alignment of allocations in bytes.
const PAGE: usize = 4096;
/// Default alignment of allocators, in bytes.
const NATURAL: usize = 16;

/// A block of bytes at a fixed address.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    length: usize,
    /// Start and layout of the allocation; `None` if another owner frees the block.
    allocation: Option<(NonNull<u8>, Layout)>,
}

// SAFETY: the block is plain bytes without thread affinity, and the methods of this type access it
// by raw copies or atomics only.
unsafe impl Send for Memory {}
// SAFETY: shared access is by atomics, and by the functions of `copy`, whose copies may tear but are defined whatever other
// threads read and write. The callers of `slice` and `slice_mut` guarantee exclusion for the range they borrow.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates `length` page-aligned zero bytes. A length of 0 is allowed. The system provides the pages of a large block
    /// when they are first used. A large block must leave the [`headroom`] of a limited address space free.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`].
    pub fn zeroed(length: usize) -> Result<Arc<Self>, MemoryError> {
        if length >= headroom::LARGE && headroom::check(length).is_err() {
            return Err(MemoryError::OutOfMemory);
        }
        // Align by hand. For a page-aligned layout `alloc_zeroed` writes zeros to every page, although fresh
        // pages are zero already.
        let size = length.max(1).checked_add(PAGE - NATURAL).ok_or(MemoryError::OutOfMemory)?;
        let layout = Layout::from_size_align(size, NATURAL).map_err(|_| MemoryError::OutOfMemory)?;
        // SAFETY: the layout's size is at least 1.
        let allocated = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(MemoryError::OutOfMemory)?;
        // The first page boundary lies within the added bytes.
        let padding = allocated.addr().get().next_multiple_of(PAGE) - allocated.addr().get();
        // SAFETY: the allocation is aligned to `NATURAL`, so `padding` is at most `PAGE - NATURAL`, the bytes by
        // which the allocation is larger than `length`.
        let start = unsafe { allocated.add(padding) };
        Ok(Arc::new(Self { start, length, allocation: Some((allocated, layout)) }))
    }

    /// Wraps memory that another owner allocated and will free.
    ///
    /// # Safety
    /// `start .. start + length` must stay readable and writable, and be accessed by others only
    /// as the module describes, until the value is dropped.
    #[must_use]
    pub unsafe fn from_raw_parts(start: NonNull<u8>, length: usize) -> Arc<Self> {
        Arc::new(Self { start, length, allocation: None })
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns true if the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the address of the byte at `offset`, for work requests and peers.
    #[must_use]
    pub fn address(&self, offset: usize) -> IoAddress {
        IoAddress(self.start.as_ptr().expose_provenance() as u64).plus(offset as u64)
    }

    /// Returns the offset of an address, if `length` bytes from there are inside the memory.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn offset_of(&self, address: IoAddress, length: usize) -> Result<usize, MemoryError> {
        let offset = address.0.checked_sub(self.address(0).0).ok_or(MemoryError::OutOfBounds)?;
        let offset = usize::try_from(offset).map_err(|_| MemoryError::OutOfBounds)?;
        self.check(offset, length)?;
        Ok(offset)
    }

    /// Copies bytes out of the memory, from `offset` on.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), MemoryError> {
        self.check(offset, into.len())?;
        // SAFETY: the slice covers the same bytes, and `copy::read` writes only initialized values.
        let into = unsafe { slice::from_raw_parts_mut(into.as_mut_ptr().cast(), into.len()) };
        // SAFETY: `check` has verified that the source range is inside the block. `into` is exclusive, so
        // it can overlap the range only if `slice_mut` lent it, whose callers guarantee that no other
        // access to the range happens.
        unsafe { copy::read(self.start.as_ptr().add(offset), into) };
        Ok(())
    }

    /// Appends `length` bytes from `offset` on to a vector.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub fn append_to(&self, offset: usize, length: usize, out: &mut Vec<u8>) -> Result<(), MemoryError> {
        self.check(offset, length)?;
        out.reserve(length);
        // SAFETY: `check` has verified that the source range is inside the block. The vector's spare bytes are exclusive
        // and belong to another allocation.
        unsafe { copy::read(self.start.as_ptr().add(offset), &mut out.spare_capacity_mut()[..length]) };
        // SAFETY: `reserve` has made room for them, and `copy::read` has initialized them.
        unsafe { out.set_len(out.len() + length) };
        Ok(())
    }

    /// Copies bytes into the memory from `offset` on.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), MemoryError> {
        self.check(offset, from.len())?;
        // SAFETY: `check` has verified that the destination range is inside the block. `from` can overlap it
        // only if `slice` or `slice_mut` lent it, whose callers guarantee that the range is not written.
        unsafe { copy::write(from, self.start.as_ptr().add(offset)) };
        Ok(())
    }

    /// Copies consecutive parts into the memory from `offset` on.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`]. In this case nothing is written.
    #[inline]
    pub fn write_all<const N: usize>(&self, offset: usize, parts: [&[u8]; N]) -> Result<(), MemoryError> {
        self.check(offset, parts.iter().map(|part| part.len()).sum())?;
        let mut at = offset;
        for part in parts {
            // SAFETY: `check` has verified that the range of all parts is inside the block, and this one ends where the next
            // begins. The overlap rule of `write` applies.
            unsafe { copy::write(part, self.start.as_ptr().add(at)) };
            at += part.len();
        }
        Ok(())
    }

    /// Copies `length` bytes from `offset` on into another memory, from `at` on. If the ranges overlap, the
    /// written bytes are unspecified.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], for either range.
    #[inline]
    pub fn copy_to(&self, offset: usize, length: usize, into: &Self, at: usize) -> Result<(), MemoryError> {
        self.check(offset, length)?;
        into.check(at, length)?;
        // SAFETY: both ranges are inside their blocks.
        unsafe { copy::between(self.start.as_ptr().add(offset), into.start.as_ptr().add(at), length) };
        Ok(())
    }

    /// Calls `apply` with the 8 bytes at `offset` as an atomic in host byte order.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`], [`MemoryError::Misaligned`].
    pub fn atomic<R>(&self, offset: usize, apply: impl FnOnce(&AtomicU64) -> R) -> Result<R, MemoryError> {
        self.check(offset, 8)?;
        // SAFETY: `check` has verified that the range is inside the block.
        let word = unsafe { self.start.as_ptr().add(offset) };
        if !word.addr().is_multiple_of(8) {
            return Err(MemoryError::Misaligned);
        }
        // SAFETY: the word is inside the block and its alignment of 8 was checked. This type's other
        // methods access it by raw copies or atomics, and devices write aligned words atomically.
        Ok(apply(unsafe { AtomicU64::from_ptr(word.cast()) }))
    }

    /// Reads the 8 bytes at `offset` atomically, with acquire ordering, in host byte order.
    ///
    /// # Errors
    /// Same as [`Memory::atomic`].
    pub fn load(&self, offset: usize) -> Result<u64, MemoryError> {
        self.atomic(offset, |word| word.load(Ordering::Acquire))
    }

    /// Borrows a range as a slice.
    ///
    /// # Safety
    /// While the slice exists no one, including devices, may write to the range.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    pub unsafe fn slice(&self, offset: usize, length: usize) -> Result<&[u8], MemoryError> {
        self.check(offset, length)?;
        // SAFETY: `check` has verified the bounds, and the bytes are initialised since allocation. The
        // caller guarantees that no one writes to the range while the slice exists.
        Ok(unsafe { slice::from_raw_parts(self.start.as_ptr().add(offset), length) })
    }

    /// Borrows a range as an exclusive slice.
    ///
    /// # Safety
    /// While the slice exists no one else, including devices, may read or write the range.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`].
    #[allow(clippy::mut_from_ref, reason = "the safety contract requires exclusion from the caller")]
    pub unsafe fn slice_mut(&self, offset: usize, length: usize) -> Result<&mut [u8], MemoryError> {
        self.check(offset, length)?;
        // SAFETY: `check` has verified the bounds, and the bytes are initialised since allocation. The
        // caller guarantees that no one else accesses the range while the slice exists.
        Ok(unsafe { slice::from_raw_parts_mut(self.start.as_ptr().add(offset), length) })
    }

    /// Returns true if a range is inside the memory.
    #[must_use]
    pub fn contains(&self, range: &Range<usize>) -> bool {
        range.start <= range.end && range.end <= self.length
    }

    #[inline]
    fn check(&self, offset: usize, length: usize) -> Result<(), MemoryError> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(()),
            _ => Err(MemoryError::OutOfBounds),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some((allocated, layout)) = self.allocation {
            // SAFETY: `zeroed` allocated it with this layout, and slices borrow from `self`, so no slice exists.
            unsafe { dealloc(allocated.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_any_length_is_zero_and_begins_at_page() {
        for length in [0, 1, 15, 16, 4095, 4096, 4097, 8191, 100_000, 1 << 22] {
            let memory = Memory::zeroed(length).unwrap();
            assert_eq!(memory.address(0).0 % PAGE as u64, 0, "{length} bytes");
            let mut bytes = vec![1; length];
            memory.read(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0), "{length} bytes");
            memory.write(0, &vec![7; length]).unwrap();
        }
        assert_eq!(Memory::zeroed(usize::MAX).map(|_| ()), Err(MemoryError::OutOfMemory));
    }

    #[test]
    fn copies_outside_memory_are_refused() {
        let memory = Memory::zeroed(16).unwrap();
        memory.write(4, b"abcd").unwrap();
        let mut out = [0; 4];
        memory.read(4, &mut out).unwrap();
        assert_eq!(&out, b"abcd");
        assert_eq!(memory.write(13, b"abcd"), Err(MemoryError::OutOfBounds));
        assert_eq!(memory.read(usize::MAX, &mut out), Err(MemoryError::OutOfBounds));
        let mut list = b"of ".to_vec();
        memory.append_to(4, 4, &mut list).unwrap();
        assert_eq!(memory.append_to(13, 4, &mut list), Err(MemoryError::OutOfBounds));
        assert_eq!(list, b"of abcd");
        let other = Memory::zeroed(6).unwrap();
        memory.copy_to(4, 4, &other, 2).unwrap();
        assert_eq!(memory.copy_to(13, 4, &other, 0), Err(MemoryError::OutOfBounds));
        assert_eq!(memory.copy_to(4, 4, &other, 3), Err(MemoryError::OutOfBounds));
        let mut copied = [0; 6];
        other.read(0, &mut copied).unwrap();
        assert_eq!(&copied, b"\0\0abcd");
        assert_eq!(memory.offset_of(memory.address(16), 0), Ok(16));
        assert_eq!(memory.offset_of(memory.address(16), 1), Err(MemoryError::OutOfBounds));
        assert_eq!(memory.offset_of(IoAddress(0), 1), Err(MemoryError::OutOfBounds));
        assert!(memory.contains(&(0..16)) && memory.contains(&(16..16)));
        assert!(!memory.contains(&(0..17)) && !memory.contains(&Range { start: 9, end: 8 }));
    }

    /// Miri and ThreadSanitizer fail this test if a copy is a data race.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "threads that race are what is tested")]
    fn threads_may_copy_in_and_out_at_same_time() {
        let memory = Memory::zeroed(600).unwrap();
        let rounds = if cfg!(miri) { 3 } else { 2_000 };
        std::thread::scope(|scope| {
            for filled in [1_u8, 2] {
                let memory = &memory;
                scope.spawn(move || {
                    for round in 0..rounds {
                        memory.write(round % 9, &[filled; 500]).unwrap();
                        let mut out = [0; 500];
                        memory.read(round % 7, &mut out).unwrap();
                        assert!(out.iter().all(|byte| *byte <= 2));
                    }
                });
            }
        });
    }

    #[test]
    fn atomics_require_alignment_and_use_host_byte_order() {
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
