//! The target of a QP's responder, which places packets in receives and in registered memory.
//!
//! Combines a QP's reception with the shard's resources for one call. The engine's responder calls it for
//! each packet that passed the engine's own checks. The checks here are made in the order of contract G4. A
//! refused packet leaves memory unchanged, except that a SEND may fill some SGEs before a later SGE is
//! refused.

use super::memory::append;
use super::receives::Receives;
use super::reception::{HeldReceive, Reception};
use crate::device::shard::local::RingPayload;
use crate::device::shard::resources::{Completer, Resources, Split};
use crate::device::shard::shared_tgt::{RemoteCall, RemoteOutcome, SharedTgt};
use crate::device::tables::keys::{KeyRange, KeyView, Refused};
use crate::device::tables::srqs::UnknownSrq;
use std::sync::atomic::{AtomicU64, Ordering};
use trunkline_roce::engine::{
    NakCode, Placement, PlacementRequest, ReadOutcome, ReadPiece, RemoteRange, Target, Work,
};
use trunkline_verbs::{
    Access, Completion, CompletionFlags, CompletionOpcode, CompletionStatus, QpNumber, RemoteAddress,
    SrqNumber, Time,
};

/// The target of one QP, for one call into the engine.
pub(in crate::device::shard) struct QpTarget<'a> {
    number: QpNumber,
    reception: &'a mut Reception,
    resources: Split<'a>,
    unknown_srq: UnknownSrq,
    sharing: Sharing<'a>,
    /// Destination for the payload of READ responses, if they are written into a ring.
    ring: Option<&'a RingPayload<'a>>,
}

/// Sharing of the QP with other processes.
enum Sharing<'a> {
    /// The QP is not shared.
    Alone,
    /// A shared TGT that this process executes. Its messages may go to SRQs of other processes.
    Executed { shared: &'a mut dyn SharedTgt, serial: u64, now: Time },
    /// A TGT that another process executes. The function is called before the program can see the placed
    /// bytes.
    OfMember(&'a dyn Fn()),
}

impl Sharing<'_> {
    /// Records that a packet was placed. Called before the receive of its message completes.
    fn note_placed(&self) {
        match self {
            Self::Alone => {}
            Self::Executed { shared, serial, .. } => shared.note_placed(*serial),
            Self::OfMember(on_placed) => on_placed(),
        }
    }
}

impl<'a> QpTarget<'a> {
    /// Creates the target of a QP that is not shared.
    pub(in crate::device::shard) fn new(
        number: QpNumber,
        reception: &'a mut Reception,
        resources: &'a mut Resources,
    ) -> Self {
        Self::with(number, reception, resources, Sharing::Alone)
    }

    /// Creates the target of a QP that this process executes. `shared` is `Some` for a shared TGT, and
    /// `serial` is the serial number of the responder's next placement.
    pub(in crate::device::shard) fn of_shared(
        number: QpNumber,
        reception: &'a mut Reception,
        resources: &'a mut Resources,
        shared: Option<&'a mut (dyn SharedTgt + 'static)>,
        serial: u64,
        now: Time,
    ) -> Self {
        let sharing = shared.map_or(Sharing::Alone, |shared| Sharing::Executed { shared, serial, now });
        Self::with(number, reception, resources, sharing)
    }

    /// Creates the target of a TGT that another process executes. `on_placed` is called before the program
    /// can see the placed bytes.
    pub(in crate::device::shard) fn for_member(
        number: QpNumber,
        reception: &'a mut Reception,
        resources: &'a mut Resources,
        on_placed: &'a dyn Fn(),
    ) -> Self {
        Self::with(number, reception, resources, Sharing::OfMember(on_placed))
    }

    fn with(
        number: QpNumber,
        reception: &'a mut Reception,
        resources: &'a mut Resources,
        sharing: Sharing<'a>,
    ) -> Self {
        let unknown_srq = resources.unknown_srq;
        Self { number, reception, resources: resources.split(), unknown_srq, sharing, ring: None }
    }

    /// Redirects the payload of READ responses into `ring`, if there is one.
    pub(in crate::device::shard) fn with_ring(self, ring: Option<&'a RingPayload<'a>>) -> Self {
        Self { ring, ..self }
    }
}

/// Parts of a target for placing a packet whose SRQ was found in this process.
struct Here<'a, 'b> {
    number: QpNumber,
    keys: KeyView<'a>,
    completer: &'a mut Completer<'b>,
    sharing: &'a Sharing<'b>,
    receives: Receives<'a>,
    held: &'a mut HeldReceive,
}

/// Payload of a packet, and its position in the message.
struct Part<'a> {
    offset: u32,
    payload: &'a [u8],
    last: bool,
    immediate: Option<u32>,
}

/// Fields of a receive's completion.
struct Ending {
    opcode: CompletionOpcode,
    byte_length: u32,
    immediate: Option<u32>,
    solicited: bool,
}

