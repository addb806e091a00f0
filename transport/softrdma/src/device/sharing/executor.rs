//! A TGT that this member executes for all members with a handle on it.
//!
//! Owns the pending placement in another member's SRQ, at most one at a time; the packets that arrive while
//! it is pending; bytes fetched for a READ; and events for the handles.
//!
//! | `pending` | a packet arrives | the owner answers | the owner dies | no answer for a while |
//! |---|---|---|---|---|
//! | none | SRQ of this member: placed. SRQ of another: published, requested, pending | ignored | - | - |
//! | one | stored in the backlog | the responder answers the peer; the backlog is handled | contract G7 | repeated, same serial |
#![forbid(unsafe_code)]

use super::attributes::{ATTRIBUTE_WORDS, put_attributes};
use super::message::Message;
use super::owner::MAX_FETCH;
use crate::device::objects::async_events::AsyncEvents;
use crate::device::shard::{MemberOutbox, RemoteCall, RemoteOutcome, Shard, SharedTgt};
use crate::host::{BUFFER_WORDS, MemberId, TargetRecord, Targets};
use std::any::Any;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use trunkline_roce::engine::{
    IMAGE_WORDS, NakCode, Placement, PlacementRequest, ReadOutcome, ReadPiece, ResponderState, Work,
};
use trunkline_verbs::{AsyncEventKind, AsyncSubject, Psn, QpAttributes, QpNumber, SrqNumber, Time};

/// Time after which an unanswered request to the owner of an SRQ is repeated.
const AGAIN_NS: u64 = 10_000_000;
/// Maximum number of packets that wait for a placement, and their maximum size in bytes. Further packets are dropped,
/// and the peer retransmits them.
const MAX_BACKLOG: usize = 256;
const MAX_BACKLOG_BYTES: usize = 1 << 20;
/// Number of packets of a READ response that are fetched together.
const PACKETS_AT_ONCE: u32 = 16;
/// Maximum number of queued events.
const MAX_EVENTS: usize = 16;

// The largest image must fit, including the word for its length.
const _: () = assert!(ATTRIBUTE_WORDS + IMAGE_WORDS < BUFFER_WORDS);

/// State of a TGT's executor in addition to the QP.
#[derive(Debug)]
pub(super) struct Executor {
    targets: Arc<Targets>,
    record: TargetRecord,
    pending: Option<Pending>,
    fetch: Fetch,
    /// Stored packets; the flag is true if a packet may contain the payload of several.
    backlog: VecDeque<(Vec<u8>, bool)>,
    backlog_bytes: usize,
    /// Serial number and outcome of the last placement that an earlier executor requested from this process.
    inherited: Option<(u64, RemoteOutcome)>,
    /// Process that holds the receive of the SEND in progress; `None` if this process does.
    message_at: Option<MemberId>,
    events: Vec<AsyncEventKind>,
}

/// A placement requested from another process.
#[derive(Debug)]
pub(super) struct Pending {
    owner: MemberId,
    serial: u64,
    /// Kind and body of the request, for repeating it.
    kind: u8,
    bytes: Vec<u8>,
    again: Time,
}

/// State of fetching the bytes for a READ response from another process's memory.
#[derive(Debug, Default)]
enum Fetch {
    #[default]
    None,
    Requested {
        owner: MemberId,
        piece: ReadPiece,
        again: Time,
    },
    /// The bytes have arrived. They begin with the piece `next`.
    Here {
        next: ReadPiece,
        at: usize,
        bytes: Vec<u8>,
    },
    Refused(RemoteOutcome),
}

/// Returns the state for sharing a TGT that this process executes.
pub(super) fn executor_of(shard: &mut Shard, number: u32) -> Option<&mut Executor> {
    let shared: &mut dyn Any = shard.shared_tgt(number)?;
    shared.downcast_mut()
}

