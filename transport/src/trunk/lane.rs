//! A lane: what a trunk knows of one of the peer's pollers.
#![forbid(unsafe_code)]

use super::queue::{MessageQueue, Outbound};
use super::resources::Resources;
use crate::credit::{GrantId, Spender};
use crate::frame::{Fin, HEADER, Header, Kind};
use crate::report::LaneCounters;
use std::collections::VecDeque;
use std::sync::Arc;
use trunkline_verbs::SrqNumber;

/// Credit frames per lane that the device has not seen acknowledged, at most.
const CREDITS_OUT: u8 = 2;

/// One of the peer's pollers.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) srq: SrqNumber,
    pub(super) spender: Spender,
    /// What that poller may send to us.
    pub(super) pair: GrantId,
    pub(super) queue: MessageQueue,
    pub(super) fins: VecDeque<Fin>,
    /// Credit frames that the device has not seen acknowledged.
    pub(super) credits_out: u8,
    /// Requests without their FIN.
    pub(super) requests_out: u32,
    pub(super) counters: Arc<LaneCounters>,
    /// When the poller took something last, granted credit, or had nothing to take before.
    took_ms: u64,
}

impl Lane {
    pub(super) fn new(srq: SrqNumber, pair: GrantId, counters: Arc<LaneCounters>, now_ms: u64) -> Self {
        Self {
            srq,
            spender: Spender::new(now_ms),
            pair,
            queue: MessageQueue::default(),
            fins: VecDeque::new(),
            credits_out: 0,
            requests_out: 0,
            counters,
            took_ms: now_ms,
        }
    }

    /// Whether a credit frame may be sent now.
    pub(super) fn may_announce_credit(&self) -> bool {
        self.credits_out < CREDITS_OUT
    }

    /// Adds a message, with which the peer was charged.
    pub(super) fn push(&mut self, message: Outbound, now_ms: u64) {
        self.begin_to_wait(now_ms);
        self.queue.push(message);
    }

    /// Adds a FIN.
    pub(super) fn push_fin(&mut self, fin: Fin, now_ms: u64) {
        self.begin_to_wait(now_ms);
        self.fins.push_back(fin);
    }

    fn begin_to_wait(&mut self, now_ms: u64) {
        if self.is_empty() && self.requests_out == 0 {
            self.took_ms = now_ms;
        }
    }

    /// The poller took something, or granted credit.
    pub(super) fn took(&mut self, now_ms: u64) {
        self.took_ms = now_ms;
    }

    /// Whether the poller has taken nothing for so long of what waits for its credit or its READs. What waits
    /// for room of our own is not its fault.
    pub(super) fn is_stalled(&self, now_ms: u64, limit_ms: u64) -> bool {
        let waits = self.requests_out > 0 || (!self.is_empty() && self.spender.available() == 0);
        waits && now_ms.saturating_sub(self.took_ms) >= limit_ms
    }

    /// Whether nothing waits to leave.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.fins.is_empty()
    }

    /// The header of a frame to this poller, which is the `index`-th. Its positions of credit count as announced.
    pub(super) fn header(
        &self,
        res: &mut Resources,
        index: usize,
        kind: Kind,
        payload: usize,
        count: u16,
    ) -> [u8; HEADER] {
        let header = Header {
            kind,
            source: res.index.0,
            want: self.queue.count(),
            count,
            grant: res.grants.tell(self.pair),
            released: self.spender.released(),
            length: u32::try_from(payload).unwrap_or(u32::MAX),
            target: u16::try_from(index).unwrap_or(u16::MAX),
        };
        header.emit()
    }
}
