//! Acknowledgements, READ responses, atomic results and NAKs, in the order of PSNs.

use super::{PHASE_RECEIVING, PHASE_RTR, ResponderState, count};
use crate::engine::segment::{JOINED_BYTES, packets};
use crate::engine::{ReadOutcome, ReadPiece, RemoteRange, Target, Transmit};
use crate::wire::{Aeth, NakCode, Opcode, Operation, Packet, Service, Syndrome, emit_pad, pad_for};
use trunkline_verbs::{IoAddress, Psn, QpNumber, RemoteAddress, Rkey};

impl ResponderState {
    /// Appends the next response (BTH to pad, without ICRC) to `out`. Returns `None`, with `out` unchanged, if there is
    /// none.
    pub fn poll_transmit(&mut self, target: &mut impl Target, out: &mut Vec<u8>) -> Option<Transmit> {
        self.transmit(1, target, out)
    }

    /// Like [`ResponderState::poll_transmit`], for a path that carries longer packets than a network. A packet may then
    /// contain the payload of several successive packets of a READ's response, up to [`JOINED_BYTES`].
    pub fn poll_joined(&mut self, target: &mut impl Target, out: &mut Vec<u8>) -> Option<Transmit> {
        self.transmit(JOINED_BYTES / self.mtu(), target, out)
    }

    /// Appends the next response with the payload of at most `most` packets.
    #[inline]
    fn transmit(&mut self, most: u32, target: &mut impl Target, out: &mut Vec<u8>) -> Option<Transmit> {
        if let Some(index) = self.saved.active() {
            return self.answer_saved(index, most, target, out);
        }
        if self.refusal.due != 0 {
            self.refusal.due = 0;
            if let Some(sent) = self.send_refusal(out) {
                return Some(sent);
            }
        }
        if self.ack_due != 0 {
            self.ack_due = 0;
            let psn = Psn::new(self.expected).minus(1);
            return Some(self.acknowledge(psn, self.msn, out));
        }
        None
    }

