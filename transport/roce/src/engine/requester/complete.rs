//! The effect of responses on the send queue.

use super::{Requester, RequesterEvent, Response};
use crate::engine::segment::{JOINED_BYTES, RequestKind};
use crate::engine::{LocalMemory, Time};
use crate::wire::{Aeth, Bth, NakCode, Operation, Packet, Syndrome};
use trunkline_verbs::{CompletionFlags, CompletionStatus, Psn, QpState};

/// Position of a response's PSN relative to the PSNs sent.
enum Position {
    /// Before `una`, and so acknowledged.
    Past,
    /// From `una` to `sent_end`.
    Outstanding,
    /// At or after `sent_end`, and so never sent.
    Beyond,
}

/// Outcome of a check for requests before a response's PSN that lack their own response.
enum Implied {
    /// All requests before the response's PSN are acknowledged.
    Clear,
    /// The response to an earlier READ or atomic was lost (contract rocev2 7.18).
    Lost,
}

impl Requester {
    /// Handles an acknowledgement, a READ response or an atomic acknowledgement addressed to this QP.
    pub fn handle_response(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        memory: &mut impl LocalMemory,
    ) -> Response {
        self.respond(now, packet, self.geometry.mtu, memory)
    }

    /// Like [`Requester::handle_response`], for a response from [`ResponderState::poll_joined`].
    ///
    /// [`ResponderState::poll_joined`]: crate::engine::ResponderState::poll_joined
    pub fn handle_joined(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        memory: &mut impl LocalMemory,
    ) -> Response {
        self.respond(now, packet, JOINED_BYTES, memory)
    }

    /// Handles a response with at most the given number of payload bytes.
    #[inline]
    fn respond(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        most: u32,
        memory: &mut impl LocalMemory,
    ) -> Response {
        let outcome = if self.is_sending() && packet.bth.opcode.service() == self.geometry.service {
            match (packet.bth.opcode.operation(), packet.aeth) {
                (Operation::ACKNOWLEDGE, Some(aeth)) => self.acknowledge(now, packet.bth.psn, aeth),
                (Operation::ATOMIC_ACKNOWLEDGE, Some(aeth)) => self.answer_atomic(now, packet, aeth, memory),
                (Operation::READ_RESPONSE_MIDDLE, _)
                | (
                    Operation::READ_RESPONSE_FIRST
                    | Operation::READ_RESPONSE_LAST
                    | Operation::READ_RESPONSE_ONLY,
                    Some(_),
                ) => self.answer_read(now, packet, most, memory),
                _ => Response::Unexpected,
            }
        } else {
            Response::Unexpected
        };
        // The peer acknowledges a duplicate of the packet before `una` with that packet's PSN. Other stale responses may be
        // forged or late.
        if outcome == Response::Progress || packet.bth.psn == self.una.minus(1) && outcome == Response::Stale
        {
            self.retry.heard();
        }
        match outcome {
            Response::Progress => {}
            Response::Stale => {
                self.counters.stale += 1;
                self.kept.arrived_again(packet.bth.psn);
            }
            Response::Unexpected => self.counters.unexpected += 1,
        }
        outcome
    }

    /// Returns true if a response with this header answers an outstanding PSN.
    #[must_use]
    pub fn has_outstanding(&self, bth: &Bth) -> bool {
        self.is_sending()
            && bth.opcode.service() == self.geometry.service
            && matches!(self.position(bth.psn), Position::Outstanding)
    }

    fn position(&self, psn: Psn) -> Position {
        if psn.after(self.una) < 0 {
            Position::Past
        } else if psn.after(self.sent_end) < 0 {
            Position::Outstanding
        } else {
            Position::Beyond
        }
    }

