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

use super::change::put_attributes;
use super::message::{Message, Outcome};
use super::owner::MAX_FETCH;
use super::{Sharing, post};
use crate::device::card::Card;
use crate::device::card::qp::Qp;
use crate::engine::{NakCode, Place, Placement, ReadOutcome, ReadPiece, Time};
use crate::host::{Host, MemberId, TargetRecord};
use crate::wire::Packet;
use std::collections::VecDeque;
use std::time::Instant;
use trunkline_verbs::{AsyncEventKind, QpNumber, SrqNumber};

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

/// What a TGT's home keeps beside the QP itself.
#[derive(Debug)]
pub(in crate::device::card) struct Home {
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

/// Bytes for the answer of a READ from another member's memory.
#[derive(Debug, Default)]
pub(super) enum Fetch {
    #[default]
    None,
    Asked {
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

impl Home {
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

    /// Forgets what is under way; answers who has to forget a receive.
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
            Fetch::Asked { again, .. } => Some(*again),
            _ => None,
        };
        placement.into_iter().chain(fetch).min()
    }
}

/// The way from a TGT's target to other members, for the length of a call into the engine.
pub(in crate::device::card) struct Elsewhere<'a> {
    pub(super) home: &'a mut Home,
    pub(super) host: &'a Host,
    pub(super) outbox: &'a mut post::Outbox,
    /// The responder's, before the call.
    pub(super) serial: u64,
    pub(super) now: Time,
}

impl<'a> Elsewhere<'a> {
    /// For a QP that is shared.
    pub(in crate::device::card) fn of(
        home: &'a mut Option<Box<Home>>,
        sharing: &'a mut Option<Sharing>,
        serial: u64,
        now: Time,
    ) -> Option<Self> {
        let (home, sharing) = (home.as_mut()?, sharing.as_mut()?);
        Some(Self { home, host: sharing.targets.host(), outbox: &mut sharing.outbox, serial, now })
    }

    /// A placement that a predecessor had done here, and whose answer got lost with it.
    pub(in crate::device::card) fn inherited(&mut self) -> Option<Outcome> {
        let (serial, outcome) = self.home.inherited.take()?;
        (serial == self.serial).then_some(outcome)
    }

    fn owner(&self, srq: Option<SrqNumber>) -> Option<MemberId> {
        self.host.owner_of(srq?.get()).filter(|owner| *owner != self.host.me())
    }

