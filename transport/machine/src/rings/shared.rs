//! A ring of messages from one process to another, in memory that each process shares with the other.
//!
//! Each side writes only its own memory, [`LocalArea`], and reads the peer's memory, [`PeerArea`]. Any value in the peer's
//! memory is safe to read, and an invalid value ends the ring ([`Violation`]). The ring never waits, and keeps no reference
//! to shared memory.
//!
//! ```text
//! sender's memory:    produced | bytes of messages        receiver's memory:  consumed, parked
//!
//! message:  length 4, zero 4, bytes, padded to 8
//! ```
//!
//! # Parking
//! To park the ring, a receiver sets the low bits of `parked`, polls once more, and stops polling. A sender reads the word
//! after it has published a message. If the bits are set, and the receiver has not been woken for this value yet, the sender
//! wakes it. Because of the two full fences, either the receiver sees the message, or the sender sees the word. A receiver
//! that waits only for urgent messages sets the second bit, and takes other messages when it polls again.

use crate::rings::sync::{Ordering, fence};
use std::ops::Range;

/// Length of the header before each message, in bytes.
const HEADER: usize = 8;

/// A word of a side's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Number of bytes that the sender has written since the ring was created.
    Produced,
    /// Number of bytes that the receiver has taken since the ring was created.
    Consumed,
    /// The receiver's [`Wanted`] in the low two bits, and above them a count that changes each time the ring is parked or
    /// unparked.
    Parked,
}

/// Messages that wake a receiver that does not poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All messages.
    All = 1,
    /// Messages published as urgent.
    Urgent = 3,
}

/// Bits of [`Word::Parked`] that are set while the receiver does not poll.
const PARKED: u64 = 1;
const URGENT_ONLY: u64 = 2;
/// Unit of the count in [`Word::Parked`].
const PARKED_STEP: u64 = 4;

/// Memory of this side, which the peer reads.
pub trait LocalArea {
    /// Stores a word, with release ordering.
    fn store(&self, word: Word, value: u64);

    /// Copies bytes into the ring. The caller guarantees that the range is in bounds.
    fn write(&self, at: usize, bytes: &[u8]);
}

/// Memory of the peer, which this side reads.
pub trait PeerArea {
    /// Loads a word, with acquire ordering.
    fn load(&self, word: Word) -> u64;

    /// Copies bytes out of the ring. The caller guarantees that the range is in bounds.
    fn read(&self, at: usize, into: &mut [u8]);
}

/// Error returned if the peer wrote an invalid value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation;

/// A position in the ring, as the number of bytes since the ring was created, and as the offset in its memory.
#[derive(Clone, Copy, Debug)]
struct Position {
    count: u64,
    at: usize,
    capacity: usize,
}

impl Position {
    /// Returns the start of a ring of `capacity` bytes, a multiple of 8.
    fn new(capacity: usize) -> Self {
        assert!(capacity > HEADER && capacity.is_multiple_of(8), "a ring holds whole messages");
        Self { count: 0, at: 0, capacity }
    }

    /// Advances by `bytes`, at most the capacity.
    fn advance(&mut self, bytes: usize) {
        self.count = self.count.wrapping_add(bytes as u64);
        self.at += bytes;
        if self.at >= self.capacity {
            self.at -= self.capacity;
        }
    }

    /// Returns the ranges of `length` bytes that start `from` bytes after this position.
    fn ranges(mut self, from: usize, length: usize) -> [Range<usize>; 2] {
        self.advance(from);
        let straight = self.straight(length);
        [self.at..self.at + straight, 0..length - straight]
    }

    /// Returns how many of the next `bytes` bytes precede the end of the ring's memory.
    fn straight(&self, bytes: usize) -> usize {
        bytes.min(self.capacity - self.at)
    }
}

/// Returns the number of bytes that a message takes in the ring.
fn footprint(length: usize) -> usize {
    HEADER + length.next_multiple_of(8)
}

/// The sender's side of a ring.
#[derive(Debug)]
pub struct Producer {
    written: Position,
    /// Position that is published to the receiver.
    published: u64,
    /// Last known position of the receiver.
    consumed: u64,
    /// Value of `parked` for which the receiver was last woken.
    woken: u64,
}

