//! A lane, which is a trunk's state for one of the peer's pollers.
#![forbid(unsafe_code)]

use super::outbound::Outbound;
use super::queue::MessageQueue;
use super::seal::LaneSeal;
use crate::credit::{GrantId, Grants, Spender, on_wire};
use crate::report::LaneCounters;
use crate::wire::frame::{Fin, Settled};
use crate::wire::settings::Settings;
use std::collections::VecDeque;
use std::sync::Arc;
use trunkline_machine::mutant;
use trunkline_verbs::{SrqNumber, Time};

/// Maximum number of unacknowledged credit frames per lane.
const CREDITS_OUT: u8 = 2;

/// Indices of a lane's queues, for unordered small messages, ordered messages of any size, unordered large messages
/// that are not being copied, and messages that are being copied.
pub(super) const SMALL: usize = 0;
pub(super) const ORDERED: usize = 1;
pub(super) const LARGE: usize = 2;
pub(super) const COPYING: usize = 3;
/// Number of queues from which messages are sent, in turns.
const LEAVING: usize = 3;

/// State for one of the peer's pollers.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) srq: SrqNumber,
    /// True if this node's settings are staged.
    pub(super) has_begun: bool,
    /// Settings received from the peer's poller.
    pub(super) heard: Option<Settings>,
    pub(super) spender: Spender,
    /// Credit for the remote poller's messages to this poller.
    pub(super) pair: GrantId,
    /// Queues of the messages that wait for credit and room.
    pub(super) queues: [MessageQueue; 4],
    /// Index of the queue that sends next.
    turn: usize,
    pub(super) fins: VecDeque<Fin>,
    /// Handshake frames, for renewals between the pollers 0, and for SWITCH.
    #[cfg(feature = "identity")]
    pub(super) handshake: VecDeque<Box<[u8]>>,
    /// Number of the renewal to whose keys the lane switches next.
    #[cfg(feature = "identity")]
    pub(super) switch: Option<u32>,
    /// Seal of the lane's frames; `None` if they are not sealed.
    pub(super) seal: Option<Box<LaneSeal>>,
    /// Number of unacknowledged credit frames.
    pub(super) credits_out: u8,
    /// Number of sent requests without a FIN, and how many of them are ordered.
    pub(super) requests_out: u32,
    pub(super) ordered_out: u32,
    pub(super) counters: Arc<LaneCounters>,
    /// Number of the last frame, if it is still staged and other messages may join it. Cleared when a small message
    /// or FIN is queued.
    pub(super) last: Option<u64>,
    /// Time at which the peer's poller last took an item or granted credit, or at which an item began to wait for
    /// that poller.
    took_ms: u64,
}

impl Lane {
    pub(super) fn new(
        srq: SrqNumber,
        pair: GrantId,
        counters: Arc<LaneCounters>,
        now_ms: u64,
        seal: Option<Box<LaneSeal>>,
    ) -> Self {
        Self {
            srq,
            has_begun: false,
            heard: None,
            spender: Spender::new(now_ms),
            pair,
            queues: Default::default(),
            turn: SMALL,
            fins: VecDeque::new(),
            #[cfg(feature = "identity")]
            handshake: VecDeque::new(),
            #[cfg(feature = "identity")]
            switch: None,
            seal,
            credits_out: 0,
            requests_out: 0,
            ordered_out: 0,
            counters,
            last: None,
            took_ms: now_ms,
        }
    }

    /// Returns true if a credit frame may be sent now.
    pub(super) fn may_announce_credit(&self) -> bool {
        self.has_begun && self.credits_out < CREDITS_OUT
    }

    /// Adds a message for which the peer was charged.
    pub(super) fn push(&mut self, message: Outbound, is_large: bool, now_ms: u64) {
        self.begin_to_wait(now_ms);
        self.last = None;
        let queue = match (message.ordered, is_large) {
            (true, _) => ORDERED,
            (false, true) => LARGE,
            (false, false) => SMALL,
        };
        self.queues[queue].push(message);
    }

    /// Returns the next queue to send from, round robin over [`Lane::queues_in_turn`] queues.
    pub(super) fn next_queue(&mut self) -> usize {
        let queue = self.turn;
        self.turn = (queue + 1) % LEAVING;
        queue
    }

    /// Returns true if one of these queues contains a message.
    pub(super) fn has_messages(&self) -> bool {
        self.queues[..LEAVING].iter().any(|queue| !queue.is_empty())
    }

    /// Returns the number of queues from which messages are sent.
    pub(super) const fn queues_in_turn() -> usize {
        LEAVING
    }

