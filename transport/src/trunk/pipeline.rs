//! From staged frames to posted work requests to their completions.
//!
//! Frames are staged and posted together, one doorbell per trunk and round of the poller. The last of a
//! flush and every sixteenth are signalled; since an INI completes in order, one completion covers all
//! before it. The trunk decides what is staged and what a completion means.
#![forbid(unsafe_code)]

use super::lane::Lane;
use super::resources::{Events, Resources, SendRoom};
use crate::frame::{self, HEADER, SETTLED, TIME_LEFT};
use crate::sizes::{INLINE_BYTES, SEND_QUEUE_DEPTH};
use crate::{SendOutcome, Token};
use arrayvec::ArrayVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::{mem, slice};
use trunkline_mutants::mutant;
use trunkline_verbs::{
    IoAddress, PostError, QueuePair, RemoteAddress, Rkey, SendData, SendFlags, SendOperation, SendRequest,
    Sge, SrqNumber, Time,
};

/// Work requests posted by one call.
const DOORBELL: usize = 16;
/// Every so many work requests one is signalled.
const SIGNAL_EVERY: u32 = 16;
/// Bits of a work request number that count; those above name the trunk.
const SEQUENCE_BITS: u32 = 40;

/// What a posted work request was for.
#[derive(Debug)]
pub(super) enum Record {
    /// A whole message.
    Message(Token),
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

/// Work that the next flush posts.
#[derive(Debug)]
pub(super) enum Staged {
    Frame {
        lane: usize,
        place: Place,
        bytes: usize,
        /// After this it is not posted.
        deadline: Option<Time>,
        /// Its header has a time left.
        has_time_left: bool,
        record: Record,
    },
    Read {
        sge: Sge,
        from: RemoteAddress,
        srq: SrqNumber,
        record: Record,
    },
    Keepalive {
        srq: SrqNumber,
    },
}

impl Staged {
    fn deadline(&self) -> Option<Time> {
        if let Self::Frame { deadline, .. } = self { *deadline } else { None }
    }
}

/// Work that the device has.
#[derive(Debug)]
struct Posted {
    sequence: u64,
    record: Record,
    slot: Option<u32>,
}

/// A work request whose numbers and bytes are settled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ready {
    wr_id: u64,
    operation: SendOperation,
    data: Data,
    flags: SendFlags,
    srq: SrqNumber,
}

#[derive(Debug, Clone, Copy)]
enum Data {
    Registered(Sge),
    Inline { start: usize, length: usize },
    Nothing,
}

/// The send queue of one INI, with what waits to be posted to it.
#[derive(Debug)]
pub(super) struct Pipeline {
    qp: Arc<dyn QueuePair>,
    /// The trunk's place in the poller's table, for work request numbers.
    slot: usize,
    max_inline: usize,
    staged: Vec<Staged>,
    /// No staged frame has an earlier deadline.
    earliest: Option<Time>,
    inline: Vec<u8>,
    in_flight: VecDeque<Posted>,
    next_sequence: u64,
    unsignaled: u32,
}

/// The trunk and the sequence that a work request number names.
pub(crate) fn parse_wr_id(wr_id: u64) -> (usize, u64) {
    let slot = usize::try_from(wr_id >> SEQUENCE_BITS).unwrap_or(usize::MAX);
    (slot, wr_id & ((1 << SEQUENCE_BITS) - 1))
}

