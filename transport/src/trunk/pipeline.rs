//! The pipeline of a trunk, from staged frames to posted work requests and their completions.
//!
//! Frames are staged and posted together, with one doorbell per trunk and round of the poller. The last work request
//! of a doorbell is signalled if its completion is awaited (`signals.rs`). An INI completes in order, so one
//! completion covers all earlier work. Staged and posted work is kept in one queue, whose positions are the work
//! request numbers. The trunk stages the work and interprets the completions.
//!
//! A message may join an earlier frame of its lane that is still staged, and that frame becomes a bundle. The frame
//! keeps the delivery report of the bundled message, which has no separate work request.
#![forbid(unsafe_code)]

use super::events::Events;
use super::lane::Lane;
use super::resources::{Resources, SendRoom};
use super::signals::Signals;
use crate::messages::{DeliveryReport, Report};
use crate::wire::frame::{self, BUNDLED_LENGTH, HEADER, SETTLED, TIME_LEFT, VOID};
use crate::wire::{INLINE_BYTES, SEND_QUEUE_DEPTH};
use crate::{SendOutcome, Small};
use arrayvec::ArrayVec;
use std::collections::VecDeque;
use std::mem;
use std::slice;
use std::sync::Arc;
use trunkline_machine::mutant;
use trunkline_verbs::{
    IoAddress, PostError, QueuePair, RemoteAddress, Rkey, SendData, SendFlags, SendOperation, SendRequest,
    Sge, SrqNumber, Time,
};

/// Maximum number of work requests posted by one call.
const DOORBELL: usize = 16;
/// Number of low bits of a work request number that contain the sequence number. The bits above contain the trunk.
const SEQUENCE_BITS: u32 = 40;
const SEQUENCES: u64 = (1 << SEQUENCE_BITS) - 1;
/// Maximum number of lists of bundled messages kept for later bundles.
const MAX_POOLED: usize = 32;

/// Purpose of a work request.
#[derive(Debug)]
pub(super) enum Record {
    /// A whole message.
    Message(DeliveryReport),
    /// The announcement of a large message, by the number of its source. The FIN reports the outcome.
    Announcement(u64),
    Fin,
    Settings,
    Credit {
        lane: usize,
    },
    Read {
        sink: usize,
        bytes: u32,
    },
    Keepalive,
    /// The last frame of its lane under the keys before a renewal.
    #[cfg(feature = "identity")]
    Switch,
    /// A withdrawn message of a bundle, or a keepalive that only completes earlier work.
    Nothing,
}

/// Location of a staged frame's bytes.
#[derive(Debug, Clone, Copy)]
pub(super) enum FrameBytes {
    /// A send slot.
    Slot(u32),
    /// An offset in the pipeline's inline bytes.
    Inline(usize),
}

/// A frame to be posted.
#[derive(Debug)]
pub(super) struct Frame {
    lane: usize,
    place: FrameBytes,
    /// Start of the frame or of its first message in the slot or inline bytes. If there is room for a header before
    /// it, other messages may join.
    begin: usize,
    /// Size of all messages in the frame, in bytes.
    bytes: usize,
    /// Deadline of the first message, after which it is not posted.
    deadline: Time,
    /// Time at which the time-left fields of all headers were written; [`Time::MAX`] if these times differ.
    as_of: Time,
    /// True if the delivery of a bundled message is reported.
    is_told: bool,
    /// Number of messages in the frame. A frame of another kind counts as one.
    messages: usize,
    /// Messages that have joined the first one and have an outcome to report, or a deadline.
    bundled: Vec<BundledMessage>,
    /// Number of withdrawn messages in the frame.
    given_up: usize,
}

/// A message bundled after the first message of a frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct BundledMessage {
    delivery: DeliveryReport,
    /// Deadline, after which the message is not posted.
    deadline: Time,
    /// Start of the message.
    begin: usize,
}

/// An outgoing frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts<'a> {
    /// Consecutive parts of the frame, beginning with the header.
    pub(super) parts: &'a [&'a [u8]],
    /// Deadline, after which the message is not posted; [`Time::MAX`] if its header lacks the time-left
    /// field.
    pub(super) deadline: Time,
}