/// Status of a receive that ends in an error, and the NAK code that refuses its message (contract G10).
struct Failed(CompletionStatus, NakCode);

impl QpTarget<'_> {
    fn unknown_srq(&mut self) -> Placement {
        self.resources.completer.counters.unknown_srq += 1;
        self.unknown_srq.placement()
    }

    fn placement(&mut self, outcome: RemoteOutcome) -> Placement {
        match outcome {
            RemoteOutcome::Done(placement) => placement,
            RemoteOutcome::UnknownSrq => self.unknown_srq(),
        }
    }

    /// Places a packet whose SRQ is not in this process.
    fn place_elsewhere(&mut self, request: &PlacementRequest<'_>) -> Placement {
        self.reception.drop_message();
        if let Sharing::Executed { shared, serial, now } = &mut self.sharing {
            let (tgt, serial, now) = (self.number, *serial, *now);
            if shared.place(RemoteCall { tgt, serial, now, outbox: self.resources.outbox }, request) {
                return Placement::Later;
            }
            if shared.was_placed(serial, request) {
                return Placement::Placed;
            }
        }
        self.unknown_srq()
    }

    /// Completes the receive in use with an error and refuses the message.
    fn fail(&mut self, Failed(status, code): Failed) -> Placement {
        let completion = Completion {
            status,
            opcode: CompletionOpcode::Receive,
            qp_number: self.number,
            ..Completion::default()
        };
        let (intake, completer) = self.resources.intake();
        self.reception.fail(intake, completer, completion);
        Placement::Nak(code)
    }
}

impl<'a> Here<'a, '_> {
    /// Takes a receive for a message. Returns false if the queue is empty.
    fn take(&mut self, srq: Option<SrqNumber>) -> bool {
        self.held.begin(&mut self.receives, srq, self.completer.events)
    }

    /// Completes the receive in use.
    #[inline]
    fn end(&mut self, ending: &Ending) {
        let mut flags = CompletionFlags::empty();
        flags.set(CompletionFlags::WITH_IMMEDIATE, ending.immediate.is_some());
        flags.set(CompletionFlags::SOLICITED, ending.solicited);
        let completion = Completion {
            wr_id: self.held.end(),
            status: CompletionStatus::Success,
            opcode: ending.opcode,
            byte_length: ending.byte_length,
            immediate: ending.immediate.unwrap_or(0),
            qp_number: self.number,
            flags,
        };
        self.completer.complete(self.receives.cq(), completion, ending.solicited);
    }

    #[inline]
    fn send(
        &mut self,
        request: &PlacementRequest<'_>,
        part: &Part<'_>,
        first: bool,
    ) -> Result<Placement, Failed> {
        if first {
            // Release the receive of a message that a QP reset cut off.
            self.held.drop_message();
            if !self.take(request.srq) {
                return Ok(Placement::Rnr);
            }
        } else {
            match self.held.message() {
                None => return Ok(Placement::Nak(NakCode::INVALID_REQUEST)),
                // contract G11
                Some(srq) if srq != request.srq => {
                    return Err(Failed(CompletionStatus::WorkRequestFlushed, NakCode::INVALID_REQUEST));
                }
                Some(_) => {}
            }
        }
        let Part { offset, payload, last, immediate } = *part;
        let taken = self.held.taken();
        if u64::from(offset) + payload.len() as u64 > taken.bytes() {
            return Err(Failed(CompletionStatus::LocalLengthError, NakCode::INVALID_REQUEST));
        }
        if taken.scatter(self.keys, self.receives.lkey_pd(), offset, payload).is_err() {
            return Err(Failed(CompletionStatus::LocalProtectionError, NakCode::REMOTE_OPERATIONAL));
        }
        self.sharing.note_placed();
        if last {
            let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
            self.end(&Ending {
                opcode: CompletionOpcode::Receive,
                byte_length: offset.saturating_add(length),
                immediate,
                solicited: request.solicited,
            });
        }
        Ok(Placement::Placed)
    }

    fn write(&mut self, request: &PlacementRequest<'_>, part: &Part<'_>, range: RemoteRange) -> Placement {
        let Part { offset, payload, last, immediate } = *part;
        let notifies = last && immediate.is_some();
        if notifies && !self.receives.has_some() {
            return Placement::Rnr;
        }
        let Ok(to) = self.destination(range, offset, payload.len()) else {
            return Placement::Nak(NakCode::REMOTE_ACCESS);
        };
        // Another shard may have taken the last receive after the check above.
        if notifies && !self.take(request.srq) {
            return Placement::Rnr;
        }
        if let Some(to) = to {
            // The range was checked above.
            let _inside = to.memory.write(to.offset, payload);
        }
        self.sharing.note_placed();
        if notifies {
            self.end(&Ending {
                opcode: CompletionOpcode::ReceiveRdmaWithImmediate,
                byte_length: range.length,
                immediate,
                solicited: request.solicited,
            });
        }
        Placement::Placed
    }

    /// Checks the range of a WRITE. Returns the memory for the payload of one packet; `None` if the range is
    /// empty.
    fn destination(
        &self,
        range: RemoteRange,
        offset: u32,
        part: usize,
    ) -> Result<Option<KeyRange<'a>>, Refused> {
        if range.length == 0 {
            return if part == 0 { Ok(None) } else { Err(Refused) };
        }
        let length = range.length as usize;
        // Check the whole range for each packet, since the region may have been deregistered after the first
        // packet.
        let found = self.range(range.start, length, Access::REMOTE_WRITE)?;
        if offset as usize + part > length {
            return Err(Refused);
        }
        Ok(Some(KeyRange { offset: found.offset + offset as usize, ..found }))
    }

    /// Checks a range that the peer names.
    fn range(&self, start: RemoteAddress, length: usize, needs: Access) -> Result<KeyRange<'a>, Refused> {
        self.keys.range(start.rkey.0, self.receives.rkey_pd(), start.address, length, needs)
    }

    fn atomic(&self, remote: RemoteAddress, apply: impl FnOnce(&AtomicU64) -> u64) -> Placement {
        match self.range(remote, 8, Access::REMOTE_ATOMIC) {
            Ok(range) => match range.memory.atomic(range.offset, apply) {
                Ok(old) => Placement::Atomic(old),
                Err(_) => Placement::Nak(NakCode::INVALID_REQUEST),
            },
            Err(_) => Placement::Nak(NakCode::REMOTE_ACCESS),
        }
    }
}

