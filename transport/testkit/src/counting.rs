//! A counting allocator, for tests that limit the allocations on a hot path.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The system allocator with counters for allocations, reallocations and allocated bytes.
///
/// The counters cover the whole process, so a test that installs this allocator needs a separate process.
///
/// ```text
/// #[global_allocator]
/// static HEAP: CountingAllocator = CountingAllocator::new();
/// ```
#[derive(Debug, Default)]
pub struct CountingAllocator {
    allocations: AtomicU64,
    in_use: AtomicUsize,
    most: AtomicUsize,
}

impl CountingAllocator {
    /// Creates an allocator whose counters are zero.
    #[must_use]
    pub const fn new() -> Self {
        Self { allocations: AtomicU64::new(0), in_use: AtomicUsize::new(0), most: AtomicUsize::new(0) }
    }

    /// Returns the number of allocations and reallocations so far.
    #[must_use]
    pub fn allocations(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed)
    }

    /// Returns the number of currently allocated bytes.
    #[must_use]
    pub fn in_use_bytes(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Returns the peak number of allocated bytes since the last reset.
    #[must_use]
    pub fn most_bytes(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    /// Resets the peak.
    pub fn reset_most(&self) {
        self.most.store(self.in_use_bytes(), Ordering::Relaxed);
    }

    fn add(&self, bytes: usize) {
        let in_use = self.in_use.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most.fetch_max(in_use, Ordering::Relaxed);
    }
}

// SAFETY: each call is forwarded unchanged to `System`, which is a sound allocator. The counters do not affect
// allocations.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        self.add(layout.size());
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc`, so the layout's size is not zero.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        self.in_use.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc::dealloc`, so `at` came from `alloc` or `realloc` of
        // this type with this layout. Both obtain memory from `System`.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        // Both blocks exist until the contents are copied, so the peak includes both.
        self.add(new_size);
        self.in_use.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc::realloc`, so `at` came from `System` with this
        // layout and the new size is above zero.
        unsafe { System.realloc(at, layout, new_size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_and_reallocations_are_counted() {
        let heap = CountingAllocator::new();
        let layout = Layout::array::<u64>(4).expect("a small layout");
        // SAFETY: the layout's size is not zero, and each pointer is passed on once, with its layout.
        unsafe {
            let first = heap.alloc(layout);
            let second = heap.realloc(first, layout, 64);
            assert_eq!(heap.in_use_bytes(), 64);
            heap.dealloc(second, Layout::array::<u64>(8).expect("a small layout"));
        }
        assert_eq!((heap.allocations(), heap.in_use_bytes(), heap.most_bytes()), (2, 0, 96));
        heap.reset_most();
        assert_eq!(heap.most_bytes(), 0);
    }
}