impl<'a> Parts<'a> {
    /// Creates a control frame.
    pub(super) fn own(parts: &'a [&'a [u8]]) -> Self {
        Self { parts, deadline: Time::MAX }
    }

    /// Returns the size of all parts, in bytes.
    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }
}

/// A READ to be posted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Read {
    pub(super) sge: Sge,
    pub(super) from: RemoteAddress,
    pub(super) srq: SrqNumber,
}

/// Work for the device.
#[derive(Debug)]
struct Work {
    kind: WorkKind,
    record: Record,
}

#[derive(Debug)]
enum WorkKind {
    Frame(Frame),
    Read(Read),
    Keepalive(SrqNumber),
}

/// Work that the device has completed.
#[derive(Debug)]
pub(super) struct Completed {
    pub(super) record: Record,
    /// Messages of the bundle, without the first one. Return the list to [`Pipeline::rest`].
    pub(super) bundled: Vec<BundledMessage>,
    /// True if the delivery of a bundled message is reported.
    pub(super) is_told: bool,
}

/// The send queue of one INI, and the work that waits to be posted to it.
#[derive(Debug)]
pub(super) struct Pipeline {
    qp: Arc<dyn QueuePair>,
    /// The trunk's place in the poller's table, for work request numbers.
    slot: usize,
    max_inline: usize,
    /// Posted work, then staged work.
    work: VecDeque<Work>,
    /// Number of posted items.
    posted: usize,
    /// Sequence number of the first item.
    first: u64,
    /// Lower bound of the deadlines of staged messages.
    earliest: Time,
    /// Short frames that are staged.
    inline: Vec<u8>,
    /// Overhead of a sealed frame, in bytes.
    overhead: usize,
    /// Empty lists of bundled messages, reused for later bundles.
    pooled: Vec<Vec<BundledMessage>>,
    /// Size of the largest completed work, in bytes.
    carried: u32,
    signals: Signals,
    /// True if the trunk is in the poller's list of trunks with unsignalled work.
    is_tail: bool,
}

impl Work {
    /// Returns true if the completion is awaited, because it is reported, allows further work, or proves that the
    /// peer is alive.
    fn is_awaited(&self) -> bool {
        let is_told = matches!(&self.kind, WorkKind::Frame(frame) if frame.is_told);
        is_told
            || match &self.record {
                Record::Message(delivery) => delivery.report == Report::Always,
                Record::Credit { .. } | Record::Read { .. } | Record::Keepalive => true,
                #[cfg(feature = "identity")]
                Record::Switch => false,
                Record::Announcement(_) | Record::Fin | Record::Settings | Record::Nothing => false,
            }
    }

    /// Returns true if the doorbell of this work must be signalled.
    #[inline]
    fn needs_signal(&self) -> bool {
        self.is_awaited()
            || matches!(self.kind, WorkKind::Keepalive(_))
            || matches!(self.record, Record::Announcement(_) | Record::Settings)
    }
}

/// Returns the work request number of a trunk's place and a sequence number.
pub(crate) fn wr_id(slot: usize, sequence: u64) -> u64 {
    (slot as u64) << SEQUENCE_BITS | sequence & SEQUENCES
}

/// Splits a work request number into the place of the trunk and the sequence number.
pub(crate) fn parse_wr_id(wr_id: u64) -> (usize, u64) {
    let slot = usize::try_from(wr_id >> SEQUENCE_BITS).unwrap_or(usize::MAX);
    (slot, wr_id & SEQUENCES)
}

impl Pipeline {
    pub(super) fn new(qp: Arc<dyn QueuePair>, slot: usize, overhead: usize) -> Self {
        let inline = qp.capacities().max_inline_data.min(INLINE_BYTES);
        Self {
            qp,
            slot,
            max_inline: usize::try_from(inline).unwrap_or(0),
            work: VecDeque::new(),
            posted: 0,
            first: 0,
            earliest: Time::MAX,
            inline: Vec::new(),
            overhead,
            pooled: Vec::new(),
            carried: 0,
            signals: Signals::default(),
            is_tail: false,
        }
    }

    pub(super) fn qp(&self) -> &dyn QueuePair {
        self.qp.as_ref()
    }

