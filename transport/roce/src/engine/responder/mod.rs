//! The responder of an RC or TGT queue pair.
//!
//! [`ResponderState`] holds the protocol state of the receiving side: the expected PSN, the message in progress, saved READs
//! and atomics, and pending responses. The device calls it. It accesses memory and receive queues only through
//! [`super::Target`].
//!
//! The state consists of integers, and a list of saved READs and atomics, whose length is the negotiated depth.
//! [`ResponderState::write_image`] writes it as words into memory that the processes of an XRC domain share. Any words are
//! safe to read back. Partly written ones may cause wrong responses, but never a panic or an unbounded list.

mod check;
mod execute;
mod image;
mod reply;
mod saved;

#[cfg(test)]
mod tests;

pub use image::IMAGE_WORDS;
pub use saved::MAX_SAVED;

use super::segment::{PSN_SPAN_MAX, service_of};
use crate::wire::{Bth, NakCode, Service};
use saved::SavedAnswers;
use trunkline_verbs::{Psn, QpAttributes, QpNumber, QpState, SrqNumber};

/// The outcome of a request packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handled {
    /// The expected packet, checked and placed.
    Taken,
    /// The expected packet, whose placement was answered with `Later`. Queue later packets for this QP, in order and
    /// bounded, until [`ResponderState::answer`].
    Waiting,
    /// The expected packet, which was refused. An RNR NAK, a fatal NAK or silence follows.
    Refused,
    /// The packet was not processed, because a placement is waiting. Pass it in again after [`ResponderState::answer`].
    Busy,
    /// A duplicate. The response is repeated where the protocol requires it.
    Duplicate,
    /// The packet's PSN is beyond the expected one, so an earlier packet is missing.
    OutOfOrder,
    /// The packet was ignored, because it is malformed or not a request, or does not fit the state or service.
    Dropped,
}

impl Handled {
    /// Returns true if the packet was expected and valid, which proves the peer's source address. A duplicate does not prove
    /// it, because half of all PSNs count as duplicates.
    #[must_use]
    pub fn is_proof(self) -> bool {
        self == Self::Taken
    }

    /// Returns true if the packet had the expected PSN.
    #[must_use]
    pub fn is_in_sequence(self) -> bool {
        matches!(self, Self::Taken | Self::Waiting | Self::Refused)
    }
}

/// An event that concerns the whole QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponderEvent {
    /// The first valid packet arrived in RTR (contract rocev2 7.15).
    CommunicationEstablished,
    /// The responder refused a packet with a fatal NAK, and the QP is in ERR. Codes 0x61, 0x62 or 0x64, and 0x63 correspond
    /// to `QpRequestError`, `QpAccessError` and `QpFatal`.
    Failed(NakCode),
}

/// Event counts since the QP's creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResponderCounters {
    /// Request packets accepted.
    pub packets: u64,
    /// Duplicate packets received.
    pub duplicates: u64,
    /// Packets beyond the expected PSN.
    pub out_of_order: u64,
    /// Sequence NAKs sent.
    pub sequence_naks: u64,
    /// RNR NAKs sent.
    pub rnr_naks: u64,
    /// Fatal NAKs sent.
    pub fatal_naks: u64,
    /// Acknowledgements sent.
    pub acks: u64,
    /// READ response packets sent.
    pub read_responses: u64,
    /// Packets dropped in a state in which the QP does not receive.
    pub dropped_state: u64,
    /// Packets dropped for an opcode of another service or of a response.
    pub dropped_opcode: u64,
    /// Duplicate READs and atomics dropped because they are no longer saved.
    pub dropped_duplicate: u64,
    /// Packets dropped by the target's policy.
    pub dropped_policy: u64,
}

