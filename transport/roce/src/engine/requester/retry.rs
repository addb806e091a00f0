//! Timers and retransmission, which also determine when a peer counts as dead.

use super::{Requester, Tuning};
use crate::engine::segment::RequestKind;
use crate::engine::{Time, rtt::RoundTrip};
use trunkline_verbs::{CompletionFlags, CompletionStatus, Mtu, Psn, QpAttributes, QpState};

/// Factor for the minimum wait before a probe on a path that rarely loses packets.
const RARE_LOSS_FACTOR: u64 = 16;
/// Maximum number of times that a probe's wait is doubled.
const PROBE_DOUBLINGS_MAX: u32 = 8;

/// Number of answered retries of one packet, without progress, after which large packets count as lost. At most one of these
/// retries is for a reported loss; the others are ACK timeouts, each after several probes of the packet.
const ANSWERED_RETRIES: u8 = 2;

/// The value of `rnr_retry` for unlimited retries (contract rocev2 7.21).
const RNR_UNLIMITED: u8 = 7;

/// Timers and retry counters of a requester.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Retry {
    /// Local ACK timeouts before and after the peer's first answer; `None` means never (contract rocev2 7.22).
    timeouts_ns: Option<[u64; 2]>,
    /// True if the peer has answered.
    has_answered: bool,
    /// True if the peer has answered on the current path.
    is_path_proven: bool,
    /// PSN after the last packet that requested an acknowledgement.
    asked_end: Psn,
    retry_count: u8,
    rnr_retry: u8,
    left: u8,
    rnr_left: u8,
    /// Time at which the ACK timeout expires.
    deadline: Option<Time>,
    /// Time until which transmission pauses after an RNR NAK.
    rnr_until: Option<Time>,
    /// Last time at which something was acknowledged or the oldest packet was sent.
    activity: Time,
    probe_doublings: u32,
    /// True while packets use a reliable path, which loses packets only when it ends.
    is_loss_rare: bool,
    /// True if the next `poll_transmit` must send a probe.
    pub(super) probe_due: bool,
    /// PSN of the packet that was probed, until it is acknowledged.
    pub(super) probed: Option<Psn>,
    /// PSN and time of the last detected loss, so that one burst of responses is not counted twice.
    went_back: Option<(Psn, Time)>,
    /// True if the next `poll_transmit` must send a duplicate that the peer answers.
    pub(super) duplicate_due: bool,
    /// True between an ACK timeout for the packet at `una` and the next answer.
    is_answer_awaited: bool,
    /// Number of ACK timeouts for the packet at `una` that were followed by an answer.
    answered_timeouts: u8,
    /// True if a retry was charged because an answer reported that the packet at `una` was lost.
    is_reported_lost: bool,
}

impl Retry {
    pub(super) fn configure(&mut self, attributes: &QpAttributes, tuning: &Tuning) {
        let nominal = 4096_u64 << (attributes.timeout & 0x1f);
        let floors = [tuning.first_ack_floor_ns, tuning.ack_floor_ns];
        self.timeouts_ns =
            (attributes.timeout != 0).then(|| floors.map(|floor| floor.clamp(nominal, nominal * 4)));
        self.retry_count = attributes.retry_count.min(7);
        self.rnr_retry = attributes.rnr_retry.min(7);
        self.left = self.retry_count;
        self.rnr_left = self.rnr_retry;
    }

    pub(super) fn is_path_proven(&self) -> bool {
        self.is_path_proven
    }

    /// Records that the packet before `end` requested an acknowledgement.
    pub(super) fn asked_for(&mut self, end: Psn) {
        if end.after(self.asked_end) > 0 {
            self.asked_end = end;
        }
    }

    /// Starts with `una` as the oldest unacknowledged PSN.
    pub(super) fn start(&mut self, una: Psn) {
        self.asked_end = una;
    }

    /// Returns true if a packet from `una` on has requested an acknowledgement, so that silence indicates a
    /// loss.
    fn has_asked(&self, una: Psn) -> bool {
        self.asked_end.after(una) > 0
    }

