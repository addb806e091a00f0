//! A TGT that this member executes for all that share it.
//!
//! Owns its placement in another member's SRQ, of which there is one at a time; the packets that
//! came meanwhile; bytes fetched for a READ; events that are due to the handles.
//!
//! | `pending` | a packet comes | the owner answers | the owner dies | no answer for a while |
//! |---|---|---|---|---|
//! | none | its SRQ is ours: placed. Another's: published, asked, pending | ignored | - | - |
//! | one | waits in the backlog | the responder answers the peer; the backlog is fed | contract G7 | asked again, same serial |
#![forbid(unsafe_code)]

use super::change::{ATTRIBUTE_WORDS, put_attributes};
use super::message::{Message, Outcome};
use super::owner::MAX_FETCH;
use super::{Sharing, post};
use crate::device::card::Card;
use crate::device::card::qp::Qp;
use crate::host::{BUFFER_WORDS, MemberId, TargetRecord, Targets};
use std::collections::VecDeque;
use trunkline_roce::engine::{IMAGE_WORDS, NakCode, Place, Placement, ReadOutcome, ReadPiece, Work};
use trunkline_roce::wire::Packet;
use trunkline_verbs::{AsyncEventKind, QpNumber, SrqNumber, Time};

/// When an owner that does not answer is asked again.
const AGAIN_NS: u64 = 10_000_000;
/// Packets that wait for a placement, and their bytes. What no longer fits is lost, and repeated by
/// the peer.
const MAX_BACKLOG: usize = 256;
const MAX_BACKLOG_BYTES: usize = 1 << 20;
/// Packets of a READ's answer fetched at once.
const PACKETS_AT_ONCE: u32 = 16;
/// Events that wait for their handles at most.
const MAX_EVENTS: usize = 16;

// The largest image fits, and the word for its length.
const _: () = assert!(ATTRIBUTE_WORDS + IMAGE_WORDS < BUFFER_WORDS);

/// What a TGT's executor keeps in addition to the QP itself.
#[derive(Debug)]
pub(in crate::device::card) struct Executor {
    pub(super) record: TargetRecord,
    pub(super) pending: Option<Pending>,
    pub(super) fetch: Fetch,
    backlog: VecDeque<Vec<u8>>,
    backlog_bytes: usize,
    /// What became of the last placement that a predecessor asked this very member for.
    pub(super) inherited: Option<(u64, Outcome)>,
    /// Who holds the receive of the SEND in progress, if another member does.
    pub(super) message_at: Option<MemberId>,
    pub(super) events: Vec<AsyncEventKind>,
}

/// A placement that another member was asked for.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) owner: MemberId,
    serial: u64,
    /// The request as it was sent.
    kind: u8,
    bytes: Vec<u8>,
    again: Time,
}

impl Pending {
    /// What became of it, if its owner has no such SRQ any more but had carried it out before.
    fn settle(&self, outcome: Outcome, note: &PlacementNote<'_>) -> Outcome {
        let was_placed = || match Message::read(self.kind, &self.bytes) {
            Some(Message::Place { place, .. }) => note.covers(&place),
            _ => false,
        };
        match outcome {
            Outcome::UnknownSrq if was_placed() => Outcome::Done(Placement::Placed),
            outcome => outcome,
        }
    }
}

/// The note in the shared table that a placement was carried out.
#[derive(Debug)]
pub(in crate::device::card) struct PlacementNote<'a> {
    pub(super) targets: &'a Targets,
    pub(super) record: TargetRecord,
    pub(super) serial: u64,
}

impl PlacementNote<'_> {
    /// Makes the note. To be called before the program can see what was placed.
    pub(in crate::device::card) fn make(&self) {
        self.targets.note_placement(self.record, self.serial);
    }

    /// Whether this packet was placed by a process that has ended: nothing is left to do but to
    /// acknowledge it. Atomics and READs need an answer that ended with the process.
    pub(in crate::device::card) fn covers(&self, place: &Place<'_>) -> bool {
        matches!(place.work, Work::Send { .. } | Work::Write { .. })
            && self.targets.is_placed(self.record, self.serial)
    }
}

/// Bytes for the answer of a READ from another member's memory.
#[derive(Debug, Default)]
pub(super) enum Fetch {
    #[default]
    None,
    Requested {
        owner: MemberId,
        piece: ReadPiece,
        again: Time,
    },
    /// They start with what `next` wants.
    Here {
        next: ReadPiece,
        at: usize,
        bytes: Vec<u8>,
    },
    Refused(Outcome),
}

