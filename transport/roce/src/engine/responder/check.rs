//! The checks that a request packet must pass before it is executed (contract rocev2 7.3 to 7.7).

use super::{
    EVENT_ESTABLISHED, Handled, Message, PHASE_ERROR, PHASE_RECEIVING, PHASE_RTR, Pending, ResponderState,
    count,
};
use crate::engine::segment::{Class, JOINED_BYTES, PSN_SPAN_MAX, RequestKind, classify, packets};
use crate::engine::{Placement, PlacementRequest, Target, Work};
use crate::wire::{Bth, NakCode, Opcode, Operation, Packet, Service, Syndrome};
use trunkline_verbs::{Access, Psn};

/// Position of a request's PSN relative to the expected PSN.
enum Position {
    Expected,
    Before,
    /// The packet needs no further checks.
    Done(Handled),
}

impl ResponderState {
    /// Handles a request packet addressed to this QP, whose source and P_Key were checked.
    pub fn handle_request(&mut self, packet: &Packet<'_>, target: &mut impl Target) -> Handled {
        self.handle(packet, self.mtu(), target)
    }

    /// Like [`ResponderState::handle_request`], for a packet from [`Requester::poll_joined`]. A packet whose first part was
    /// already accepted counts as a duplicate. The requester continues after that part when it receives the response.
    ///
    /// [`Requester::poll_joined`]: crate::engine::Requester::poll_joined
    pub fn handle_joined(&mut self, packet: &Packet<'_>, target: &mut impl Target) -> Handled {
        self.handle(packet, JOINED_BYTES, target)
    }

    /// Handles a request with at most `most` bytes of payload.
    #[inline]
    fn handle(&mut self, packet: &Packet<'_>, most: u32, target: &mut impl Target) -> Handled {
        if let Some(payload) = self.next_send(packet, most) {
            return self.take_send(packet, payload, most, target);
        }
        match self.admit(&packet.bth) {
            Position::Done(handled) => return handled,
            Position::Before => return self.duplicate(packet),
            Position::Expected => {}
        }
        match self.check(packet, most) {
            Ok((pending, class)) => self.execute(pending, class, packet, target),
            Err(code) => {
                self.fail(code, packet.bth.psn);
                Handled::Refused
            }
        }
    }

    /// Returns the payload's length if the packet is the expected SEND ONLY and passes all checks. Returns `None` if the
    /// general path must decide.
    #[inline]
    fn next_send(&self, packet: &Packet<'_>, most: u32) -> Option<u32> {
        let bth = &packet.bth;
        let is_next = bth.opcode == Opcode::new(Service(self.service), Operation::SEND_ONLY)
            && bth.psn.get() == self.expected
            && self.phase == PHASE_RECEIVING
            && !self.is_waiting()
            && self.message.kind == Message::NONE
            && packet.xrceth.is_some() == self.is_xrc();
        let payload = u32::try_from(packet.payload.len()).ok()?;
        (is_next && payload <= most.min(self.max_message)).then_some(payload)
    }

    /// Handles a packet that [`ResponderState::next_send`] accepts. Outcomes other than `Placed` are left to the general
    /// path.
    #[inline]
    fn take_send(
        &mut self,
        packet: &Packet<'_>,
        payload: u32,
        most: u32,
        target: &mut impl Target,
    ) -> Handled {
        self.nak_sent = 0;
        let work =
            Work::Send { offset: 0, payload: packet.payload, first: true, last: true, immediate: None };
        let placement = target.place(&PlacementRequest::new(packet, work));
        if placement == Placement::Placed {
            self.advance(packets(payload, self.mtu()), true);
            self.ack_due |= u8::from(packet.bth.ack_request);
            return Handled::Taken;
        }
        match self.check(packet, most) {
            Ok((pending, class)) => self.settle(pending, class, placement),
            Err(code) => {
                self.fail(code, packet.bth.psn);
                Handled::Refused
            }
        }
    }

