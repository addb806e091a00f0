//! READ responses that arrive before an earlier one, and requests for the missing responses.
//!
//! Networks lose and reorder packets. A response beyond a gap is placed at once and recorded, and `una` moves over it when
//! the gap is filled. A missing response counts as lost when another response arrives that was sent three packets later, as
//! in RFC 9002, or when nothing has arrived beyond the gap for a while. The missing range is then requested again, as a part
//! of the piece that covers it. If a packet of the range arrives twice, it was late and not lost, so the distance and the
//! wait double, as the window of RACK grows (RFC 8985 §6.2).
//!
//! Only the first missing range of a piece is requested again, and the next range only after the first has arrived. The
//! kernel's soft RoCE moves the start of a saved READ to the start of each repeat (contract rocev2 7.24), so it could not
//! repeat an earlier range.

use super::queue::is_end;
use super::{Requester, Response};
use crate::engine::segment::{RequestKind, Transmit};
use crate::engine::{LocalMemory, Time};
use crate::wire::Packet;
use core::ops::Range;
use trunkline_verbs::{CompletionStatus, Psn};

/// Number of PSNs from `una` on for which responses are kept. It divides the PSN space.
pub(super) const KEPT_SPAN: u32 = 1024;
/// Number of later packets after which a missing response counts as lost (RFC 9002 §6.1.1).
const REORDERED_PACKETS: u32 = 3;
/// Time without a response beyond a gap after which the gap counts as lost, as a divisor of the smoothed round trip, and as
/// a minimum in nanoseconds.
const REORDERED_PART: u64 = 4;
const REORDERED_FLOOR_NS: u64 = 250_000;
/// Maximum numbers of doublings of the distance and of the wait. The wait is at most a round trip.
const MAX_DOUBLINGS: u32 = 5;
const MAX_WAIT_DOUBLINGS: u32 = 2;
/// Number of ranges requested again, all of them needed, after which distance and wait return to their initial values (RFC
/// 8985 §7.2).
const NEEDED_REPEATS: u32 = 16;
const WORD_BITS: u32 = u64::BITS;

/// Responses that have arrived after `una`.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// One bit for each PSN, at its remainder modulo [`KEPT_SPAN`]; empty until there is a gap.
    words: Vec<u64>,
    count: u32,
    /// PSN after the last response, and the time of that response's arrival.
    end: Psn,
    end_at: Time,
    /// Missing responses before this PSN are lost.
    lost_end: Psn,
    /// Ranges that were requested again and have not arrived, at most one for each piece in flight.
    repeats: Vec<Range<Psn>>,
    /// PSN after the last one that an acknowledgement beyond a gap covers.
    acked_end: Option<Psn>,
    /// The last range that was requested again, unless the repeat was needless.
    last_repeat: Option<Range<Psn>>,
    /// Doublings of the distance and the wait, and number of ranges requested again since the last
    /// doubling.
    doublings: u32,
    needed: u32,
    /// End of the round trip in which further losses count as the same event.
    event_end: Time,
    /// True if `poll_transmit` must look for ranges to request again.
    is_due: bool,
}