    /// Returns the overhead of a sealed frame, in bytes.
    pub(super) fn overhead(&self) -> usize {
        self.overhead
    }

    pub(super) fn slot(&self) -> usize {
        self.slot
    }

    /// Returns true if one more work request fits in the send queue.
    pub(super) fn has_room(&self) -> bool {
        self.work.len() < SEND_QUEUE_DEPTH
    }

    /// Returns true if the device has no work of the trunk.
    pub(super) fn is_idle(&self) -> bool {
        self.posted == 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.work.is_empty()
    }

    /// Returns true if a completion of posted work is awaited.
    pub(super) fn awaits_acknowledgement(&self) -> bool {
        self.posted > SEND_QUEUE_DEPTH / 4 || self.work.range(..self.posted).any(Work::is_awaited)
    }

    /// Returns the number of items that the device has not completed.
    pub(super) fn in_flight(&self) -> usize {
        self.posted
    }

    /// Returns true if [`Pipeline::stage`] would find room for a frame without payload.
    pub(super) fn can_place_header(&self, sends: &SendRoom) -> bool {
        self.has_room() && sends.has_room() && (self.max_inline >= HEADER + self.overhead || sends.has_slot())
    }

    /// Adds a frame, with room for other messages to join if `may_be_joined`. The time left in its header is computed
    /// for `now`. Returns the frame's number, or `None` if there is no room for the frame.
    pub(super) fn stage(
        &mut self,
        sends: &mut SendRoom,
        lane: usize,
        may_be_joined: bool,
        message: &Parts<'_>,
        record: Record,
        now: Time,
    ) -> Option<u64> {
        if !self.has_room() || !sends.has_room() {
            return None;
        }
        let (bytes, begin) = (message.len(), if may_be_joined { HEADER } else { 0 });
        let place = if bytes + self.overhead <= self.max_inline {
            let start = self.inline.len();
            self.inline.extend_from_slice(&[0; HEADER][..begin]);
            message.parts.iter().for_each(|part| self.inline.extend_from_slice(part));
            self.inline.resize(self.inline.len() + self.overhead, 0);
            FrameBytes::Inline(start)
        } else {
            let slot = sends.take_slot()?;
            message.parts.iter().fold(begin, |at, part| sends.write(slot, at, part));
            FrameBytes::Slot(slot)
        };
        sends.begin();
        let deadline = message.deadline;
        self.earliest = self.earliest.min(deadline);
        let frame = Frame {
            lane,
            place,
            begin,
            bytes,
            deadline,
            as_of: now,
            is_told: false,
            messages: 1,
            bundled: Vec::new(),
            given_up: 0,
        };
        Some(self.push(WorkKind::Frame(frame), record))
    }

    /// Adds a message to the staged frame with this number, unless the frame would exceed `most` bytes.
    /// Returns true if it was added.
    #[inline]
    pub(super) fn join(
        &mut self,
        sends: &mut SendRoom,
        number: u64,
        message: &Small<'_>,
        most: usize,
        now: Time,
    ) -> bool {
        let at = usize::try_from(number.wrapping_sub(self.first) & SEQUENCES).unwrap_or(usize::MAX);
        let Some(Work { kind: WorkKind::Frame(frame), .. }) = self.work.get_mut(at) else { return false };
        let Small { parts: [first, second, third], deadline, report, .. } = *message;
        let (header, size) = message.header(now);
        let bytes = size + message.contents();
        let begin = frame.begin + frame.bytes;
        if at < self.posted || begin + bytes > most {
            return false;
        }
        let slot = match frame.place {
            FrameBytes::Slot(slot) if frame.is_bundle() => slot,
            place => {
                let Some(slot) = begin_bundle(sends, frame, place, &self.inline) else { return false };
                frame.bundled = self.pooled.pop().unwrap_or_default();
                slot
            }
        };
        sends.write_all(slot, begin, [&header[..size], first, second, third]);
        if deadline.is_some() && frame.as_of != now {
            frame.as_of = Time::MAX;
        }
        let deadline = deadline.unwrap_or(Time::MAX);
        frame.bytes += bytes;
        frame.is_told |= report == Report::Always;
        frame.messages += 1;
        if report != Report::Never || deadline < Time::MAX {
            frame.bundled.push(BundledMessage { delivery: message.delivery(), deadline, begin });
        }
        self.earliest = self.earliest.min(deadline);
        true
    }

