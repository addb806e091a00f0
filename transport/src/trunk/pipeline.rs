//! From staged frames to posted work requests to their completions.
//!
//! Frames are staged and posted together, one doorbell per trunk and round of the poller. The last of a
//! doorbell is signalled; since an INI completes in order, one completion covers all before it. Staged and posted work is
//! one queue, whose places are the work request numbers. The trunk decides what is staged and what a completion means.
//!
//! A message that is staged while an earlier frame of its lane is staged still joins that, which becomes a bundle. It has a
//! place in the queue for what it needs to be told of, and no work request: that of its frame, or a later one, completes it.
#![forbid(unsafe_code)]

use super::lane::Lane;
use super::resources::{Events, Resources, SendRoom};
use crate::SendOutcome;
use crate::frame::{self, BUNDLED_LENGTH, HEADER, SETTLED, TIME_LEFT, VOID};
use crate::sizes::{INLINE_BYTES, SEND_QUEUE_DEPTH};
use crate::upper::Receipt;
use arrayvec::ArrayVec;
use std::collections::VecDeque;
use std::mem;
use std::slice;
use std::sync::Arc;
use trunkline_mutants::mutant;
use trunkline_verbs::{
    IoAddress, PostError, QueuePair, RemoteAddress, Rkey, SendData, SendFlags, SendOperation, SendRequest,
    Sge, SrqNumber, Time,
};

/// Most work requests that are posted by one call, of which one is signalled.
const DOORBELL: usize = 16;
/// Bits of a work request number that count; those above name the trunk.
const SEQUENCE_BITS: u32 = 40;
const SEQUENCES: u64 = (1 << SEQUENCE_BITS) - 1;

/// What a work request is for.
#[derive(Debug)]
pub(super) enum Record {
    /// A whole message.
    Message(Receipt),
    /// The announcement of a large message, by the number of its source; its outcome is the FIN's.
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
    /// A message that was given up in a bundle.
    Nothing,
}

/// Where the bytes of a staged frame are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// In a send slot.
    Slot(u32),
    /// In the pipeline's inline bytes, from here.
    Inline(usize),
}

/// A frame to be posted, or a message that has joined one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    pub(super) lane: usize,
    place: Place,
    /// Where in its place the frame begins, or the message. With room for a header before it, others may join it.
    begin: usize,
    /// Bytes of all its messages.
    bytes: usize,
    /// How many these are; a frame of another kind counts as one.
    messages: u16,
    /// After this it is not posted.
    deadline: Option<Time>,
    /// Its header has a time left.
    has_time_left: bool,
}

/// What leaves as a frame, or joins one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts<'a> {
    /// They follow each other.
    pub(super) parts: &'a [&'a [u8]],
    /// After this it is not posted.
    pub(super) deadline: Option<Time>,
    /// Its header has a time left.
    pub(super) has_time_left: bool,
}

impl<'a> Parts<'a> {
    /// Of a frame that is the transport's own.
    pub(super) fn own(parts: &'a [&'a [u8]]) -> Self {
        Self { parts, deadline: None, has_time_left: false }
    }

    /// Bytes of all of them.
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
    what: What,
    record: Record,
}

#[derive(Debug)]
enum What {
    Frame(Frame),
    /// It is in the bytes of a frame before it.
    Joined(Frame),
    Read(Read),
    Keepalive(SrqNumber),
}

/// The send queue of one INI, with what waits to be posted to it.
#[derive(Debug)]
pub(super) struct Pipeline {
    qp: Arc<dyn QueuePair>,
    /// The trunk's place in the poller's table, for work request numbers.
    slot: usize,
    max_inline: usize,
    /// What the device has, then what is staged.
    work: VecDeque<Work>,
    /// How much of it the device has.
    posted: usize,
    /// The number of the first.
    first: u64,
    /// Work has failed, and so will all that is posted.
    has_failed: bool,
    /// No staged frame has an earlier deadline.
    earliest: Option<Time>,
    /// Short frames that are staged.
    inline: Vec<u8>,
}