    fn timeout_ns(&self) -> Option<u64> {
        self.timeouts_ns.map(|of| of[usize::from(self.has_answered)])
    }

    /// Returns the time at which the ACK timeout of a packet sent now expires.
    fn deadline(&self, now: Time) -> Option<Time> {
        self.timeout_ns().map(|timeout_ns| now.plus_ns(timeout_ns))
    }

    /// Returns true if the wait after an RNR NAK is still running.
    pub(super) fn is_pausing(&self, now: Time) -> bool {
        self.rnr_until.is_some_and(|until| now < until)
    }

    /// Records that a packet was sent. `oldest` is true for the oldest outstanding packet. Later packets do not delay a
    /// probe, because new packets after a lost one could otherwise delay its probe indefinitely.
    pub(super) fn sent(&mut self, now: Time, oldest: bool) {
        self.rnr_until = None;
        if oldest {
            self.activity = now;
        }
        if self.deadline.is_none() {
            self.deadline = self.deadline(now);
        }
    }

    /// Records an acknowledgement (contract rocev2 7.23).
    pub(super) fn progress(&mut self, now: Time, outstanding: bool, measured: bool) {
        self.has_answered = true;
        self.is_path_proven = true;
        self.left = self.retry_count;
        self.rnr_left = self.rnr_retry;
        // Keep the probe timeout doubled until a round trip is measured (the second half of Karn's rule). A probe cancels
        // the measurement of its packet, so with a short timeout, each packet to a peer that has become slow would be probed
        // and never measured.
        if measured {
            self.probe_doublings = 0;
        }
        self.probe_due = false;
        self.went_back = None;
        self.forget_answers();
        self.activity = now;
        self.deadline = if outstanding { self.deadline(now) } else { None };
    }

    /// Records an answer without a new acknowledgement.
    pub(super) fn heard(&mut self) {
        if std::mem::take(&mut self.is_answer_awaited) {
            self.answered_timeouts = self.answered_timeouts.saturating_add(1);
        }
    }

    /// Resets the count of answered timeouts, because the packet at `una` has arrived.
    fn forget_answers(&mut self) {
        (self.duplicate_due, self.is_answer_awaited) = (false, false);
        (self.answered_timeouts, self.is_reported_lost) = (0, false);
    }

    fn probe_wait_ns(&self, floor_ns: u64, round_trip: &RoundTrip) -> u64 {
        round_trip.timeout_ns().max(floor_ns).saturating_mul(1 << self.probe_doublings)
    }
}

impl Requester {
    /// Sets whether packets use a reliable path, which loses packets only when it ends. Probes for losses then wait 16 times
    /// as long.
    pub fn set_loss_rare(&mut self, is_rare: bool) {
        self.retry.is_loss_rare = is_rare;
    }