impl Executor {
    pub(super) fn new(targets: Arc<Targets>, record: TargetRecord) -> Self {
        Self {
            targets,
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

    /// Creates the executor of a TGT that was taken over. `last` is the outcome of the last placement that
    /// the earlier executor requested from this process.
    pub(super) fn heir(
        targets: Arc<Targets>,
        record: TargetRecord,
        last: Option<(u64, RemoteOutcome)>,
    ) -> Self {
        Self { inherited: last, ..Self::new(targets, record) }
    }

    /// Returns the TGT's record in the table of the host.
    pub(super) fn record(&self) -> TargetRecord {
        self.record
    }

    /// Takes the next stored packet.
    pub(super) fn next_kept(&mut self) -> Option<(Vec<u8>, bool)> {
        let kept = self.backlog.pop_front()?;
        self.backlog_bytes -= kept.0.len();
        Some(kept)
    }

    /// Takes the pending placement if `owner` owns its SRQ and the serial number matches; `None` matches any.
    pub(super) fn take_pending(&mut self, owner: MemberId, serial: Option<u64>) -> Option<Pending> {
        self.pending.take_if(|it| it.owner == owner && serial.is_none_or(|serial| it.serial == serial))
    }

    /// Returns the outcome of a placement. A packet whose SRQ the owner reports as unknown counts as placed if it was
    /// placed earlier.
    pub(super) fn settle(&self, pending: &Pending, outcome: RemoteOutcome) -> RemoteOutcome {
        let was_placed = || match Message::read(pending.kind, &pending.bytes) {
            Some(Message::Place { place, .. }) => self.was_placed(pending.serial, &place),
            _ => false,
        };
        match outcome {
            RemoteOutcome::UnknownSrq if was_placed() => RemoteOutcome::Done(Placement::Placed),
            outcome => outcome,
        }
    }

    /// Sets the process that holds the receive of the SEND in progress; `None` for this process.
    pub(super) fn set_message_at(&mut self, owner: Option<MemberId>) {
        self.message_at = owner;
    }

    /// Drops the requests to a dead process. Returns the placement that it has not answered.
    pub(super) fn forget_member(&mut self, dead: MemberId) -> Option<Pending> {
        self.message_at.take_if(|owner| *owner == dead);
        if matches!(&self.fetch, Fetch::Requested { owner, .. } if *owner == dead) {
            self.fetch = Fetch::Refused(RemoteOutcome::UnknownSrq);
        }
        self.take_pending(dead, None)
    }

    /// Stores the bytes for a READ, or the reason for refusing it. Returns false if the bytes were not requested.
    pub(super) fn fetched(
        &mut self,
        from: MemberId,
        start: (Psn, u32),
        bytes: Result<&[u8], RemoteOutcome>,
    ) -> bool {
        let Fetch::Requested { owner, piece, .. } = &self.fetch else { return false };
        if *owner != from || (piece.psn, piece.offset) != start {
            return false;
        }
        self.fetch = match bytes {
            Ok(bytes) if bytes.len() == piece.length as usize => {
                Fetch::Here { next: *piece, at: 0, bytes: bytes.to_vec() }
            }
            Ok(_) => Fetch::Refused(RemoteOutcome::Done(Placement::Nak(NakCode::REMOTE_OPERATIONAL))),
            Err(outcome) => Fetch::Refused(outcome),
        };
        true
    }

    /// Returns the owner of the SRQ, if another process owns the SRQ.
    fn owner(&self, srq: Option<SrqNumber>) -> Option<MemberId> {
        let host = self.targets.host();
        host.owner_of(srq?.get()).filter(|owner| *owner != host.me())
    }
}

impl SharedTgt for Executor {
    fn is_waiting(&self) -> bool {
        self.pending.is_some()
    }

    fn keep(&mut self, packet: &[u8], joined: bool) {
        if self.backlog.len() < MAX_BACKLOG && self.backlog_bytes + packet.len() <= MAX_BACKLOG_BYTES {
            self.backlog_bytes += packet.len();
            self.backlog.push_back((packet.to_vec(), joined));
        }
    }

    fn settled(&mut self, serial: u64) -> Option<RemoteOutcome> {
        let (last, outcome) = self.inherited.take()?;
        (last == serial).then_some(outcome)
    }

    fn place(&mut self, call: RemoteCall<'_>, request: &PlacementRequest<'_>) -> bool {
        let Some(owner) = self.owner(request.srq) else { return false };
        let RemoteCall { tgt, serial, now, outbox } = call;
        let message = Message::Place { tgt: tgt.get(), serial, place: *request };
        let mut bytes = Vec::new();
        let kind = message.write(&mut bytes);
        // If the outbox is full, the request is repeated later.
        message.send(outbox, owner);
        self.pending = Some(Pending { owner, serial, kind, bytes, again: now.plus_ns(AGAIN_NS) });
        self.fetch = match std::mem::take(&mut self.fetch) {
            // Discard bytes fetched for an earlier READ response.
            Fetch::Here { .. } | Fetch::Refused(_) => Fetch::None,
            fetch => fetch,
        };
        true
    }

    fn read(
        &mut self,
        call: RemoteCall<'_>,
        piece: &ReadPiece,
        out: &mut Vec<u8>,
    ) -> Option<Result<ReadOutcome, RemoteOutcome>> {
        let owner = self.owner(piece.srq)?;
        match &mut self.fetch {
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
                    next.psn = next.psn.plus(piece.psns);
                    next.offset = next.offset.saturating_add(piece.length);
                    if *at == bytes.len() {
                        self.fetch = Fetch::None;
                    }
                    return Some(Ok(ReadOutcome::Read));
                }
            }
            Fetch::Refused(outcome) => {
                let outcome = *outcome;
                self.fetch = Fetch::None;
                return Some(Err(outcome));
            }
            _ => {}
        }
        let left = piece.range.length.saturating_sub(piece.offset);
        let most =
            piece.length.saturating_mul(PACKETS_AT_ONCE).min(MAX_FETCH / piece.length.max(1) * piece.length);
        let wanted = ReadPiece { length: left.min(most).max(piece.length), ..*piece };
        Message::Read { tgt: call.tgt.get(), piece: wanted }.send(call.outbox, owner);
        self.fetch = Fetch::Requested { owner, piece: wanted, again: call.now.plus_ns(AGAIN_NS) };
        Some(Ok(ReadOutcome::Later))
    }

