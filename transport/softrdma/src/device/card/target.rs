//! What a responder reaches: receives, SRQs, registered memory.
//!
//! Owns the receive a half-arrived message holds. The responders of the engine call it for each
//! packet that passed their own checks; the order of the checks here is that of contract G4.
//! Nothing is touched by a packet that is refused.

use super::completions::Completer;
use super::sharing::{PlacementNote, RemotePlacement};
use super::srq::SrqState;
use crate::device::cq_ring::CqRing;
use crate::device::domain_table::DomainNumber;
use crate::device::keys::{Keys, PdNumber, Range, Refused, append};
use crate::device::numbers::NumberMap;
use crate::device::receive_queue::{ReceiveQueue, Taken};
use crate::device::unknown_srq::UnknownSrq;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use trunkline_roce::engine::{NakCode, Place, Placement, ReadOutcome, ReadPiece, RemoteRange, Target, Work};
use trunkline_verbs::{
    Access, AsyncEventKind, AsyncSubject, Completion, CompletionFlags, CompletionOpcode, CompletionStatus,
    QpNumber, RemoteAddress, SrqNumber,
};

/// Where a QP takes its receives from.
#[derive(Debug)]
pub(super) enum ReceiveSource {
    /// An INI receives nothing.
    None,
    /// An RC QP with a queue of its own.
    Own { queue: ReceiveQueue, pd: PdNumber, cq: Arc<CqRing> },
    /// An RC QP with a basic SRQ.
    Basic { srq: u32, pd: PdNumber, cq: Arc<CqRing> },
    /// A TGT: any XRC SRQ of the domain.
    Xrc { domain: DomainNumber },
}

/// The receive side of a QP.
#[derive(Debug)]
pub(super) struct Reception {
    pub(super) source: ReceiveSource,
    /// The receive of the message in progress, when `in_use`; else room for the next.
    taken: Taken,
    in_use: bool,
    /// The SRQ that the message in progress named.
    srq: Option<SrqNumber>,
}

/// The receive queue that a message uses, with what belongs to it.
struct SelectedQueue<'a> {
    queue: &'a mut ReceiveQueue,
    lkey_pd: PdNumber,
    rkey_pd: PdNumber,
    cq: &'a Arc<CqRing>,
    /// Limit and context of an SRQ.
    limit: Option<(&'a mut u32, u64)>,
}

impl Reception {
    pub(super) fn new(source: ReceiveSource) -> Self {
        Self { source, taken: Taken::default(), in_use: false, srq: None }
    }

    /// Ends a half-received message, when the QP goes to ERR (contract I2), and flushes a receive
    /// queue of the QP's own.
    pub(super) fn flush(
        &mut self,
        number: QpNumber,
        srqs: &mut NumberMap<SrqState>,
        completer: &mut Completer<'_>,
    ) {
        let (taken, srq) = (&mut self.taken, self.srq);
        let Some(selected) = select(&mut self.source, srqs, srq) else {
            self.in_use = false;
            return;
        };
        let flushed = |wr_id| Completion {
            wr_id,
            status: CompletionStatus::WorkRequestFlushed,
            opcode: CompletionOpcode::Receive,
            qp_number: number,
            ..Completion::default()
        };
        if std::mem::take(&mut self.in_use) {
            completer.complete(selected.cq, flushed(taken.wr_id), false);
        }
        if selected.limit.is_none() {
            while selected.queue.take(taken) {
                completer.complete(selected.cq, flushed(taken.wr_id), false);
            }
        }
    }

    /// Forgets everything without completions, when the QP goes to RESET.
    pub(super) fn reset(&mut self) {
        self.in_use = false;
        if let ReceiveSource::Own { queue, .. } = &mut self.source {
            queue.clear();
        }
    }
}

fn select<'a>(
    source: &'a mut ReceiveSource,
    srqs: &'a mut NumberMap<SrqState>,
    srq: Option<SrqNumber>,
) -> Option<SelectedQueue<'a>> {
    match source {
        ReceiveSource::None => None,
        ReceiveSource::Own { queue, pd, cq } => {
            Some(SelectedQueue { queue, lkey_pd: *pd, rkey_pd: *pd, cq, limit: None })
        }
        ReceiveSource::Basic { srq, pd, cq } => {
            let state = srqs.get_mut(*srq)?;
            Some(SelectedQueue {
                queue: &mut state.queue,
                lkey_pd: state.pd,
                rkey_pd: *pd,
                cq,
                limit: Some((&mut state.limit, state.context)),
            })
        }
        ReceiveSource::Xrc { domain } => {
            let state = srqs.get_mut(srq?.get())?;
            let side = state.xrc.as_ref().filter(|side| side.domain.number() == *domain)?;
            Some(SelectedQueue {
                queue: &mut state.queue,
                lkey_pd: state.pd,
                rkey_pd: state.pd,
                cq: &side.cq,
                limit: Some((&mut state.limit, state.context)),
            })
        }
    }
}

