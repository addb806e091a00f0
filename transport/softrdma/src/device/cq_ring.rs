//! The entries of a completion queue.
//!
//! Owns the bounded queue between the card, which pushes, and the program, which takes. It has
//! a lock of its own, so that a program reads its completions while another thread works in
//! the card. It must never take the card's lock.
#![forbid(unsafe_code)]

use super::signal::{Signal, lock};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use trunkline_verbs::{Completion, Notify, VerbsError};

/// Completions that wait to be taken.
#[derive(Debug)]
pub(super) struct CqRing {
    state: Mutex<State>,
    /// Entries waiting, so that an empty poll takes no lock.
    waiting: AtomicUsize,
    armed: AtomicBool,
    /// A completion was lost for want of room.
    overflowed: AtomicBool,
    /// Where it fires, and with which context.
    channel: Option<Arc<Signal<u64>>>,
    context: u64,
}

#[derive(Debug)]
struct State {
    entries: VecDeque<Completion>,
    capacity: usize,
    notify: Option<Notify>,
}

impl CqRing {
    pub(super) fn new(capacity: usize, channel: Option<Arc<Signal<u64>>>, context: u64) -> Self {
        Self {
            state: Mutex::new(State { entries: VecDeque::with_capacity(capacity), capacity, notify: None }),
            waiting: AtomicUsize::new(0),
            armed: AtomicBool::new(false),
            overflowed: AtomicBool::new(false),
            channel,
            context,
        }
    }

    /// The number its creator gave it.
    pub(super) fn context(&self) -> u64 {
        self.context
    }

    /// Entries it can hold.
    pub(super) fn capacity(&self) -> usize {
        lock(&self.state).capacity
    }

    /// Changes that. What waits stays.
    pub(super) fn resize(&self, capacity: usize) -> Result<(), VerbsError> {
        let mut state = lock(&self.state);
        let waiting = state.entries.len();
        if waiting > capacity {
            return Err(VerbsError::Invalid("more completions wait in the CQ than it would hold"));
        }
        state.entries.reserve_exact(capacity - waiting);
        state.capacity = capacity;
        Ok(())
    }

    /// Whether the program asked for an event that has not come yet.
    pub(super) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// Whether a completion was lost: what completes here is broken (contract H5).
    pub(super) fn is_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// Adds a completion. `false` the first time there is no room: the completion is lost and
    /// the CQ is broken, which its owner learns by an asynchronous event.
    pub(super) fn push(&self, completion: Completion, solicited: bool) -> bool {
        let mut state = lock(&self.state);
        if state.entries.len() >= state.capacity {
            return self.overflowed.swap(true, Ordering::Relaxed);
        }
        state.entries.push_back(completion);
        // SYNC: cq-waiting
        self.waiting.store(state.entries.len(), Ordering::Release);
        let fires = match state.notify {
            None => false,
            Some(Notify::Any) => true,
            Some(Notify::Solicited) => solicited || !completion.status.is_success(),
        };
        if fires {
            state.notify = None;
            self.armed.store(false, Ordering::Relaxed);
            if let Some(channel) = &self.channel {
                // A full channel is readable already, and its reader polls every CQ it serves.
                let _full = channel.push(self.context);
            }
        }
        true
    }

    /// Takes completions, oldest first; returns how many.
    pub(super) fn take(&self, completions: &mut [Completion]) -> usize {
        // SYNC: cq-waiting
        if self.waiting.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut state = lock(&self.state);
        let count = state.entries.len().min(completions.len());
        for (slot, entry) in completions.iter_mut().zip(state.entries.drain(..count)) {
            *slot = entry;
        }
        // SYNC: cq-waiting
        self.waiting.store(state.entries.len(), Ordering::Release);
        count
    }

    /// Arms it. A wish for any completion is not weakened by a later one for solicited ones.
    pub(super) fn arm(&self, notify: Notify) -> Result<(), VerbsError> {
        if self.channel.is_none() {
            return Err(VerbsError::Invalid("the CQ was made without a completion channel"));
        }
        let mut state = lock(&self.state);
        if state.notify != Some(Notify::Any) {
            state.notify = Some(notify);
        }
        self.armed.store(true, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_verbs::CompletionStatus;

    fn completion(wr_id: u64) -> Completion {
        Completion { wr_id, ..Completion::default() }
    }

    #[test]
    fn entries_come_in_order_and_overflow_is_told_once() {
        let ring = CqRing::new(2, None, 7);
        assert!(ring.push(completion(1), false));
        assert!(ring.push(completion(2), false));
        assert!(!ring.is_overflowed());
        assert!(!ring.push(completion(3), false), "the first loss is told");
        assert!(ring.push(completion(4), false), "and told once");
        assert!(ring.is_overflowed());
        let mut out = [Completion::default(); 4];
        assert_eq!(ring.take(&mut out), 2);
        assert_eq!([out[0].wr_id, out[1].wr_id], [1, 2]);
        assert_eq!(ring.take(&mut out), 0);
        assert!(ring.arm(Notify::Any).is_err(), "no channel");
    }

    #[test]
    fn a_resized_ring_keeps_what_waits() {
        let ring = CqRing::new(2, None, 7);
        ring.push(completion(1), false);
        ring.push(completion(2), false);
        assert!(ring.resize(1).is_err());
        ring.resize(3).unwrap();
        assert!(ring.push(completion(3), false));
        assert!(!ring.push(completion(4), false), "full again");
        let mut out = [Completion::default(); 4];
        assert_eq!(ring.take(&mut out), 3);
        assert_eq!(out[2].wr_id, 3);
    }

    #[test]
    fn only_what_was_asked_for_fires() {
        let channel = Arc::new(Signal::new(&trunkline_machine::Runtime::threads(), 8).unwrap());
        let ring = CqRing::new(8, Some(Arc::clone(&channel)), 7);
        ring.push(completion(1), true);
        assert_eq!(channel.pop(), None, "not armed");
        ring.arm(Notify::Solicited).unwrap();
        ring.push(completion(2), false);
        assert_eq!(channel.pop(), None, "not solicited");
        assert!(ring.is_armed());
        ring.push(completion(3), true);
        assert_eq!(channel.pop(), Some(7));
        assert!(!ring.is_armed());
        ring.push(completion(4), true);
        assert_eq!(channel.pop(), None, "one event per arming");
        ring.arm(Notify::Solicited).unwrap();
        ring.push(Completion { status: CompletionStatus::WorkRequestFlushed, ..completion(5) }, false);
        assert_eq!(channel.pop(), Some(7), "a failure counts as solicited");
        ring.arm(Notify::Any).unwrap();
        ring.arm(Notify::Solicited).unwrap();
        ring.push(completion(6), false);
        assert_eq!(channel.pop(), Some(7), "the wider wish stands");
    }
}