impl Producer {
    /// Creates the sender of an empty ring of `capacity` bytes, a multiple of 8.
    ///
    /// # Panics
    /// If `capacity` is not a multiple of 8, or not greater than 8.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { written: Position::new(capacity), published: 0, consumed: 0, woken: 0 }
    }

    /// Returns true if there is room for a message of `length` bytes.
    ///
    /// # Errors
    /// [`Violation`] if the receiver's position is invalid.
    pub fn has_room(&mut self, peer: &impl PeerArea, length: usize) -> Result<bool, Violation> {
        let needed = footprint(length) as u64;
        let capacity = self.written.capacity as u64;
        if self.written.count.wrapping_sub(self.consumed) + needed <= capacity {
            return Ok(true);
        }
        // SYNC: shared-consumed
        let consumed = peer.load(Word::Consumed);
        let used = self.written.count.wrapping_sub(consumed);
        if used > capacity {
            return Err(Violation);
        }
        self.consumed = consumed;
        Ok(used + needed <= capacity)
    }

    /// Returns the ranges of the ring for the bytes `from..from + length` of the next message. The second
    /// range is empty unless the bytes wrap around the end of the ring's memory. The caller has checked with
    /// [`Producer::has_room`] that the whole message fits.
    #[must_use]
    pub fn ranges(&self, from: usize, length: usize) -> [Range<usize>; 2] {
        self.written.ranges(HEADER + from, length)
    }

    /// Appends a message that consists of `head`, `written` bytes that are already in their
    /// [ranges](Producer::ranges), and `tail`. The caller has checked with [`Producer::has_room`] that it
    /// fits. The receiver sees the message after the next [`Producer::publish`].
    #[inline]
    pub fn push(&mut self, local: &impl LocalArea, head: &[u8], written: usize, tail: &[u8]) {
        let length = head.len() + written + tail.len();
        let header = u64::from(u32::try_from(length).unwrap_or(u32::MAX));
        local.write(self.written.at, &header.to_le_bytes());
        for (from, part) in [(0, head), (head.len() + written, tail)] {
            if part.is_empty() {
                continue;
            }
            let [first, rest] = self.ranges(from, part.len());
            let (first_part, rest_part) = part.split_at(first.len());
            local.write(first.start, first_part);
            if !rest.is_empty() {
                local.write(0, rest_part);
            }
        }
        self.written.advance(footprint(length));
    }

    /// Returns the position that [`Producer::publish`] stores after one more message of `length` bytes.
    #[must_use]
    pub fn position_after(&self, length: usize) -> u64 {
        self.written.count.wrapping_add(footprint(length) as u64)
    }

    /// Publishes the appended messages. `is_urgent` is true if one of them is urgent. Returns true if the
    /// caller must wake the receiver.
    #[must_use = "a receiver that parked the ring does not look"]
    pub fn publish(&mut self, local: &impl LocalArea, peer: &impl PeerArea, is_urgent: bool) -> bool {
        if self.published == self.written.count {
            return false;
        }
        self.published = self.written.count;
        // SYNC: shared-produced
        local.store(Word::Produced, self.published);
        // SYNC: shared-parked-fence
        fence(Ordering::SeqCst);
        self.finds_parked(peer, is_urgent)
    }

    /// Returns true if the receiver has parked the ring for a message of this urgency and has not been woken for it.
    /// Afterwards the receiver counts as woken.
    fn finds_parked(&mut self, peer: &impl PeerArea, is_urgent: bool) -> bool {
        // SYNC: shared-parked
        let parked = peer.load(Word::Parked);
        let is_wanted = is_urgent || parked & URGENT_ONLY == 0;
        let sleeps = parked & PARKED != 0 && is_wanted && parked != self.woken;
        if sleeps {
            self.woken = parked;
        }
        sleeps
    }

    /// Records that the receiver could not be woken. If the ring is still parked, the next [`Producer::publish`] returns
    /// true again.
    pub fn was_not_woken(&mut self) {
        self.woken = 0;
    }

    /// Returns true if the receiver has taken all published messages.
    #[must_use]
    pub fn is_drained(&self, peer: &impl PeerArea) -> bool {
        // SYNC: shared-consumed
        peer.load(Word::Consumed) == self.published
    }

    /// Returns the receiver's position, for detecting progress.
    #[must_use]
    pub fn consumed(&self, peer: &impl PeerArea) -> u64 {
        // SYNC: shared-consumed
        peer.load(Word::Consumed)
    }
}

/// The receiver's side of a ring.
#[derive(Debug)]
pub struct Consumer {
    taken: Position,
    /// Start of the last message's bytes.
    last: Position,
    /// Position that is published to the sender.
    released: u64,
    /// Last known position of the sender.
    produced: u64,
    /// Value of this side's `parked` word.
    parked: u64,
}