impl Kept {
    /// Returns true if there are no gaps, so that all received responses come before `una`.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0 && self.acked_end.is_none()
    }

    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    pub(super) fn clear(&mut self) {
        self.words.fill(0);
        self.count = 0;
        self.acked_end = None;
        self.forget_repeats();
    }

    /// Records that all missing packets will be sent again.
    pub(super) fn forget_repeats(&mut self) {
        self.repeats.clear();
        self.is_due = false;
    }

    pub(super) fn repeated(&mut self, from: Psn, packets: u32) {
        if self.count > 0 {
            self.repeats.push(from..from.plus(packets));
        }
    }

    /// Records a duplicate response.
    pub(super) fn arrived_again(&mut self, psn: Psn) {
        let is_repeated = |range: &Range<Psn>| psn.after(range.start) >= 0 && psn.after(range.end) < 0;
        if self.last_repeat.take_if(|range| is_repeated(range)).is_some() {
            self.doublings = (self.doublings + 1).min(MAX_DOUBLINGS);
            self.needed = 0;
        }
    }

    /// Records an acknowledgement of everything before `end` except READs and atomics.
    pub(super) fn acknowledged(&mut self, end: Psn) {
        if self.acked_end.is_none_or(|before| end.after(before) > 0) {
            self.acked_end = Some(end);
        }
    }

    /// Returns the index of a PSN's word, and its bit in the word.
    fn place(psn: Psn) -> (usize, u32) {
        let at = psn.get() % KEPT_SPAN;
        (usize::try_from(at / WORD_BITS).unwrap_or(0), at % WORD_BITS)
    }

    fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or(0)
    }

    /// Adds a PSN less than [`KEPT_SPAN`] after `una`. Returns false if it was added before.
    fn insert(&mut self, una: Psn, psn: Psn, now: Time) -> bool {
        if self.count == 0 {
            self.words.resize(usize::try_from(KEPT_SPAN / WORD_BITS).unwrap_or(0), 0);
            (self.end, self.lost_end) = (una, una);
        }
        let (index, bit) = Self::place(psn);
        let Some(word) = self.words.get_mut(index) else { return false };
        if *word >> bit & 1 == 1 {
            return false;
        }
        *word |= 1 << bit;
        self.count += 1;
        let end = psn.plus(1);
        if end.after(self.end) > 0 {
            (self.end, self.end_at) = (end, now);
            let lost_end = end.minus(REORDERED_PACKETS << self.doublings);
            if lost_end.after(self.lost_end) > 0 {
                self.lost_end = lost_end;
            }
        }
        true
    }

    fn remove(&mut self, from: Psn, packets: u32) {
        for psn in (0..packets).map(|step| from.plus(step)) {
            let (index, bit) = Self::place(psn);
            if let Some(word) = self.words.get_mut(index) {
                self.count -= u32::from(*word >> bit & 1 == 1);
                *word &= !(1 << bit);
            }
        }
    }

    /// Returns the number of successive PSNs from `from` on, at most `most`, that are all kept, or all
    /// missing if `is_kept` is false.
    pub(super) fn run(&self, from: Psn, most: u32, is_kept: bool) -> u32 {
        let known = if self.count == 0 { 0 } else { self.end.after(from).max(0).cast_unsigned().min(most) };
        let mut length = 0;
        while length < known {
            let (index, bit) = Self::place(from.plus(length));
            let bits = self.word(index) >> bit;
            let equal = if is_kept { bits.trailing_ones() } else { bits.trailing_zeros() };
            let left = WORD_BITS - bit;
            length += equal.min(left);
            if equal < left {
                return length.min(known);
            }
        }
        if is_kept { known } else { most }
    }

    /// Returns the number of kept PSNs among `packets` PSNs from `from` on.
    pub(super) fn count_in(&self, from: Psn, packets: u32) -> u32 {
        let (mut at, mut kept) = (0, 0);
        while at < packets && self.count > 0 {
            let run = self.run(from.plus(at), packets - at, true);
            kept += run;
            at += run;
            at += self.run(from.plus(at), packets - at, false);
        }
        kept
    }
}

impl Requester {
    /// Handles a READ response at `una` or after it.
    #[cold]
    pub(super) fn take_in_any_order(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        most: u32,
        memory: &mut impl LocalMemory,
    ) -> Response {
        let psn = packet.bth.psn;
        let mtu = self.geometry.mtu;
        let owner = self.queue.iter().position(|wqe| psn.after(wqe.end_psn()) < 0);
        let Some((index, wqe)) = owner.and_then(|index| Some((index, self.queue.get(index)?))) else {
            return Response::Unexpected;
        };
        let first = psn.after(wqe.first_psn).max(0).cast_unsigned();
        let Some(covered) = wqe.covered_by(packet, first, mtu, most) else { return self.bad_response() };
        let span = covered.end - covered.start;
        let ends_piece = covered.end == wqe.whole_piece_end(first);
        if psn.plus(span).after(self.una).cast_unsigned() > KEPT_SPAN {
            self.go_back_implied(now);
            return Response::Progress;
        }
        if self.kept.run(psn, span, true) == span {
            return Response::Stale;
        }
        if wqe.scatter(memory, first.saturating_mul(mtu), packet.payload).is_err() {
            self.fail(index, CompletionStatus::LocalProtectionError);
            return Response::Progress;
        }
        if let Some(aeth) = packet.aeth {
            self.take_credits(aeth);
        }
        let is_measured = self.round_trip.answered(psn, span, now);
        self.keep(now, index, covered);
        let probed = self.retry.probed;
        if self.drain(now, is_measured) && self.is_sending() {
            // If only the probe was answered, the responses requested before the probe are lost.
            let is_probe = probed == Some(psn) && span == 1 && is_end(packet) && !ends_piece;
            if probed.is_some_and(|probed| self.una.after(probed) > 0) {
                self.retry.probed = None;
            }
            if is_probe {
                self.repeat_all(now);
            }
        }
        // An atomic at the front has no response, although later responses have arrived.
        if self.queue.front().is_some_and(|wqe| wqe.kind == RequestKind::Atomic) && !self.kept.is_empty() {
            self.go_back_implied(now);
        }
        Response::Progress
    }

