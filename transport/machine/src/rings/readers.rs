//! Registration of lock-free readers, so that a writer can wait until a removed item is unused.
//!
//! Each reader has a word on a separate cache line. A reader enters before it accesses a table ([`crate::rings::keyed`]),
//! and leaves after it has dropped its references to the content. A writer first unlinks an item, then calls
//! [`Readers::settle`], which returns when the readers that may have found the item have left. Later readers do not find it.
//!
//! The writer's check is a read-modify-write, which is ordered with the reader's. Either the reader entered before the
//! check, and the writer waits, or the reader enters after the check, and sees what the writer did before.

use core::fmt;

use crossbeam_utils::CachePadded;

use crate::rings::sync::{Arc, AtomicU32, Mutex, Ordering, lock, yield_now};

const AWAY: u32 = 0;
const READING: u32 = 1;

type Word = CachePadded<AtomicU32>;

/// The readers of one or more tables.
#[derive(Default)]
pub struct Readers {
    words: Mutex<Vec<Arc<Word>>>,
}

impl Readers {
    /// Creates an empty set of readers.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { words: Mutex::new(Vec::new()) })
    }

    /// Waits until each reader that is reading at the time of the call has left. The calling thread must not be reading.
    pub fn settle(&self) {
        // Release the lock before waiting, so that readers can be dropped during the wait.
        let words = lock(&self.words).clone();
        for word in words {
            // The release of this read-modify-write, and the acquire of the reader's, order what the caller
            // did before with the reader's next access.
            // SYNC: readers-word
            while word.fetch_or(AWAY, Ordering::AcqRel) != AWAY {
                yield_now();
            }
        }
    }
}

impl fmt::Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readers").field("count", &lock(&self.words).len()).finish()
    }
}

/// One reader.
#[derive(Debug)]
pub struct Reader {
    readers: Arc<Readers>,
    word: Arc<Word>,
}

impl Reader {
    /// Creates a reader. Its word is removed when the reader is dropped.
    #[must_use]
    pub fn new(readers: &Arc<Readers>) -> Self {
        let word = Arc::new(CachePadded::new(AtomicU32::new(AWAY)));
        lock(&readers.words).push(Arc::clone(&word));
        Self { readers: Arc::clone(readers), word }
    }

    /// Begins to read. Keep the reading short, since writers wait for its end.
    #[inline]
    pub fn enter(&mut self) -> Reading<'_> {
        // SYNC: readers-word
        self.word.swap(READING, Ordering::AcqRel);
        Reading { reader: self }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        lock(&self.readers.words).retain(|word| !Arc::ptr_eq(word, &self.word));
    }
}

/// A reading in progress. References to content that the reader finds are valid until the reading is dropped.
#[derive(Debug)]
pub struct Reading<'a> {
    reader: &'a Reader,
}

impl Reading<'_> {
    /// Returns true if this reader belongs to `readers`.
    #[inline]
    pub(crate) fn is_of(&self, readers: &Arc<Readers>) -> bool {
        Arc::ptr_eq(&self.reader.readers, readers)
    }
}

impl Drop for Reading<'_> {
    #[inline]
    fn drop(&mut self) {
        // SYNC: readers-word
        self.reader.word.swap(AWAY, Ordering::Release);
    }
}