    /// Returns true if any waiting message may have to be copied.
    pub(super) fn may_have_copies(&self) -> bool {
        self.queues[ORDERED..].iter().any(|queue| !queue.is_empty())
    }

    /// Returns true if a small message may be sent now. It must keep the order of messages, and leave a credit for a
    /// waiting large message.
    pub(super) fn is_clear(&self, ordered: bool) -> bool {
        let [small, _, large, _] = &self.queues;
        let leaves_credit = large.is_empty() || self.spender.available() > 1;
        small.is_empty() && self.fins.is_empty() && self.is_next(ordered) && leaves_credit
    }

    /// Returns true if the message can be sent without overtaking a waiting ordered message.
    #[inline]
    pub(super) fn is_next(&self, ordered: bool) -> bool {
        !ordered || (self.queues[ORDERED].is_empty() && !self.waits_for_read(ordered))
    }

    /// Returns true if a small message must wait until the peer has READ earlier ordered messages. The sender
    /// preserves the order, so that a receiver never has to hold back messages.
    pub(super) fn waits_for_read(&self, ordered: bool) -> bool {
        ordered && self.ordered_out > 0 && !mutant!(ordered_calls_overtake)
    }

    /// Counts a sent request.
    pub(super) fn request_left(&mut self, ordered: bool) {
        self.requests_out += 1;
        self.ordered_out += u32::from(ordered);
    }

    /// Stops counting a request whose message the peer has READ, refused or dropped.
    pub(super) fn request_ended(&mut self, ordered: bool) {
        self.requests_out -= 1;
        self.ordered_out -= u32::from(ordered);
    }

    /// Returns the number of queued messages, and their bytes.
    pub(super) fn waiting(&self) -> (usize, usize) {
        let sizes = self.queues.iter().map(MessageQueue::size);
        sizes.fold((0, 0), |(count, bytes), (more, of_them)| (count + more, bytes + of_them))
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.queues.iter().filter_map(MessageQueue::next_deadline).min()
    }

    pub(super) fn push_fin(&mut self, fin: Fin, now_ms: u64) {
        self.begin_to_wait(now_ms);
        self.last = None;
        self.fins.push_back(fin);
    }

    pub(super) fn begin_to_wait(&mut self, now_ms: u64) {
        if self.is_empty() && self.requests_out == 0 {
            self.took_ms = now_ms;
        }
    }

    /// Records that the peer's poller took an item or granted credit.
    pub(super) fn took(&mut self, now_ms: u64) {
        self.took_ms = now_ms;
    }

    /// Returns the step that the remote poller has delayed for longer than the limit. While the session or messages
    /// wait for the poller's settings, this step is the settings. Otherwise it is credit or READs for waiting messages.
    /// Messages that wait for local memory or slots do not count.
    pub(super) fn stalled(&self, is_up: bool, now_ms: u64, limit_ms: u64) -> Option<&'static str> {
        let waits = self.requests_out > 0 || (!self.is_empty() && self.spender.available() == 0);
        let is_over = now_ms.saturating_sub(self.took_ms) >= limit_ms;
        match self.heard {
            _ if !is_over => None,
            None => (!is_up || !self.is_empty()).then_some("it sends no settings"),
            Some(_) => waits.then_some("it takes no replies"),
        }
    }

    /// Returns true if messages may be sent, because both sides have sent their settings.
    pub(super) fn is_open(&self) -> bool {
        self.has_begun && self.heard.is_some()
    }

    /// Returns true if all queues of the lane are empty.
    pub(super) fn is_empty(&self) -> bool {
        #[cfg(feature = "identity")]
        if !self.handshake.is_empty() || self.switch.is_some() {
            return false;
        }
        self.queues.iter().all(MessageQueue::is_empty) && self.fins.is_empty()
    }

    /// Returns true if no timer of the lane runs, because its queues are empty and there is no credit to release.
    pub(super) fn is_still(&self) -> bool {
        self.is_empty() && self.requests_out == 0 && self.spender.release_due_ms().is_none()
    }

    /// Returns the header bytes that are written when a frame to this lane's poller is posted. `index` is the index of
    /// that poller. The credit positions in the bytes count as announced.
    pub(super) fn settle(&self, grants: &mut Grants, index: usize) -> [u8; 4] {
        let settled = Settled {
            grant: on_wire(grants.tell(self.pair)),
            want: u8::try_from(self.queues.iter().map(MessageQueue::count).sum::<usize>()).unwrap_or(u8::MAX),
            target: u8::try_from(index).unwrap_or(u8::MAX),
        };
        settled.emit()
    }

    /// Returns the position of released credit, for a Credit frame.
    pub(super) fn released(&self) -> [u8; 2] {
        on_wire(self.spender.released()).to_le_bytes()
    }
}