/// The trunk and the sequence that a work request number names.
pub(crate) fn parse_wr_id(wr_id: u64) -> (usize, u64) {
    let slot = usize::try_from(wr_id >> SEQUENCE_BITS).unwrap_or(usize::MAX);
    (slot, wr_id & SEQUENCES)
}

impl Pipeline {
    pub(super) fn new(qp: Arc<dyn QueuePair>, slot: usize) -> Self {
        let inline = qp.capacities().max_inline_data.min(INLINE_BYTES);
        Self {
            qp,
            slot,
            max_inline: usize::try_from(inline).unwrap_or(0),
            work: VecDeque::new(),
            posted: 0,
            first: 0,
            has_failed: false,
            earliest: None,
            inline: Vec::new(),
        }
    }

    pub(super) fn qp(&self) -> &dyn QueuePair {
        self.qp.as_ref()
    }

    pub(super) fn slot(&self) -> usize {
        self.slot
    }

    /// Whether one more work request fits the send queue.
    pub(super) fn has_room(&self) -> bool {
        self.work.len() < SEND_QUEUE_DEPTH
    }

    /// Whether the device has nothing of it.
    pub(super) fn is_idle(&self) -> bool {
        self.posted == 0
    }

    /// Whether nothing is staged either.
    pub(super) fn is_empty(&self) -> bool {
        self.work.is_empty()
    }

    /// How much the device has of it.
    pub(super) fn in_flight(&self) -> usize {
        self.posted
    }

    /// Whether [`Pipeline::stage`] would find room for a frame without payload.
    pub(super) fn can_place_header(&self, sends: &SendRoom) -> bool {
        self.has_room() && sends.has_room() && (self.max_inline >= HEADER || sends.has_slot())
    }

    /// Adds a frame, with room for messages to join it if `may_be_joined`. Returns its number, or `None` when there is no
    /// room for it.
    pub(super) fn stage(
        &mut self,
        sends: &mut SendRoom,
        (lane, may_be_joined): (usize, bool),
        message: &Parts<'_>,
        record: Record,
    ) -> Option<u64> {
        if !self.has_room() || !sends.has_room() {
            return None;
        }
        let (bytes, begin) = (message.len(), if may_be_joined { HEADER } else { 0 });
        let place = if bytes <= self.max_inline {
            let start = self.inline.len();
            self.inline.extend_from_slice(&[0; HEADER][..begin]);
            message.parts.iter().for_each(|part| self.inline.extend_from_slice(part));
            Place::Inline(start)
        } else {
            let slot = sends.take_slot()?;
            message.parts.iter().fold(begin, |at, part| sends.write(slot, at, part));
            Place::Slot(slot)
        };
        sends.begin();
        let Parts { deadline, has_time_left, .. } = *message;
        let frame = Frame { lane, place, begin, bytes, messages: 1, deadline, has_time_left };
        Some(self.push(What::Frame(frame), record))
    }

    /// Adds a message to the frame with this number, which is staged still, unless that would have more than `most` bytes.
    /// Returns whether it was added.
    pub(super) fn join(
        &mut self,
        sends: &mut SendRoom,
        number: u64,
        message: &Parts<'_>,
        receipt: Receipt,
        most: usize,
    ) -> bool {
        let (bytes, has_room) = (message.len(), self.has_room());
        let at = usize::try_from(number.wrapping_sub(self.first) & SEQUENCES).unwrap_or(usize::MAX);
        let Some(Work { what: What::Frame(frame), .. }) = self.work.get_mut(at) else { return false };
        if at < self.posted || !has_room || frame.begin + frame.bytes + bytes > most {
            return false;
        }
        let slot = match frame.place {
            Place::Slot(slot) => slot,
            Place::Inline(start) => {
                let Some(slot) = sends.take_slot() else { return false };
                sends.write(slot, HEADER, &self.inline[start + HEADER..start + HEADER + frame.bytes]);
                frame.place = Place::Slot(slot);
                slot
            }
        };
        let write_length = |begin: usize, bytes: usize| {
            let length = u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes();
            sends.write(slot, begin + BUNDLED_LENGTH, &length);
        };
        if frame.messages == 1 {
            write_length(frame.begin, frame.bytes);
        }
        let begin = frame.begin + frame.bytes;
        message.parts.iter().fold(begin, |at, part| sends.write(slot, at, part));
        write_length(begin, bytes);
        frame.messages += 1;
        frame.bytes += bytes;
        let Parts { deadline, has_time_left, .. } = *message;
        let joined = Frame { begin, bytes, messages: 1, deadline, has_time_left, ..*frame };
        self.push(What::Joined(joined), Record::Message(receipt));
        true
    }