/// The target behind one QP for the length of a call into the engine.
pub(super) struct QpTarget<'a> {
    pub(super) number: QpNumber,
    pub(super) keys: &'a Keys,
    pub(super) srqs: &'a mut NumberMap<SrqState>,
    pub(super) reception: &'a mut Reception,
    pub(super) completer: Completer<'a>,
    pub(super) unknown_srq: UnknownSrq,
    /// SRQs of other members, for a TGT that is shared and executed here.
    pub(super) remote: Option<RemotePlacement<'a>>,
    /// For a TGT that another member executes.
    pub(super) note: Option<PlacementNote<'a>>,
}

/// A completion-to-be of a receive.
struct Ending {
    opcode: CompletionOpcode,
    byte_length: u32,
    immediate: Option<u32>,
    solicited: bool,
}

impl QpTarget<'_> {
    fn unknown_srq(&mut self) -> Placement {
        self.completer.counters.unknown_srq += 1;
        self.unknown_srq.placement()
    }

    /// Notes, for a shared TGT, that a packet was placed. Before its completion.
    fn note_placed(&self) {
        if let Some(note) = self.remote.as_ref().map(RemotePlacement::note).or(self.note.as_ref()) {
            note.make();
        }
    }

    /// Takes a receive for a message; `false` when none is posted.
    fn take(&mut self, srq: Option<SrqNumber>) -> bool {
        let Some(selected) = select(&mut self.reception.source, self.srqs, srq) else {
            return false;
        };
        if !selected.queue.take(&mut self.reception.taken) {
            return false;
        }
        if let Some((limit, context)) = selected.limit
            && selected.queue.len() < *limit as usize
        {
            *limit = 0;
            self.completer.events.raise(AsyncEventKind::SrqLimitReached, AsyncSubject::Srq(context));
        }
        self.reception.in_use = true;
        self.reception.srq = srq;
        true
    }

    /// Completes the receive in use.
    fn end(&mut self, ending: &Ending) {
        self.reception.in_use = false;
        let wr_id = self.reception.taken.wr_id;
        let srq = self.reception.srq;
        let Some(selected) = select(&mut self.reception.source, self.srqs, srq) else { return };
        let mut flags = CompletionFlags::empty();
        flags.set(CompletionFlags::WITH_IMMEDIATE, ending.immediate.is_some());
        flags.set(CompletionFlags::SOLICITED, ending.solicited);
        let completion = Completion {
            wr_id,
            status: CompletionStatus::Success,
            opcode: ending.opcode,
            byte_length: ending.byte_length,
            immediate: ending.immediate.unwrap_or(0),
            qp_number: self.number,
            flags,
        };
        self.completer.complete(selected.cq, completion, ending.solicited);
    }

    /// Ends the receive in use in an error of its own and refuses the message (contract G10).
    fn fail(&mut self, status: CompletionStatus, code: NakCode) -> Placement {
        self.reception.in_use = false;
        let completion = Completion {
            wr_id: self.reception.taken.wr_id,
            status,
            opcode: CompletionOpcode::Receive,
            qp_number: self.number,
            ..Completion::default()
        };
        let srq = self.reception.srq;
        if let Some(selected) = select(&mut self.reception.source, self.srqs, srq) {
            self.completer.complete(selected.cq, completion, false);
        }
        Placement::Nak(code)
    }

    fn place_send(&mut self, request: &Place<'_>, offset: u32, payload: &[u8], first: bool) -> Placement {
        if first {
            // A message that never ended, because its QP was reset meanwhile, holds nothing.
            self.reception.in_use = false;
            if !self.take(request.srq) {
                return Placement::Rnr;
            }
        } else if !self.reception.in_use {
            return Placement::Nak(NakCode::INVALID_REQUEST);
        } else if self.reception.srq != request.srq {
            // contract G11
            return self.fail(CompletionStatus::WorkRequestFlushed, NakCode::INVALID_REQUEST);
        }
        if u64::from(offset) + payload.len() as u64 > self.reception.taken.bytes() {
            return self.fail(CompletionStatus::LocalLengthError, NakCode::INVALID_REQUEST);
        }
        let Some(selected) = select(&mut self.reception.source, self.srqs, request.srq) else {
            return self.unknown_srq();
        };
        let pd = selected.lkey_pd;
        match self.reception.taken.scatter(self.keys, pd, offset, payload) {
            Ok(()) => Placement::Placed,
            Err(_) => self.fail(CompletionStatus::LocalProtectionError, NakCode::REMOTE_OPERATIONAL),
        }
    }

    fn place_write(&mut self, rkey_pd: PdNumber, range: RemoteRange, offset: u32, payload: &[u8]) -> bool {
        if range.length == 0 {
            return payload.is_empty();
        }
        let start = range.start;
        let length = range.length as usize;
        // The whole range each time: the region may have gone since the first packet.
        let whole = self.keys.range(start.rkey.0, rkey_pd, start.address, length, Access::REMOTE_WRITE);
        match whole {
            Ok(found) if offset as usize + payload.len() <= length => {
                found.memory.write(found.offset + offset as usize, payload).is_ok()
            }
            _ => false,
        }
    }

    fn atomic(
        &mut self,
        rkey_pd: PdNumber,
        remote: RemoteAddress,
        apply: impl FnOnce(&std::sync::atomic::AtomicU64) -> u64,
    ) -> Placement {
        let found = self.keys.range(remote.rkey.0, rkey_pd, remote.address, 8, Access::REMOTE_ATOMIC);
        match found {
            Ok(range) => match range.memory.atomic(range.offset, apply) {
                Ok(old) => Placement::Atomic(old),
                Err(_) => Placement::Nak(NakCode::INVALID_REQUEST),
            },
            Err(_) => Placement::Nak(NakCode::REMOTE_ACCESS),
        }
    }
}