impl Executor {
    pub(super) fn new(record: TargetRecord) -> Self {
        Self {
            record,
            pending: None,
            fetch: Fetch::None,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            inherited: None,
            message_at: None,
            events: Vec::new(),
        }
    }

    /// Whether a placement is pending.
    pub(in crate::device::card) fn is_waiting(&self) -> bool {
        self.pending.is_some()
    }

    /// Keeps a packet until the placement before it is answered.
    pub(in crate::device::card) fn keep(&mut self, packet: &[u8]) {
        if self.backlog.len() < MAX_BACKLOG && self.backlog_bytes + packet.len() <= MAX_BACKLOG_BYTES {
            self.backlog_bytes += packet.len();
            self.backlog.push_back(packet.to_vec());
        }
    }

    fn next_kept(&mut self) -> Option<Vec<u8>> {
        let packet = self.backlog.pop_front()?;
        self.backlog_bytes -= packet.len();
        Some(packet)
    }

    /// Something happened to the TGT, of which its handles are to hear.
    pub(in crate::device::card) fn raise(&mut self, kind: AsyncEventKind) {
        if self.events.len() < MAX_EVENTS {
            self.events.push(kind);
        }
    }

    /// Drops what is in progress; returns the member that has to drop a receive.
    pub(in crate::device::card) fn reset(&mut self) -> Option<MemberId> {
        self.pending = None;
        self.fetch = Fetch::None;
        self.inherited = None;
        self.backlog.clear();
        self.backlog_bytes = 0;
        self.message_at.take()
    }

    /// When somebody is asked again.
    pub(in crate::device::card) fn next_timeout(&self) -> Option<Time> {
        let placement = self.pending.as_ref().map(|pending| pending.again);
        let fetch = match &self.fetch {
            Fetch::Requested { again, .. } => Some(*again),
            _ => None,
        };
        placement.into_iter().chain(fetch).min()
    }
}

/// Places messages of a TGT in the SRQs of other members, during one call into the engine.
pub(in crate::device::card) struct RemotePlacement<'a> {
    pub(super) executor: &'a mut Executor,
    /// Of the responder's next placement.
    pub(super) note: PlacementNote<'a>,
    pub(super) outbox: &'a mut post::Outbox,
    pub(super) now: Time,
}

impl<'a> RemotePlacement<'a> {
    /// For a QP that is shared.
    pub(in crate::device::card) fn of(
        executor: &'a mut Option<Box<Executor>>,
        sharing: &'a mut Option<Sharing>,
        serial: u64,
        now: Time,
    ) -> Option<Self> {
        let (executor, sharing) = (executor.as_mut()?, sharing.as_mut()?);
        let note = PlacementNote { targets: &sharing.targets, record: executor.record, serial };
        Some(Self { executor, note, outbox: &mut sharing.outbox, now })
    }

    /// A placement that a predecessor had done here, and whose answer got lost with it.
    pub(in crate::device::card) fn inherited(&mut self) -> Option<Outcome> {
        let (serial, outcome) = self.executor.inherited.take()?;
        (serial == self.note.serial).then_some(outcome)
    }

