//! The entries of a completion queue.
//!
//! Owns the bounded queue into which shards push completions and from which the program takes them. It has a
//! separate lock, so that a program reads completions while another thread works on the shard. The shard of
//! the CQ's group pushes under that lock. Each other shard pushes into a separate ring
//! ([`trunkline_machine::rings::crossing`]), from which completions are moved to the queue when the program
//! polls, or by the other shard if the program has requested an event. This code must never take a shard's
//! lock.
#![forbid(unsafe_code)]

use crate::device::tables::directory::ShardIndex;
use crate::device::threads::signal::{Signal, lock};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use trunkline_machine::mutant;
use trunkline_machine::rings::crossing::{Crossing, Sent};
use trunkline_verbs::{Completion, Notify, VerbsError};

/// Maximum number of completions in the ring of another shard.
const MAX_CROSSING: usize = 64;

/// Completions of a CQ.
#[derive(Debug)]
pub(in crate::device) struct CqRing {
    state: Mutex<CqEntries>,
    /// Number of completions in the queue, so that an empty poll does not take a lock.
    waiting: AtomicUsize,
    armed: AtomicBool,
    /// The shard of the CQ's group.
    home: ShardIndex,
    /// Completions from other shards; the flag is true if the sender requested a solicited event.
    crossing: Crossing<(Completion, bool)>,
    /// True if a completion was lost because there was no room for it.
    overflowed: AtomicBool,
    /// Channel that gets the context when the CQ fires.
    channel: Option<Arc<Signal<u64>>>,
    context: u64,
}

#[derive(Debug)]
struct CqEntries {
    entries: VecDeque<Completion>,
    capacity: usize,
    notify: Option<Notify>,
}

impl CqRing {
    pub(in crate::device) fn new(
        home: ShardIndex,
        capacity: usize,
        channel: Option<Arc<Signal<u64>>>,
        context: u64,
    ) -> Self {
        Self {
            home,
            crossing: Crossing::new(MAX_CROSSING),
            state: Mutex::new(CqEntries {
                entries: VecDeque::with_capacity(capacity),
                capacity,
                notify: None,
            }),
            waiting: AtomicUsize::new(0),
            armed: AtomicBool::new(false),
            overflowed: AtomicBool::new(false),
            channel,
            context,
        }
    }

    /// Returns the context given by the CQ's creator.
    pub(in crate::device) fn context(&self) -> u64 {
        self.context
    }

    /// Returns the maximum number of entries.
    pub(in crate::device) fn capacity(&self) -> usize {
        lock(&self.state).capacity
    }

    /// Changes the capacity. Completions in the queue are kept.
    pub(in crate::device) fn resize(&self, capacity: usize) -> Result<(), VerbsError> {
        let mut state = lock(&self.state);
        let waiting = state.entries.len();
        if waiting > capacity {
            return Err(VerbsError::Invalid("more completions wait in the CQ than it would hold"));
        }
        state.entries.reserve_exact(capacity - waiting);
        state.capacity = capacity;
        Ok(())
    }

    /// Returns true if the program has requested an event that has not fired.
    pub(in crate::device) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// Returns true if a completion was lost. Queues that complete into this CQ are then broken (contract
    /// H5).
    pub(in crate::device) fn is_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// Adds a completion from a shard. Returns false at the first overflow. The completion is then lost, the CQ is
    /// broken, and the caller raises an asynchronous event.
    #[inline]
    pub(in crate::device) fn push(&self, from: ShardIndex, completion: Completion, solicited: bool) -> bool {
        if from == self.home {
            return self.add(&mut lock(&self.state), completion, solicited);
        }
        self.cross(from, completion, solicited)
    }

    /// Adds a completion from a shard other than the CQ's shard.
    #[inline(never)]
    fn cross(&self, from: ShardIndex, completion: Completion, solicited: bool) -> bool {
        let item = match self.crossing.send(from.place(), (completion, solicited)) {
            Sent::Quietly => return true,
            // The program may be asleep until an event fires.
            Sent::Notify => {
                if !mutant!(crossed_completion_fires_no_event) {
                    self.move_crossed(&mut lock(&self.state));
                }
                return true;
            }
            Sent::Full(item) => item,
        };
        let mut state = lock(&self.state);
        self.move_crossed(&mut state);
        match self.crossing.send(from.place(), item) {
            Sent::Full((completion, solicited)) => self.add(&mut state, completion, solicited),
            Sent::Quietly | Sent::Notify => {
                self.move_crossed(&mut state);
                true
            }
        }
    }