    fn acknowledge(&mut self, now: Time, psn: Psn, aeth: Aeth) -> Response {
        match self.position(psn) {
            Position::Past => return Response::Stale,
            Position::Beyond => return Response::Unexpected,
            Position::Outstanding => {}
        }
        match aeth.meaning() {
            Syndrome::Ack { .. } => {
                self.take_credits(aeth);
                let implied = self.advance(now, psn.plus(1));
                self.after_probe(now, psn);
                if matches!(implied, Implied::Lost) {
                    self.kept.acknowledged(psn.plus(1));
                    self.go_back_implied(now);
                }
                Response::Progress
            }
            Syndrome::Rnr { timer } => {
                self.counters.rnr_naks += 1;
                match self.advance(now, psn) {
                    Implied::Clear => self.pause(now, timer.nanoseconds()),
                    Implied::Lost => {
                        self.go_back_implied(now);
                    }
                }
                Response::Progress
            }
            Syndrome::Nak(NakCode::PSN_SEQUENCE) => {
                self.counters.sequence_naks += 1;
                self.advance(now, psn);
                self.go_back(now);
                Response::Progress
            }
            Syndrome::Nak(code) => {
                // Earlier requests without a response are flushed, so that the refused request gets the
                // status.
                self.advance(now, psn);
                let failing = self.queue.iter().position(|wqe| psn.after(wqe.end_psn()) < 0);
                self.fail(failing.unwrap_or(0), status_of(code));
                Response::Progress
            }
            Syndrome::Reserved(_) => Response::Unexpected,
        }
    }

    fn answer_read(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        most: u32,
        memory: &mut impl LocalMemory,
    ) -> Response {
        let psn = packet.bth.psn;
        let implied = match self.reach(now, psn, RequestKind::Read) {
            Ok(implied) => implied,
            Err(response) => return response,
        };
        let is_next = matches!(implied, Implied::Clear)
            && self.kept.is_empty()
            && self.queue.front().is_some_and(|wqe| wqe.split <= wqe.received);
        if !is_next {
            return self.take_in_any_order(now, packet, most, memory);
        }
        if let Some(aeth) = packet.aeth {
            self.take_credits(aeth);
        }
        let mtu = self.geometry.mtu;
        let Some(wqe) = self.queue.front() else { return Response::Unexpected };
        let Some(covered) = wqe.covered_by(packet, wqe.received, mtu, most) else {
            return self.bad_response();
        };
        let (end, span) = (covered.end, covered.end - covered.start);
        let last = end == wqe.psns;
        let ends_piece = end == wqe.whole_piece_end(wqe.received);
        if wqe.scatter(memory, wqe.received * mtu, packet.payload).is_err() {
            self.fail(0, CompletionStatus::LocalProtectionError);
            return Response::Progress;
        }
        // Saturate, because both counts are 0 when the piece is about to be requested again.
        self.cursor.reads = self.cursor.reads.saturating_sub(u32::from(ends_piece));
        self.cursor.missing = self.cursor.missing.saturating_sub(span);
        if last {
            self.retire_front();
        } else if let Some(wqe) = self.queue.front_mut() {
            wqe.received = end;
        }
        self.signals.acknowledged.add_responses(span);
        self.moved(now, psn.plus(span));
        if self.retry.probed.is_some_and(|probed| self.una.after(probed) > 0) {
            self.retry.probed = None;
        }
        Response::Progress
    }

    fn answer_atomic(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        aeth: Aeth,
        memory: &mut impl LocalMemory,
    ) -> Response {
        let psn = packet.bth.psn;
        let Some(original) = packet.atomic_ack else { return Response::Unexpected };
        match self.reach(now, psn, RequestKind::Atomic) {
            Ok(Implied::Clear) => {}
            Ok(Implied::Lost) => {
                self.go_back_implied(now);
                return Response::Progress;
            }
            Err(response) => return response,
        }
        self.take_credits(aeth);
        let Some(wqe) = self.queue.front() else { return Response::Unexpected };
        // contract rocev2 7.14: host order in memory.
        if wqe.scatter(memory, 0, &original.to_ne_bytes()).is_err() {
            self.fail(0, CompletionStatus::LocalProtectionError);
            return Response::Progress;
        }
        self.cursor.reads = self.cursor.reads.saturating_sub(1);
        self.cursor.missing = self.cursor.missing.saturating_sub(1);
        self.retire_front();
        self.moved(now, psn.plus(1));
        if !self.kept.is_empty() {
            self.drain(now, false);
        }
        self.after_probe(now, psn);
        Response::Progress
    }

    /// Handles a response as an acknowledgement of everything before it, so that its request becomes the front of the queue.
    /// The request must be of `kind`.
    fn reach(&mut self, now: Time, psn: Psn, kind: RequestKind) -> Result<Implied, Response> {
        match self.position(psn) {
            Position::Past => return Err(Response::Stale),
            Position::Beyond => return Err(Response::Unexpected),
            Position::Outstanding => {}
        }
        let owner = self.queue.iter().find(|wqe| psn.after(wqe.end_psn()) < 0);
        if owner.is_none_or(|wqe| wqe.kind != kind) {
            return Err(self.bad_response());
        }
        Ok(self.advance(now, psn))
    }

