//! A table from numbers to values that is read without a lock.
//!
//! Readers look up a number while they hold a [`Reading`]; writers take turns through a lock that readers do not take. A
//! removed value is returned to the writer after all readers have stopped using it, so the writer may free it immediately.
//!
//! The table uses open addressing. Its keys come from a permutation, so they are well distributed. When keys and graves
//! would fill more than half of the array, a writer replaces it with an array of which the keys fill at most a quarter, and
//! waits for the readers of the old array.

use core::fmt;
use core::ptr;

use crate::rings::readers::{Readers, Reading};
use crate::rings::sync::{Arc, AtomicPtr, AtomicU32, Mutex, Ordering, lock};

/// Key of a place that was never used, or that is followed by an unused place. A search ends there.
const EMPTY: u32 = 0;
/// Key of a place whose key was removed. A search continues there.
const GRAVE: u32 = u32::MAX;
/// Number of places in the first array.
const FIRST: usize = if cfg!(test) { 2 } else { 64 };

struct KeyedPlace<V> {
    key: AtomicU32,
    value: AtomicPtr<V>,
}

struct Array<V> {
    places: Box<[KeyedPlace<V>]>,
}

#[derive(Debug, Default)]
struct Counts {
    keys: usize,
    graves: usize,
}

/// A table from keys to values, read without a lock.
pub struct Keyed<V> {
    array: AtomicPtr<Array<V>>,
    readers: Arc<Readers>,
    /// Held by writers.
    counts: Mutex<Counts>,
}

// SAFETY: readers on several threads share values by reference, and a writer on any thread takes them out.
unsafe impl<V: Send + Sync> Sync for Keyed<V> {}
// SAFETY: the table owns its values; moving or dropping it on another thread moves values of V.
unsafe impl<V: Send + Sync> Send for Keyed<V> {}

impl<V> Array<V> {
    fn new(places: usize) -> *mut Self {
        let place = || KeyedPlace { key: AtomicU32::new(EMPTY), value: AtomicPtr::new(ptr::null_mut()) };
        Box::into_raw(Box::new(Self { places: (0..places).map(|_| place()).collect() }))
    }

    /// Returns the places at which a key may be, in the order of a search.
    #[inline]
    fn path(&self, key: u32) -> impl Iterator<Item = (usize, &KeyedPlace<V>)> {
        let mask = self.places.len() - 1;
        (0..self.places.len()).map(move |step| {
            let at = (key as usize).wrapping_add(step) & mask;
            (at, &self.places[at])
        })
    }

    #[inline]
    fn find(&self, key: u32) -> Option<(usize, *mut V)> {
        for (at, place) in self.path(key) {
            // SYNC: keyed-key
            match place.key.load(Ordering::Acquire) {
                EMPTY => return None,
                found if found == key => {
                    // SYNC: keyed-value
                    let value = place.value.load(Ordering::Acquire);
                    return (!value.is_null()).then_some((at, value));
                }
                _ => {}
            }
        }
        None
    }

    /// Adds a key, which the array does not contain, at the first free place. Returns true if the place was a grave.
    fn put(&self, key: u32, value: *mut V) -> bool {
        for (_, place) in self.path(key) {
            // Only writers change keys.
            let before = place.key.load(Ordering::Relaxed);
            if matches!(before, EMPTY | GRAVE) {
                // SYNC: keyed-value
                place.value.store(value, Ordering::Release);
                // SYNC: keyed-key
                place.key.store(key, Ordering::Release);
                return before == GRAVE;
            }
        }
        unreachable!("at least half of the places are empty");
    }
}

impl<V> Keyed<V> {
    /// Creates an empty table for these readers.
    #[must_use]
    pub fn new(readers: &Arc<Readers>) -> Self {
        Self {
            array: AtomicPtr::new(Array::new(FIRST)),
            readers: Arc::clone(readers),
            counts: Mutex::new(Counts::default()),
        }
    }

