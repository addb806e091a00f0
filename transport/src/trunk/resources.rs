//! Resources that all trunks of one poller share, such as its slots, budgets, credit, time, and the queue to the
//! driver.
//!
//! The poller owns the resources and lends them to each trunk that it calls. They are separate parts, so that a trunk
//! can use one part while it borrows another.
#![forbid(unsafe_code)]

use super::events::Events;
use super::outbound::{CopyTurns, Heads};
use crate::LogLimit;
use crate::budget::Shares;
use crate::buffer::{ReceiveSlots, Received, SendSlots};
use crate::credit::Grants;
use crate::node::shared::NodeShared;
use crate::wire::frame::Header;
use crate::{Message, PollerIndex};
use bytes::{Buf, Bytes};
use std::mem;
use std::sync::Arc;
use std::time::Duration;
use trunkline_machine::Waker;
use trunkline_verbs::{Clock, Sge, Time};

/// Running time of handlers after which staged work is flushed, so that peers work in parallel.
const FLUSH_AFTER: Duration = Duration::from_micros(20);

/// Resources that all trunks of a poller use.
#[derive(Debug)]
pub(crate) struct Resources {
    pub(crate) index: PollerIndex,
    pub(crate) shared: Arc<NodeShared>,
    /// Wakes the poller when memory becomes free.
    pub(crate) waker: Waker,
    pub(crate) time: TurnTime,
    pub(crate) sends: SendRoom,
    pub(crate) receives: ReceiveRoom,
    pub(crate) grants: Grants,
    pub(crate) shares: Shares,
    pub(crate) events: Events,
    pub(crate) marked: Marked,
    pub(crate) tails: Tails,
    /// True after a shutdown begins. All work is then signalled.
    pub(crate) is_draining: bool,
    /// Places of the trunks that may have timers other than their keepalive, without duplicates.
    pub(crate) busy: Vec<usize>,
    /// Lower bound of the times of all keepalives, in milliseconds of the poller.
    pub(crate) probe_ms: u64,
    /// Time until which only acknowledgements of keepalives are expected, in milliseconds of the poller.
    pub(crate) nap_until_ms: u64,
    /// True if the last pass left keepalives that may be sent early.
    pub(crate) has_more_keepalives: bool,
    /// Time of the last message that the driver sent, in milliseconds of the poller.
    pub(crate) sent_ms: u64,
    pub(crate) copies: CopyTurns,
    pub(crate) heads: Heads,
    pub(crate) log: LogLimit,
    /// True if the driver screens announced messages.
    pub(crate) screens: bool,
}

impl Resources {
    pub(crate) fn new(
        index: PollerIndex,
        shared: Arc<NodeShared>,
        waker: Waker,
        sends: SendRoom,
        receives: ReceiveRoom,
        grants: Grants,
    ) -> Self {
        let time = TurnTime::new(shared.runtime.clock().now());
        let (events, marked) = (Events::default(), Marked::default());
        let shares = Shares::new(&shared.budgets, index.0);
        let copies = CopyTurns::new(shared.runtime.is_simulated());
        Self {
            index,
            shared,
            waker,
            time,
            sends,
            receives,
            grants,
            shares,
            events,
            marked,
            tails: Tails::default(),
            is_draining: false,
            busy: Vec::new(),
            probe_ms: u64::MAX,
            nap_until_ms: 0,
            has_more_keepalives: false,
            sent_ms: 0,
            copies,
            heads: Heads::default(),
            log: LogLimit::default(),
            screens: false,
        }
    }

    /// Reads the clock at the beginning of a turn.
    pub(crate) fn tick(&mut self) {
        self.copies.begin();
        self.time.tick(self.shared.runtime.clock());
    }

    /// Returns true if staged work has waited too long for the rest of the turn. The caller then flushes it.
    pub(crate) fn is_flush_overdue(&mut self) -> bool {
        self.time.is_flush_overdue(self.shared.runtime.clock(), FLUSH_AFTER)
    }
}

/// The poller's time, which is read at the beginning of each turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TurnTime {
    started: Time,
    now: Time,
    now_ms: u64,
    /// Time of the last flush, or of the beginning of the turn.
    flushed: Time,
}

impl TurnTime {
    fn new(now: Time) -> Self {
        Self { started: now, now, now_ms: 0, flushed: now }
    }

    fn tick(&mut self, clock: &Clock) {
        self.set(clock.now());
        self.flushed = self.now;
    }

