//! The requester and completer of an RC or INI queue pair.
//!
//! A [`Requester`] owns the send queue, from the posting of a request to its completion, and all of the queue's timers. The
//! device calls it. It accesses memory only through [`super::LocalMemory`], and never decides where a packet goes.
//!
//! ```text
//!  queue:   [ retired | sent, unacknowledged | not sent yet ]
//!                     ^ una          ^ cursor     ^ sent_end        (PSNs)
//! ```
//! `cursor` is the next packet to send. It equals `sent_end` except after a rewind (NAK, RNR, timeout), when the packets
//! between the two are sent again.
//!
//! # Pieces of a READ
//! The response to a READ arrives as fast as the peer can send, and only smaller requests can slow it down. So a READ is
//! requested in pieces, each of which is a separate READ request to the peer. A range that is requested again after a loss
//! is part of a piece, and so part of a response that the peer has saved (contract rocev2 7.24).
//!
//! # Requests for an acknowledgement
//! The last packet of a message requests an acknowledgement only if necessary. Otherwise a later packet requests it, at most
//! a quarter of the window or half of the send queue later, or the tail-loss probe does so. A probe after packets without
//! such a request does not indicate a loss.
//!
//! # Lost responses to READs
//! Responses beyond a lost one are kept, and only the missing ones are requested again; see `gaps`.
//!
//! # Tail-loss probe, a deviation
//! The nominal local ACK timeout is tens of milliseconds. In addition, the oldest unacknowledged packet is sent once more,
//! without charge to `retry_cnt`, after a silence of the smoothed round trip plus four times its variation (at least 1 ms,
//! doubling). If the packet belongs to a READ, only its first missing response is requested. The peer receives a duplicate,
//! which the protocol allows at any time. Only the nominal timeouts determine that a peer is dead.
//!
//! # Loss of large packets
//! A network with a smaller MTU than its end interfaces may drop large packets without a report. This must be distinguished
//! from the death of a peer and from random losses. So each ACK timeout of a packet with more payload than the smallest path
//! MTU also sends an empty SEND with the PSN before `una`. The peer acknowledges it as a duplicate, whichever later packets
//! it has received. If the retries are exhausted, and the peer has answered two of these SENDs but not received the packet,
//! the work completes with [`trunkline_verbs::CompletionFlags::LARGE_PACKETS_LOST`].

mod complete;
mod gaps;
mod pace;
mod path;
mod queue;
mod retry;
mod transmit;

#[cfg(test)]
mod tests;

use super::rtt::RoundTrip;
use super::segment::Geometry;
use gaps::Kept;
use pace::Pace;
pub use path::{Allowance, InFlight, Signals};
use queue::{Spare, Wqe};
use retry::Retry;
use std::collections::VecDeque;
use transmit::Cursor;
use trunkline_verbs::{
    Completion, CompletionStatus, Mtu, Psn, QpAttributes, QpNumber, QpState, QpType, QueueCapacities,
};

/// Parameters of windows and timers. They affect only the timing of packets to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Bytes of a UDP socket's receive buffer that packets in flight may use in each direction. Bounds `window` and
    /// `read_window`; a third of it bounds `ack_every` and `read_piece`.
    pub buffer_bytes: u32,
    /// Maximum number of unacknowledged packets of any size.
    pub window: u32,
    /// Number of packets after which an acknowledgement is requested within a long message.
    pub ack_every: u32,
    /// Number of response packets per READ request, at least 1. A longer READ is requested in pieces.
    pub read_piece: u32,
    /// Maximum number of response packets that were requested but have not arrived.
    pub read_window: u32,
    /// Maximum length of a message, in bytes.
    pub max_message: u32,
    /// Minimum wait before a tail-loss probe, in nanoseconds; 0 disables probes.
    pub probe_floor_ns: u64,
    /// Minimum ACK timeout, in nanoseconds. It applies within the range that the standard allows, from the
    /// nominal value to four times that (contract rocev2 7.22). Probes detect losses much earlier. The
    /// timeout decides when a peer counts as dead, so it must be longer than a peer may wait for a processor.
    pub ack_floor_ns: u64,
    /// Minimum ACK timeout, in nanoseconds, until the peer responds for the first time, because it may still be starting.
    pub first_ack_floor_ns: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            // Three quarters of the buffer that Linux allows without privileges, 2 * 212,992. The rest is
            // for packets that were read but not freed yet, and for acknowledgements.
            buffer_bytes: 312 << 10,
            window: 192,
            ack_every: 64,
            read_piece: 64,
            read_window: 192,
            max_message: 1 << 30,
            probe_floor_ns: 1_000_000,
            ack_floor_ns: 134_000_000,
            first_ack_floor_ns: 268_000_000,
        }
    }
}

