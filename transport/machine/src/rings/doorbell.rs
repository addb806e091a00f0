//! The handshake between a machine that is about to sleep and the threads that give it work.
//!
//! A doorbell is one word, accessed by the sleeper and by each thread that puts work into the sleeper's queues. It neither
//! sleeps nor writes to a file descriptor; its results tell the caller to do so.
//!
//! ```text
//!   sleeper                              ringer
//!   prepare(): word = sleeping           put work into a queue
//!              full fence                ring(): full fence
//!   check every queue once more                  word sleeping? set it to awake
//!   nothing there: sleep                         true: write the sleeper's eventfd
//!   woken()
//! ```
//!
//! Because of the two full fences, either the sleeper sees the work, or the ringer sees that the sleeper
//! sleeps.

use crossbeam_utils::CachePadded;

use crate::rings::sync::{AtomicU32, Ordering, fence};

const AWAKE: u32 = 0;
const SLEEPING: u32 = 1;

/// The word of one sleeper. Share it by reference or `Arc` with all threads that may bring work.
#[derive(Debug)]
pub struct Doorbell {
    word: CachePadded<AtomicU32>,
}

impl Default for Doorbell {
    fn default() -> Self {
        Self::new()
    }
}

impl Doorbell {
    /// Creates a doorbell whose owner is awake.
    #[must_use]
    pub fn new() -> Self {
        Self { word: CachePadded::new(AtomicU32::new(AWAKE)) }
    }

    /// Announces sleep. Called by the sleeper, which then checks all queues again, sleeps if there is no
    /// work, and calls [`woken`](Self::woken) in both cases.
    pub fn prepare(&self) {
        // SYNC: doorbell-word
        self.word.store(SLEEPING, Ordering::Relaxed);
        // SYNC: doorbell-fence
        fence(Ordering::SeqCst);
    }

    /// Announces that the sleeper is awake again, or did not sleep. Called by the sleeper, which then checks its queues.
    /// Ringers stop writing to the sleeper's eventfd. Returns true if a ringer was faster. That ringer's write to the
    /// eventfd, which may still follow, causes one needless wake-up unless the sleeper waits for it.
    pub fn woken(&self) -> bool {
        // Swap instead of storing, because the acquire makes visible what the ringer did before it changed the word.
        // SYNC: doorbell-word
        self.word.swap(AWAKE, Ordering::AcqRel) == AWAKE
    }

    /// Returns true if the caller must write to the sleeper's eventfd. Called by a ringer after it put work
    /// into a queue. One ringer gets true per sleep.
    #[must_use = "the sleeper stays asleep unless its eventfd is written when this is true"]
    pub fn ring(&self) -> bool {
        // SYNC: doorbell-fence
        fence(Ordering::SeqCst);
        // Load first, because the word's cache line stays shared while the sleeper is awake, which is almost always.
        // SYNC: doorbell-word
        self.word.load(Ordering::Relaxed) == SLEEPING
            && self.word.compare_exchange(SLEEPING, AWAKE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Returns true if the owner has announced sleep. Only for metrics: the result may be out of date.
    #[must_use]
    pub fn is_sleeping(&self) -> bool {
        self.word.load(Ordering::Relaxed) == SLEEPING
    }
}