impl Pipeline {
    pub(super) fn new(qp: Arc<dyn QueuePair>, slot: usize) -> Self {
        let inline = qp.capacities().max_inline_data.min(INLINE_BYTES);
        Self {
            qp,
            slot,
            max_inline: usize::try_from(inline).unwrap_or(0),
            staged: Vec::new(),
            earliest: None,
            inline: Vec::new(),
            in_flight: VecDeque::with_capacity(SEND_QUEUE_DEPTH),
            next_sequence: 0,
            unsignaled: 0,
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
        self.in_flight.len() + self.staged.len() < SEND_QUEUE_DEPTH
    }

    /// Whether the device has nothing of it.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Whether nothing is staged either.
    pub(super) fn is_empty(&self) -> bool {
        self.staged.is_empty() && self.in_flight.is_empty()
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
    pub(super) fn stage(&mut self, frame: Staged) {
        if let Staged::Frame { deadline: Some(deadline), .. } = frame {
            self.earliest = Some(self.earliest.map_or(deadline, |earliest| earliest.min(deadline)));
        }
        self.staged.push(frame);
    }

    /// Takes back a frame that was not posted, and whose deadline has passed. Returns its lane and what it was for.
    pub(super) fn take_late(&mut self, now: Time, sends: &mut SendRoom) -> Option<(usize, Record)> {
        self.earliest.filter(|earliest| *earliest <= now)?;
        let is_late = |work: &Staged| matches!(work, Staged::Frame { deadline: Some(at), .. } if *at <= now);
        let Some(at) = self.staged.iter().position(is_late) else {
            self.earliest = self.staged.iter().filter_map(Staged::deadline).min();
            return None;
        };
        let Staged::Frame { lane, place, record, .. } = self.staged.remove(at) else { return None };
        sends.end();
        if let Place::Slot(slot) = place {
            sends.put_back_slot(slot);
        }
        Some((lane, record))
    }

    /// Adds work that needs no place: a READ or a keepalive.
    pub(super) fn stage_bare(&mut self, sends: &mut SendRoom, work: Staged) {
        self.staged.push(work);
        sends.begin();
    }

    /// Posts what is staged.
    ///
    /// # Errors
    /// When the device refuses work that fits its queue: the trunk cannot be used any more.
    pub(super) fn flush(&mut self, res: &mut Resources, lanes: &[Lane]) -> Result<(), PostError> {
        if self.staged.is_empty() {
            return Ok(());
        }
        // The lists keep their room for the next flush.
        let mut staged = mem::take(&mut self.staged);
        let mut ready = mem::take(&mut res.ready);
        let last = staged.len() - 1;
        for (index, work) in staged.drain(..).enumerate() {
            ready.push(self.settle(res, lanes, work, index == last));
        }
        self.staged = staged;
        let result = ready.chunks(DOORBELL).try_for_each(|chunk| self.post(chunk));
        ready.clear();
        res.ready = ready;
        self.inline.clear();
        self.earliest = None;
        result
    }

    fn post(&self, ready: &[Ready]) -> Result<(), PostError> {
        let requests = ready.iter().map(|ready| SendRequest {
            wr_id: ready.wr_id,
            operation: ready.operation,
            data: match &ready.data {
                Data::Registered(sge) => SendData::Gather(slice::from_ref(sge)),
                Data::Inline { start, length } => SendData::Inline(&self.inline[*start..*start + *length]),
                Data::Nothing => SendData::Gather(&[]),
            },
            flags: ready.flags,
            remote_srq: ready.srq,
        });
        self.qp.post_send(&requests.collect::<ArrayVec<_, DOORBELL>>())
    }

    /// Gives staged work what is settled last in its header, its number and flags, and records it as in flight.
    fn settle(&mut self, res: &mut Resources, lanes: &[Lane], work: Staged, is_last: bool) -> Ready {
        let sequence = self.next_sequence;
        self.next_sequence = (self.next_sequence + 1) & ((1 << SEQUENCE_BITS) - 1);
        let wr_id = (self.slot as u64) << SEQUENCE_BITS | sequence;
        let (operation, data, srq, record, slot, must_signal) = match work {
            Staged::Frame { lane, place, bytes, deadline, has_time_left, record } => {
                let known = &lanes[lane];
                let credit = matches!(record, Record::Credit { .. }).then(|| known.released());
                let left = has_time_left.then(|| frame::time_left(deadline, res.time.now()));
                let positions = known.settle(res, lane, &record);
                let (data, slot) = match place {
                    Place::Slot(slot) => {
                        let write = |at, field: &[u8]| _ = res.sends.write(slot, at, field);
                        write(SETTLED, &positions);
                        credit.inspect(|released| write(frame::WORD, released));
                        left.inspect(|left| write(TIME_LEFT, left));
                        (Data::Registered(res.sends.sge(slot, bytes)), Some(slot))
                    }
                    Place::Inline(start) => {
                        let frame = &mut self.inline[start..start + bytes];
                        let mut write = |at, field: &[u8]| frame[at..at + field.len()].copy_from_slice(field);
                        write(SETTLED, &positions);
                        credit.inspect(|released| write(frame::WORD, released));
                        left.inspect(|left| write(TIME_LEFT, left));
                        (Data::Inline { start, length: bytes }, None)
                    }
                };
                (SendOperation::Send, data, known.srq, record, slot, false)
            }
            Staged::Read { sge, from, srq, record } => {
                (SendOperation::RdmaRead(from), Data::Registered(sge), srq, record, None, true)
            }
            Staged::Keepalive { srq } => {
                let nowhere = RemoteAddress { address: IoAddress(0), rkey: Rkey(0) };
                (SendOperation::RdmaWrite(nowhere), Data::Nothing, srq, Record::Keepalive, None, true)
            }
        };
        self.unsignaled += 1;
        let signaled = must_signal || is_last || self.unsignaled >= SIGNAL_EVERY;
        if signaled {
            self.unsignaled = 0;
        }
        let slot = match slot {
            Some(early) if mutant!(slots_return_before_their_completion) => {
                res.sends.put_back_slot(early);
                None
            }
            slot => slot,
        };
        self.in_flight.push_back(Posted { sequence, record, slot });
        let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        Ready { wr_id, operation, data, flags, srq }
    }

    /// Whether the device has work with this number.
    pub(super) fn has_posted(&self, sequence: u64) -> bool {
        let known = self.in_flight.front().zip(self.in_flight.back());
        known.is_some_and(|(first, last)| (first.sequence..=last.sequence).contains(&sequence))
    }

    /// The number of the oldest work that the device has.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.in_flight.front().map(|posted| posted.sequence)
    }

    /// The device is done with its oldest work: frees what it used, and returns what it was for and its number.
    pub(super) fn pop_completed(&mut self, sends: &mut SendRoom) -> Option<(Record, u64)> {
        let posted = self.in_flight.pop_front()?;
        sends.end();
        if let Some(slot) = posted.slot {
            sends.put_back_slot(slot);
        }
        Some((posted.record, posted.sequence))
    }

    /// Gives up what was never posted; the messages among it end so.
    pub(super) fn abandon_staged(&mut self, sends: &mut SendRoom, events: &mut Events, outcome: SendOutcome) {
        for staged in mem::take(&mut self.staged) {
            sends.end();
            if let Staged::Frame { place, record, .. } = staged {
                if let Place::Slot(slot) = place {
                    sends.put_back_slot(slot);
                }
                if let Record::Message(token) = record {
                    events.sent(token, outcome);
                }
            }
        }
        self.inline.clear();
    }

    /// How much the device has of it.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }
}