    /// Fails the QP, because a response does not match its request (contract rocev2 7.27).
    pub(super) fn bad_response(&mut self) -> Response {
        self.fail(0, CompletionStatus::BadResponse);
        Response::Unexpected
    }

    /// Retires all requests that end before `end`, up to a READ or atomic without a response.
    fn advance(&mut self, now: Time, end: Psn) -> Implied {
        let mut una = self.una;
        let mut implied = Implied::Clear;
        while let Some(wqe) = self.queue.front() {
            if end.after(una) <= 0 {
                break;
            }
            if wqe.is_read_or_atomic() {
                implied = Implied::Lost;
                break;
            }
            if end.after(wqe.end_psn()) < 0 {
                una = end;
                break;
            }
            una = wqe.end_psn();
            self.retire_front();
        }
        if una != self.una {
            self.signals.acknowledged.add_requests(una.after(self.una).cast_unsigned());
            self.moved(now, una);
        }
        implied
    }

    /// Moves `una`, and updates the timers and the cursor.
    fn moved(&mut self, now: Time, una: Psn) {
        let measured = self.round_trip.acknowledged(una, now);
        self.moved_to(now, una, measured);
    }

    /// Like [`Self::moved`]; `measured` is true if the move ended the measurement of a round trip.
    pub(super) fn moved_to(&mut self, now: Time, una: Psn, measured: bool) {
        self.una = una;
        self.retry.progress(now, una != self.sent_end, measured);
        if self.cursor.psn.after(una) < 0 {
            self.seek();
        }
        self.report_drained();
        self.fail_faulty_front();
    }

    /// Completes the oldest request with success.
    pub(super) fn retire_front(&mut self) {
        let Some(wqe) = self.queue.pop_front() else { return };
        if let Some(index) = self.cursor.index.checked_sub(1) {
            self.cursor.index = index;
        } else {
            // The request is about to be retransmitted. `moved` repositions the cursor.
            self.cursor.packet = 0;
        }
        self.complete(wqe, CompletionStatus::Success);
    }

    /// Sends again from `una` if a response acknowledges only the probed packet, because everything sent after that packet
    /// was lost.
    fn after_probe(&mut self, now: Time, answered: Psn) {
        let Some(probed) = self.retry.probed else { return };
        if self.una.after(probed) <= 0 {
            return;
        }
        self.retry.probed = None;
        if answered == probed
            && self.is_sending()
            && !self.retry.is_pausing(now)
            && self.cursor.psn != self.una
        {
            self.note_loss();
            self.rewind();
        }
    }

    pub(super) fn take_credits(&mut self, aeth: Aeth) {
        if let Syndrome::Ack { credits } = aeth.meaning() {
            self.credit_limit = credits.credits().map(|count| Psn::new(aeth.msn).plus(count));
        }
    }

    /// Ends all requests, including unsignalled ones. Request `failing` ends with `status`, all others as flushed (contract
    /// I1, rocev2 7.26).
    pub(super) fn fail(&mut self, failing: usize, status: CompletionStatus) {
        self.fail_with(failing, status, CompletionFlags::empty());
    }

    /// Like [`Self::fail`], with flags in the completion of the failed request.
    pub(super) fn fail_with(&mut self, failing: usize, status: CompletionStatus, flags: CompletionFlags) {
        if !self.is_sending() {
            return;
        }
        let mut index = 0;
        while let Some(wqe) = self.queue.pop_front() {
            let status = if index == failing { status } else { CompletionStatus::WorkRequestFlushed };
            self.complete(wqe, status);
            if let Some(completion) = self.completions.back_mut().filter(|_| index == failing) {
                completion.flags |= flags;
            }
            index += 1;
        }
        self.stop(QpState::Error);
        self.events.push_back(RequesterEvent::Failed(status));
    }
}

/// Returns the status of a refused request (contract rocev2 6.2).
fn status_of(code: NakCode) -> CompletionStatus {
    match code {
        NakCode::INVALID_REQUEST => CompletionStatus::RemoteInvalidRequest,
        NakCode::REMOTE_ACCESS => CompletionStatus::RemoteAccessError,
        NakCode::INVALID_RD_REQUEST => CompletionStatus::RemoteInvalidRdRequest,
        // Undefined codes are mapped as in rxe.
        _ => CompletionStatus::RemoteOperationError,
    }
}