    /// Returns true if the last flush was more than `limit` ago, and then records a flush.
    fn is_flush_overdue(&mut self, clock: &Clock, limit: Duration) -> bool {
        let now = clock.now();
        let is_overdue = now.saturating_duration_since(self.flushed) > limit;
        if is_overdue {
            self.flushed = now;
        }
        is_overdue
    }

    fn set(&mut self, now: Time) {
        self.now = now;
        self.now_ms =
            u64::try_from(self.now.saturating_duration_since(self.started).as_millis()).unwrap_or(u64::MAX);
    }

    /// Advances the time to at least `now`.
    pub(crate) fn advance(&mut self, now: Time) {
        if now > self.now {
            self.set(now);
        }
    }

    pub(crate) fn now(self) -> Time {
        self.now
    }

    /// Returns the time in milliseconds since the poller was created.
    pub(crate) fn now_ms(self) -> u64 {
        self.now_ms
    }

    /// Returns the time at `ms` milliseconds after the poller was created.
    pub(crate) fn at_ms(self, ms: u64) -> Time {
        self.started + Duration::from_millis(ms)
    }
}

/// Slots for building frames, and a bound on the completions that posted work may still produce, which the CQ
/// must hold.
#[derive(Debug)]
pub(crate) struct SendRoom {
    slots: SendSlots,
    outstanding: usize,
    most: usize,
}

impl SendRoom {
    /// Creates the room for a CQ that holds `most` completions of sends.
    pub(crate) fn new(slots: SendSlots, most: usize) -> Self {
        Self { slots, outstanding: 0, most }
    }

    /// Returns the number of free slots and of all slots.
    pub(crate) fn count(&self) -> (u32, u32) {
        self.slots.count()
    }

    /// Returns the number of staged work requests that have not completed.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Returns true if one more work request may be staged.
    pub(crate) fn has_room(&self) -> bool {
        self.outstanding < self.most
    }

    pub(crate) fn has_slot(&self) -> bool {
        self.slots.has_free()
    }

    pub(super) fn take_slot(&mut self) -> Option<u32> {
        self.slots.take()
    }

    pub(super) fn put_back_slot(&mut self, slot: u32) {
        self.slots.put_back(slot);
    }

    /// Returns true if half of the slots or of the CQ's entries are in use.
    pub(super) fn is_half_used(&self) -> bool {
        let (free, all) = self.slots.count();
        self.outstanding >= self.most / 2 || free <= all / 2
    }

    /// Writes consecutive parts of a frame.
    #[inline]
    pub(super) fn write_all<const N: usize>(&self, slot: u32, at: usize, parts: [&[u8]; N]) {
        self.slots.write_all(slot, at, parts);
    }

    /// Writes a part of a frame. Returns the end of the part.
    #[inline]
    pub(super) fn write(&self, slot: u32, at: usize, part: &[u8]) -> usize {
        self.slots.write(slot, at, part)
    }

    /// Changes a part of a frame.
    pub(super) fn change(&mut self, slot: u32, at: usize, length: usize, change: impl FnOnce(&mut [u8])) {
        self.slots.change(slot, at, length, change);
    }

    pub(super) fn sge(&self, slot: u32, at: usize, length: usize) -> Sge {
        self.slots.sge(slot, at, length)
    }

    pub(super) fn begin(&mut self) {
        self.outstanding += 1;
    }

    /// Stops counting a work request that was completed, or withdrawn before it was posted.
    pub(super) fn end(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// Releases the device and all slots. Outstanding work counts as ended.
    pub(crate) fn close(&mut self) {
        self.slots.close();
        self.outstanding = 0;
    }
}

/// Receive slots, and the policy for copying messages out of them.
#[derive(Debug)]
pub(crate) struct ReceiveRoom {
    slots: ReceiveSlots,
    /// Number of receives in the SRQ, and its maximum depth.
    depth_wr: u32,
    limit_wr: u32,
    /// Number of free slots below which messages are copied instead of lent.
    low_water: usize,
}

impl ReceiveRoom {
    /// Creates the room for an SRQ that holds `depth_wr` receives, and at most `limit_wr`.
    pub(crate) fn new(slots: ReceiveSlots, depth_wr: u32, limit_wr: u32, low_water: usize) -> Self {
        Self { slots, depth_wr, limit_wr, low_water }
    }

    /// Returns the number of posted receives, and the depth of the SRQ.
    pub(crate) fn count(&self) -> (u32, u32) {
        (self.slots.posted(), self.depth_wr)
    }