    /// Adds work; returns its number.
    fn push(&mut self, what: What, record: Record) -> u64 {
        if let Some(deadline) = what.deadline() {
            self.earliest = Some(self.earliest.map_or(deadline, |earliest| earliest.min(deadline)));
        }
        self.work.push_back(Work { what, record });
        (self.first + self.work.len() as u64 - 1) & SEQUENCES
    }

    /// Adds a READ, which needs no place.
    pub(super) fn stage_read(&mut self, sends: &mut SendRoom, read: Read, record: Record) {
        self.push(What::Read(read), record);
        sends.begin();
    }

    /// Adds a WRITE of nothing, which an SRQ of the peer acknowledges.
    pub(super) fn stage_keepalive(&mut self, sends: &mut SendRoom, srq: SrqNumber) {
        self.push(What::Keepalive(srq), Record::Keepalive);
        sends.begin();
    }

    /// Takes back a message that was not posted, and whose deadline has passed.
    pub(super) fn take_late(&mut self, now: Time, sends: &mut SendRoom) -> Option<Late> {
        self.earliest.filter(|earliest| *earliest <= now)?;
        let is_late = |work: &Work| work.what.deadline().is_some_and(|deadline| deadline <= now);
        let Some(at) = self.work.range(self.posted..).position(is_late) else {
            self.earliest = self.work.range(self.posted..).filter_map(|work| work.what.deadline()).min();
            return None;
        };
        let at = self.posted + at;
        if let What::Frame(frame @ Frame { messages: 2.., .. }) | What::Joined(frame) =
            &mut self.work[at].what
            && let Place::Slot(slot) = frame.place
        {
            // The others of its bundle leave.
            if !mutant!(late_messages_stay_in_their_bundle) {
                sends.write(slot, frame.begin, &[VOID]);
            }
            (frame.deadline, frame.has_time_left) = (None, false);
            let lane = frame.lane;
            let record = mem::replace(&mut self.work[at].record, Record::Nothing);
            return Some(Late { lane, record, is_frame: false });
        }
        let Work { what, record } = self.work.remove(at)?;
        release(sends, &what);
        if let What::Frame(Frame { lane, .. }) = what {
            Some(Late { lane, record, is_frame: true })
        } else {
            None
        }
    }

    /// Posts what is staged.
    ///
    /// # Errors
    /// When the device refuses work that fits its queue: the trunk cannot be used any more.
    pub(super) fn flush(&mut self, res: &mut Resources, lanes: &[Lane]) -> Result<(), PostError> {
        let mut result = Ok(());
        // All at once: a message may have joined a frame of an earlier doorbell, whose memory is the device's once that is rung.
        self.settle(res, lanes);
        while self.posted < self.work.len() {
            let end = self.end_of_doorbell();
            // What follows work that was refused comes back with the trunk.
            result = result.and_then(|()| self.post(&res.sends, lanes, end));
            if mutant!(slots_return_before_their_completion) {
                self.work.range_mut(self.posted..end).for_each(|work| return_early(&mut res.sends, work));
            }
            self.posted = end;
        }
        self.inline.clear();
        self.earliest = None;
        result
    }

