//! Fault injection for a link.
//!
//! Drops, duplicates, reorders, corrupts and delays sent datagrams according to a [`FaultPlan`]. Owns the datagrams
//! that are held back. Their number and the time of their delay are limited. The same plan and the same datagrams give
//! the same faults, since the only source of randomness is the plan's seed.
#![forbid(unsafe_code)]

mod plan;

pub use plan::{FaultPlan, FaultPlanError};

use super::{Datagram, SendBatch};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;
use trunkline_verbs::{Counter, Time};

/// Maximum number of datagrams that overtake a reordered datagram.
const OVERTAKEN_AT_MOST: u64 = 4;
/// Maximum time for which a reordered datagram is held back.
const OVERTAKEN_WITHIN: Duration = Duration::from_millis(1);
/// Maximum number of datagrams held back at the same time. Further ones are dropped.
const HELD_AT_MOST: usize = 16_384;
/// Maximum number of datagrams passed to the link at a time.
const TAKEN_AT_ONCE: usize = 32;
/// Delay before datagrams for which the link lacked room are passed to it again.
const AGAIN_AFTER: Duration = Duration::from_millis(1);

/// SplitMix64. The generator is fixed, so that a seed gives the same faults in all versions.
#[derive(Debug, Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Returns true with the given probability, in parts of 2^32.
    fn happens(&mut self, probability: u64) -> bool {
        self.next() >> 32 < probability
    }
}

#[derive(Debug)]
struct Held {
    source: SocketAddr,
    destination: SocketAddr,
    bytes: Vec<u8>,
    /// Value of `given` at which the datagram is sent, unless the time `due` comes first.
    overtaken_at: u64,
    due: Time,
}

#[derive(Debug, Default)]
struct Counts {
    dropped: u64,
    duplicated: u64,
    reordered: u64,
    corrupted: u64,
    delayed: u64,
    overflow: u64,
}

/// The faults of one link.
#[derive(Debug)]
pub(crate) struct Faults {
    plan: FaultPlan,
    random: Random,
    /// Number of datagrams passed to `send` so far.
    given: u64,
    /// Reordered datagrams, held until later ones have overtaken them.
    reordered: Vec<Held>,
    /// Delayed datagrams, in the order of their `due` times.
    delayed: VecDeque<Held>,
    /// Datagrams to pass to the link.
    out: SendBatch,
    /// Time at which `out` is passed to the link again; `None` if it is empty.
    again_at: Option<Time>,
    scratch: Vec<u8>,
    counts: Counts,
}

impl Faults {
    pub(crate) fn new(plan: FaultPlan) -> Self {
        Self {
            plan,
            random: Random(plan.seed),
            given: 0,
            reordered: Vec::new(),
            delayed: VecDeque::new(),
            out: SendBatch::new(),
            again_at: None,
            scratch: Vec::new(),
            counts: Counts::default(),
        }
    }