impl Consumer {
    /// Creates the receiver of an empty ring of `capacity` bytes, a multiple of 8. The ring is not parked.
    ///
    /// # Panics
    /// If `capacity` is not a multiple of 8, or not greater than 8.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let start = Position::new(capacity);
        Self { taken: start, last: start, released: 0, produced: 0, parked: 0 }
    }

    /// Copies the next message, or its first `most` bytes, to the front of `into`, which grows to the message's length if it
    /// is shorter. Returns the length of the message, or `None` if there is none. `longest` is the maximum length of a valid
    /// message. The rest of the message is in its [ranges](Consumer::ranges); the corresponding bytes of `into` are
    /// arbitrary.
    ///
    /// # Errors
    /// [`Violation`] if the sender's position or the length is invalid.
    pub fn pop(
        &mut self,
        peer: &impl PeerArea,
        longest: usize,
        most: usize,
        into: &mut Vec<u8>,
    ) -> Result<Option<usize>, Violation> {
        if self.taken.count == self.produced && !self.look(peer)? {
            return Ok(None);
        }
        let mut header = [0; HEADER];
        peer.read(self.taken.at, &mut header);
        let length = usize::try_from(u64::from_le_bytes(header)).map_err(|_| Violation)?;
        let available = self.produced.wrapping_sub(self.taken.count);
        if length > longest || footprint(length) as u64 > available {
            return Err(Violation);
        }
        self.taken.advance(HEADER);
        if into.len() < length {
            into.resize(length, 0);
        }
        self.last = self.taken;
        let (first, rest) = into[..length.min(most)].split_at_mut(self.taken.straight(length.min(most)));
        peer.read(self.taken.at, first);
        if !rest.is_empty() {
            peer.read(0, rest);
        }
        self.taken.advance(length.next_multiple_of(8));
        Ok(Some(length))
    }

    /// Returns the ranges of the ring for the bytes `from..from + length` of the last message. The second
    /// range is empty unless the bytes wrap around the end of the ring's memory. The sender may reuse the
    /// ranges after [`Consumer::release`].
    #[must_use]
    pub fn ranges(&self, from: usize, length: usize) -> [Range<usize>; 2] {
        self.last.ranges(from, length)
    }

    /// Returns true if a message has arrived, or the peer's position is invalid.
    #[must_use]
    pub fn has_message(&mut self, peer: &impl PeerArea) -> bool {
        self.taken.count != self.produced || self.look(peer) != Ok(false)
    }

    /// Reads the sender's position. Returns true if there are messages.
    fn look(&mut self, peer: &impl PeerArea) -> Result<bool, Violation> {
        // SYNC: shared-produced
        let produced = peer.load(Word::Produced);
        let available = produced.wrapping_sub(self.taken.count);
        if available > self.taken.capacity as u64 || !available.is_multiple_of(8) {
            return Err(Violation);
        }
        self.produced = produced;
        Ok(available > 0)
    }

    /// Releases the space of the taken messages to the sender.
    pub fn release(&mut self, local: &impl LocalArea) {
        if self.released != self.taken.count {
            self.released = self.taken.count;
            // SYNC: shared-consumed
            local.store(Word::Consumed, self.released);
        }
    }

    /// Parks the ring until the sender wakes this side for a `wanted` message. Returns false, without parking
    /// the ring, if any message or invalid data has arrived. If the ring is parked already, `wanted` may
    /// include more messages than before.
    #[must_use = "the ring is not parked when this is false"]
    pub fn park(&mut self, local: &impl LocalArea, peer: &impl PeerArea, wanted: Wanted) -> bool {
        if self.is_parked() && (wanted == Wanted::Urgent || self.parked & URGENT_ONLY == 0) {
            return true;
        }
        self.count_parked(wanted as u64);
        // SYNC: shared-parked
        local.store(Word::Parked, self.parked);
        // SYNC: shared-parked-fence
        fence(Ordering::SeqCst);
        if !self.has_message(peer) {
            return true;
        }
        self.unpark(local);
        false
    }

    /// Resumes polling.
    pub fn unpark(&mut self, local: &impl LocalArea) {
        if self.is_parked() {
            self.count_parked(0);
            // SYNC: shared-parked
            local.store(Word::Parked, self.parked);
        }
    }

    fn count_parked(&mut self, bits: u64) {
        self.parked = (self.parked & !(PARKED_STEP - 1)).wrapping_add(PARKED_STEP) | bits;
    }

    /// Returns true if the ring is parked.
    #[must_use]
    pub fn is_parked(&self) -> bool {
        self.parked & PARKED != 0
    }
}