    /// Records the responses to a READ with these packet numbers.
    fn keep(&mut self, now: Time, index: usize, range: Range<u32>) {
        let Some(wqe) = self.queue.get(index) else { return };
        let mut fresh = 0;
        for psn in range.map(|packet| wqe.first_psn.plus(packet)) {
            if self.kept.insert(self.una, psn, now) {
                fresh += 1;
                let sent = u32::from(psn.after(self.cursor.psn) < 0);
                self.cursor.kept += sent;
                self.cursor.missing = self.cursor.missing.saturating_sub(sent);
            }
        }
        self.signals.acknowledged.add_responses(fresh);
        self.kept.is_due = true;
    }

    /// Moves `una` over the received responses. Returns true if it has moved.
    pub(super) fn drain(&mut self, now: Time, is_measured: bool) -> bool {
        let mut una = self.una;
        while let Some(wqe) = self.queue.front_mut() {
            let rest = wqe.end_psn().after(una).max(0).cast_unsigned();
            let implied = if self.kept.count > 0 {
                rest
            } else {
                self.kept.acked_end.map_or(0, |end| end.after(una).max(0).cast_unsigned().min(rest))
            };
            let (step, ends) = match wqe.kind {
                RequestKind::Read => {
                    let arrived = self.kept.run(una, rest, true);
                    if arrived == 0 {
                        break;
                    }
                    self.kept.remove(una, arrived);
                    let sent = self.cursor.psn.after(una).max(0).cast_unsigned().min(arrived);
                    self.cursor.kept = self.cursor.kept.saturating_sub(sent);
                    let requests = wqe.piece_ends(wqe.received, sent);
                    self.cursor.reads = self.cursor.reads.saturating_sub(requests);
                    wqe.received += arrived;
                    (arrived, wqe.received == wqe.psns)
                }
                RequestKind::Send | RequestKind::Write if implied > 0 => {
                    self.signals.acknowledged.add_requests(implied);
                    (implied, implied == rest)
                }
                _ => break,
            };
            una = una.plus(step);
            if ends {
                self.retire_front();
            }
        }
        if self.kept.acked_end.is_some_and(|end| una.after(end) >= 0) {
            self.kept.acked_end = None;
        }
        if self.kept.count == 0 {
            self.kept.forget_repeats();
        }
        self.kept.repeats.retain(|range| range.end.after(una) > 0);
        let has_moved = una != self.una;
        if has_moved {
            // A response to the packet was measured when it arrived.
            self.round_trip.cancel_before(una);
            self.moved_to(now, una, is_measured);
        }
        has_moved
    }

    /// Requests all missing responses again.
    fn repeat_all(&mut self, now: Time) {
        if self.kept.count > 0 {
            self.kept.repeats.clear();
            self.kept.lost_end = self.kept.end;
            self.kept.is_due = true;
        } else if !self.retry.is_pausing(now) && self.una != self.sent_end && self.cursor.psn != self.una {
            self.note_loss();
            self.rewind();
        }
    }

    /// Returns the time at which responses earlier than the latest one count as lost, unless one more
    /// response arrives.
    pub(super) fn gap_deadline(&self) -> Option<Time> {
        let kept = &self.kept;
        let part = REORDERED_PART >> kept.doublings.min(MAX_WAIT_DOUBLINGS);
        let wait_ns = (self.round_trip.smoothed_ns() / part).max(REORDERED_FLOOR_NS);
        (kept.count > 0 && kept.lost_end != kept.end).then(|| kept.end_at.plus_ns(wait_ns))
    }

    /// Records that the gap has timed out.
    pub(super) fn end_gap(&mut self) {
        self.kept.lost_end = self.kept.end;
        self.kept.is_due = true;
    }

