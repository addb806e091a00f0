//! Assigns the device's work to the program's pollers or to the device's background thread.
//!
//! Each device has one [`Handover`] word. Pollers call [`Handover::poller_entered`] on each poll, and the background thread
//! calls [`Handover::background_check`] whenever it wakes. The word always assigns the duty to one side, but does not
//! guarantee exclusion. Both sides may work for a moment, so the state they work on needs a lock.
//!
//! ```text
//!              poller_entered                poller_entered: wake the background, it has to tick again
//!           +-----------------> POLLERS <--------------------+
//!           |                    |    |                      |
//!           |   background_check |    | arm                  |
//!           |                    v    +------------------+   |
//!           +----------------- QUIET                     v   |
//!                ^               |   background_check    BACKGROUND
//!                |               +---------------------> (arm from QUIET too)
//!   background_check: awake                                  |
//!                +------------ WATCHED <---------------------+
//!                      (watch from any state)         watch: wake the background
//! ```
//!
//! The background thread checks again some ticks after `Leave` and `Watched`, and sleeps without a tick after `TakeOver`.
//! Therefore pollers that stop without a call are relieved at the second check, and pollers that call `arm` are relieved
//! immediately. A poller that calls `watch` sleeps on the device's own descriptors and keeps the duty. The state does not
//! change while the poller wakes for only a few polls, so that a wake-up costs no exchange of this word.

use crossbeam_utils::CachePadded;

use crate::rings::sync::{AtomicU32, Ordering};

/// The pollers have polled since the background thread last checked.
const POLLERS: u32 = 0;
/// The background thread has checked, and no poller has polled since.
const QUIET: u32 = 1;
/// The background thread does the work.
const BACKGROUND: u32 = 2;
/// A poller sleeps on the device's descriptors, or has just been woken by them.
const WATCHED: u32 = 3;

/// Next task of the background thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Do the device's work, then sleep until more arrives or until woken. Ticks are not needed.
    TakeOver,
    /// Leave the work to the pollers and check again after a tick.
    Leave,
    /// Leave the work to a poller that sleeps on the device's descriptors, and check again later.
    Watched,
}

/// Word that assigns the work of one device to a thread.
#[derive(Debug)]
pub struct Handover {
    word: CachePadded<AtomicU32>,
}

impl Default for Handover {
    fn default() -> Self {
        Self::new()
    }
}

impl Handover {
    /// Creates a word that assigns the duty to the background thread until a poller polls.
    #[must_use]
    pub fn new() -> Self {
        Self { word: CachePadded::new(AtomicU32::new(BACKGROUND)) }
    }

    /// Records that a poller is active. Costs one load unless the background thread has checked since the last poll. Returns
    /// true if the background thread had the duty. The caller must then wake it, because it sleeps without a tick.
    #[must_use = "the background thread sleeps without a tick unless woken when this is true"]
    pub fn poller_entered(&self) -> bool {
        if self.word.load(Ordering::Relaxed) == POLLERS {
            return false;
        }
        // SYNC: handover-word
        self.word.swap(POLLERS, Ordering::AcqRel) == BACKGROUND
    }

    /// Hands the duty to the background thread, because the calling poller goes to sleep or stops polling. Returns true if
    /// the caller must wake the background thread. Another active poller takes the duty back with its next poll.
    #[must_use = "the background thread may be a tick away from noticing unless woken when this is true"]
    pub fn arm(&self) -> bool {
        // SYNC: handover-word
        self.word.swap(BACKGROUND, Ordering::AcqRel) != BACKGROUND
    }

    /// Keeps the duty with the calling poller while it sleeps on the device's descriptors. Returns true if the caller must
    /// wake the background thread, because both would watch the descriptors.
    #[must_use = "the background thread watches the descriptors too unless woken when this is true"]
    pub fn watch(&self) -> bool {
        if self.word.load(Ordering::Relaxed) == WATCHED {
            return false;
        }
        // SYNC: handover-word
        self.word.swap(WATCHED, Ordering::AcqRel) == BACKGROUND
    }

    /// Returns the duty of the calling background thread, which takes over if there was no poll since its last check.
    /// `is_asleep` returns true while the poller that called [`Handover::watch`] sleeps.
    pub fn background_check(&self, is_asleep: impl FnOnce() -> bool) -> Duty {
        // SYNC: handover-word
        let seen = self.word.load(Ordering::Acquire);
        let next = match seen {
            BACKGROUND => return Duty::TakeOver,
            WATCHED if is_asleep() => return Duty::Watched,
            POLLERS | WATCHED => QUIET,
            _ => BACKGROUND,
        };
        // If the exchange fails, a poller has just polled (leave) or armed (take over).
        // SYNC: handover-word
        let settled = match self.word.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => next,
            Err(now) => now,
        };
        if settled == BACKGROUND { Duty::TakeOver } else { Duty::Leave }
    }

    /// Returns true if the background thread has the duty. Cheap enough to call between two packets.
    #[must_use]
    pub fn is_background(&self) -> bool {
        self.word.load(Ordering::Relaxed) == BACKGROUND
    }
}
