//! Hand-over between shards through one bounded ring per sender. A word shows which rings contain items, and whether the
//! receiver has requested a notification.
//!
//! A sender pushes into its ring, then sets its bit. A receiver takes the bits, then empties the rings of these senders. It
//! may announce that it stops polling ([`Crossing::listen`]); the next sender must then notify it. Read-modify-writes of the
//! word order the announcement and the sending, so if the receiver misses an item, [`Crossing::send`] returns
//! [`Sent::Notify`].

use core::fmt;
use std::sync::OnceLock;

use crossbeam_utils::CachePadded;

use crate::rings::spsc::{self, Consumer, Producer};
use crate::rings::sync::{AtomicU64, Mutex, Ordering, lock};

/// Maximum number of senders.
pub const MAX_SENDERS: usize = 32;

/// Bit that is set while the receiver requests a notification.
const LISTENING: u64 = 1 << 63;
const SENDERS: u64 = (1 << MAX_SENDERS) - 1;

/// Outcome of sending an item.
#[derive(Debug, PartialEq, Eq)]
pub enum Sent<T> {
    /// The receiver finds the item without a notification.
    Quietly,
    /// The sender must notify the receiver.
    Notify,
    /// The ring is full. Contains the item.
    Full(T),
}

struct Lane<T> {
    /// Each half is on a separate cache line. The locks serialize the threads of each side.
    producer: CachePadded<Mutex<Producer<T>>>,
    consumer: CachePadded<Mutex<Consumer<T>>>,
}

/// Bounded rings to one receiver, one for each sender.
pub struct Crossing<T> {
    word: CachePadded<AtomicU64>,
    /// Rings by sender, created at the first send.
    lanes: [OnceLock<Box<Lane<T>>>; MAX_SENDERS],
    capacity: usize,
}

impl<T> Crossing<T> {
    /// Creates a crossing with a ring for `capacity` items per sender.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let lanes = [const { OnceLock::new() }; MAX_SENDERS];
        Self { word: CachePadded::new(AtomicU64::new(0)), lanes, capacity }
    }

    /// Sends an item. Senders are numbered from 0 to `MAX_SENDERS - 1`.
    pub fn send(&self, sender: usize, item: T) -> Sent<T> {
        let lane = self.lanes[sender].get_or_init(|| {
            let (producer, consumer) = spsc::ring(self.capacity);
            let producer = CachePadded::new(Mutex::new(producer));
            Box::new(Lane { producer, consumer: CachePadded::new(Mutex::new(consumer)) })
        });
        if let Err(item) = lock(&lane.producer).push(item) {
            return Sent::Full(item);
        }
        // SYNC: crossing-word
        let before = self.word.fetch_or(1 << sender, Ordering::AcqRel);
        if before & LISTENING == 0 { Sent::Quietly } else { Sent::Notify }
    }

    /// Returns true if a sent item has not been taken yet.
    #[inline]
    pub fn has_items(&self) -> bool {
        // SYNC: crossing-word
        self.word.load(Ordering::Acquire) & SENDERS != 0
    }

    /// Takes at most `most` items. The items of one sender arrive in order.
    #[inline]
    pub fn receive(&self, most: usize, take: impl FnMut(usize, T)) {
        if self.has_items() {
            self.receive_some(most, take);
        }
    }

    fn receive_some(&self, mut most: usize, mut take: impl FnMut(usize, T)) {
        // SYNC: crossing-word
        let mut bits = self.word.fetch_and(!SENDERS, Ordering::AcqRel) & SENDERS;
        let mut left = 0;
        while bits != 0 {
            let sender = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            let Some(lane) = self.lanes[sender].get() else { continue };
            let mut consumer = lock(&lane.consumer);
            while most > 0
                && let Some(item) = consumer.pop()
            {
                most -= 1;
                take(sender, item);
            }
            if !consumer.is_empty() {
                left |= 1 << sender;
            }
        }
        if left != 0 {
            // SYNC: crossing-word
            self.word.fetch_or(left, Ordering::AcqRel);
        }
    }

    /// Requests a notification for items sent from now on. Returns true if there are earlier items, which
    /// cause no notification.
    pub fn listen(&self) -> bool {
        // SYNC: crossing-word
        self.word.fetch_or(LISTENING, Ordering::AcqRel) & SENDERS != 0
    }

    /// Stops the notifications. Returns true if they were requested.
    pub fn ignore(&self) -> bool {
        // SYNC: crossing-word
        self.word.fetch_and(!LISTENING, Ordering::AcqRel) & LISTENING != 0
    }
}

impl<T> fmt::Debug for Crossing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crossing").field("has_items", &self.has_items()).finish_non_exhaustive()
    }
}
