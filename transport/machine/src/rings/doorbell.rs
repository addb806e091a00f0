//! The handshake between a machine that is about to sleep and the threads that give it work.
//!
//! Owns one word. The sleeper and every thread that puts work into its queues call it. It never sleeps or
//! writes a file descriptor itself: its results direct the caller.
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
//! The two full fences exclude that the sleeper misses the work while the ringer misses the sleeper.

use crossbeam_utils::CachePadded;

use crate::rings::sync::{AtomicU32, Ordering, fence};

const AWAKE: u32 = 0;
const SLEEPING: u32 = 1;

/// The word of one sleeper. Share it by reference or `Arc` with every thread that may bring work.
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

    /// Sleeper: announces sleep. After this, check every queue once more, sleep if there is no work, and call
    /// [`woken`](Self::woken) in both cases.
    pub fn prepare(&self) {
        // SYNC: doorbell-word
        self.word.store(SLEEPING, Ordering::Relaxed);
        // SYNC: doorbell-fence
        fence(Ordering::SeqCst);
    }

    /// Sleeper: announces that it is awake again, or did not sleep after all. Ringers stop writing its
    /// eventfd. Check the queues after this. Returns true if a ringer was faster: its write to the eventfd
    /// has arrived or is about to, and costs one needless wake-up if the sleeper does not wait for it.
    pub fn woken(&self) -> bool {
        // Swap rather than store: an acquire also orders everything that the ringer did before it took the
        // word. SYNC: doorbell-word
        self.word.swap(AWAKE, Ordering::AcqRel) == AWAKE
    }

    /// Ringer: call after putting work into a queue. Returns true if the caller must write the sleeper's
    /// eventfd; one ringer gets true per sleep.
    #[must_use = "the sleeper stays asleep unless its eventfd is written when this is true"]
    pub fn ring(&self) -> bool {
        // SYNC: doorbell-fence
        fence(Ordering::SeqCst);
        // Load first: the word's cache line stays shared while the sleeper is awake, which is nearly always.
        // SYNC: doorbell-word
        self.word.load(Ordering::Relaxed) == SLEEPING
            && self.word.compare_exchange(SLEEPING, AWAKE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Returns true if the owner has announced sleep. For metrics only; decisions must not depend on it.
    #[must_use]
    pub fn is_sleeping(&self) -> bool {
        self.word.load(Ordering::Relaxed) == SLEEPING
    }
}