    /// Where the next doorbell's work ends: messages that have joined a frame are not without a work request before them.
    fn end_of_doorbell(&self) -> usize {
        let is_request = |(_, work): &(usize, &Work)| !matches!(work.what, What::Joined(_));
        let mut requests = (self.posted..).zip(self.work.range(self.posted..)).filter(is_request);
        requests.nth(DOORBELL).map_or(self.work.len(), |(next, _)| next)
    }

    /// Writes into the headers of staged frames what is settled last.
    fn settle(&mut self, res: &mut Resources, lanes: &[Lane]) {
        // Frames to one poller, that are posted together, have the same positions.
        let mut settled = None;
        for Work { what, record } in self.work.range(self.posted..) {
            let (What::Frame(frame) | What::Joined(frame)) = what else { continue };
            let lane = &lanes[frame.lane];
            let mut write = |at: usize, field: &[u8]| match frame.place {
                Place::Slot(slot) => _ = res.sends.write(slot, at, field),
                Place::Inline(start) => {
                    self.inline[start + at..start + at + field.len()].copy_from_slice(field);
                }
            };
            if frame.has_time_left {
                write(frame.begin + TIME_LEFT, &frame::time_left(frame.deadline, res.time.now()));
            }
            match record {
                Record::Message(_) | Record::Announcement(_) => lane.counters.count_sent(),
                Record::Credit { .. } => write(frame.begin + frame::WORD, &lane.released()),
                _ => {}
            }
            if matches!(what, What::Joined(_)) {
                continue;
            }
            let begin = if frame.messages > 1 { 0 } else { frame.begin };
            if frame.messages > 1 {
                write(begin, &frame::bundle(frame.messages));
            }
            let positions = match settled {
                Some((of, positions)) if of == frame.lane => positions,
                _ => lane.settle(&mut res.grants, frame.lane),
            };
            settled = Some((frame.lane, positions));
            write(begin + SETTLED, &positions);
        }
    }

    /// Posts staged work up to `end`.
    fn post(&self, sends: &SendRoom, lanes: &[Lane], end: usize) -> Result<(), PostError> {
        let work = || self.work.range(self.posted..end);
        let sges = work().filter_map(|work| work.what.sge(sends)).collect::<ArrayVec<_, DOORBELL>>();
        let numbered = (self.posted..).zip(work()).filter(|(_, work)| !matches!(work.what, What::Joined(_)));
        let mut requests = numbered
            .zip(&sges)
            .map(|((at, work), sge)| self.request(at, work, sge, lanes))
            .collect::<ArrayVec<_, DOORBELL>>();
        if let Some(last) = requests.last_mut() {
            last.flags = SendFlags::SIGNALED;
            last.wr_id = self.wr_id(end - 1);
        }
        self.qp.post_send(&requests)
    }

    /// The work request number of a place of the queue.
    fn wr_id(&self, at: usize) -> u64 {
        (self.slot as u64) << SEQUENCE_BITS | (self.first + at as u64) & SEQUENCES
    }

    /// The work at a place of the queue, which has this part of registered memory.
    fn request<'a>(&'a self, at: usize, work: &Work, sge: &'a Sge, lanes: &[Lane]) -> SendRequest<'a> {
        let gathered = SendData::Gather(slice::from_ref(sge));
        let (operation, data, flags, remote_srq) = match &work.what {
            What::Frame(frame) | What::Joined(frame) => {
                let data = match frame.place {
                    Place::Slot(_) => gathered,
                    Place::Inline(start) => {
                        SendData::Inline(&self.inline[start + frame.begin..][..frame.bytes])
                    }
                };
                (SendOperation::Send, data, SendFlags::empty(), lanes[frame.lane].srq)
            }
            What::Read(read) => (SendOperation::RdmaRead(read.from), gathered, SendFlags::SIGNALED, read.srq),
            What::Keepalive(srq) => {
                let nowhere = RemoteAddress { address: IoAddress(0), rkey: Rkey(0) };
                (SendOperation::RdmaWrite(nowhere), SendData::Gather(&[]), SendFlags::SIGNALED, *srq)
            }
        };
        SendRequest { wr_id: self.wr_id(at), operation, data, flags, remote_srq }
    }