/// The responder half of one RC or TGT queue pair.
///
/// Call [`ResponderState::modify`] after every checked transition, and [`ResponderState::handle_request`] for each packet.
/// After a batch, call [`ResponderState::poll_transmit`] and [`ResponderState::poll_event`] until they return `None`.
/// Acknowledgements are coalesced, so fewer polls between packets mean fewer ACKs. There must be one caller at a time.
///
/// Before a change to RESET or ERR, and before the QP is destroyed, call [`ResponderState::final_ack`]
/// a few times.
///
/// The response to a READ is returned one packet per poll. A caller that serves many QPs stops after a few
/// packets and polls again while [`ResponderState::has_output`] is true.
#[derive(Debug, Clone)]
pub struct ResponderState {
    number: u32,
    peer: u32,
    mtu: u32,
    access: u32,
    /// Maximum length of a message, in bytes.
    max_message: u32,
    service: u8,
    phase: u8,
    min_rnr_timer: u8,
    /// Nonzero after the first packet.
    established: u8,
    /// Nonzero if a gap or a missing receive was reported. Later packets are then dropped silently until the expected one
    /// arrives (contract rocev2 7.4).
    nak_sent: u8,
    /// Nonzero if an acknowledgement must be sent.
    ack_due: u8,
    events: u8,
    /// NAK code of this side's failure, for the event.
    failure: u8,
    expected: u32,
    /// Number of completed messages, 24 bits (contract rocev2 6.7).
    msn: u32,
    /// PSN after the last PSN that a response covers.
    acked: u32,
    /// PSN after the last packet that was dropped beyond a gap, while a sequence NAK is pending.
    gap_end: u32,
    /// Serial number of the next placement. It increases with each accepted packet and each reset, and never repeats.
    serial: u64,
    message: Message,
    pending: Pending,
    refusal: Refusal,
    saved: SavedAnswers,
    counters: ResponderCounters,
}

/// A message whose first packet has arrived but whose last packet has not.
#[derive(Debug, Clone, Copy, Default)]
struct Message {
    /// `SEND` or `WRITE`, or 0 for none.
    kind: u8,
    srq: u32,
    /// Number of bytes that have arrived.
    received: u32,
    /// Range of a WRITE.
    address: u64,
    rkey: u32,
    length: u32,
}

impl Message {
    const NONE: u8 = 0;
    const SEND: u8 = 1;
    const WRITE: u8 = 2;
}

/// State needed to finish a packet once it is placed.
#[derive(Debug, Clone, Copy, Default)]
struct Pending {
    active: u8,
    operation: u8,
    ack_request: u8,
    psn: u32,
    srq: u32,
    payload: u32,
    address: u64,
    rkey: u32,
    length: u32,
}

/// The NAK to be sent next, or the last one sent.
#[derive(Debug, Clone, Copy, Default)]
struct Refusal {
    due: u8,
    syndrome: u8,
    psn: u32,
}

/// Bits of `ResponderState::events`.
const EVENT_ESTABLISHED: u8 = 1;
const EVENT_FAILED: u8 = 2;

/// Values of `ResponderState::phase`.
const PHASE_IDLE: u8 = 0;
const PHASE_RECEIVING: u8 = 1;
const PHASE_RTR: u8 = 2;
const PHASE_ERROR: u8 = 3;

/// Increments a counter. Never panics, even if the stored bytes are arbitrary.
fn count(counter: &mut u64) {
    *counter = counter.wrapping_add(1);
}

impl ResponderState {
    /// Creates a responder in RESET. `number` is the number of the QP.
    #[must_use]
    pub fn new(number: QpNumber) -> Self {
        Self {
            number: number.get(),
            peer: 0,
            mtu: 256,
            access: 0,
            max_message: PSN_SPAN_MAX * 256,
            service: 0,
            phase: PHASE_IDLE,
            min_rnr_timer: 0,
            established: 0,
            nak_sent: 0,
            ack_due: 0,
            events: 0,
            failure: 0,
            expected: 0,
            msn: 0,
            acked: 0,
            gap_end: 0,
            serial: 0,
            message: Message::default(),
            pending: Pending::default(),
            refusal: Refusal::default(),
            saved: SavedAnswers::default(),
            counters: ResponderCounters::default(),
        }
    }