    fn push(&mut self, kind: WorkKind, record: Record) -> u64 {
        self.work.push_back(Work { kind, record });
        (self.first + self.work.len() as u64 - 1) & SEQUENCES
    }

    /// Adds a READ, which does not need a slot.
    pub(super) fn stage_read(&mut self, sends: &mut SendRoom, read: Read, record: Record) {
        let _ = self.push(WorkKind::Read(read), record);
        sends.begin();
    }

    /// Adds an empty WRITE, which the peer acknowledges for the given SRQ.
    pub(super) fn stage_keepalive(&mut self, sends: &mut SendRoom, srq: SrqNumber) {
        let _ = self.push(WorkKind::Keepalive(srq), Record::Keepalive);
        sends.begin();
    }

    /// Returns the time at which posted work without a signal must be completed by a keepalive.
    pub(super) fn tail_due(&self) -> Option<Time> {
        self.signals.due()
    }

    /// Removes the trunk from the poller's list of trunks with unsignalled work.
    pub(super) fn leave_tails(&mut self) {
        self.is_tail = false;
    }

    /// Adds an empty WRITE whose completion covers the unsignalled work. Returns false if there is no room,
    /// or if staged work suffices.
    pub(super) fn stage_tail(&mut self, sends: &mut SendRoom, srq: SrqNumber) -> bool {
        if !self.has_room() || !sends.has_room() || self.posted < self.work.len() {
            return false;
        }
        let _ = self.push(WorkKind::Keepalive(srq), Record::Nothing);
        sends.begin();
        true
    }

    /// Posts an empty WRITE to a QP in ERR, after unsignalled work, since the device may have sent that work and
    /// reports only flushed work. All work must already be posted.
    pub(super) fn post_end(&mut self, sends: &mut SendRoom, lanes: &[Lane]) {
        let Some(lane) = lanes.first().filter(|_| self.signals.due().is_some()) else { return };
        let _ = self.push(WorkKind::Keepalive(lane.srq), Record::Nothing);
        sends.begin();
        self.signals.clear();
        let end = self.work.len();
        match self.post(sends, lanes, end, true) {
            Ok(()) => self.posted = end,
            Err(error) => {
                tracing::debug!(%error, "last work request of a trunk not posted");
                self.work.pop_back();
                sends.end();
            }
        }
    }

    /// Takes back a message that was not posted and whose deadline has passed.
    pub(super) fn take_late(&mut self, now: Time, sends: &mut SendRoom) -> Option<Late> {
        if self.earliest > now {
            return None;
        }
        let staged = || self.work.range(self.posted..).map(|work| work.kind.earliest());
        let Some(at) = staged().position(|earliest| earliest <= now) else {
            self.earliest = staged().min().unwrap_or(Time::MAX);
            return None;
        };
        let at = self.posted + at;
        let Work { kind: WorkKind::Frame(frame), record } = &mut self.work[at] else { return None };
        let lane = frame.lane;
        if let FrameBytes::Slot(slot) = frame.place
            && frame.is_bundle()
        {
            // Void only this message, since the other messages of the bundle are sent.
            let (begin, record) = frame.take_late(now, record)?;
            if !mutant!(late_messages_stay_in_their_bundle) {
                sends.write(slot, begin, &[VOID]);
            }
            return Some(Late { lane, record, is_frame: false });
        }
        let Work { kind, record } = self.work.remove(at)?;
        release(sends, &kind);
        Some(Late { lane, record, is_frame: true })
    }