    /// Handles a request whose payload breaks its opcode's rule on lengths, so that only its BTH could be read. In sequence
    /// it is an invalid request; otherwise only its PSN matters (contract rocev2 7.9).
    pub fn handle_malformed(&mut self, bth: &Bth) -> Handled {
        match self.admit(bth) {
            Position::Done(handled) => handled,
            Position::Before => {
                count(&mut self.counters.duplicates);
                count(&mut self.counters.dropped_duplicate);
                Handled::Duplicate
            }
            Position::Expected => {
                self.fail(NakCode::INVALID_REQUEST, bth.psn);
                Handled::Refused
            }
        }
    }

    /// Checks the state, the service and the PSN (contract rocev2 7.3, 7.4).
    #[inline]
    fn admit(&mut self, bth: &Bth) -> Position {
        if self.is_waiting() {
            return Position::Done(Handled::Busy);
        }
        if !matches!(self.phase, PHASE_RECEIVING | PHASE_RTR) {
            count(&mut self.counters.dropped_state);
            self.repeat_fatal(bth.psn);
            return Position::Done(Handled::Dropped);
        }
        if bth.opcode.service().0 != self.service || bth.opcode.operation().is_response() {
            count(&mut self.counters.dropped_opcode);
            return Position::Done(Handled::Dropped);
        }
        let distance = bth.psn.after(Psn::new(self.expected));
        if distance > 0 {
            return Position::Done(self.out_of_order(bth.psn));
        }
        if distance < 0 {
            return Position::Before;
        }
        self.nak_sent = 0;
        if self.phase == PHASE_RTR && self.established == 0 {
            self.established = 1;
            self.events |= EVENT_ESTABLISHED;
        }
        Position::Expected
    }

    /// Repeats the NAK for a failure of this side. If the NAK was lost, the peer sends its request again, and gets the
    /// repeated NAK before its retries run out. Otherwise the peer handles it as a duplicate of the NAK.
    fn repeat_fatal(&mut self, psn: Psn) {
        if self.phase == PHASE_ERROR && self.refusal.syndrome != 0 && psn.get() == self.refusal.psn {
            self.refusal.due = 1;
        }
    }

    /// Handles a packet after a gap. Each gap causes one NAK (contract rocev2 7.4).
    fn out_of_order(&mut self, psn: Psn) -> Handled {
        count(&mut self.counters.out_of_order);
        let end = psn.plus(1);
        if self.nak_sent == 0 {
            self.nak_sent = 1;
            self.gap_end = end.get();
            count(&mut self.counters.sequence_naks);
            self.refuse(Syndrome::Nak(NakCode::PSN_SEQUENCE), Psn::new(self.expected));
        } else if end.after(Psn::new(self.gap_end)) > 0 {
            self.gap_end = end.get();
        }
        Handled::OutOfOrder
    }

    /// Handles a duplicate (contract rocev2 7.5).
    fn duplicate(&mut self, packet: &Packet<'_>) -> Handled {
        count(&mut self.counters.duplicates);
        let psn = packet.bth.psn;
        let repeated = match classify(packet.bth.opcode.operation()).map(|class| class.kind) {
            Some(RequestKind::Send | RequestKind::Write) => {
                self.ack_due = 1;
                true
            }
            Some(RequestKind::Read) => {
                packet.reth.is_some_and(|reth| self.saved.repeat_read(psn, &reth, self.mtu()))
            }
            Some(RequestKind::Atomic) => self.saved.repeat_atomic(psn),
            None => false,
        };
        if !repeated {
            count(&mut self.counters.dropped_duplicate);
        }
        Handled::Duplicate
    }

