//! What a responder reaches: receives, SRQs, registered memory.
//!
//! Owns nothing: it joins a QP's reception with the shard's resources for one call. The responders of the engine call it for each
//! packet that passed their own checks; the order of the checks here is that of contract G4.
//! Nothing is touched by a packet that is refused.

use super::outbox::MemberOutbox;
use super::reception::Reception;
use super::resources::{Completer, Resources};
use super::shared_tgt::{RemoteCall, RemoteOutcome, SharedTgt};
use super::srq_table::SrqTable;
use crate::device::keys::{Found, Keys, PdNumber, Refused, append};
use crate::device::unknown_srq::UnknownSrq;
use std::sync::atomic::{AtomicU64, Ordering};
use trunkline_roce::engine::{NakCode, Place, Placement, ReadOutcome, ReadPiece, RemoteRange, Target, Work};
use trunkline_verbs::{
    Access, Completion, CompletionFlags, CompletionOpcode, CompletionStatus, QpNumber, RemoteAddress,
    SrqNumber, Time,
};

/// The target of one QP for the length of a call into the engine.
pub(super) struct QpTarget<'a> {
    number: QpNumber,
    keys: &'a Keys,
    srqs: &'a mut SrqTable,
    reception: &'a mut Reception,
    completer: Completer<'a>,
    unknown_srq: UnknownSrq,
    /// SRQs of other members, for a TGT that is shared and executed here.
    remote: Option<Remote<'a>>,
    /// Called before a placement is completed, for a TGT that another member executes.
    on_placed: Option<&'a dyn Fn()>,
}

/// A shared TGT during a call.
struct Remote<'a> {
    shared: &'a mut dyn SharedTgt,
    serial: u64,
    now: Time,
    outbox: &'a mut MemberOutbox,
}

impl<'a> Remote<'a> {
    fn parts(&mut self, tgt: QpNumber) -> (&mut dyn SharedTgt, RemoteCall<'_>) {
        let Self { shared, serial, now, outbox } = self;
        (*shared, RemoteCall { tgt, serial: *serial, now: *now, outbox })
    }
}

impl<'a> QpTarget<'a> {
    /// Of a QP that receives by itself.
    pub(super) fn new(number: QpNumber, reception: &'a mut Reception, resources: &'a mut Resources) -> Self {
        Self::with(number, reception, resources).0
    }