    /// Posts all staged work.
    ///
    /// # Errors
    /// Returns an error if the device refuses work that fits in its queue. The trunk can then no longer be used.
    pub(super) fn flush(&mut self, res: &mut Resources, lanes: &mut [Lane]) -> Result<(), PostError> {
        let mut result = Ok(());
        // Settle all frames first, since a message may have joined a frame of an earlier doorbell, whose memory
        // belongs to the device once that doorbell is rung.
        self.settle(res, lanes);
        while self.posted < self.work.len() {
            let end = self.end_of_doorbell();
            let is_awaited = end >= SEND_QUEUE_DEPTH / 2
                || res.sends.is_half_used()
                || res.is_draining
                || self.work.range(self.posted..end).any(Work::needs_signal);
            let is_signaled = self.signals.post(end - self.posted, is_awaited, res.time.now());
            // Work after a refused item is released when the trunk ends.
            result = result.and_then(|()| self.post(&res.sends, lanes, end, is_signaled));
            if mutant!(slots_return_before_their_completion) {
                self.work.range_mut(self.posted..end).for_each(|work| return_early(&mut res.sends, work));
            }
            self.posted = end;
        }
        self.inline.clear();
        self.earliest = Time::MAX;
        if result.is_err() {
            // Refused work never completes, even if a later work request does.
            self.signals.clear();
        }
        if let Some(due) = self.signals.due()
            && !mem::replace(&mut self.is_tail, true)
        {
            res.tails.add(self.slot, due);
        }
        result
    }

    /// Returns the end of the next doorbell's work.
    fn end_of_doorbell(&self) -> usize {
        self.work.len().min(self.posted + DOORBELL)
    }

    /// Writes the last header fields of staged frames, and seals the frames.
    fn settle(&mut self, res: &mut Resources, lanes: &mut [Lane]) {
        // Frames that are posted together to one poller carry the same positions.
        let mut settled = None;
        let now = res.time.now();
        for Work { kind, record } in self.work.range_mut(self.posted..) {
            let WorkKind::Frame(frame) = kind else { continue };
            let lane = &mut lanes[frame.lane];
            let mut write = |at: usize, field: &[u8]| match frame.place {
                FrameBytes::Slot(slot) => _ = res.sends.write(slot, at, field),
                FrameBytes::Inline(start) => {
                    self.inline[start + at..start + at + field.len()].copy_from_slice(field);
                }
            };
            if frame.as_of != now {
                frame.times_left().for_each(|(begin, deadline)| {
                    write(begin + TIME_LEFT, &frame::time_left(deadline, now));
                });
            }
            match record {
                Record::Message(_) | Record::Announcement(_) | Record::Nothing => {
                    lane.counters.count_sent(frame.messages - frame.given_up);
                }
                Record::Credit { .. } => write(frame.begin + frame::WORD, &lane.released()),
                _ => {}
            }
            let begin = if frame.is_bundle() { 0 } else { frame.begin };
            if frame.is_bundle() {
                write(0, &frame::bundle(u16::try_from(frame.messages).unwrap_or(u16::MAX)));
            }
            let positions = match settled {
                Some((of, positions)) if of == frame.lane => positions,
                _ => lane.settle(&mut res.grants, frame.lane),
            };
            settled = Some((frame.lane, positions));
            write(begin + SETTLED, &positions);
            if let Some(seal) = &mut lane.seal {
                let length = frame.begin + frame.bytes - begin + self.overhead;
                match frame.place {
                    FrameBytes::Slot(slot) => {
                        res.sends.change(slot, begin, length, |frame| seal.seal(frame, now));
                    }
                    FrameBytes::Inline(start) => {
                        seal.seal(&mut self.inline[start + begin..][..length], now);
                    }
                }
                frame.bytes += self.overhead;
                #[cfg(feature = "identity")]
                if matches!(record, Record::Switch) {
                    seal.switch(now);
                }
            }
        }
    }

    /// Posts staged work up to `end`. The last work request is signalled if `is_signaled`.
    fn post(&self, sends: &SendRoom, lanes: &[Lane], end: usize, is_signaled: bool) -> Result<(), PostError> {
        let work = || self.work.range(self.posted..end);
        // Fill the lists in place, since `collect` would move them as a whole.
        let (mut sges, mut requests) = (ArrayVec::<_, DOORBELL>::new(), ArrayVec::<_, DOORBELL>::new());
        sges.extend(work().map(|work| work.kind.sge(sends)));
        let each = (self.posted..).zip(work()).zip(&sges);
        requests.extend(each.map(|((at, work), sge)| self.request(at, work, sge, lanes)));
        if let Some(last) = requests.last_mut().filter(|_| is_signaled) {
            last.flags = SendFlags::SIGNALED;
        }
        self.qp.post_send(&requests)
    }