    /// Returns the number of receives that would double the depth of the SRQ, limited by its capacity.
    pub(crate) fn doubling(&self) -> u32 {
        self.depth_wr.min(self.limit_wr - self.depth_wr)
    }

    /// Adds posted receives to the depth.
    pub(crate) fn deepen(&mut self, more_wr: u32) {
        self.depth_wr += more_wr;
    }

    /// Returns true if receives are missing for lack of slots.
    pub(crate) fn is_missing_any(&self) -> bool {
        self.slots.is_missing_any()
    }

    /// Returns the slots, for posting and completing.
    pub(crate) fn slots(&mut self) -> &mut ReceiveSlots {
        &mut self.slots
    }

    /// Returns the message in a frame. A message that is not short borrows the receive slot while slots are plentiful,
    /// and is otherwise copied.
    pub(crate) fn message(&mut self, header: &Header, frame: Received) -> Message {
        let Header { message, time_left_us, bytes: start, .. } = *header;
        let frame = match frame.into_short() {
            Ok(mut bytes) => {
                bytes.advance(start.min(bytes.len()));
                return Message::new(message, time_left_us, bytes);
            }
            Err(frame) => frame,
        };
        // A frame from another poller was copied there if necessary.
        if self.slots.lends(&frame) && self.slots.free() < self.low_water {
            let contents = frame.as_ref().get(start..).unwrap_or_default();
            Message::new(message, time_left_us, Bytes::copy_from_slice(contents))
        } else {
            Message::lent(message, time_left_us, frame, start)
        }
    }

    /// Returns the bytes of a bundle, which its messages share.
    pub(crate) fn bundle(&mut self, bundle: Received) -> Bytes {
        self.slots.shared(bundle)
    }

    /// Keeps a frame for another poller, in its receive slot while slots are plentiful, and otherwise as a copy, so
    /// that a busy poller does not use up the receive slots of this poller.
    pub(crate) fn keep(&mut self, frame: Received) -> Received {
        if frame.is_lent() && self.slots.free() < self.low_water { frame.copied() } else { frame }
    }

    /// Releases the device. Lent slots stay readable.
    pub(crate) fn close(&mut self) {
        self.slots.close();
    }
}

/// Trunks with work to stage or post, by place in the poller's table, without duplicates.
#[derive(Debug, Default)]
pub(crate) struct Marked(Vec<usize>);

impl Marked {
    pub(super) fn add(&mut self, slot: usize) {
        self.0.push(slot);
    }

    pub(super) fn remove(&mut self, slot: usize) {
        self.0.retain(|&other| other != slot);
    }

    /// Takes all marked trunks. Return the list to [`Marked::put_back`].
    pub(crate) fn take(&mut self) -> Vec<usize> {
        mem::take(&mut self.0)
    }

    /// Takes back an empty list, whose memory is reused for trunks marked in the meantime.
    pub(crate) fn put_back(&mut self, mut emptied: Vec<usize>) {
        emptied.append(&mut self.0);
        self.0 = emptied;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Trunks that have posted work without a signal, by place in the poller's table, without duplicates.
#[derive(Debug)]
pub(crate) struct Tails {
    slots: Vec<usize>,
    /// Lower bound of the times at which a keepalive must follow.
    due: Time,
}

impl Default for Tails {
    fn default() -> Self {
        Self { slots: Vec::new(), due: Time::MAX }
    }
}

impl Tails {
    pub(super) fn add(&mut self, slot: usize, due: Time) {
        self.slots.push(slot);
        self.due = self.due.min(due);
    }

    pub(super) fn remove(&mut self, slot: usize) {
        self.slots.retain(|&other| other != slot);
    }

    /// Returns the time at which [`Tails::take`] returns trunks; [`Time::MAX`] without trunks.
    #[inline]
    pub(crate) fn due(&self) -> Time {
        self.due
    }

    /// Takes all trunks. The caller returns trunks that still have unsignalled work through
    /// [`Tails::put_back`].
    pub(crate) fn take(&mut self) -> Vec<usize> {
        self.due = Time::MAX;
        mem::take(&mut self.slots)
    }

    /// Takes back trunks, the first of which is due at `due`.
    pub(crate) fn put_back(&mut self, mut slots: Vec<usize>, due: Time) {
        slots.append(&mut self.slots);
        self.slots = slots;
        self.due = self.due.min(due);
    }
}