    /// Checks the opcode sequence, the QP's rights, the lengths and the resources.
    #[inline]
    fn check(&self, packet: &Packet<'_>, most: u32) -> Result<(Pending, Class), NakCode> {
        let operation = packet.bth.opcode.operation();
        // This device does not support SENDs with invalidation, so they are invalid requests.
        let class = classify(operation).ok_or(NakCode::INVALID_REQUEST)?;
        if packet.xrceth.is_some() != self.is_xrc() {
            return Err(NakCode::INVALID_REQUEST);
        }
        let srq = packet.xrceth.map_or(0, |(_, srq)| srq.get());
        self.check_sequence(class, srq)?;
        self.check_rights(class.kind)?;
        let payload = u32::try_from(packet.payload.len()).map_err(|_| NakCode::INVALID_REQUEST)?;
        let mut pending = Pending {
            active: 0,
            operation: operation.0,
            ack_request: u8::from(packet.bth.ack_request),
            psn: packet.bth.psn.get(),
            srq,
            payload,
            ..Pending::default()
        };
        match class.kind {
            RequestKind::Send => self.check_payload(class, payload, most)?,
            RequestKind::Write => {
                self.check_payload(class, payload, most)?;
                let (address, rkey, length) = match packet.reth {
                    Some(reth) if class.first => (reth.address.0, reth.rkey.0, reth.length),
                    None if !class.first => (self.message.address, self.message.rkey, self.message.length),
                    _ => return Err(NakCode::INVALID_REQUEST),
                };
                let end = self.received(class).checked_add(payload).ok_or(NakCode::INVALID_REQUEST)?;
                // contract rocev2 7.9: the bytes must match the length in RETH.
                if length > self.max_message
                    || (class.last && end != length)
                    || (!class.last && end >= length)
                {
                    return Err(NakCode::INVALID_REQUEST);
                }
                (pending.address, pending.rkey, pending.length) = (address, rkey, length);
            }
            RequestKind::Read => {
                let reth = packet.reth.ok_or(NakCode::INVALID_REQUEST)?;
                let too_long =
                    reth.length > self.max_message || packets(reth.length, self.mtu()) > PSN_SPAN_MAX;
                if too_long || !self.saved.has_room() {
                    return Err(NakCode::INVALID_REQUEST);
                }
                (pending.address, pending.rkey, pending.length) = (reth.address.0, reth.rkey.0, reth.length);
            }
            RequestKind::Atomic => {
                let atomic = packet.atomic.ok_or(NakCode::INVALID_REQUEST)?;
                if !atomic.address.0.is_multiple_of(8) || !self.saved.has_room() {
                    return Err(NakCode::INVALID_REQUEST);
                }
                (pending.address, pending.rkey, pending.length) = (atomic.address.0, atomic.rkey.0, 8);
            }
        }
        Ok((pending, class))
    }

    /// Checks the opcode sequence (contract rocev2 7.7, G11).
    #[inline]
    fn check_sequence(&self, class: Class, srq: u32) -> Result<(), NakCode> {
        let fits = match self.message.kind {
            Message::NONE => class.first,
            Message::SEND => class.kind == RequestKind::Send && !class.first && srq == self.message.srq,
            Message::WRITE => class.kind == RequestKind::Write && !class.first && srq == self.message.srq,
            _ => false,
        };
        if fits { Ok(()) } else { Err(NakCode::INVALID_REQUEST) }
    }

    /// Checks the rights of the QP (contract E5, G4 (1)).
    #[inline]
    fn check_rights(&self, kind: RequestKind) -> Result<(), NakCode> {
        let needed = match kind {
            RequestKind::Send => return Ok(()),
            RequestKind::Write => Access::REMOTE_WRITE,
            RequestKind::Read => Access::REMOTE_READ,
            RequestKind::Atomic => Access::REMOTE_ATOMIC,
        };
        if self.access & needed.bits() != 0 { Ok(()) } else { Err(NakCode::INVALID_REQUEST) }
    }

    /// Checks the payload's length (contract rocev2 3.1).
    #[inline]
    fn check_payload(&self, class: Class, payload: u32, most: u32) -> Result<(), NakCode> {
        let mtu = self.mtu();
        let fits = match (class.first, class.last) {
            (true, true) => payload <= most,
            (_, true) => payload > 0 && payload <= most,
            (_, false) => payload == mtu || (payload > 0 && payload <= most && payload.is_multiple_of(mtu)),
        };
        let end = self.received(class).checked_add(payload);
        if fits && end.is_some_and(|end| end <= self.max_message) {
            Ok(())
        } else {
            Err(NakCode::INVALID_REQUEST)
        }
    }

    /// Returns the number of bytes of the message before this packet.
    pub(super) fn received(&self, class: Class) -> u32 {
        if class.first { 0 } else { self.message.received }
    }

    /// Returns the operation of a pending packet.
    pub(super) fn class_of(pending: &Pending) -> Option<Class> {
        classify(Operation(pending.operation))
    }
}