    /// The note of the placement that is asked for.
    pub(in crate::device::card) fn note(&self) -> &PlacementNote<'a> {
        &self.note
    }

    fn owner(&self, srq: Option<SrqNumber>) -> Option<MemberId> {
        let host = self.note.targets.host();
        host.owner_of(srq?.get()).filter(|owner| *owner != host.me())
    }

    /// Asks the owner of the SRQ; `false` when there is none.
    pub(in crate::device::card) fn place(&mut self, tgt: QpNumber, request: &Place<'_>) -> bool {
        let Some(owner) = self.owner(request.srq) else { return false };
        let message = Message::Place { tgt: tgt.get(), serial: self.note.serial, place: *request };
        let mut bytes = Vec::new();
        let kind = message.write(&mut bytes);
        // Without room it is asked again.
        self.outbox.push(owner, &message);
        let again = self.now.plus_ns(AGAIN_NS);
        self.executor.pending = Some(Pending { owner, serial: self.note.serial, kind, bytes, again });
        self.executor.fetch = match std::mem::take(&mut self.executor.fetch) {
            // A READ's bytes that were fetched for one answer serve no later one.
            Fetch::Here { .. } | Fetch::Refused(_) => Fetch::None,
            fetch => fetch,
        };
        true
    }

    /// Fetches bytes; `None` when nobody has the SRQ.
    pub(in crate::device::card) fn read(
        &mut self,
        tgt: QpNumber,
        piece: &ReadPiece,
        out: &mut Vec<u8>,
    ) -> Option<Result<ReadOutcome, Outcome>> {
        let owner = self.owner(piece.srq)?;
        match &mut self.executor.fetch {
            Fetch::Requested { piece: requested, owner: from, .. }
                if same(requested, piece) && *from == owner =>
            {
                return Some(Ok(ReadOutcome::Later));
            }
            Fetch::Here { next, at, bytes } if same(next, piece) => {
                let length = piece.length as usize;
                if let Some(fetched) = bytes.get(*at..*at + length) {
                    out.extend_from_slice(fetched);
                    *at += length;
                    next.psn = next.psn.plus(1);
                    next.offset = next.offset.saturating_add(piece.length);
                    if *at == bytes.len() {
                        self.executor.fetch = Fetch::None;
                    }
                    return Some(Ok(ReadOutcome::Read));
                }
            }
            Fetch::Refused(outcome) => {
                let outcome = *outcome;
                self.executor.fetch = Fetch::None;
                return Some(Err(outcome));
            }
            _ => {}
        }
        let left = piece.range.length.saturating_sub(piece.offset);
        let most =
            piece.length.saturating_mul(PACKETS_AT_ONCE).min(MAX_FETCH / piece.length.max(1) * piece.length);
        let wanted = ReadPiece { length: left.min(most).max(piece.length), ..*piece };
        self.outbox.push(owner, &Message::Read { tgt: tgt.get(), piece: wanted });
        self.executor.fetch = Fetch::Requested { owner, piece: wanted, again: self.now.plus_ns(AGAIN_NS) };
        Some(Ok(ReadOutcome::Later))
    }
}

/// Whether a piece starts where another does.
fn same(one: &ReadPiece, other: &ReadPiece) -> bool {
    (one.psn, one.srq, one.range, one.offset) == (other.psn, other.srq, other.range, other.offset)
}

impl Card {
    /// Publishes a TGT's state, if it is shared. Before that nothing may leave that says what the
    /// state has become.
    pub(in crate::device::card) fn publish(&mut self, number: u32) {
        let Self { qps, sharing: Some(sharing), .. } = self else { return };
        let Some(qp) = qps.get(number) else { return };
        let (Some(executor), Some(responder)) = (&qp.executor, &qp.responder) else { return };
        let words = &mut sharing.words;
        words.clear();
        put_attributes(words, &qp.attributes, qp.route.map(|route| route.source.ip()));
        responder.write_image(words);
        let published = sharing.targets.publish(executor.record, words);
        debug_assert!(published, "the buffers hold the largest image");
    }

    /// What another member made of a placement.
    pub(super) fn handle_placed(
        &mut self,
        from: MemberId,
        tgt: u32,
        serial: u64,
        outcome: Outcome,
        now: Time,
    ) {
        let Some(executor) = self.qps.get_mut(tgt).and_then(|qp| qp.executor.as_mut()) else { return };
        if let Some(pending) = executor.pending.take_if(|it| it.owner == from && it.serial == serial) {
            self.answer_placement(tgt, &pending, outcome, Some(from), now);
        }
    }

    /// Ends the wait for a placement, and takes what came meanwhile.
    pub(super) fn answer_placement(
        &mut self,
        tgt: u32,
        pending: &Pending,
        outcome: Outcome,
        owner: Option<MemberId>,
        now: Time,
    ) {
        let Some(sharing) = &self.sharing else { return };
        let Some(record) =
            self.qps.get(tgt).and_then(|qp| qp.executor.as_ref()).map(|executor| executor.record)
        else {
            return;
        };
        let note = PlacementNote { targets: &sharing.targets, record, serial: pending.serial };
        let outcome = pending.settle(outcome, &note);
        let placement = outcome.placement(self.unknown_srq, &mut self.counters);
        let Some(qp) = self.qps.get_mut(tgt) else { return };
        let (Some(executor), Some(responder)) = (&mut qp.executor, &mut qp.responder) else { return };
        responder.answer(placement);
        executor.message_at = if responder.message_srq().is_some() { owner } else { None };
        while let Some(packet) = self.qps.get_mut(tgt).and_then(|qp| qp.executor.as_mut()?.next_kept()) {
            if let Ok(packet) = Packet::parse(&packet) {
                self.take_request(tgt, &packet, now);
            }
            if self
                .qps
                .get(tgt)
                .and_then(|qp| qp.executor.as_ref())
                .is_none_or(|executor| executor.is_waiting())
            {
                break;
            }
        }
        self.mark_ready(tgt);
    }

