//! A bounded ring with one producer and one consumer.
//!
//! Pollers use it to hand frames to each other. The ring never blocks and never wakes a thread. A
//! [`Doorbell`](crate::rings::doorbell::Doorbell) beside the ring wakes the consumer.
//!
//! The cursors count pushes and pops, and wrap with the integer; a mask gives the slot of a cursor. Each half
//! keeps a copy of the other half's cursor. It reads the shared cursor only if the ring is full or empty
//! according to the copy, so that the cache lines of a busy ring move once per lap instead of once per item.

use core::fmt;
use core::mem::MaybeUninit;

use crossbeam_utils::CachePadded;

use crate::rings::sync::{Arc, AtomicUsize, Ordering, UnsafeCell};

/// State that both halves share.
struct Ring<T> {
    /// Items popped so far. Written by the consumer only.
    head: CachePadded<AtomicUsize>,
    /// Items pushed so far. Written by the producer only.
    tail: CachePadded<AtomicUsize>,
    /// Slot `i & mask` is initialised exactly for the `i` in `head..tail`.
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    mask: usize,
}

// SAFETY: the ring moves values of T between threads and never shares one, so T: Send suffices. Access to a slot is
// exclusive: the producer owns the slots in tail..head+capacity, the consumer owns the slots in head..tail, and a slot
// changes sides only by a release store of a cursor that the other side has loaded with acquire.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: the shared part owns its values, so moving or dropping it on another thread moves values of T,
// which is Send.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    /// Writes the slot of push number `at`.
    ///
    /// # Safety
    /// The caller is the producer, and `at` is its tail with at least one slot free.
    unsafe fn write(&self, at: usize, value: T) {
        self.slots[at & self.mask].with_mut(|slot| {
            // SAFETY: the pointer comes from a live cell, and the caller has exclusive access to a free slot.
            unsafe { slot.write(MaybeUninit::new(value)) }
        });
    }

    /// Moves the value of push number `at` out of its slot.
    ///
    /// # Safety
    /// The caller is the consumer, `at` is in `head..tail` as loaded with acquire, and it moves its head past
    /// `at` before reading again.
    unsafe fn read(&self, at: usize) -> T {
        self.slots[at & self.mask].with_mut(|slot| {
            // SAFETY: the pointer comes from a live cell; the slot is initialised because `at` is in
            // head..tail, and it is read once because the caller advances the index.
            unsafe { slot.replace(MaybeUninit::uninit()).assume_init() }
        })
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // Both halves were dropped, and the reference count orders their last stores before this point.
        let tail = self.tail.load(Ordering::Relaxed);
        let mut head = self.head.load(Ordering::Relaxed);
        while head != tail {
            // SAFETY: no other half exists, head..tail are the items pushed and not popped, and head moves
            // past each.
            drop(unsafe { self.read(head) });
            head = head.wrapping_add(1);
        }
    }
}

/// Creates a ring for at least `capacity` items (rounded up to a power of two, at least one) and returns its
/// halves.
///
/// ```
/// let (mut producer, mut consumer) = trunkline_machine::rings::spsc::ring(2);
/// producer.push("one").unwrap();
/// producer.push("two").unwrap();
/// assert_eq!(producer.push("three"), Err("three"));
/// assert_eq!(consumer.pop(), Some("one"));
/// ```
///
/// # Panics
/// If `capacity` cannot be rounded up to a power of two that fits a `usize`.
#[must_use]
pub fn ring<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let capacity = capacity.checked_next_power_of_two().expect("a ring's capacity fits the address space");
    let shared = Arc::new(Ring {
        head: CachePadded::new(AtomicUsize::new(0)),
        tail: CachePadded::new(AtomicUsize::new(0)),
        slots: (0..capacity).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
        mask: capacity - 1,
    });
    let producer = Producer { shared: Arc::clone(&shared), tail: 0, head: 0 };
    (producer, Consumer { shared, head: 0, tail: 0 })
}

/// The half that pushes.
pub struct Producer<T> {
    shared: Arc<Ring<T>>,
    /// This half's cursor, equal to the shared one between calls.
    tail: usize,
    /// Copy of the consumer's cursor. The shared cursor is equal or ahead.
    head: usize,
}

impl<T> Producer<T> {
    /// Appends `value`.
    ///
    /// # Errors
    /// Returns `value` if the ring is full. A ring without a consumer accepts items until it is full.
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.free() == 0 {
            return Err(value);
        }
        // SAFETY: only this producer writes, and a slot is free.
        unsafe { self.shared.write(self.tail, value) };
        self.publish(self.tail.wrapping_add(1));
        Ok(())
    }

    /// Returns the maximum number of items in the ring.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shared.mask + 1
    }

    /// Returns the number of items in the ring. The consumer may have taken some by the time this returns.
    #[must_use]
    pub fn len(&self) -> usize {
        // SYNC: spsc-head
        self.tail.wrapping_sub(self.shared.head.load(Ordering::Acquire))
    }

    /// Returns true if the consumer has taken all items.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of free slots. Reads the shared cursor only if the ring is full according to the copy.
    fn free(&mut self) -> usize {
        if self.tail.wrapping_sub(self.head) == self.capacity() {
            // SYNC: spsc-head
            self.head = self.shared.head.load(Ordering::Acquire);
        }
        self.capacity() - self.tail.wrapping_sub(self.head)
    }

    fn publish(&mut self, tail: usize) {
        self.tail = tail;
        // SYNC: spsc-tail
        self.shared.tail.store(tail, Ordering::Release);
    }
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("capacity", &self.capacity()).field("pushed", &self.tail).finish()
    }
}

/// The half that pops.
pub struct Consumer<T> {
    shared: Arc<Ring<T>>,
    /// This half's cursor, equal to the shared one between calls.
    head: usize,
    /// Copy of the producer's cursor. The shared cursor is equal or ahead.
    tail: usize,
}

impl<T> Consumer<T> {
    /// Takes the oldest item.
    pub fn pop(&mut self) -> Option<T> {
        if self.ready() == 0 {
            return None;
        }
        // SAFETY: only this consumer reads, head is before the tail that was loaded with acquire, and head is
        // advanced below.
        let value = unsafe { self.shared.read(self.head) };
        self.head = self.head.wrapping_add(1);
        // SYNC: spsc-head
        self.shared.head.store(self.head, Ordering::Release);
        Some(value)
    }

    /// Returns the number of waiting items. The producer may have added some by the time this returns.
    #[must_use]
    pub fn len(&self) -> usize {
        // SYNC: spsc-tail
        self.shared.tail.load(Ordering::Acquire).wrapping_sub(self.head)
    }

    /// Returns true if the ring is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a lower bound on the number of items. Reads the shared cursor only if the ring is empty according to the
    /// copy.
    fn ready(&mut self) -> usize {
        if self.tail == self.head {
            // SYNC: spsc-tail
            self.tail = self.shared.tail.load(Ordering::Acquire);
        }
        self.tail.wrapping_sub(self.head)
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("capacity", &(self.shared.mask + 1))
            .field("popped", &self.head)
            .finish()
    }
}