    #[inline]
    fn add(&self, state: &mut CqEntries, completion: Completion, solicited: bool) -> bool {
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
            self.fire(state);
        }
        true
    }

    /// Notifies the program, and disarms the CQ.
    #[inline(never)]
    fn fire(&self, state: &mut CqEntries) {
        state.notify = None;
        self.armed.store(false, Ordering::Relaxed);
        self.crossing.ignore();
        if let Some(channel) = &self.channel {
            // If the channel is full, it is readable already, and its reader polls all CQs that it serves.
            let _full = channel.push(self.context);
        }
    }

    /// Moves completions from other shards into the queue while there is room. The others stay in their rings.
    fn move_crossed(&self, state: &mut CqEntries) {
        let room = state.capacity - state.entries.len();
        self.crossing.receive(room, |_, (completion, solicited)| {
            self.add(state, completion, solicited);
        });
    }

    /// Returns true if completions from other shards wait to be moved into the queue.
    #[inline]
    pub(in crate::device) fn has_crossed(&self) -> bool {
        self.crossing.has_items()
    }

    /// Takes completions, oldest first. Returns their number.
    #[inline]
    pub(in crate::device) fn take(&self, completions: &mut [Completion]) -> usize {
        let has_crossed = self.has_crossed();
        // SYNC: cq-waiting
        if self.waiting.load(Ordering::Acquire) == 0 && !has_crossed {
            return 0;
        }
        self.take_waiting(completions, has_crossed)
    }

    // Not inlined into `take`, since many polls find the queue empty.
    #[inline(never)]
    fn take_waiting(&self, completions: &mut [Completion], has_crossed: bool) -> usize {
        let mut state = lock(&self.state);
        if has_crossed {
            self.move_crossed(&mut state);
        }
        let mut count = 0;
        while count < completions.len()
            && let Some(completion) = state.entries.pop_front()
        {
            completions[count] = completion;
            count += 1;
        }
        // SYNC: cq-waiting
        self.waiting.store(state.entries.len(), Ordering::Release);
        count
    }

    /// Returns true if there are completions to take.
    pub(in crate::device) fn has_any(&self) -> bool {
        // SYNC: cq-waiting
        self.waiting.load(Ordering::Acquire) > 0 || self.has_crossed()
    }

    /// Disarms the CQ. Called for a thread that is awake.
    pub(in crate::device) fn disarm(&self) {
        if self.is_armed() {
            let mut state = lock(&self.state);
            state.notify = None;
            self.armed.store(false, Ordering::Relaxed);
            self.crossing.ignore();
        }
    }

    /// Arms the CQ. A request for any completion is not replaced by a later request for solicited completions
    /// only.
    pub(in crate::device) fn arm(&self, notify: Notify) -> Result<(), VerbsError> {
        if self.channel.is_none() {
            return Err(VerbsError::Invalid("the CQ was made without a completion channel"));
        }
        let mut state = lock(&self.state);
        if state.notify != Some(Notify::Any) {
            state.notify = Some(notify);
        }
        self.armed.store(true, Ordering::Relaxed);
        // Completions that crossed earlier are returned by the next poll.
        self.crossing.listen();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_verbs::CompletionStatus;

    const HERE: ShardIndex = ShardIndex::FIRST;

    fn completion(wr_id: u64) -> Completion {
        Completion { wr_id, ..Completion::default() }
    }

    #[test]
    fn entries_keep_order_and_overflow_is_reported_once() {
        let ring = CqRing::new(HERE, 2, None, 7);
        assert!(ring.push(HERE, completion(1), false));
        assert!(ring.push(HERE, completion(2), false));
        assert!(!ring.is_overflowed());
        assert!(!ring.push(HERE, completion(3), false), "the first loss is told");
        assert!(ring.push(HERE, completion(4), false), "and told once");
        assert!(ring.is_overflowed());
        let mut out = [Completion::default(); 4];
        assert_eq!(ring.take(&mut out), 2);
        assert_eq!([out[0].wr_id, out[1].wr_id], [1, 2]);
        assert_eq!(ring.take(&mut out), 0);
        assert!(ring.arm(Notify::Any).is_err(), "no channel");
    }

    #[test]
    fn resized_ring_keeps_waiting_entries() {
        let ring = CqRing::new(HERE, 2, None, 7);
        ring.push(HERE, completion(1), false);
        ring.push(HERE, completion(2), false);
        assert!(ring.resize(1).is_err());
        ring.resize(3).unwrap();
        assert!(ring.push(HERE, completion(3), false));
        assert!(!ring.push(HERE, completion(4), false), "full again");
        let mut out = [Completion::default(); 4];
        assert_eq!(ring.take(&mut out), 3);
        assert_eq!(out[2].wr_id, 3);
    }

    #[test]
    fn only_armed_notification_fires() {
        let channel = Arc::new(Signal::new(&trunkline_machine::Runtime::threads(), 8).unwrap());
        let ring = CqRing::new(HERE, 8, Some(Arc::clone(&channel)), 7);
        ring.push(HERE, completion(1), true);
        assert_eq!(channel.pop(), None, "not armed");
        ring.arm(Notify::Solicited).unwrap();
        ring.push(HERE, completion(2), false);
        assert_eq!(channel.pop(), None, "not solicited");
        assert!(ring.is_armed());
        ring.push(HERE, completion(3), true);
        assert_eq!(channel.pop(), Some(7));
        assert!(!ring.is_armed());
        ring.push(HERE, completion(4), true);
        assert_eq!(channel.pop(), None, "one event per arming");
        ring.arm(Notify::Solicited).unwrap();
        ring.push(HERE, Completion { status: CompletionStatus::WorkRequestFlushed, ..completion(5) }, false);
        assert_eq!(channel.pop(), Some(7), "a failure counts as solicited");
        ring.arm(Notify::Any).unwrap();
        ring.arm(Notify::Solicited).unwrap();
        ring.push(HERE, completion(6), false);
        assert_eq!(channel.pop(), Some(7), "the wider wish stands");
    }

    #[test]
    fn completions_of_other_shards_are_polled_in_order_and_fire_armed_event() {
        let channel = Arc::new(Signal::new(&trunkline_machine::Runtime::threads(), 8).unwrap());
        let ring = CqRing::new(HERE, 4, Some(Arc::clone(&channel)), 7);
        let there = ShardIndex(3);
        let mut out = [Completion::default(); 8];
        ring.push(there, completion(1), false);
        ring.push(there, completion(2), false);
        ring.push(HERE, completion(3), false);
        assert_eq!(channel.pop(), None);
        assert_eq!(ring.take(&mut out), 3);
        assert_eq!([out[0].wr_id, out[1].wr_id, out[2].wr_id], [3, 1, 2]);
        ring.arm(Notify::Any).unwrap();
        ring.push(there, completion(4), false);
        assert_eq!(channel.pop(), Some(7), "nobody else would wake the program");
        assert!(!ring.is_armed());
        ring.push(there, completion(5), false);
        assert_eq!((channel.pop(), ring.take(&mut out)), (None, 2));
        assert_eq!([out[0].wr_id, out[1].wr_id], [4, 5]);
    }

    #[test]
    fn completions_of_other_shards_overflow_when_neither_ring_nor_cq_has_room() {
        let ring = CqRing::new(HERE, 2, None, 7);
        let there = ShardIndex(1);
        let fits = 2 + MAX_CROSSING as u64;
        assert!((0..fits).all(|wr_id| ring.push(there, completion(wr_id), false)));
        assert!(!ring.is_overflowed());
        assert!(!ring.push(there, completion(fits), false), "lost");
        let mut out = [Completion::default(); 128];
        let mut all = Vec::new();
        while let count @ 1.. = ring.take(&mut out) {
            all.extend(out[..count].iter().map(|completion| completion.wr_id));
        }
        assert_eq!(all, (0..fits).collect::<Vec<_>>());
    }
}