    /// Applies attributes and state after a checked transition. INIT to RTR starts at `rq_psn`. RESET clears everything
    /// except the counters. ERR drops pending packets, except the NAK for the failure that caused it.
    pub fn modify(&mut self, attributes: &QpAttributes) {
        let from = self.phase;
        let to = match attributes.state {
            QpState::Reset | QpState::Init => PHASE_IDLE,
            QpState::Error | QpState::SendQueueError => PHASE_ERROR,
            QpState::ReadyToReceive => PHASE_RTR,
            QpState::ReadyToSend | QpState::SendQueueDrained => PHASE_RECEIVING,
        };
        if to == PHASE_ERROR {
            if from != PHASE_ERROR {
                self.forget();
            }
            self.phase = to;
            return;
        }
        if to == PHASE_IDLE || from == PHASE_IDLE || from == PHASE_ERROR {
            let counters = self.counters;
            let max_message = self.max_message;
            let serial = self.serial.wrapping_add(1);
            *self = Self { counters, max_message, serial, ..Self::new(QpNumber::new(self.number)) };
            self.expected = attributes.rq_psn.get();
            self.acked = self.expected;
        }
        self.phase = to;
        self.service = service_of(attributes.qp_type).0;
        self.peer = attributes.destination_qp.get();
        self.mtu = attributes.path_mtu.bytes();
        self.access = attributes.access.bits();
        self.saved.set_depth(attributes.max_dest_rd_atomic);
        self.min_rnr_timer = attributes.min_rnr_timer & 0x1f;
    }

    /// Limits the length of accepted messages, in bytes. The default is 1 GiB.
    pub fn limit_message(&mut self, bytes: u32) {
        self.max_message = bytes.min(PSN_SPAN_MAX * 256);
    }

    /// Returns the QP's number.
    #[must_use]
    pub fn number(&self) -> QpNumber {
        QpNumber::new(self.number)
    }

    /// Returns true if a placement was answered with `Later` and [`ResponderState::answer`] has not been called yet.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.pending.active != 0
    }

    /// Returns true if the QP is in ERR, after a failure or through `modify`.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.phase == PHASE_ERROR
    }

    /// Returns true if [`ResponderState::poll_event`] has an event.
    #[inline]
    #[must_use]
    pub fn has_event(&self) -> bool {
        self.events & (EVENT_ESTABLISHED | EVENT_FAILED) != 0
    }

    /// Takes the next event.
    pub fn poll_event(&mut self) -> Option<ResponderEvent> {
        if self.events & EVENT_ESTABLISHED != 0 {
            self.events &= !EVENT_ESTABLISHED;
            return Some(ResponderEvent::CommunicationEstablished);
        }
        if self.events & EVENT_FAILED != 0 {
            self.events &= !EVENT_FAILED;
            return Some(ResponderEvent::Failed(NakCode(self.failure)));
        }
        None
    }

    /// Returns true if a message is partly received. Its target may then hold a receive that must be flushed when the QP
    /// goes to ERR or RESET (contract I2).
    #[must_use]
    pub fn message_in_progress(&self) -> bool {
        self.message.kind != Message::NONE
    }

    /// Returns the number of PSNs that are missing before a request; 0 if the request is expected or a duplicate.
    #[must_use]
    pub fn gap_before(&self, bth: &Bth) -> u32 {
        u32::try_from(bth.psn.after(Psn::new(self.expected))).unwrap_or(0)
    }

    /// Returns the serial number of the next placement, or of the waiting one. It is unique among the QP's packets. A packet
    /// repeated after an unknown outcome keeps its number.
    #[must_use]
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Returns the SRQ of the message in progress.
    #[must_use]
    pub fn message_srq(&self) -> Option<SrqNumber> {
        self.message_in_progress().then(|| self.srq(self.message.srq)).flatten()
    }

    /// Returns the PSN of the next expected packet.
    #[must_use]
    pub fn expected(&self) -> Psn {
        Psn::new(self.expected)
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &ResponderCounters {
        &self.counters
    }

    /// Discards all pending responses and all work in progress.
    fn forget(&mut self) {
        self.ack_due = 0;
        self.refusal = Refusal::default();
        self.pending = Pending::default();
        self.saved.stop();
    }

    /// Returns the path MTU in bytes, limited to the range of valid MTUs because the shared state may hold any value.
    fn mtu(&self) -> u32 {
        self.mtu.clamp(256, 4096)
    }

    fn is_xrc(&self) -> bool {
        self.service == Service::XRC.0
    }
}
