//! Choice of the next packet, and its wire format.

use super::queue::Wqe;
use super::{Requester, RequesterEvent};
use crate::engine::segment::{JOINED_BYTES, PSN_SPAN_MAX, RequestKind};
use crate::engine::{LocalFault, LocalMemory, Time, Transmit};
use crate::wire::{AtomicEth, Operation, Reth, emit_pad, pad_for};
use core::ops::Range;
use trunkline_verbs::{CompletionStatus, Psn, QpState, QpType, RemoteAddress, SendOperation};

/// Position of the next packet to send, and the amount outstanding between `una` and this position.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cursor {
    /// Index of the queue's entry, or the queue's length when everything was sent.
    pub(super) index: usize,
    pub(super) packet: u32,
    pub(super) psn: Psn,
    /// Number of atomics and pieces of READs between `una` and the cursor. The peer saves only a limited number of the
    /// latest ones, so requests beyond a gap count until the gap is filled.
    pub(super) reads: u32,
    /// Number of response packets to these requests that have not arrived. They count only against the window of READs.
    pub(super) missing: u32,
    /// Number of response packets to these requests that have arrived.
    pub(super) kept: u32,
    /// Number of packets since the last one that requested an acknowledgement.
    since_ack_request: u32,
    /// Number of requests whose last packet was sent since that acknowledgement request.
    ends_since_ack_request: u32,
}