impl Target for QpTarget<'_> {
    fn place(&mut self, request: &Place<'_>) -> Placement {
        if let Some(outcome) = self.remote.as_mut().and_then(RemotePlacement::inherited) {
            return outcome.placement(self.unknown_srq, self.completer.counters);
        }
        let Some(selected) = select(&mut self.reception.source, self.srqs, request.srq) else {
            self.reception.in_use = false;
            let number = self.number;
            let requested = self.remote.as_mut().is_some_and(|remote| remote.place(number, request));
            let was_placed = || self.remote.as_ref().is_some_and(|shared| shared.note().covers(request));
            return match requested {
                true => Placement::Later,
                false if was_placed() => Placement::Placed,
                false => self.unknown_srq(),
            };
        };
        let rkey_pd = selected.rkey_pd;
        let stocked = selected.queue.len() > 0;
        match request.work {
            Work::Send { offset, payload, first, last, immediate } => {
                let placed = self.place_send(request, offset, payload, first);
                if placed == Placement::Placed {
                    self.note_placed();
                }
                if last && placed == Placement::Placed {
                    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
                    self.end(&Ending {
                        opcode: CompletionOpcode::Receive,
                        byte_length: offset.saturating_add(length),
                        immediate,
                        solicited: request.solicited,
                    });
                }
                placed
            }
            Work::Write { range, offset, payload, last, immediate, .. } => {
                let notifies = last && immediate.is_some();
                if notifies && !stocked {
                    return Placement::Rnr;
                }
                if !self.place_write(rkey_pd, range, offset, payload) {
                    return Placement::Nak(NakCode::REMOTE_ACCESS);
                }
                self.note_placed();
                if notifies && self.take(request.srq) {
                    self.end(&Ending {
                        opcode: CompletionOpcode::ReceiveRdmaWithImmediate,
                        byte_length: range.length,
                        immediate,
                        solicited: request.solicited,
                    });
                }
                Placement::Placed
            }
            Work::Read { range } => {
                let start = range.start;
                let length = range.length as usize;
                let readable = length == 0
                    || self
                        .keys
                        .range(start.rkey.0, rkey_pd, start.address, length, Access::REMOTE_READ)
                        .is_ok();
                if readable { Placement::Placed } else { Placement::Nak(NakCode::REMOTE_ACCESS) }
            }
            Work::CompareSwap { remote, compare, swap } => self.atomic(rkey_pd, remote, |word| {
                match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(old) | Err(old) => old,
                }
            }),
            Work::FetchAdd { remote, add } => {
                self.atomic(rkey_pd, remote, |word| word.fetch_add(add, Ordering::AcqRel))
            }
        }
    }

    fn read(&mut self, piece: &ReadPiece, out: &mut Vec<u8>) -> ReadOutcome {
        let Some(selected) = select(&mut self.reception.source, self.srqs, piece.srq) else {
            let number = self.number;
            let fetched = self.remote.as_mut().and_then(|remote| remote.read(number, piece, out));
            let refused = match fetched {
                Some(Ok(outcome)) => return outcome,
                Some(Err(outcome)) => outcome.placement(self.unknown_srq, self.completer.counters),
                None => self.unknown_srq(),
            };
            // The SRQ went between the request and its answer; the policy that drops has nothing
            // to drop here.
            return ReadOutcome::Nak(match refused {
                Placement::Nak(code) => code,
                _ => NakCode::INVALID_RD_REQUEST,
            });
        };
        if piece.length == 0 {
            return ReadOutcome::Read;
        }
        let pd = selected.rkey_pd;
        let start = piece.range.start;
        let whole = piece.range.length as usize;
        let inside = u64::from(piece.offset) + u64::from(piece.length) <= u64::from(piece.range.length);
        let found = self.keys.range(start.rkey.0, pd, start.address, whole, Access::REMOTE_READ);
        let read = match found {
            Ok(range) if inside => {
                let offset = range.offset + piece.offset as usize;
                append(&Range { offset, ..range }, piece.length as usize, out)
            }
            _ => Err(Refused),
        };
        match read {
            Ok(()) => ReadOutcome::Read,
            Err(Refused) => ReadOutcome::Nak(NakCode::REMOTE_ACCESS),
        }
    }
}