    /// How much of what the device has was posted up to the work with this number; nothing if the device has no such work.
    pub(super) fn count_up_to(&self, sequence: u64) -> usize {
        let before = sequence.wrapping_sub(self.first) & SEQUENCES;
        usize::try_from(before).ok().filter(|before| *before < self.posted).map_or(0, |before| before + 1)
    }

    /// How many of the oldest `count` works have succeeded, of which the device has completed the last request. What has
    /// joined a frame follows it, as a rule behind later ones, and is not known to have succeeded once a request has failed.
    pub(super) fn succeeded(&mut self, count: usize, success: bool) -> usize {
        let has_failed = self.has_failed;
        self.has_failed |= !success;
        let is_precise = !mutant!(joined_messages_do_not_fail_with_their_frame);
        let is_request = |work: &Work| !(is_precise && matches!(work.what, What::Joined(_)));
        match success {
            _ if has_failed && is_precise => 0,
            true => count,
            false => self.work.range(..count).rposition(is_request).unwrap_or(0),
        }
    }

    /// The device is done with its oldest work: frees what it used, and returns what it was for.
    pub(super) fn pop_completed(&mut self, sends: &mut SendRoom) -> Option<Record> {
        self.posted = self.posted.checked_sub(1)?;
        let work = self.work.pop_front()?;
        self.first = (self.first + 1) & SEQUENCES;
        release(sends, &work.what);
        Some(work.record)
    }

    /// Gives up what was never posted; the messages among it end so.
    pub(super) fn abandon_staged(&mut self, sends: &mut SendRoom, events: &mut Events, outcome: SendOutcome) {
        for work in self.work.drain(self.posted..) {
            release(sends, &work.what);
            if let Record::Message(receipt) = work.record {
                events.sent(receipt, outcome);
            }
        }
        self.inline.clear();
    }
}

/// A message that was taken back.
#[derive(Debug)]
pub(super) struct Late {
    pub(super) lane: usize,
    pub(super) record: Record,
    /// Its frame was taken back with it, and the numbers of later ones have changed.
    pub(super) is_frame: bool,
}

impl What {
    fn deadline(&self) -> Option<Time> {
        match self {
            Self::Frame(frame) | Self::Joined(frame) => frame.deadline,
            Self::Read(_) | Self::Keepalive(_) => None,
        }
    }

    /// The part of registered memory that its work request has, if it has one.
    fn sge(&self, sends: &SendRoom) -> Option<Sge> {
        match self {
            Self::Frame(Frame { place: Place::Slot(slot), begin, bytes, messages, .. }) => {
                Some(if *messages > 1 {
                    sends.sge(*slot, 0, begin + bytes)
                } else {
                    sends.sge(*slot, *begin, *bytes)
                })
            }
            Self::Read(read) => Some(read.sge),
            Self::Frame(_) | Self::Keepalive(_) => Some(Sge::default()),
            Self::Joined(_) => None,
        }
    }
}

/// Work is over, or was given up: what it used is free.
fn release(sends: &mut SendRoom, what: &What) {
    if matches!(what, What::Joined(_)) {
        return;
    }
    sends.end();
    if let What::Frame(Frame { place: Place::Slot(slot), .. }) = what {
        sends.put_back_slot(*slot);
    }
}

/// Returns the slot of work that the device may still read.
fn return_early(sends: &mut SendRoom, work: &mut Work) {
    if let What::Frame(frame) = &mut work.what
        && let Place::Slot(slot) = frame.place
    {
        sends.put_back_slot(slot);
        frame.place = Place::Inline(0);
    }
}