impl Requester {
    /// Appends the next packet (BTH to pad, without ICRC) to `out`. Returns `None`, with `out` unchanged, if no packet can
    /// be sent now. Call this until it returns `None`.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        memory: &impl LocalMemory,
        out: &mut Vec<u8>,
    ) -> Option<Transmit> {
        self.transmit(now, memory, 1, out)
    }

    /// Like [`Requester::poll_transmit`], for a path that carries longer packets than a network. A packet may then contain
    /// the payload of several successive packets of a message, up to [`JOINED_BYTES`]. It covers the PSNs of all of them, so
    /// packets of both kinds may follow each other in any order.
    pub fn poll_joined(
        &mut self,
        now: Time,
        memory: &impl LocalMemory,
        out: &mut Vec<u8>,
    ) -> Option<Transmit> {
        self.transmit(now, memory, JOINED_BYTES / self.geometry.mtu, out)
    }

    /// Returns false if [`Requester::poll_transmit`] would not return a packet, and true if it might.
    #[inline]
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.cursor.index < self.queue.len()
            || self.retry.probe_due
            || self.retry.duplicate_due
            || self.kept.is_due()
            // The drained state is reported from `poll_transmit`.
            || self.state == QpState::SendQueueDrained
    }

    /// Appends the next packet with the payload of at most `most` packets.
    #[inline]
    fn transmit(
        &mut self,
        now: Time,
        memory: &impl LocalMemory,
        most: u32,
        out: &mut Vec<u8>,
    ) -> Option<Transmit> {
        self.is_held_back = false;
        if !self.is_sending() || self.retry.is_pausing(now) {
            return None;
        }
        if std::mem::take(&mut self.retry.probe_due)
            && let Some(sent) = self.send_probe(now, memory, out)
        {
            return Some(sent);
        }
        if self.retry.duplicate_due {
            return self.send_duplicate(out);
        }
        if !self.kept.is_empty() {
            if self.kept.is_due()
                && let Some(sent) = self.send_repeat(now, memory, out)
            {
                return Some(sent);
            }
            self.skip_kept();
        }
        self.report_drained();
        let wqe = self.queue.get(self.cursor.index)?;
        if self.is_blocked(wqe) {
            return None;
        }
        if !self.is_admitted(wqe) {
            self.is_held_back = true;
            return None;
        }
        let Cursor { packet, psn, .. } = self.cursor;
        let answered = wqe.is_read_or_atomic();
        let unacknowledged = self.unacknowledged_packets();
        let room = self.pace.window.saturating_sub(unacknowledged);
        let span = if answered { 1 } else { most.min(wqe.psns - packet).min(room).max(1) };
        let next = if wqe.kind == RequestKind::Read { self.next_packet(wqe, packet) } else { packet + span };
        let ends = next == wqe.psns;
        let retransmission = psn.after(self.sent_end) < 0;
        let since = self.cursor.since_ack_request + span;
        let ack_request = answered
            || since >= self.ack_every()
            || unacknowledged + span >= self.pace.window
            || ends
                && (retransmission || since >= self.pace.window / 4 || self.is_acknowledgement_awaited(wqe));
        let wqe_kind = wqe.kind;
        let start = out.len();
        if self.write_packet(wqe, packet, next - packet, ack_request, memory, out).is_err() {
            out.truncate(start);
            self.local_fault(CompletionStatus::LocalProtectionError);
            return None;
        }
        self.spend(wqe_kind, next - packet);
        let kept = if answered && !self.kept.is_empty() {
            if retransmission {
                self.kept.repeated(psn, next - packet);
            }
            self.kept.count_in(psn, next - packet)
        } else {
            0
        };
        self.cursor.kept += kept;
        self.cursor.missing += if answered { next - packet - kept } else { 0 };
        self.cursor.reads += u32::from(answered);
        self.cursor.psn = psn.plus(next - packet);
        if ends {
            self.cursor.index += 1;
            self.cursor.packet = 0;
        } else {
            self.cursor.packet = next;
        }
        if ack_request {
            self.cursor.since_ack_request = 0;
            self.cursor.ends_since_ack_request = 0;
            self.retry.asked_for(self.cursor.psn);
        } else {
            self.cursor.since_ack_request = since;
            self.cursor.ends_since_ack_request += u32::from(ends);
        }
        if self.cursor.psn.after(self.sent_end) > 0 {
            self.sent_end = self.cursor.psn;
        }
        self.counters.packets += 1;
        if retransmission {
            self.counters.retransmits += 1;
        } else if ack_request {
            self.round_trip.sent(psn, answered, now);
        }
        self.retry.sent(now, psn == self.una);
        Some(Transmit { psn, retransmission })
    }

    /// Returns true if the end of a request requests an acknowledgement, which is needed for a completion, for draining in
    /// SQD, as a proof that the path reaches the peer, for more message credit, or for room in the send queue. Otherwise a
    /// later packet or a probe requests one.
    #[inline]
    fn is_acknowledgement_awaited(&self, wqe: &Wqe) -> bool {
        wqe.signaled
            || self.state == QpState::SendQueueDrained
            || !self.retry.is_path_proven()
            || self.tuning.probe_floor_ns == 0
            || self.credit_limit.is_some()
            || self.cursor.ends_since_ack_request + 1 >= self.capacities.max_send_wr / 2
    }

    /// Returns the number of the packet that follows packet number `packet` of an entry. A READ skips the packets that it
    /// requests.
    #[inline]
    pub(super) fn next_packet(&self, wqe: &Wqe, packet: u32) -> u32 {
        if wqe.kind == RequestKind::Read { wqe.piece_end(packet) } else { packet + 1 }
    }

    /// Sends the oldest unacknowledged packet once more, without moving the cursor.
    fn send_probe(&mut self, now: Time, memory: &impl LocalMemory, out: &mut Vec<u8>) -> Option<Transmit> {
        // The packet is about to be sent anyway, or all packets are acknowledged.
        if self.cursor.psn == self.una || self.una == self.sent_end {
            return None;
        }
        self.split_for_probe();
        let wqe = self.queue.front()?;
        let packet = u32::try_from(self.una.after(wqe.first_psn)).ok()?;
        let start = out.len();
        if self.write_packet(wqe, packet, 1, true, memory, out).is_err() {
            out.truncate(start);
            self.fail(0, CompletionStatus::LocalProtectionError);
            return None;
        }
        self.round_trip.cancel();
        self.retry.probed = Some(self.una);
        self.retry.sent(now, true);
        self.counters.packets += 1;
        Some(Transmit { psn: self.una, retransmission: true })
    }

    /// Sends an empty SEND with the PSN before the oldest unacknowledged packet. It differs from the original packet with
    /// this PSN, but a peer does not store packets, so it acknowledges the SEND as a duplicate (contract rocev2 7.5).
    #[cold]
    fn send_duplicate(&mut self, out: &mut Vec<u8>) -> Option<Transmit> {
        self.retry.duplicate_due = false;
        let (wqe, psn) = (self.queue.front()?, self.una.minus(1));
        let mut header = self.geometry.packet(Operation::SEND_ONLY, psn);
        header.bth.ack_request = true;
        header.xrceth = (self.qp_type == QpType::XrcIni).then_some((0, wqe.remote_srq));
        header.emit_headers(out);
        self.counters.packets += 1;
        Some(Transmit { psn, retransmission: true })
    }

    /// Returns true if the packet at the cursor may not be sent yet.
    #[inline]
    fn is_blocked(&self, wqe: &Wqe) -> bool {
        let cursor = &self.cursor;
        if wqe.fault.is_some() {
            return true;
        }
        let starts = cursor.packet == 0 && cursor.psn == self.sent_end;
        if starts && self.state == QpState::SendQueueDrained {
            return true;
        }
        // contract rocev2 7.17
        if cursor.packet == 0 && wqe.fence && cursor.reads > 0 {
            return true;
        }
        if wqe.is_read_or_atomic() && cursor.reads >= self.max_rd_atomic {
            return true;
        }
        let asked = self.next_packet(wqe, cursor.packet) - cursor.packet;
        if wqe.kind == RequestKind::Read && (self.is_read_window_full(asked) || self.is_beyond_kept(asked)) {
            return true;
        }
        if self.unacknowledged_packets() >= self.pace.window {
            return true;
        }
        let span = wqe.end_psn().after(self.una);
        if span.cast_unsigned() > PSN_SPAN_MAX && cursor.psn != self.una {
            return true;
        }
        // contract rocev2 6.6: beyond the limit, one message is sent alone as a probe.
        starts
            && wqe.needs_receive()
            && cursor.psn != self.una
            && self.credit_limit.is_some_and(|limit| wqe.ssn.after(limit) > 0)
    }

    /// Returns the number of request packets between `una` and the cursor.
    #[inline]
    fn unacknowledged_packets(&self) -> u32 {
        self.unanswered_requests() + self.cursor.reads
    }

    /// Returns the number of request packets between `una` and the cursor, except READs and atomics.
    #[inline]
    pub(super) fn unanswered_requests(&self) -> u32 {
        let responses = self.cursor.missing + self.cursor.kept;
        self.cursor.psn.after(self.una).cast_unsigned().saturating_sub(responses)
    }

    /// Records that the entry at the cursor cannot be read from memory. The entry fails after all earlier
    /// entries have completed.
    fn local_fault(&mut self, status: CompletionStatus) {
        if let Some(wqe) = self.queue.get_mut(self.cursor.index) {
            wqe.fault = Some(status);
        }
        self.fail_faulty_front();
    }

    /// Fails the oldest request if it cannot be sent.
    pub(super) fn fail_faulty_front(&mut self) {
        if let Some(status) = self.queue.front().and_then(|wqe| wqe.fault) {
            self.fail(0, status);
        }
    }

    /// Reports, once after each transition to SQD, that all started requests are acknowledged.
    #[inline]
    pub(super) fn report_drained(&mut self) {
        let drained =
            self.state == QpState::SendQueueDrained && self.una == self.sent_end && self.cursor.packet == 0;
        if drained && !self.drain_reported {
            self.drain_reported = true;
            self.events.push_back(RequesterEvent::Drained);
        }
    }

    /// Moves the cursor to `una`, which lies in the oldest entry.
    pub(super) fn seek(&mut self) {
        let psn = self.una;
        let packet = self.queue.front().map_or(0, |wqe| psn.after(wqe.first_psn).max(0).cast_unsigned());
        self.cursor = Cursor { psn, packet, ..Cursor::default() };
    }

    /// Appends packet number `packet` of a request. Each retransmission has the same bytes (contract rocev2
    /// 7.25), except that a READ requests only the missing part of the piece (contract rocev2 7.24). The
    /// packet contains or requests the payload of `span` packets.
    pub(super) fn write_packet(
        &self,
        wqe: &Wqe,
        packet: u32,
        span: u32,
        ack_request: bool,
        memory: &impl LocalMemory,
        out: &mut Vec<u8>,
    ) -> Result<(), LocalFault> {
        let mtu = self.geometry.mtu;
        let first = packet == 0;
        let last = packet + span == wqe.psns;
        let offset = packet * mtu;
        let length = if wqe.is_read_or_atomic() { 0 } else { (span * mtu).min(wqe.length - offset) };
        let mut header =
            self.geometry.packet(operation(&wqe.operation, first, last), wqe.first_psn.plus(packet));
        header.bth.ack_request = ack_request;
        header.bth.solicited = wqe.solicited && last && wqe.needs_receive();
        header.bth.pad = pad_for(usize::try_from(length).unwrap_or(0));
        // contract rocev2 2.3: in every request of XRC.
        header.xrceth = (self.qp_type == QpType::XrcIni).then_some((0, wqe.remote_srq));
        match wqe.operation {
            // Emitted here, a SEND packet needs no checks for other headers.
            SendOperation::Send => {
                header.emit_headers(out);
                return append_payload(wqe, memory, offset..offset + length, header.bth.pad, out);
            }
            SendOperation::SendWithImmediate(immediate) => header.immediate = last.then_some(immediate),
            SendOperation::RdmaWrite(remote) => header.reth = first.then(|| reth(remote, 0, wqe.length)),
            SendOperation::RdmaWriteWithImmediate(remote, immediate) => {
                header.reth = first.then(|| reth(remote, 0, wqe.length));
                header.immediate = last.then_some(immediate);
            }
            SendOperation::RdmaRead(remote) => {
                let end = (packet + span).saturating_mul(mtu).min(wqe.length);
                header.reth = Some(reth(remote, offset, end - offset));
            }
            SendOperation::CompareSwap { remote, compare, swap } => {
                header.atomic = Some(atomic(remote, swap, compare));
            }
            SendOperation::FetchAdd { remote, add } => header.atomic = Some(atomic(remote, add, 0)),
        }
        header.emit_headers(out);
        append_payload(wqe, memory, offset..offset + length, header.bth.pad, out)
    }
}