    /// Returns the work request number for a position in the queue.
    fn wr_id(&self, at: usize) -> u64 {
        wr_id(self.slot, self.first + at as u64)
    }

    /// Builds the work request for a position in the queue, with `sge` as its registered memory.
    fn request<'a>(&'a self, at: usize, work: &Work, sge: &'a Sge, lanes: &[Lane]) -> SendRequest<'a> {
        let gathered = SendData::Gather(slice::from_ref(sge));
        let (operation, data, flags, remote_srq) = match &work.kind {
            WorkKind::Frame(frame) => {
                let data = match frame.place {
                    FrameBytes::Slot(_) => gathered,
                    FrameBytes::Inline(start) => {
                        SendData::Inline(&self.inline[start + frame.begin..][..frame.bytes])
                    }
                };
                (SendOperation::Send, data, SendFlags::empty(), lanes[frame.lane].srq)
            }
            WorkKind::Read(read) => {
                (SendOperation::RdmaRead(read.from), gathered, SendFlags::SIGNALED, read.srq)
            }
            WorkKind::Keepalive(srq) => {
                let nowhere = RemoteAddress { address: IoAddress(0), rkey: Rkey(0) };
                (SendOperation::RdmaWrite(nowhere), SendData::Gather(&[]), SendFlags::SIGNALED, *srq)
            }
        };
        SendRequest { wr_id: self.wr_id(at), operation, data, flags, remote_srq }
    }

    /// Returns the number of items posted up to the work with this number; 0 if the device has no such work.
    pub(super) fn count_up_to(&self, sequence: u64) -> usize {
        let before = sequence.wrapping_sub(self.first) & SEQUENCES;
        usize::try_from(before).ok().filter(|before| *before < self.posted).map_or(0, |before| before + 1)
    }

    /// Returns the size of the failed work with this number, and of the largest work before it, in bytes.
    pub(super) fn failed_and_carried(&self, sequence: u64) -> Option<(u32, u32)> {
        let at = self.count_up_to(sequence).checked_sub(1)?;
        let bytes = |work: &Work| work.kind.bytes();
        let carried = self.work.range(..at).map(bytes).fold(self.carried, u32::max);
        self.work.get(at).map(|work| (bytes(work), carried))
    }

    /// Removes the oldest work, which the device has completed. Frees its resources and returns its purpose.
    pub(super) fn pop_completed(&mut self, sends: &mut SendRoom) -> Option<Completed> {
        self.posted = self.posted.checked_sub(1)?;
        let Work { kind, record } = self.work.pop_front()?;
        self.first = (self.first + 1) & SEQUENCES;
        release(sends, &kind);
        self.carried = self.carried.max(kind.bytes());
        let (bundled, is_told) = match kind {
            WorkKind::Frame(frame) => (frame.bundled, frame.is_told),
            WorkKind::Read(_) | WorkKind::Keepalive(_) => (Vec::new(), false),
        };
        Some(Completed { record, bundled, is_told })
    }

    /// Keeps the list of completed bundled messages for reuse.
    pub(super) fn rest(&mut self, mut bundled: Vec<BundledMessage>) {
        if bundled.capacity() > 0 && self.pooled.len() < MAX_POOLED {
            bundled.clear();
            self.pooled.push(bundled);
        }
    }

    /// Drops all unposted work, and reports `outcome` for its messages.
    pub(super) fn abandon_staged(&mut self, sends: &mut SendRoom, events: &mut Events, outcome: SendOutcome) {
        for Work { kind, record } in self.work.drain(self.posted..) {
            release(sends, &kind);
            if let Record::Message(delivery) = record {
                events.sent(delivery, outcome);
            }
            if let WorkKind::Frame(frame) = kind {
                frame.bundled.iter().for_each(|bundled| events.sent(bundled.delivery, outcome));
            }
        }
        self.inline.clear();
    }
}

/// A message withdrawn before its frame was posted.
#[derive(Debug)]
pub(super) struct Late {
    pub(super) lane: usize,
    pub(super) record: Record,
    /// True if the message's frame was also withdrawn, which changes the numbers of later frames.
    pub(super) is_frame: bool,
}