    /// Handles the timers that have expired at `now`. Before this call, handle all packets that have arrived, because they
    /// may acknowledge the packets whose timer has expired.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.retry.is_pausing(now) {
            return;
        }
        self.retry.rnr_until = None;
        if !self.is_sending() || self.una == self.sent_end {
            return;
        }
        if self.gap_deadline().is_some_and(|deadline| deadline <= now) {
            self.end_gap();
        }
        if !self.retry.has_asked(self.una) {
            if self.ask_deadline().is_some_and(|deadline| deadline <= now) {
                self.ask();
                // The timer fired late, so the peer has not had time to answer.
                if self.retry.deadline.is_some_and(|deadline| deadline <= now) {
                    self.retry.deadline = self.retry.deadline(now);
                }
            }
        } else if self.retry.deadline.is_some_and(|deadline| deadline <= now) {
            self.counters.timeouts += 1;
            self.retry.deadline = None;
            if self.charge_retry() {
                self.retry.is_path_proven = false;
                self.rewind();
                self.retry.deadline = self.retry.deadline(now);
                self.retry.activity = now;
                if self.is_large_packet_missing() {
                    (self.retry.duplicate_due, self.retry.is_answer_awaited) = (true, true);
                    // The response may imply the loss of a READ response that is already requested again.
                    self.retry.went_back = Some((self.una, now));
                }
            }
        } else if self.probe_deadline().is_some_and(|deadline| deadline <= now) {
            self.counters.probes += 1;
            self.retry.probe_due = true;
            self.retry.probe_doublings = (self.retry.probe_doublings + 1).min(PROBE_DOUBLINGS_MAX);
            self.retry.activity = now;
        }
    }

    /// Returns the time for the next call of [`Requester::handle_timeout`], which may already have passed.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        if !self.is_sending() {
            return None;
        }
        if self.retry.rnr_until.is_some() {
            return self.retry.rnr_until;
        }
        if self.una == self.sent_end {
            return None;
        }
        if !self.retry.has_asked(self.una) {
            return self.ask_deadline();
        }
        [self.retry.deadline, self.probe_deadline(), self.gap_deadline()].into_iter().flatten().min()
    }

    /// Returns the time at which an acknowledgement is requested for packets that were sent without a request. It is the
    /// time of a probe, but at most half of the ACK timeout, so that the peer can answer before a retry is charged.
    fn ask_deadline(&self) -> Option<Time> {
        let half = self.retry.timeout_ns().map(|timeout_ns| self.retry.activity.plus_ns(timeout_ns / 2));
        self.probe_deadline().map(|probe| half.map_or(probe, |half| probe.min(half)))
    }

    /// Schedules a copy of the oldest packet as the next packet, with a request for an acknowledgement. The answer covers
    /// all packets that have arrived.
    fn ask(&mut self) {
        self.retry.probe_due = true;
        self.retry.asked_for(self.una.plus(1));
    }

    /// Requests an acknowledgement of the last packets before an SQD, unless one was requested.
    pub(super) fn ask_to_drain(&mut self) {
        let is_all_sent = self.cursor.packet == 0 && self.cursor.psn == self.sent_end;
        if is_all_sent && self.una != self.sent_end && self.retry.asked_end != self.sent_end {
            self.ask();
        }
    }

    /// Returns the time of the probe for the oldest packet; `None` if that packet is about to be sent anyway.
    fn probe_deadline(&self) -> Option<Time> {
        let tuning = &self.tuning;
        if tuning.probe_floor_ns == 0 || self.retry.probe_due || self.cursor.psn == self.una {
            return None;
        }
        let factor = if self.retry.is_loss_rare { RARE_LOSS_FACTOR } else { 1 };
        let floor_ns = tuning.probe_floor_ns.saturating_mul(factor);
        let wait = self.retry.probe_wait_ns(floor_ns, &self.round_trip);
        Some(self.retry.activity.plus_ns(wait))
    }

    /// Charges one retry. If the retries are used up, fails the oldest request and returns false.
    fn charge_retry(&mut self) -> bool {
        if let Some(left) = self.retry.left.checked_sub(1) {
            self.retry.left = left;
            return true;
        }
        let answered = self.retry.answered_timeouts.saturating_add(self.retry.is_reported_lost.into());
        let is_size_the_cause = answered >= ANSWERED_RETRIES && self.is_large_packet_missing();
        let flags =
            if is_size_the_cause { CompletionFlags::LARGE_PACKETS_LOST } else { CompletionFlags::empty() };
        self.fail_with(0, CompletionStatus::RetryExceeded, flags);
        false
    }

    /// Returns true if the packet at `una`, or the READ response with that PSN, carries more payload than the smallest path
    /// MTU.
    fn is_large_packet_missing(&self) -> bool {
        let mtu = self.geometry.mtu;
        let Some(wqe) = self.queue.front() else { return false };
        let packet = self.una.after(wqe.first_psn).max(0).cast_unsigned();
        let payload = wqe.length.saturating_sub(packet.saturating_mul(mtu)).min(mtu);
        wqe.kind != RequestKind::Atomic && payload > Mtu::Mtu256.bytes()
    }

    /// Sends from `una` again after a sequence NAK. Charges a retry (contract rocev2 7.20), except for a copy of the NAK.
    pub(super) fn go_back(&mut self, now: Time) {
        let recent = self.round_trip.smoothed_ns().max(self.tuning.probe_floor_ns);
        let again =
            self.retry.went_back.is_some_and(|(psn, when)| psn == self.una && now.since(when) < recent);
        if !again {
            self.go_back_to_una(now);
        }
    }

    /// Sends from `una` again, because a response to a later packet implies that the response at `una` was lost (contract
    /// rocev2 7.18). If two requests are outstanding, a peer may send many such responses before the missing one, so this
    /// happens once per PSN. Timeouts and probes handle the other cases.
    pub(super) fn go_back_implied(&mut self, now: Time) {
        self.counters.implied_losses += 1;
        if !self.has_gone_back() {
            self.go_back_to_una(now);
        }
    }

    /// Returns true if the packet at `una` already counts as lost.
    fn has_gone_back(&self) -> bool {
        self.retry.went_back.is_some_and(|(psn, _)| psn == self.una)
    }

    /// Charges a retry for the loss of the READ response at `una`, unless one has been charged. Returns false if the retries
    /// are used up.
    pub(super) fn charge_una(&mut self, now: Time) -> bool {
        self.has_gone_back() || self.charge_loss(now)
    }

    fn go_back_to_una(&mut self, now: Time) {
        // During the peer's RNR pause, everything from `una` on is sent again anyway.
        if self.retry.is_pausing(now) || self.cursor.psn == self.una {
            return;
        }
        if self.charge_loss(now) {
            self.retry.activity = now;
            self.note_loss();
            self.rewind();
        }
    }

    /// Charges a retry for the packet at `una`, which was lost according to a response. Returns false if the retries are
    /// used up.
    fn charge_loss(&mut self, now: Time) -> bool {
        let is_charged = self.charge_retry();
        if is_charged {
            self.retry.went_back = Some((self.una, now));
            self.retry.is_reported_lost = true;
            self.retry.deadline = self.retry.deadline(now);
        }
        is_charged
    }

    /// Pauses because the peer had no receive for the packet at `una`. Afterwards, that packet and all later ones are sent
    /// again (contract rocev2 7.21).
    pub(super) fn pause(&mut self, now: Time, wait_ns: u64) {
        if !self.is_sending() || self.retry.is_pausing(now) {
            return;
        }
        if self.retry.rnr_retry != RNR_UNLIMITED {
            let Some(left) = self.retry.rnr_left.checked_sub(1) else {
                self.fail(0, CompletionStatus::RnrRetryExceeded);
                return;
            };
            self.retry.rnr_left = left;
        }
        self.retry.rnr_until = Some(now.plus_ns(wait_ns));
        // The peer is alive, so earlier timeouts no longer count. The next timeout starts when the packet is
        // sent again.
        self.retry.has_answered = true;
        self.retry.is_path_proven = true;
        self.retry.left = self.retry.retry_count;
        self.retry.probe_doublings = 0;
        self.retry.deadline = None;
        self.retry.probe_due = false;
        self.retry.forget_answers();
        self.rewind();
    }

    /// Retransmits all unanswered packets without charging a retry. Called when the path of the packets changes, because
    /// packets in flight or their answers may not arrive.
    pub fn resend(&mut self) {
        if self.is_sending() {
            self.retry.is_path_proven = false;
            self.rewind();
        }
    }

    /// Moves the cursor back to the oldest unacknowledged packet. Retransmissions request an acknowledgement, and count as
    /// sent with this request, so that the ACK timeout also covers retransmissions that cannot be sent.
    pub(super) fn rewind(&mut self) {
        self.retry.asked_for(self.sent_end);
        self.round_trip.cancel();
        self.kept.forget_repeats();
        self.retry.probed = None;
        self.retry.probe_due = false;
        self.seek();
    }

    /// Returns true in a state in which packets are sent and answers are handled.
    pub(super) fn is_sending(&self) -> bool {
        matches!(self.state, QpState::ReadyToSend | QpState::SendQueueDrained)
    }
}