/// Appends a range of a message's bytes, and the pad bytes.
#[inline]
fn append_payload(
    wqe: &Wqe,
    memory: &impl LocalMemory,
    range: Range<u32>,
    pad: u8,
    out: &mut Vec<u8>,
) -> Result<(), LocalFault> {
    if !range.is_empty() {
        wqe.gather(memory, range.start, range.end - range.start, out)?;
    }
    emit_pad(pad, out);
    Ok(())
}

fn reth(remote: RemoteAddress, offset: u32, length: u32) -> Reth {
    Reth { address: remote.address.plus(u64::from(offset)), rkey: remote.rkey, length }
}

fn atomic(remote: RemoteAddress, swap_or_add: u64, compare: u64) -> AtomicEth {
    AtomicEth { address: remote.address, rkey: remote.rkey, swap_or_add, compare }
}

fn operation(operation: &SendOperation, first: bool, last: bool) -> Operation {
    use Operation as O;
    match (operation, first, last) {
        (SendOperation::Send, true, true) => O::SEND_ONLY,
        (SendOperation::SendWithImmediate(_), true, true) => O::SEND_ONLY_IMM,
        (SendOperation::Send | SendOperation::SendWithImmediate(_), true, false) => O::SEND_FIRST,
        (SendOperation::Send | SendOperation::SendWithImmediate(_), false, false) => O::SEND_MIDDLE,
        (SendOperation::Send, false, true) => O::SEND_LAST,
        (SendOperation::SendWithImmediate(_), false, true) => O::SEND_LAST_IMM,
        (SendOperation::RdmaWrite(_), true, true) => O::WRITE_ONLY,
        (SendOperation::RdmaWriteWithImmediate(..), true, true) => O::WRITE_ONLY_IMM,
        (SendOperation::RdmaWrite(_) | SendOperation::RdmaWriteWithImmediate(..), true, false) => {
            O::WRITE_FIRST
        }
        (SendOperation::RdmaWrite(_) | SendOperation::RdmaWriteWithImmediate(..), false, false) => {
            O::WRITE_MIDDLE
        }
        (SendOperation::RdmaWrite(_), false, true) => O::WRITE_LAST,
        (SendOperation::RdmaWriteWithImmediate(..), false, true) => O::WRITE_LAST_IMM,
        (SendOperation::RdmaRead(_), ..) => O::READ_REQUEST,
        (SendOperation::CompareSwap { .. }, ..) => O::COMPARE_SWAP,
        (SendOperation::FetchAdd { .. }, ..) => O::FETCH_ADD,
    }
}