    fn note_placed(&self, serial: u64) {
        self.targets.note_placement(self.record, serial);
    }

    fn was_placed(&self, serial: u64, request: &PlacementRequest<'_>) -> bool {
        // Atomics and READs need a response, which was lost with the process.
        matches!(request.work, Work::Send { .. } | Work::Write { .. })
            && self.targets.is_placed(self.record, serial)
    }

    fn publish(
        &self,
        attributes: &QpAttributes,
        source: Option<IpAddr>,
        responder: &ResponderState,
        image: &mut Vec<u64>,
    ) {
        image.clear();
        put_attributes(image, attributes, source);
        responder.write_image(image);
        let published = self.targets.publish(self.record, image);
        debug_assert!(published, "the buffers hold the largest image");
    }

    fn raise(&mut self, kind: AsyncEventKind) {
        if self.events.len() < MAX_EVENTS {
            self.events.push(kind);
        }
    }

    /// Sends the queued events to the processes with handles (contract H1, H2). A process is notified once,
    /// even if it has several handles, since its events name the QP and not the handle.
    fn notify(&mut self, tgt: QpNumber, events: &AsyncEvents, outbox: &mut MemberOutbox) {
        let me = self.targets.host().me();
        for kind in self.events.drain(..) {
            for member in self.targets.holders(self.record) {
                if member == me {
                    events.raise(kind, AsyncSubject::Qp(tgt));
                } else {
                    Message::Event { tgt: tgt.get(), kind }.send(outbox, member);
                }
            }
        }
    }

    fn ask_again(&mut self, tgt: QpNumber, now: Time, outbox: &mut MemberOutbox) {
        if let Some(pending) = &mut self.pending
            && pending.again <= now
        {
            pending.again = now.plus_ns(AGAIN_NS);
            if let Some(message) = Message::read(pending.kind, &pending.bytes) {
                message.send(outbox, pending.owner);
            }
        }
        if let Fetch::Requested { owner, piece, again } = &mut self.fetch
            && *again <= now
        {
            *again = now.plus_ns(AGAIN_NS);
            Message::Read { tgt: tgt.get(), piece: *piece }.send(outbox, *owner);
        }
    }

    fn next_timeout(&self) -> Option<Time> {
        let placement = self.pending.as_ref().map(|pending| pending.again);
        let fetch = match &self.fetch {
            Fetch::Requested { again, .. } => Some(*again),
            _ => None,
        };
        placement.into_iter().chain(fetch).min()
    }

    fn end_message(&mut self, tgt: QpNumber, is_error: bool, outbox: &mut MemberOutbox) {
        let pending = self.pending.take().map(|pending| pending.owner);
        self.fetch = Fetch::None;
        self.inherited = None;
        self.backlog.clear();
        self.backlog_bytes = 0;
        if let Some(owner) = self.message_at.take().or(pending) {
            Message::Flush { tgt: tgt.get(), is_error }.send(outbox, owner);
        }
    }
}

/// Returns true if both pieces have the same start.
fn same(one: &ReadPiece, other: &ReadPiece) -> bool {
    (one.psn, one.srq, one.range, one.offset) == (other.psn, other.srq, other.range, other.offset)
}