/// Reason why a request is refused. The enum is exhaustive, so that a device must map each cause to a separate error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PostRefused {
    /// The QP cannot send yet (contract E8).
    #[error("the QP is in {0:?}; sends are taken from RTS on")]
    NotReady(QpState),
    /// The send queue is full.
    #[error("the send queue is full; take completions or make the QP with a larger max_send_wr")]
    QueueFull,
    /// More SGEs than the QP's limit.
    #[error("too many SGEs; make the QP with a larger max_send_sge")]
    TooManySges,
    /// More inline bytes than the QP's limit, or inline data for a READ or atomic.
    #[error("inline data too long, or not allowed for this operation")]
    BadInline,
    /// The message is longer than the port or the PSN space allows.
    #[error("the message is longer than the port's max_msg_sz")]
    TooLong,
    /// A READ or atomic, although `max_rd_atomic` is 0.
    #[error("max_rd_atomic of the QP is 0, so READs and atomics can never be sent")]
    NoReadResources,
    /// The gather list of an atomic does not hold 8 bytes.
    #[error("the gather list of an atomic must have 8 bytes")]
    BadAtomic,
}

/// An event that concerns the whole QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequesterEvent {
    /// A work request failed. The QP is now in ERR, and its responder half must be moved to ERR too.
    Failed(CompletionStatus),
    /// All requests started before SQD are acknowledged.
    Drained,
}

/// Outcome of handling a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response {
    /// The response acknowledged something, or was a NAK for an outstanding packet.
    Progress,
    /// The response is for an acknowledged packet or repeats a NAK, and is ignored.
    Stale,
    /// The response is malformed or for a packet that was never sent, and is ignored. If it does not match its request, the
    /// QP has failed.
    Unexpected,
}

impl Response {
    /// Returns true if the response proves the peer's source address, because it answered an outstanding PSN.
    #[must_use]
    pub fn is_proof(self) -> bool {
        self == Self::Progress
    }
}

/// Event counts since the QP's creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequesterCounters {
    /// Packets sent, including retransmissions.
    pub packets: u64,
    /// Packets sent again after a timeout, a NAK or an implied loss, excluding probes.
    pub retransmits: u64,
    /// Nominal local ACK timeouts.
    pub timeouts: u64,
    /// Tail-loss probes, excluding probes for packets that had not requested an acknowledgement.
    pub probes: u64,
    /// RNR NAKs received.
    pub rnr_naks: u64,
    /// Sequence NAKs received.
    pub sequence_naks: u64,
    /// Lost responses inferred from a later acknowledgement (contract rocev2 7.18).
    pub implied_losses: u64,
    /// Responses for packets that were already acknowledged.
    pub stale: u64,
    /// Responses that were malformed, for packets never sent, or received in a wrong state.
    pub unexpected: u64,
}

/// Requester and completer of one RC or INI queue pair.
///
/// The caller checks transitions with `trunkline_verbs::check_transition`, then calls [`Requester::modify`]. After every
/// `post`, `handle_*` or `modify` it drains [`Requester::poll_completion`] and [`Requester::poll_event`], calls
/// [`Requester::poll_transmit`] until `None` (or stops earlier and continues later), then reads [`Requester::next_timeout`]
/// and calls [`Requester::handle_timeout`] at or after that time. A late call is harmless, and an early call has no effect.
/// Times are monotonic.
#[derive(Debug)]
pub struct Requester {
    number: QpNumber,
    qp_type: QpType,
    capacities: QueueCapacities,
    signal_all: bool,
    tuning: Tuning,
    state: QpState,
    geometry: Geometry,
    pace: Pace,
    max_rd_atomic: u32,

    queue: VecDeque<Wqe>,
    spare: Spare,
    completions: VecDeque<Completion>,
    events: VecDeque<RequesterEvent>,