    /// Bytes of a READ.
    pub(super) fn handle_read_bytes(
        &mut self,
        from: MemberId,
        tgt: u32,
        start: (trunkline_verbs::Psn, u32),
        bytes: Result<&[u8], Outcome>,
    ) {
        let Some(executor) = self.qps.get_mut(tgt).and_then(|qp| qp.executor.as_mut()) else { return };
        let Fetch::Requested { owner, piece, .. } = &executor.fetch else { return };
        if *owner != from || (piece.psn, piece.offset) != start {
            return;
        }
        executor.fetch = match bytes {
            Ok(bytes) if bytes.len() == piece.length as usize => {
                Fetch::Here { next: *piece, at: 0, bytes: bytes.to_vec() }
            }
            Ok(_) => Fetch::Refused(Outcome::Done(Placement::Nak(NakCode::REMOTE_OPERATIONAL))),
            Err(outcome) => Fetch::Refused(outcome),
        };
        self.mark_ready(tgt);
    }

    /// Asks again where no answer came.
    pub(in crate::device::card) fn ask_again(&mut self, number: u32, now: Time) {
        let Self { qps, sharing: Some(sharing), .. } = self else { return };
        let Some(executor) = qps.get_mut(number).and_then(|qp| qp.executor.as_mut()) else { return };
        if let Some(pending) = &mut executor.pending
            && pending.again <= now
        {
            pending.again = now.plus_ns(AGAIN_NS);
            if let Some(message) = Message::read(pending.kind, &pending.bytes) {
                sharing.outbox.push(pending.owner, &message);
            }
        }
        if let Fetch::Requested { owner, piece, again } = &mut executor.fetch
            && *again <= now
        {
            *again = now.plus_ns(AGAIN_NS);
            sharing.outbox.push(*owner, &Message::Read { tgt: number, piece: *piece });
        }
    }

    /// Notifies the handles of a TGT of its events (contract H1, H2). A member is notified once,
    /// however many handles it has: its events name the QP, not the handle.
    pub(in crate::device::card) fn notify_handles(&mut self, number: u32) {
        let Self { qps, sharing: Some(sharing), events, .. } = self else { return };
        let Some(executor) = qps.get_mut(number).and_then(|qp| qp.executor.as_mut()) else { return };
        if executor.events.is_empty() {
            return;
        }
        let me = sharing.targets.host().me();
        for kind in executor.events.drain(..) {
            for member in sharing.targets.holders(executor.record) {
                if member == me {
                    let subject = trunkline_verbs::AsyncSubject::Qp(QpNumber::new(number));
                    events.raise(kind, subject);
                } else {
                    sharing.outbox.push(member, &Message::Event { tgt: number, kind });
                }
            }
        }
    }

    /// Has another member end, or forget, the receive that the message in progress holds there.
    pub(in crate::device::card) fn end_remote_message(&mut self, number: u32, is_error: bool) {
        let Self { qps, sharing: Some(sharing), .. } = self else { return };
        let Some(executor) = qps.get_mut(number).and_then(|qp| qp.executor.as_mut()) else { return };
        let pending = executor.pending.as_ref().map(|pending| pending.owner);
        if let Some(owner) = executor.reset().or(pending) {
            sharing.outbox.push(owner, &Message::Flush { tgt: number, is_error });
        }
    }
}

impl Qp {
    /// Raises an event of the QP: for a shared TGT, with everyone who has a handle.
    pub(in crate::device::card) fn raise(
        &mut self,
        kind: AsyncEventKind,
        events: &crate::device::async_events::AsyncEvents,
    ) {
        match &mut self.executor {
            Some(executor) => executor.raise(kind),
            None => events.raise(kind, trunkline_verbs::AsyncSubject::Qp(self.number)),
        }
    }
}