    /// Returns true if `poll_transmit` may return a packet. It still returns `None` while a READ's bytes are being fetched.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.ack_due != 0 || self.refusal.due != 0 || self.saved.active().is_some()
    }

    /// Appends one more acknowledgement of all packets so far. Returns `None` before the first packet.
    ///
    /// Called for a QP that is about to stop. Its program may exit after the last message, and a lost acknowledgement would
    /// then never be repeated. A peer ignores the copies as stale acknowledgements (contract rocev2 7.18). If the last
    /// request was a READ or atomic, its response is the acknowledgement, and is not repeated.
    pub fn final_ack(&mut self, out: &mut Vec<u8>) -> Option<Transmit> {
        let is_receiving = matches!(self.phase, PHASE_RTR | PHASE_RECEIVING);
        let expected = Psn::new(self.expected);
        if !is_receiving || self.msn == 0 || self.saved.ends_at(expected) {
            return None;
        }
        Some(self.acknowledge(expected.minus(1), self.msn, out))
    }

    fn answer_saved(
        &mut self,
        index: usize,
        most: u32,
        target: &mut impl Target,
        out: &mut Vec<u8>,
    ) -> Option<Transmit> {
        let saved = self.saved.get(index);
        let first_psn = Psn::new(saved.first_psn);
        // contract rocev2 7.19: some requesters do not accept a READ response as an acknowledgement of earlier SENDs and
        // WRITEs, so an acknowledgement is sent first.
        if !saved.is_replay && saved.next == saved.start && first_psn.after(Psn::new(self.acked)) > 0 {
            let before = Psn::new(saved.msn).minus(1).get();
            return Some(self.acknowledge(first_psn.minus(1), before, out));
        }
        if saved.is_atomic {
            let mut packet = self.packet(Operation::ATOMIC_ACKNOWLEDGE, first_psn);
            packet.aeth = Some(Aeth::new(Syndrome::ACK, saved.msn));
            packet.atomic_ack = Some(saved.old);
            packet.emit_headers(out);
            self.saved.sent(index, 1, true);
            self.covered(first_psn.plus(1));
            return Some(Transmit { psn: first_psn, retransmission: saved.is_replay });
        }
        self.answer_read(index, most, target, out)
    }

    /// Appends one packet of a READ's response (contract rocev2 7.13).
    fn answer_read(
        &mut self,
        index: usize,
        most: u32,
        target: &mut impl Target,
        out: &mut Vec<u8>,
    ) -> Option<Transmit> {
        let saved = self.saved.get(index);
        let mtu = self.mtu();
        let offset = saved.next.saturating_mul(mtu);
        let left = saved.end.saturating_sub(offset);
        let length = left.min(most.saturating_mul(mtu));
        let psns = packets(length, mtu);
        let (first, last) = (saved.next == saved.start, length == left);
        let operation = match (first, last) {
            (true, true) => Operation::READ_RESPONSE_ONLY,
            (true, false) => Operation::READ_RESPONSE_FIRST,
            (false, false) => Operation::READ_RESPONSE_MIDDLE,
            (false, true) => Operation::READ_RESPONSE_LAST,
        };
        let psn = Psn::new(saved.first_psn).plus(saved.next);
        let start = out.len();
        let mut packet = self.packet(operation, psn);
        packet.bth.pad = pad_for(usize::try_from(length).unwrap_or(0));
        packet.aeth = (first || last).then(|| Aeth::new(Syndrome::ACK, saved.msn));
        packet.emit_headers(out);
        let remote = RemoteAddress { address: IoAddress(saved.address), rkey: Rkey(saved.rkey) };
        let range = RemoteRange { start: remote, length: saved.length };
        let piece = ReadPiece { psn, psns, srq: self.srq(saved.srq), range, offset, length };
        match target.read(&piece, out) {
            ReadOutcome::Read => {}
            ReadOutcome::Later => {
                out.truncate(start);
                return None;
            }
            // A duplicate of a READ may arrive after the requester has received the response and the memory was freed, so
            // this is not a fault of the peer (contract rocev2 7.5).
            ReadOutcome::Nak(_) if saved.is_replay => {
                out.truncate(start);
                count(&mut self.counters.dropped_duplicate);
                self.saved.sent(index, psns, true);
                return self.transmit(most, target, out);
            }
            ReadOutcome::Nak(code) => {
                out.truncate(start);
                self.forget();
                self.fail(code, psn);
                return self.transmit(most, target, out);
            }
        }
        emit_pad(packet.bth.pad, out);
        count(&mut self.counters.read_responses);
        self.covered(psn.plus(psns));
        self.saved.sent(index, psns, last);
        Some(Transmit { psn, retransmission: saved.is_replay })
    }

    /// Sends the pending NAK, unless the missing packets have arrived in the meantime.
    fn send_refusal(&mut self, out: &mut Vec<u8>) -> Option<Transmit> {
        let syndrome = Syndrome::new(self.refusal.syndrome);
        let expected = Psn::new(self.expected);
        let psn = match syndrome {
            // If the gap is filled and the dropped packets have been retransmitted, an acknowledgement covers more than a
            // NAK. If not, the NAK limits the retransmission to the missing packets.
            Syndrome::Nak(NakCode::PSN_SEQUENCE) if expected.after(Psn::new(self.gap_end)) >= 0 => {
                self.ack_due = 1;
                return None;
            }
            Syndrome::Nak(NakCode::PSN_SEQUENCE) => expected,
            Syndrome::Rnr { .. } if self.refusal.psn != expected.get() => return None,
            _ => Psn::new(self.refusal.psn),
        };
        // A NAK acknowledges all earlier packets.
        self.ack_due = 0;
        self.covered(psn);
        let mut packet = self.packet(Operation::ACKNOWLEDGE, psn);
        packet.aeth = Some(Aeth::new(syndrome, self.msn));
        packet.emit_headers(out);
        Some(Transmit { psn, retransmission: false })
    }

    fn acknowledge(&mut self, psn: Psn, msn: u32, out: &mut Vec<u8>) -> Transmit {
        count(&mut self.counters.acks);
        self.covered(psn.plus(1));
        let mut packet = self.packet(Operation::ACKNOWLEDGE, psn);
        packet.aeth = Some(Aeth::new(Syndrome::ACK, msn));
        packet.emit_headers(out);
        Transmit { psn, retransmission: false }
    }

    /// Records that responses cover everything before `end`.
    fn covered(&mut self, end: Psn) {
        if end.after(Psn::new(self.acked)) > 0 {
            self.acked = end.get();
        }
    }

    fn packet(&self, operation: Operation, psn: Psn) -> Packet<'static> {
        Packet::new(Opcode::new(Service(self.service), operation), QpNumber::new(self.peer), psn, &[])
    }
}