    /// Oldest PSN that is not acknowledged.
    una: Psn,
    /// PSN after the last PSN that was ever sent.
    sent_end: Psn,
    /// PSN of the next request to be posted.
    post_psn: Psn,
    /// Message number of the last posted request (contract rocev2 6.6).
    post_ssn: Psn,
    cursor: Cursor,
    kept: Kept,
    retry: Retry,
    round_trip: RoundTrip,
    /// Message number up to which the peer has posted receives; `None` means unlimited.
    credit_limit: Option<Psn>,
    drain_reported: bool,
    /// Number of packets that the path admits; `None` on a path without congestion control.
    allowance: Option<Allowance>,
    /// True if the packet at the cursor waits only for the path.
    is_held_back: bool,
    signals: Signals,
    counters: RequesterCounters,
}

impl Requester {
    /// Creates a requester in RESET. `qp_type` is `Rc` or `XrcIni`.
    #[must_use]
    pub fn new(
        number: QpNumber,
        qp_type: QpType,
        capacities: QueueCapacities,
        signal_all: bool,
        tuning: Tuning,
    ) -> Self {
        Self {
            number,
            qp_type,
            capacities,
            signal_all,
            tuning,
            state: QpState::Reset,
            geometry: Geometry::new(&QpAttributes::new(qp_type)),
            pace: Pace::new(&tuning, Mtu::Mtu256.bytes()),
            max_rd_atomic: 0,
            queue: VecDeque::new(),
            spare: Spare::default(),
            completions: VecDeque::new(),
            events: VecDeque::new(),
            una: Psn::new(0),
            sent_end: Psn::new(0),
            post_psn: Psn::new(0),
            post_ssn: Psn::new(0),
            cursor: Cursor::default(),
            kept: Kept::default(),
            retry: Retry::default(),
            round_trip: RoundTrip::default(),
            credit_limit: None,
            drain_reported: false,
            allowance: None,
            is_held_back: false,
            signals: Signals::default(),
            counters: RequesterCounters::default(),
        }
    }

    /// Applies attributes and state after a checked transition. RESET clears everything without completions, ERR flushes,
    /// RTR to RTS starts at `sq_psn`, and SQD stops new messages.
    pub fn modify(&mut self, attributes: &QpAttributes) {
        let from = self.state;
        self.state = attributes.state;
        match attributes.state {
            QpState::Reset => {
                self.queue.clear();
                self.completions.clear();
                self.events.clear();
                self.stop(QpState::Reset);
                return;
            }
            QpState::Error | QpState::SendQueueError => {
                while let Some(wqe) = self.queue.pop_front() {
                    self.complete(wqe, CompletionStatus::WorkRequestFlushed);
                }
                self.stop(QpState::Error);
                return;
            }
            _ => {}
        }
        self.geometry = Geometry::new(attributes);
        self.pace = Pace::new(&self.tuning, self.geometry.mtu);
        self.max_rd_atomic = u32::from(attributes.max_rd_atomic);
        self.retry.configure(attributes, &self.tuning);
        self.drain_reported = false;
        if attributes.state == QpState::ReadyToSend && from == QpState::ReadyToReceive {
            self.una = attributes.sq_psn;
            self.sent_end = attributes.sq_psn;
            self.post_psn = attributes.sq_psn;
            self.post_ssn = Psn::new(0);
            self.retry.start(self.una);
            self.seek();
        }
        if attributes.state == QpState::SendQueueDrained {
            self.ask_to_drain();
        }
        self.report_drained();
    }

    /// Returns the current state, which is the state of the last `modify`, or ERR after a failure.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.state
    }

    /// Takes the next completion, in the order of posting.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Returns true if there is a completion or an event to take.
    #[must_use]
    pub fn has_reports(&self) -> bool {
        !self.completions.is_empty() || !self.events.is_empty()
    }

    /// Takes the next event.
    pub fn poll_event(&mut self) -> Option<RequesterEvent> {
        self.events.pop_front()
    }

    /// Returns the number of requests that have not ended.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.queue.len()
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &RequesterCounters {
        &self.counters
    }

    /// Enters a state without transmission. The queue must be empty.
    fn stop(&mut self, state: QpState) {
        self.state = state;
        self.una = self.post_psn;
        self.sent_end = self.post_psn;
        self.kept.clear();
        self.retry = Retry::default();
        self.is_held_back = false;
        self.round_trip = RoundTrip::default();
        self.credit_limit = None;
        self.seek();
    }
}
