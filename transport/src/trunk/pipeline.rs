//! From staged frames to posted work requests to their completions.
//!
//! Frames are staged and posted together, one doorbell per trunk and round of the poller. The last of a
//! doorbell is signalled; since an INI completes in order, one completion covers all before it. Staged and posted work is
//! one queue, whose places are the work request numbers. The trunk decides what is staged and what a completion means.
#![forbid(unsafe_code)]

use super::lane::Lane;
use super::resources::{Events, Resources, SendRoom};
use crate::SendOutcome;
use crate::frame::{self, HEADER, SETTLED, TIME_LEFT};
use crate::sizes::{INLINE_BYTES, SEND_QUEUE_DEPTH};
use crate::upper::Receipt;
use arrayvec::ArrayVec;
use std::collections::VecDeque;
use std::slice;
use std::sync::Arc;
use trunkline_mutants::mutant;
use trunkline_verbs::{
    IoAddress, PostError, QueuePair, RemoteAddress, Rkey, SendData, SendFlags, SendOperation, SendRequest,
    Sge, SrqNumber, Time,
};

/// Work requests posted by one call, of which one is signalled.
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
}

/// Where the bytes of a staged frame are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// In a send slot.
    Slot(u32),
    /// In the pipeline's inline bytes, from here.
    Inline(usize),
}

/// A frame to be posted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    pub(super) lane: usize,
    pub(super) place: Place,
    pub(super) bytes: usize,
    /// After this it is not posted.
    pub(super) deadline: Option<Time>,
    /// Its header has a time left.
    pub(super) has_time_left: bool,
}