    /// Of a TGT that is executed here; `serial` is that of the responder's next placement.
    pub(super) fn of_shared(
        number: QpNumber,
        reception: &'a mut Reception,
        resources: &'a mut Resources,
        shared: Option<&'a mut (dyn SharedTgt + 'static)>,
        serial: u64,
        now: Time,
    ) -> Self {
        let (target, outbox) = Self::with(number, reception, resources);
        let remote = shared.map(|shared| Remote { shared, serial, now, outbox });
        Self { remote, ..target }
    }

    /// Of a TGT that another member executes; `on_placed` is called before the program can see what was
    /// placed.
    pub(super) fn for_member(
        number: QpNumber,
        reception: &'a mut Reception,
        resources: &'a mut Resources,
        on_placed: &'a dyn Fn(),
    ) -> Self {
        Self { on_placed: Some(on_placed), ..Self::new(number, reception, resources) }
    }

    fn with(
        number: QpNumber,
        reception: &'a mut Reception,
        resources: &'a mut Resources,
    ) -> (Self, &'a mut MemberOutbox) {
        let Resources { keys, srqs, counters, events, unknown_srq, outbox, .. } = resources;
        let completer = Completer { events, counters };
        let unknown_srq = *unknown_srq;
        let target =
            Self { number, keys, srqs, reception, completer, unknown_srq, remote: None, on_placed: None };
        (target, outbox)
    }
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

    fn placement(&mut self, outcome: RemoteOutcome) -> Placement {
        match outcome {
            RemoteOutcome::Done(placement) => placement,
            RemoteOutcome::UnknownSrq => self.unknown_srq(),
        }
    }

    /// Notes, for a shared TGT, that a packet was placed. Called before its completion.
    fn note_placed(&self) {
        if let Some(remote) = &self.remote {
            remote.shared.note_placed(remote.serial);
        } else if let Some(on_placed) = self.on_placed {
            on_placed();
        }
    }

    /// What becomes of a packet whose SRQ is not here.
    fn place_elsewhere(&mut self, request: &Place<'_>) -> Placement {
        self.reception.drop_message();
        if let Some(remote) = &mut self.remote {
            let serial = remote.serial;
            let (shared, call) = remote.parts(self.number);
            if shared.place(call, request) {
                return Placement::Later;
            }
            if shared.was_placed(serial, request) {
                return Placement::Placed;
            }
        }
        self.unknown_srq()
    }

    /// Takes a receive for a message; `false` when none is posted.
    fn take(&mut self, srq: Option<SrqNumber>) -> bool {
        self.reception.begin(self.srqs, srq, self.completer.events)
    }

    /// Completes the receive in use.
    fn end(&mut self, ending: &Ending) {
        let mut flags = CompletionFlags::empty();
        flags.set(CompletionFlags::WITH_IMMEDIATE, ending.immediate.is_some());
        flags.set(CompletionFlags::SOLICITED, ending.solicited);
        let completion = Completion {
            status: CompletionStatus::Success,
            opcode: ending.opcode,
            byte_length: ending.byte_length,
            immediate: ending.immediate.unwrap_or(0),
            qp_number: self.number,
            flags,
            ..Completion::default()
        };
        self.reception.end(self.srqs, &mut self.completer, completion, ending.solicited);
    }

    /// Ends the receive in use in an error of its own and refuses the message (contract G10).
    fn fail(&mut self, status: CompletionStatus, code: NakCode) -> Placement {
        let completion = Completion {
            status,
            opcode: CompletionOpcode::Receive,
            qp_number: self.number,
            ..Completion::default()
        };
        self.reception.end(self.srqs, &mut self.completer, completion, false);
        Placement::Nak(code)
    }

    fn place_send(&mut self, request: &Place<'_>, offset: u32, payload: &[u8], first: bool) -> Placement {
        if first {
            // A message that never ended, because its QP was reset meanwhile, holds nothing.
            self.reception.drop_message();
            if !self.take(request.srq) {
                return Placement::Rnr;
            }
        } else {
            match self.reception.message() {
                None => return Placement::Nak(NakCode::INVALID_REQUEST),
                // contract G11
                Some(srq) if srq != request.srq => {
                    return self.fail(CompletionStatus::WorkRequestFlushed, NakCode::INVALID_REQUEST);
                }
                Some(_) => {}
            }
        }
        if u64::from(offset) + payload.len() as u64 > self.reception.taken().bytes() {
            return self.fail(CompletionStatus::LocalLengthError, NakCode::INVALID_REQUEST);
        }
        let Some(pd) = self.reception.select(self.srqs, request.srq).map(|receives| receives.lkey_pd())
        else {
            return self.unknown_srq();
        };
        match self.reception.taken().scatter(self.keys, pd, offset, payload) {
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
        apply: impl FnOnce(&AtomicU64) -> u64,
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
        let settled = self.remote.as_mut().and_then(|remote| remote.shared.settled(remote.serial));
        if let Some(outcome) = settled {
            return self.placement(outcome);
        }
        let selected = self.reception.select(self.srqs, request.srq);
        let Some((rkey_pd, posted)) = selected.map(|receives| (receives.rkey_pd(), receives.posted())) else {
            return self.place_elsewhere(request);
        };
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
                if notifies && posted == 0 {
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
        let selected = self.reception.select(self.srqs, piece.srq);
        let Some(pd) = selected.map(|receives| receives.rkey_pd()) else {
            let number = self.number;
            let fetched = self.remote.as_mut().and_then(|remote| {
                let (shared, call) = remote.parts(number);
                shared.read(call, piece, out)
            });
            let refused = match fetched {
                Some(Ok(outcome)) => return outcome,
                Some(Err(outcome)) => self.placement(outcome),
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
        let start = piece.range.start;
        let whole = piece.range.length as usize;
        let inside = u64::from(piece.offset) + u64::from(piece.length) <= u64::from(piece.range.length);
        let found = self.keys.range(start.rkey.0, pd, start.address, whole, Access::REMOTE_READ);
        let read = match found {
            Ok(range) if inside => {
                let offset = range.offset + piece.offset as usize;
                append(&Found { offset, ..range }, piece.length as usize, out)
            }
            _ => Err(Refused),
        };
        match read {
            Ok(()) => ReadOutcome::Read,
            Err(Refused) => ReadOutcome::Nak(NakCode::REMOTE_ACCESS),
        }
    }
}
