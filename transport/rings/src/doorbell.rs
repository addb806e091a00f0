//! The handshake between a machine that is about to sleep and those that bring it work.
//!
//! Owns one word. The sleeper and every thread that puts work into its queues call it. It never sleeps or
//! writes a file descriptor itself: it reports which caller has to.
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

use crate::sync::{AtomicU32, Ordering, fence};

const AWAKE: u32 = 0;
const SLEEPING: u32 = 1;

/// One sleeper's word. Share it by reference or `Arc` with everyone who may bring work.
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
    /// A doorbell whose owner is awake.
    #[must_use]
    pub fn new() -> Self {
        Self { word: CachePadded::new(AtomicU32::new(AWAKE)) }
    }

    /// Sleeper: announces sleep. Check every queue again after this, then sleep unless there was work, and
    /// call [`woken`](Self::woken) in both cases.
    pub fn prepare(&self) {
        // SYNC: doorbell-word
        self.word.store(SLEEPING, Ordering::Relaxed);
        // SYNC: doorbell-fence
        fence(Ordering::SeqCst);
    }

    /// Sleeper: is awake again, for whatever reason, or has not slept after all. Ringers stop writing its
    /// eventfd. Look into the queues after this. True when a ringer was faster: its write to the eventfd has
    /// come or is about to, and costs one needless wake-up if it is not waited for.
    pub fn woken(&self) -> bool {
        // A swap and not a store: with acquire it also sees what the ringer that took the word did before.
        // SYNC: doorbell-word
        self.word.swap(AWAKE, Ordering::AcqRel) == AWAKE
    }

    /// Ringer: call after work has been put into a queue. True when the caller must write the sleeper's
    /// eventfd; of all ringers one gets true per sleep.
    #[must_use = "the sleeper stays asleep unless its eventfd is written when this is true"]
    pub fn ring(&self) -> bool {
        // SYNC: doorbell-fence
        fence(Ordering::SeqCst);
        // A plain load first: while the sleeper is awake, which is nearly always, its cache line stays
        // shared.
        // SYNC: doorbell-word
        self.word.load(Ordering::Relaxed) == SLEEPING
            && self.word.compare_exchange(SLEEPING, AWAKE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Returns true if the owner has announced sleep. For metrics only; no decision may depend on it.
    #[must_use]
    pub fn is_sleeping(&self) -> bool {
        self.word.load(Ordering::Relaxed) == SLEEPING
    }
}