impl Frame {
    pub(super) fn without_deadline(lane: usize, place: Place, bytes: usize) -> Self {
        Self { lane, place, bytes, deadline: None, has_time_left: false }
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

    /// Whether [`Pipeline::place`] would find room for a frame without payload.
    pub(super) fn can_place_header(&self, sends: &SendRoom) -> bool {
        self.has_room() && sends.has_room() && (self.max_inline >= HEADER || sends.has_slot())
    }

    /// Takes somewhere to put a frame, and writes its parts there. `None` when there is no room.
    pub(super) fn place(&mut self, sends: &mut SendRoom, parts: &[&[u8]]) -> Option<Place> {
        if !self.has_room() || !sends.has_room() {
            return None;
        }
        let total = parts.iter().map(|part| part.len()).sum::<usize>();
        let place = if total <= self.max_inline {
            let start = self.inline.len();
            for part in parts {
                self.inline.extend_from_slice(part);
            }
            Place::Inline(start)
        } else {
            let slot = sends.take_slot()?;
            parts.iter().fold(0, |at, part| sends.write(slot, at, part));
            Place::Slot(slot)
        };
        sends.begin();
        Some(place)
    }

    /// Adds a frame whose place was taken.
    pub(super) fn stage(&mut self, frame: Frame, record: Record) {
        if let Some(deadline) = frame.deadline {
            self.earliest = Some(self.earliest.map_or(deadline, |earliest| earliest.min(deadline)));
        }
        self.work.push_back(Work { what: What::Frame(frame), record });
    }

    /// Adds a READ, which needs no place.
    pub(super) fn stage_read(&mut self, sends: &mut SendRoom, read: Read, record: Record) {
        self.work.push_back(Work { what: What::Read(read), record });
        sends.begin();
    }

    /// Adds a WRITE of nothing, which an SRQ of the peer acknowledges.
    pub(super) fn stage_keepalive(&mut self, sends: &mut SendRoom, srq: SrqNumber) {
        self.work.push_back(Work { what: What::Keepalive(srq), record: Record::Keepalive });
        sends.begin();
    }

    /// Takes back a frame that was not posted, and whose deadline has passed. Returns its lane and what it was for.
    pub(super) fn take_late(&mut self, now: Time, sends: &mut SendRoom) -> Option<(usize, Record)> {
        self.earliest.filter(|earliest| *earliest <= now)?;
        let deadline = |work: &Work| if let What::Frame(frame) = &work.what { frame.deadline } else { None };
        let is_late = |work: &Work| deadline(work).is_some_and(|deadline| deadline <= now);
        let Some(at) = self.work.range(self.posted..).position(is_late) else {
            self.earliest = self.work.range(self.posted..).filter_map(deadline).min();
            return None;
        };
        let Work { what, record } = self.work.remove(self.posted + at)?;
        release(sends, &what);
        if let What::Frame(frame) = what { Some((frame.lane, record)) } else { None }
    }

    /// Posts what is staged.
    ///
    /// # Errors
    /// When the device refuses work that fits its queue: the trunk cannot be used any more.
    pub(super) fn flush(&mut self, res: &mut Resources, lanes: &[Lane]) -> Result<(), PostError> {
        let mut result = Ok(());
        while self.posted < self.work.len() {
            let end = self.work.len().min(self.posted + DOORBELL);
            self.settle(res, lanes, end);
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

    /// Writes into the headers of staged frames, up to `end`, what is settled last.
    fn settle(&mut self, res: &mut Resources, lanes: &[Lane], end: usize) {
        // Frames to one poller, that are posted together, have the same positions.
        let mut settled = None;
        for Work { what, record } in self.work.range(self.posted..end) {
            let What::Frame(frame) = what else { continue };
            let lane = &lanes[frame.lane];
            let positions = match settled {
                Some((of, positions)) if of == frame.lane => positions,
                _ => lane.settle(res, frame.lane),
            };
            settled = Some((frame.lane, positions));
            let (released, left) = match record {
                Record::Message(_) | Record::Announcement(_) => {
                    lane.counters.count_sent();
                    (None, frame.has_time_left.then(|| frame::time_left(frame.deadline, res.time.now())))
                }
                Record::Credit { .. } => (Some(lane.released()), None),
                _ => (None, None),
            };
            let mut write = |at: usize, field: &[u8]| match frame.place {
                Place::Slot(slot) => _ = res.sends.write(slot, at, field),
                Place::Inline(start) => {
                    self.inline[start + at..start + at + field.len()].copy_from_slice(field);
                }
            };
            write(SETTLED, &positions);
            released.inspect(|released| write(frame::WORD, released));
            left.inspect(|left| write(TIME_LEFT, left));
        }
    }

    /// Posts staged work up to `end`.
    fn post(&self, sends: &SendRoom, lanes: &[Lane], end: usize) -> Result<(), PostError> {
        let sge = |work: &Work| match work.what {
            What::Frame(Frame { place: Place::Slot(slot), bytes, .. }) => sends.sge(slot, bytes),
            What::Read(read) => read.sge,
            _ => Sge::default(),
        };
        let sges = self.work.range(self.posted..end).map(sge).collect::<ArrayVec<_, DOORBELL>>();
        let numbered = (self.posted..).zip(self.work.range(self.posted..end));
        let mut requests = numbered
            .zip(&sges)
            .map(|((at, work), sge)| self.request(at, work, sge, lanes))
            .collect::<ArrayVec<_, DOORBELL>>();
        requests.last_mut().into_iter().for_each(|last| last.flags = SendFlags::SIGNALED);
        self.qp.post_send(&requests)
    }

    /// The work at a place of the queue, which has this part of registered memory.
    fn request<'a>(&'a self, at: usize, work: &Work, sge: &'a Sge, lanes: &[Lane]) -> SendRequest<'a> {
        let gathered = SendData::Gather(slice::from_ref(sge));
        let (operation, data, flags, remote_srq) = match &work.what {
            What::Frame(frame) => {
                let data = match frame.place {
                    Place::Slot(_) => gathered,
                    Place::Inline(start) => SendData::Inline(&self.inline[start..start + frame.bytes]),
                };
                (SendOperation::Send, data, SendFlags::empty(), lanes[frame.lane].srq)
            }
            What::Read(read) => (SendOperation::RdmaRead(read.from), gathered, SendFlags::SIGNALED, read.srq),
            What::Keepalive(srq) => {
                let nowhere = RemoteAddress { address: IoAddress(0), rkey: Rkey(0) };
                (SendOperation::RdmaWrite(nowhere), SendData::Gather(&[]), SendFlags::SIGNALED, *srq)
            }
        };
        let wr_id = (self.slot as u64) << SEQUENCE_BITS | (self.first + at as u64) & SEQUENCES;
        SendRequest { wr_id, operation, data, flags, remote_srq }
    }

    /// How much of what the device has was posted up to the work with this number; nothing if the device has no such work.
    pub(super) fn count_up_to(&self, sequence: u64) -> usize {
        let before = sequence.wrapping_sub(self.first) & SEQUENCES;
        usize::try_from(before).ok().filter(|before| *before < self.posted).map_or(0, |before| before + 1)
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

/// Work is over, or was given up: what it used is free.
fn release(sends: &mut SendRoom, what: &What) {
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