    /// Returns the value of a key, if the table contains the key.
    ///
    /// # Panics
    /// If the reader does not belong to the table's readers.
    #[inline]
    pub fn get<'r>(&'r self, reading: &'r Reading<'_>, key: u32) -> Option<&'r V> {
        assert!(reading.is_of(&self.readers), "a reader of other tables");
        if matches!(key, EMPTY | GRAVE) {
            return None;
        }
        // SYNC: keyed-array
        let array = self.array.load(Ordering::Acquire);
        // SAFETY: a replaced array is freed after all readers that may use it have left, and this reader stays for 'r.
        let (_, value) = unsafe { &*array }.find(key)?;
        // SAFETY: a removed value is freed after all readers that may have found it have left, and this reader stays for 'r.
        // There is no mutable reference to the value.
        Some(unsafe { &*value })
    }

    /// Adds a key that the table does not contain.
    ///
    /// # Panics
    /// If the table contains the key, or if the key is 0 or `u32::MAX`.
    pub fn insert(&self, key: u32, value: V) {
        assert!(!matches!(key, EMPTY | GRAVE), "no key");
        let mut counts = lock(&self.counts);
        self.make_room(&mut counts);
        let array = self.array();
        assert!(array.find(key).is_none(), "the key is taken");
        counts.graves -= usize::from(array.put(key, Box::into_raw(Box::new(value))));
        counts.keys += 1;
    }

    /// Removes a value, and returns it after all readers have stopped using it. The calling thread must not be reading.
    pub fn remove(&self, key: u32) -> Option<V> {
        if matches!(key, EMPTY | GRAVE) {
            return None;
        }
        let mut counts = lock(&self.counts);
        let array = self.array();
        let (at, value) = array.find(key)?;
        let next = (at + 1) & (array.places.len() - 1);
        // A search ends at an empty place, so no grave is needed before one.
        let is_last = array.places[next].key.load(Ordering::Relaxed) == EMPTY;
        let place = &array.places[at];
        // SYNC: keyed-key
        place.key.store(if is_last { EMPTY } else { GRAVE }, Ordering::Release);
        // SYNC: keyed-value
        place.value.store(ptr::null_mut(), Ordering::Release);
        counts.keys -= 1;
        counts.graves += usize::from(!is_last);
        self.readers.settle();
        // SAFETY: the pointer came from a box in `insert`. It was in one place, which no longer contains it, and the readers
        // that may have found it have left.
        Some(*unsafe { Box::from_raw(value) })
    }

    /// Returns all keys, in ascending order.
    #[must_use]
    pub fn keys(&self) -> Vec<u32> {
        let _counts = lock(&self.counts);
        let places = self.array().places.iter();
        let keys = places.map(|place| place.key.load(Ordering::Relaxed));
        let mut keys: Vec<u32> = keys.filter(|key| !matches!(*key, EMPTY | GRAVE)).collect();
        keys.sort_unstable();
        keys
    }

    /// Returns the number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        lock(&self.counts).keys
    }

    /// Returns true if the table has no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn array(&self) -> &Array<V> {
        // SAFETY: only writers replace and free arrays, and the caller holds their lock.
        unsafe { &*self.array.load(Ordering::Relaxed) }
    }

    /// Replaces the array if another key would fill more than half of it.
    fn make_room(&self, counts: &mut Counts) {
        let old = self.array();
        if (counts.keys + counts.graves + 1) * 2 <= old.places.len() {
            return;
        }
        let places = ((counts.keys + 1) * 4).next_power_of_two().max(FIRST);
        let new = Array::new(places);
        for place in &old.places {
            let key = place.key.load(Ordering::Relaxed);
            if !matches!(key, EMPTY | GRAVE) {
                // SAFETY: the array was created above and is not shared yet.
                unsafe { &*new }.put(key, place.value.load(Ordering::Relaxed));
            }
        }
        // SYNC: keyed-array
        let old = self.array.swap(new, Ordering::AcqRel);
        counts.graves = 0;
        self.readers.settle();
        // SAFETY: the pointer came from a box in `Array::new`, it is replaced, and the readers that may have
        // it have left. Its values are in the new array; places do not own them.
        drop(unsafe { Box::from_raw(old) });
    }
}

impl<V> Drop for Keyed<V> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a box in `Array::new`, and there are no other references to the
        // table.
        let array = unsafe { Box::from_raw(self.array.load(Ordering::Relaxed)) };
        for place in &array.places {
            let value = place.value.load(Ordering::Relaxed);
            if !value.is_null() {
                // SAFETY: the pointer came from a box in `insert`, and each is in one place.
                drop(unsafe { Box::from_raw(value) });
            }
        }
    }
}

impl<V> fmt::Debug for Keyed<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed").field("keys", &self.len()).finish_non_exhaustive()
    }
}
