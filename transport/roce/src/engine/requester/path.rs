//! Interface to the path's congestion control, with the path's allowance and the signals for decisions.

use super::Requester;
use super::queue::Wqe;
use crate::engine::rtt::Measured;
use crate::engine::segment::RequestKind;
use trunkline_verbs::ReadAllowance;

/// Numbers of packets in flight, by direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InFlight {
    /// Request packets without an acknowledgement.
    pub requests: u32,
    /// Response packets of READs that were requested but have not arrived.
    pub responses: u32,
}

impl InFlight {
    // The counts are unused on a path without congestion control.
    pub(super) fn add_requests(&mut self, packets: u32) {
        self.requests = self.requests.saturating_add(packets);
    }

    pub(super) fn add_responses(&mut self, packets: u32) {
        self.responses = self.responses.saturating_add(packets);
    }
}

/// Number of packets that a path admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Number of request packets that may be sent.
    pub requests: u32,
    /// Number of response packets that may be requested.
    pub responses: u32,
    /// True if no response is in flight on the path. A piece of a READ may then be requested even if it is longer than
    /// `responses`.
    pub is_idle: bool,
    /// Number of packets after which an acknowledgement is requested, at least 1.
    pub ack_every: u32,
    /// Number of response packets per piece of a READ that is posted from now on, at least 1.
    pub read_piece: u32,
}

/// Events since the last [`Requester::take_signals`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Signals {
    /// Packets that were acknowledged, or have arrived.
    pub acknowledged: InFlight,
    /// The last measured round trip.
    pub measured: Option<Measured>,
    /// True if request packets were lost.
    pub lost_requests: bool,
    /// True if responses were lost.
    pub lost_responses: bool,
}

impl Requester {
    /// Sets the path's allowance; `None` for a path without congestion control.
    pub fn admit(&mut self, allowance: Option<Allowance>) {
        self.allowance = allowance;
    }

    /// Returns true if the peer has not answered since the last ACK timeout, or has never answered on this path. The peer
    /// may be dead, so the packets of such a QP must not use the window of other QPs.
    #[must_use]
    pub fn is_on_trial(&self) -> bool {
        !self.retry.is_path_proven()
    }

    /// Returns true if the next packet waits only for the path.
    #[must_use]
    pub fn is_held_back(&self) -> bool {
        self.is_held_back
    }

    /// Returns true if the next packet is a READ request.
    #[must_use]
    pub fn is_reading(&self) -> bool {
        self.queue.get(self.cursor.index).is_some_and(|wqe| wqe.kind == RequestKind::Read)
    }

    /// Returns the payload bytes of a full packet.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.geometry.mtu
    }

    /// Returns the numbers of packets in flight.
    #[must_use]
    pub fn in_flight(&self) -> InFlight {
        InFlight { requests: self.unanswered_requests(), responses: self.missing_responses() }
    }

    /// Returns the number of packets that new READs may request if the path admits `room` packets.
    #[must_use]
    pub fn read_allowance(&self, room: u32) -> ReadAllowance {
        let unsent = self.queue.range(self.cursor.index.min(self.queue.len())..);
        let unsent = unsent.filter(|wqe| wqe.kind == RequestKind::Read).map(|wqe| wqe.psns).sum::<u32>();
        // Part of the READ at the cursor is already in flight.
        let begun = if self.is_reading() { self.cursor.packet } else { 0 };
        let buffered = self.pace.read_window.saturating_sub(self.missing_responses());
        ReadAllowance {
            packets: room.min(buffered).saturating_sub(unsent - begun),
            per_read: self.read_piece(),
            packet_bytes: self.geometry.mtu,
        }
    }

    /// Takes the events since the last call.
    pub fn take_signals(&mut self) -> Signals {
        Signals { measured: self.round_trip.take_measured(), ..std::mem::take(&mut self.signals) }
    }

    /// Returns the number of response packets that were requested but have not arrived.
    pub(super) fn missing_responses(&self) -> u32 {
        self.cursor.missing
    }

    /// Returns the number of packets per piece of a READ that is posted now.
    pub(super) fn read_piece(&self) -> u32 {
        let most = self.pace.read_piece;
        self.allowance.map_or(most, |allowance| allowance.read_piece.clamp(1, most))
    }

    /// Returns the number of packets after which an acknowledgement is requested.
    pub(super) fn ack_every(&self) -> u32 {
        let most = self.pace.ack_every;
        // The last packet that the path admits also requests an acknowledgement, because only an acknowledgement opens the
        // window.
        self.allowance.map_or(most, |allowance| {
            if allowance.requests <= 1 { 1 } else { allowance.ack_every.clamp(1, most) }
        })
    }

    /// Returns true if the path admits the packet at the cursor.
    pub(super) fn is_admitted(&self, wqe: &Wqe) -> bool {
        let Some(allowance) = self.allowance else { return true };
        if wqe.kind != RequestKind::Read {
            return allowance.requests > 0;
        }
        let asked = self.next_packet(wqe, self.cursor.packet) - self.cursor.packet;
        asked <= allowance.responses || allowance.is_idle && allowance.responses > 0
    }

    /// Subtracts a sent packet, or the responses that it requests, from the allowance.
    pub(super) fn spend(&mut self, kind: RequestKind, packets: u32) {
        let Some(allowance) = &mut self.allowance else { return };
        if kind == RequestKind::Read {
            allowance.responses = allowance.responses.saturating_sub(packets);
            allowance.is_idle = false;
        } else {
            allowance.requests = allowance.requests.saturating_sub(packets);
        }
    }

    /// Records that the oldest packet or its response was lost.
    pub(super) fn note_loss(&mut self) {
        if self.queue.front().is_some_and(Wqe::is_read_or_atomic) {
            self.signals.lost_responses = true;
        } else {
            self.signals.lost_requests = true;
        }
    }
}