impl Frame {
    /// Returns true if other messages have joined the first one.
    fn is_bundle(&self) -> bool {
        self.messages > 1
    }

    /// Returns the earliest deadline of the frame's messages.
    fn earliest(&self) -> Time {
        self.bundled.iter().map(|bundled| bundled.deadline).fold(self.deadline, Time::min)
    }

    /// Removes a message whose deadline has passed, and returns its start and record. `record` belongs to the first
    /// message.
    fn take_late(&mut self, now: Time, record: &mut Record) -> Option<(usize, Record)> {
        self.given_up += 1;
        if self.deadline <= now {
            self.deadline = Time::MAX;
            return Some((self.begin, mem::replace(record, Record::Nothing)));
        }
        let late = self.bundled.iter_mut().find(|bundled| bundled.deadline <= now)?;
        let delivery = late.delivery;
        late.delivery.report = Report::Never;
        late.deadline = Time::MAX;
        Some((late.begin, Record::Message(delivery)))
    }

    /// Returns the starts and deadlines of the frame's messages with a time-left field.
    fn times_left(&self) -> impl Iterator<Item = (usize, Time)> {
        let bundled = self.bundled.iter().map(|bundled| (bundled.begin, bundled.deadline));
        std::iter::once((self.begin, self.deadline))
            .chain(bundled)
            .filter(|(_, deadline)| *deadline < Time::MAX)
    }
}

impl BundledMessage {
    /// Returns the delivery report for its sender.
    pub(super) fn delivery(&self) -> DeliveryReport {
        self.delivery
    }
}

impl WorkKind {
    fn earliest(&self) -> Time {
        match self {
            Self::Frame(frame) => frame.earliest(),
            Self::Read(_) | Self::Keepalive(_) => Time::MAX,
        }
    }

    /// Returns the payload of the work on the network, in bytes.
    fn bytes(&self) -> u32 {
        match self {
            Self::Frame(frame) => u32::try_from(frame.bytes).unwrap_or(u32::MAX),
            Self::Read(read) => read.sge.length,
            Self::Keepalive(_) => 0,
        }
    }

    /// Returns the registered memory of the work request.
    fn sge(&self, sends: &SendRoom) -> Sge {
        match self {
            Self::Frame(frame @ Frame { place: FrameBytes::Slot(slot), begin, bytes, .. }) => {
                if frame.is_bundle() {
                    sends.sge(*slot, 0, begin + bytes)
                } else {
                    sends.sge(*slot, *begin, *bytes)
                }
            }
            Self::Read(read) => read.sge,
            Self::Frame(_) | Self::Keepalive(_) => Sge::default(),
        }
    }
}

/// Prepares a frame for its first bundled message. Returns the slot for both messages, if there is one.
#[inline(never)]
fn begin_bundle(sends: &mut SendRoom, frame: &mut Frame, place: FrameBytes, inline: &[u8]) -> Option<u32> {
    let slot = match place {
        FrameBytes::Slot(slot) => slot,
        FrameBytes::Inline(start) => {
            let slot = sends.take_slot()?;
            sends.write(slot, HEADER, &inline[start + HEADER..start + HEADER + frame.bytes]);
            frame.place = FrameBytes::Slot(slot);
            slot
        }
    };
    let length = u32::try_from(frame.bytes).unwrap_or(u32::MAX).to_le_bytes();
    sends.write(slot, frame.begin + BUNDLED_LENGTH, &length);
    Some(slot)
}

/// Frees the resources of work that was completed or withdrawn.
fn release(sends: &mut SendRoom, kind: &WorkKind) {
    sends.end();
    if let WorkKind::Frame(Frame { place: FrameBytes::Slot(slot), .. }) = kind {
        sends.put_back_slot(*slot);
    }
}

/// Frees the slot of work that the device may still read.
fn return_early(sends: &mut SendRoom, work: &mut Work) {
    if let WorkKind::Frame(frame) = &mut work.kind
        && let FrameBytes::Slot(slot) = frame.place
    {
        sends.put_back_slot(slot);
        frame.place = FrameBytes::Inline(0);
    }
}