    fn take(&mut self, datagram: Datagram<'_>, now: Time) {
        // Draw the same number of random values for each datagram, so that changing one probability does not
        // change which datagrams the other faults affect.
        let lost = self.random.happens(self.plan.drop);
        let corrupted = self.random.happens(self.plan.corrupt);
        let doubled = self.random.happens(self.plan.duplicate);
        let reordered = self.random.happens(self.plan.reorder);
        let detail = self.random.next();
        self.given += 1;
        if lost || self.plan.is_too_long(datagram.bytes) {
            self.counts.dropped += 1;
            return;
        }
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        bytes.extend_from_slice(datagram.bytes);
        if corrupted && !bytes.is_empty() {
            self.counts.corrupted += 1;
            let bit = usize::try_from(detail % (bytes.len() as u64 * 8)).unwrap_or(0);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let copies = if doubled { 2 } else { 1 };
        self.counts.duplicated += u64::from(doubled);
        for copy in 0..copies {
            // Only the first copy of a duplicated datagram can be reordered.
            let late = reordered && copy == 0;
            self.place(datagram.source, datagram.destination, &bytes, late.then_some(detail >> 32), now);
        }
        self.scratch = bytes;
    }

    fn place(
        &mut self,
        source: SocketAddr,
        destination: SocketAddr,
        bytes: &[u8],
        late: Option<u64>,
        now: Time,
    ) {
        if let Some(detail) = late {
            self.counts.reordered += 1;
            let overtaken_at = self.given + 1 + detail % OVERTAKEN_AT_MOST;
            let due = now + OVERTAKEN_WITHIN;
            let bytes = bytes.to_vec();
            self.reordered.push(Held { source, destination, bytes, overtaken_at, due });
        } else {
            self.depart(Datagram { source, destination, bytes }, now);
        }
    }

    fn depart(&mut self, datagram: Datagram<'_>, now: Time) {
        if self.plan.delay.is_zero() {
            self.out.push(datagram);
        } else if self.delayed.len() >= HELD_AT_MOST {
            self.counts.overflow += 1;
        } else {
            self.counts.delayed += 1;
            self.delayed.push_back(Held {
                source: datagram.source,
                destination: datagram.destination,
                bytes: datagram.bytes.to_vec(),
                overtaken_at: 0,
                due: now + self.plan.delay,
            });
        }
    }

    /// Sends the datagrams that were overtaken often enough or held back long enough.
    fn release(&mut self, now: Time) {
        let mut position = 0;
        while let Some(held) = self.reordered.get(position) {
            if held.overtaken_at <= self.given || held.due <= now {
                let held = self.reordered.remove(position);
                self.depart(held.datagram(), now);
            } else {
                position += 1;
            }
        }
        while self.delayed.front().is_some_and(|held| held.due <= now) {
            if let Some(held) = self.delayed.pop_front() {
                self.out.push(held.datagram());
            }
        }
    }

    fn flush(&mut self, now: Time, send: &mut impl FnMut(&mut SendBatch)) {
        if !self.out.is_empty() {
            send(&mut self.out);
        }
        self.again_at = (!self.out.is_empty()).then_some(now + AGAIN_AFTER);
    }

    /// Takes datagrams from the front of a batch, and passes those that are not held back to `send`. `send` leaves
    /// datagrams in its batch if the link lacks room for them.
    pub(super) fn send(&mut self, batch: &mut SendBatch, now: Time, mut send: impl FnMut(&mut SendBatch)) {
        self.flush(now, &mut send);
        while self.out.is_empty() && !batch.is_empty() {
            // Pass as many datagrams as one system call sends, and leave the others in the batch while the
            // link is full.
            let mut taken = 0;
            while taken < TAKEN_AT_ONCE
                && let Some(datagram) = batch.at(taken)
            {
                self.take(datagram, now);
                self.release(now);
                taken += 1;
            }
            batch.remove_first(taken);
            self.flush(now, &mut send);
        }
    }

    /// Passes the datagrams whose delay has ended to `send`.
    pub(super) fn poll(&mut self, now: Time, mut send: impl FnMut(&mut SendBatch)) {
        self.release(now);
        self.flush(now, &mut send);
    }

    /// Returns the time of the next [`Faults::poll`], if any.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let reordered = self.reordered.iter().map(|held| held.due).min();
        let delayed = self.delayed.front().map(|held| held.due);
        [reordered, delayed, self.again_at].into_iter().flatten().min()
    }

    pub(super) fn counters(&self, into: &mut Vec<Counter>) {
        let counts = &self.counts;
        into.extend([
            Counter { name: "fault_dropped", value: counts.dropped },
            Counter { name: "fault_duplicated", value: counts.duplicated },
            Counter { name: "fault_reordered", value: counts.reordered },
            Counter { name: "fault_corrupted", value: counts.corrupted },
            Counter { name: "fault_delayed", value: counts.delayed },
            Counter { name: "fault_delay_overflow", value: counts.overflow },
        ]);
    }
}

impl Held {
    fn datagram(&self) -> Datagram<'_> {
        Datagram { source: self.source, destination: self.destination, bytes: &self.bytes }
    }
}

#[cfg(test)]
mod tests;