impl Target for QpTarget<'_> {
    #[inline]
    fn place(&mut self, request: &PlacementRequest<'_>) -> Placement {
        if let Sharing::Executed { shared, serial, .. } = &mut self.sharing
            && let Some(outcome) = shared.settled(*serial)
        {
            return self.placement(outcome);
        }
        let Self { number, reception, resources, sharing, .. } = self;
        let (intake, completer) = resources.intake();
        let Some((receives, held)) = reception.select(intake, request.srq) else {
            return self.place_elsewhere(request);
        };
        let keys = intake.keys();
        let mut here = Here { number: *number, keys, completer, sharing, receives, held };
        match request.work {
            Work::Send { offset, payload, first, last, immediate } => {
                match here.send(request, &Part { offset, payload, last, immediate }, first) {
                    Ok(placement) => placement,
                    Err(failed) => self.fail(failed),
                }
            }
            Work::Write { range, offset, payload, last, immediate, .. } => {
                here.write(request, &Part { offset, payload, last, immediate }, range)
            }
            Work::Read { range } => {
                let length = range.length as usize;
                if length == 0 || here.range(range.start, length, Access::REMOTE_READ).is_ok() {
                    Placement::Placed
                } else {
                    Placement::Nak(NakCode::REMOTE_ACCESS)
                }
            }
            Work::CompareSwap { remote, compare, swap } => here.atomic(remote, |word| {
                match word.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(old) | Err(old) => old,
                }
            }),
            Work::FetchAdd { remote, add } => {
                here.atomic(remote, |word| word.fetch_add(add, Ordering::AcqRel))
            }
        }
    }

    fn read(&mut self, piece: &ReadPiece, out: &mut Vec<u8>) -> ReadOutcome {
        let (intake, _) = self.resources.intake();
        let selected = self.reception.select(intake, piece.srq);
        let Some(pd) = selected.map(|(receives, _)| receives.rkey_pd()) else {
            let fetched = match &mut self.sharing {
                Sharing::Executed { shared, serial, now } => {
                    let (tgt, serial, now) = (self.number, *serial, *now);
                    shared.read(RemoteCall { tgt, serial, now, outbox: self.resources.outbox }, piece, out)
                }
                Sharing::Alone | Sharing::OfMember(_) => None,
            };
            let refused = match fetched {
                Some(Ok(outcome)) => return outcome,
                Some(Err(outcome)) => self.placement(outcome),
                None => self.unknown_srq(),
            };
            // The SRQ was destroyed between the request and its response. A policy that drops packets does
            // not apply to the response of a READ.
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
        let (intake, _) = self.resources.intake();
        let found = intake.keys().range(start.rkey.0, pd, start.address, whole, Access::REMOTE_READ);
        let read = match found {
            Ok(range) if inside => {
                let offset = range.offset + piece.offset as usize;
                append(&KeyRange { offset, ..range }, piece.length as usize, self.ring, out)
            }
            _ => Err(Refused),
        };
        match read {
            Ok(()) => ReadOutcome::Read,
            Err(Refused) => ReadOutcome::Nak(NakCode::REMOTE_ACCESS),
        }
    }
}