    /// Appends the request for the next lost range.
    #[cold]
    pub(super) fn send_repeat(
        &mut self,
        now: Time,
        memory: &impl LocalMemory,
        out: &mut Vec<u8>,
    ) -> Option<Transmit> {
        let Some((index, range)) = self.next_lost() else {
            self.kept.is_due = false;
            return None;
        };
        if !self.charge_gap(now, range.start) {
            return None;
        }
        let wqe = self.queue.get_mut(index)?;
        wqe.is_repeated = true;
        let first = range.start.after(wqe.first_psn).max(0).cast_unsigned();
        let packets = range.end.after(range.start).cast_unsigned();
        let wqe = self.queue.get(index)?;
        let start = out.len();
        if self.write_packet(wqe, first, packets, true, memory, out).is_err() {
            out.truncate(start);
            return None;
        }
        self.round_trip.cancel_in(range.start, packets);
        self.retry.sent(now, range.start == self.una);
        self.counters.packets += 1;
        self.counters.retransmits += 1;
        let psn = range.start;
        self.kept.needed += 1;
        if self.kept.needed >= NEEDED_REPEATS {
            (self.kept.needed, self.kept.doublings) = (0, 0);
        }
        self.kept.last_repeat = Some(range.clone());
        self.kept.repeats.push(range);
        Some(Transmit { psn, retransmission: true })
    }

    /// Charges a retry if the range begins at `una`, once for each `una` (contract rocev2 7.18), and signals
    /// the loss, once per round trip. Returns false if the retries are used up.
    fn charge_gap(&mut self, now: Time, from: Psn) -> bool {
        if from == self.una && !self.charge_una(now) {
            return false;
        }
        if now >= self.kept.event_end {
            self.kept.event_end = now.plus_ns(self.round_trip.smoothed_ns().max(REORDERED_FLOOR_NS));
            self.counters.implied_losses += 1;
            self.signals.lost_responses = true;
        }
        true
    }

    /// Returns the first lost range before the cursor that was not requested again, and the index of its READ. The cursor
    /// requests the ranges after it.
    fn next_lost(&self) -> Option<(usize, Range<Psn>)> {
        let kept = &self.kept;
        let mut at = self.una;
        for (index, wqe) in self.queue.iter().enumerate().take_while(|_| kept.count > 0) {
            while wqe.kind == RequestKind::Read && at.after(wqe.end_psn()) < 0 {
                let first = at.after(wqe.first_psn).max(0).cast_unsigned();
                let end = wqe.first_psn.plus(wqe.piece_end(first));
                let missing = at.plus(kept.run(at, end.after(at).cast_unsigned(), true));
                if missing.after(kept.lost_end) >= 0 || missing.after(self.cursor.psn) >= 0 {
                    return None;
                }
                let is_requested = kept
                    .repeats
                    .iter()
                    .any(|range| missing.after(range.start) >= 0 && missing.after(range.end) < 0);
                if missing != end && !is_requested {
                    let packets = kept.run(missing, end.after(missing).cast_unsigned(), false);
                    return Some((index, missing..missing.plus(packets)));
                }
                at = end;
            }
            at = wqe.end_psn();
        }
        None
    }

    /// Moves the cursor over the received responses.
    #[cold]
    pub(super) fn skip_kept(&mut self) {
        while let Some(wqe) = self.queue.get(self.cursor.index).filter(|wqe| wqe.kind == RequestKind::Read) {
            let arrived = self.kept.run(self.cursor.psn, wqe.psns - self.cursor.packet, true);
            if arrived == 0 {
                return;
            }
            self.cursor.reads += wqe.piece_ends(self.cursor.packet, arrived);
            self.cursor.psn = self.cursor.psn.plus(arrived);
            self.cursor.packet += arrived;
            self.cursor.kept += arrived;
            if self.cursor.packet == wqe.psns {
                self.cursor.index += 1;
                self.cursor.packet = 0;
            }
        }
    }

    /// Returns true if the responses to a READ's piece of `packets` could not all be kept.
    #[inline]
    pub(super) fn is_beyond_kept(&self, packets: u32) -> bool {
        self.kept.count > 0
            && self.cursor.psn != self.una
            && self.cursor.psn.plus(packets).after(self.una).cast_unsigned() > KEPT_SPAN
    }

    /// Splits the piece of the probed READ after its first missing packet, which the probe requests alone.
    pub(super) fn split_for_probe(&mut self) {
        let Some(wqe) = self.queue.front_mut().filter(|wqe| wqe.kind == RequestKind::Read) else { return };
        let packet = wqe.received;
        if wqe.piece_end(packet) > packet + 1 {
            wqe.is_repeated = true;
            wqe.split = packet + 1;
            // The peer may have counted each part as a request.
            self.cursor.reads += 1;
        }
    }
}