    /// Asks the owner of the SRQ; `false` when there is none.
    pub(in crate::device::card) fn place(&mut self, tgt: QpNumber, request: &Place<'_>) -> bool {
        let Some(owner) = self.owner(request.srq) else { return false };
        let message = Message::Place { tgt: tgt.get(), serial: self.serial, place: *request };
        let mut bytes = Vec::new();
        let kind = message.write(&mut bytes);
        // Without room it is asked again.
        self.outbox.push(owner, &message);
        let again = self.now.plus_ns(AGAIN_NS);
        self.home.pending = Some(Pending { owner, serial: self.serial, kind, bytes, again });
        self.home.fetch = match std::mem::take(&mut self.home.fetch) {
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
        match &mut self.home.fetch {
            Fetch::Asked { piece: asked, owner: from, .. } if same(asked, piece) && *from == owner => {
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
                        self.home.fetch = Fetch::None;
                    }
                    return Some(Ok(ReadOutcome::Read));
                }
            }
            Fetch::Refused(outcome) => {
                let outcome = *outcome;
                self.home.fetch = Fetch::None;
                return Some(Err(outcome));
            }
            _ => {}
        }
        let left = piece.range.length.saturating_sub(piece.offset);
        let most =
            piece.length.saturating_mul(PACKETS_AT_ONCE).min(MAX_FETCH / piece.length.max(1) * piece.length);
        let wanted = ReadPiece { length: left.min(most).max(piece.length), ..*piece };
        self.outbox.push(owner, &Message::Read { tgt: tgt.get(), piece: wanted });
        self.home.fetch = Fetch::Asked { owner, piece: wanted, again: self.now.plus_ns(AGAIN_NS) };
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
        let Some(qp) = qps.get(&number) else { return };
        let (Some(home), Some(responder)) = (&qp.home, &qp.responder) else { return };
        let words = &mut sharing.words;
        words.clear();
        put_attributes(words, &qp.attributes, qp.route.map(|route| route.source.ip()));
        responder.write_image(words);
        let published = sharing.targets.image(home.record).publish(words);
        debug_assert!(published, "the buffers hold the largest image");
    }

    /// What another member made of a placement.
    pub(super) fn handle_placed(
        &mut self,
        from: MemberId,
        tgt: u32,
        serial: u64,
        outcome: Outcome,
        now: Instant,
    ) {
        let Some(home) = self.qps.get_mut(&tgt).and_then(|qp| qp.home.as_mut()) else { return };
        if home.pending.take_if(|pending| pending.owner == from && pending.serial == serial).is_some() {
            self.answer_placement(tgt, outcome, Some(from), now);
        }
    }

    /// Ends the wait for a placement, and takes what came meanwhile.
    pub(super) fn answer_placement(
        &mut self,
        tgt: u32,
        outcome: Outcome,
        owner: Option<MemberId>,
        now: Instant,
    ) {
        let placement = outcome.placement(self.unknown_srq, &mut self.counters);
        let Some(qp) = self.qps.get_mut(&tgt) else { return };
        let (Some(home), Some(responder)) = (&mut qp.home, &mut qp.responder) else { return };
        responder.answer(placement);
        home.message_at = if responder.message_srq().is_some() { owner } else { None };
        while let Some(packet) = self.qps.get_mut(&tgt).and_then(|qp| qp.home.as_mut()?.next_kept()) {
            if let Ok(packet) = Packet::parse(&packet) {
                self.take_request(tgt, &packet, now);
            }
            if self.qps.get(&tgt).and_then(|qp| qp.home.as_ref()).is_none_or(|home| home.is_waiting()) {
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
        let Some(home) = self.qps.get_mut(&tgt).and_then(|qp| qp.home.as_mut()) else { return };
        let Fetch::Asked { owner, piece, .. } = &home.fetch else { return };
        if *owner != from || (piece.psn, piece.offset) != start {
            return;
        }
        home.fetch = match bytes {
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
        let Some(home) = qps.get_mut(&number).and_then(|qp| qp.home.as_mut()) else { return };
        if let Some(pending) = &mut home.pending
            && pending.again <= now
        {
            pending.again = now.plus_ns(AGAIN_NS);
            if let Some(message) = Message::read(pending.kind, &pending.bytes) {
                sharing.outbox.push(pending.owner, &message);
            }
        }
        if let Fetch::Asked { owner, piece, again } = &mut home.fetch
            && *again <= now
        {
            *again = now.plus_ns(AGAIN_NS);
            sharing.outbox.push(*owner, &Message::Read { tgt: number, piece: *piece });
        }
    }

    /// Tells the handles of a TGT what happened to it (contract H1, H2). A member is told once,
    /// however many handles it has: its events name the QP, not the handle.
    pub(in crate::device::card) fn tell_handles(&mut self, number: u32) {
        let Self { qps, sharing: Some(sharing), events, .. } = self else { return };
        let Some(home) = qps.get_mut(&number).and_then(|qp| qp.home.as_mut()) else { return };
        if home.events.is_empty() {
            return;
        }
        let me = sharing.targets.host().me();
        for kind in home.events.drain(..) {
            for member in sharing.targets.holders(home.record) {
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
    pub(in crate::device::card) fn end_message_elsewhere(&mut self, number: u32, is_error: bool) {
        let Self { qps, sharing: Some(sharing), .. } = self else { return };
        let Some(home) = qps.get_mut(&number).and_then(|qp| qp.home.as_mut()) else { return };
        let pending = home.pending.as_ref().map(|pending| pending.owner);
        if let Some(owner) = home.reset().or(pending) {
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
        match &mut self.home {
            Some(home) => home.raise(kind),
            None => events.raise(kind, trunkline_verbs::AsyncSubject::Qp(self.number)),
        }
    }
}
