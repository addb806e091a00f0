//! Effects of packets on a QP, and its outgoing packets.

use super::Qp;
use super::memory::QpMemory;
use super::route::Heard;
use super::target::QpTarget;
use crate::device::shard::ControlEvent;
use crate::device::shard::link_endpoint::Outgoing;
use crate::device::shard::local::ArrivedPayload;
use crate::device::shard::resources::Resources;
use std::net::SocketAddr;
use trunkline_roce::engine::{
    Handled, NakCode, Placement, Requester, RequesterEvent, ResponderEvent, ResponderState, Response,
    is_request,
};
use trunkline_roce::wire::{Bth, Opcode, Operation, Packet};
use trunkline_verbs::{AsyncEventKind, QpState, Time};

/// Maximum number of packets that a QP sends per turn.
const PACKETS_IN_TURN: usize = 64;
/// Number of copies of the last acknowledgement that a QP sends before it stops receiving.
const FINAL_ACK_COPIES: usize = 3;

/// Maximum number of PSNs missing before a request of a software device for which a NAK is sent. A larger gap is detected by
/// an ACK timeout. Requests with a guessed PSN therefore rarely cause a NAK.
const MAX_GAP: u32 = 1 << 14;

impl Qp {
    /// Stores a request while a placement in another process is pending. Returns false if no placement is pending.
    pub(in crate::device::shard) fn keep(&mut self, packet: &[u8], joined: bool) -> bool {
        match &mut self.shared {
            Some(shared) if shared.is_waiting() => {
                shared.keep(packet, joined);
                true
            }
            _ => false,
        }
    }

    /// Passes a request to the responder. Returns `None` if the QP does not have a responder. `joined` is true if the
    /// request may contain the payload of several packets.
    pub(in crate::device::shard) fn handle_request(
        &mut self,
        packet: &Packet<'_>,
        joined: bool,
        now: Time,
        resources: &mut Resources,
    ) -> Option<Handled> {
        let responder = self.responder.as_mut()?;
        self.awaits_proof = None;
        let (shared, serial) = (self.shared.as_deref_mut(), responder.serial());
        let mut target =
            QpTarget::of_shared(self.number, &mut self.reception, resources, shared, serial, now);
        let handled = if joined {
            responder.handle_joined(packet, &mut target)
        } else {
            responder.handle_request(packet, &mut target)
        };
        drop(target);
        if self.awaits_rtu && handled.is_in_sequence() {
            self.awaits_rtu = false;
            resources.control_events.push(ControlEvent::FirstPacket(self.number));
        }
        if handled == Handled::Waiting {
            // Publish the state before the request to another process is sent.
            self.publish(resources);
        }
        Some(handled)
    }

    /// Returns true if a packet is a request after a gap that a software device would not leave: from another port than its
    /// proven one, or after more than [`MAX_GAP`] PSNs. A forged request must not cause a NAK, because the peer treats the NAK
    /// as a loss. A peer whose port has changed proves the new port with the next request in sequence.
    pub(in crate::device::shard) fn is_doubtful_gap(&self, bth: &Bth, from: SocketAddr) -> bool {
        let Some((responder, route)) = self.responder.as_ref().zip(self.route.as_ref()) else { return false };
        let gap = if is_request(bth.opcode) { responder.gap_before(bth) } else { 0 };
        gap > 0 && route.is_to_soft() && (gap > MAX_GAP || !route.is_from_proven_port(from))
    }

    /// Returns true if, after a request, the send path has to serve the QP: to send a packet, report an
    /// event, publish the state of a shared TGT, or choose a path.
    pub(in crate::device::shard) fn wants_service(&self) -> bool {
        self.has_output()
            || self.responder.as_ref().is_some_and(ResponderState::has_event)
            || self.shared.is_some()
            || self.path.epoch == 0
    }

    /// Passes a response to the requester. Returns `None` if the QP does not have a requester. `joined` is true if the
    /// response may contain the payload of several packets. `arrived` is the payload of a READ response in a ring; the
    /// packet then contains only the payload's length.
    pub(in crate::device::shard) fn handle_response(
        &mut self,
        packet: &Packet<'_>,
        joined: bool,
        arrived: Option<ArrivedPayload<'_>>,
        now: Time,
        resources: &mut Resources,
    ) -> Option<Response> {
        let requester = self.requester.as_mut()?;
        let Resources { reader, tables, paths, .. } = resources;
        let reading = reader.enter();
        let mut memory = QpMemory { keys: tables.keys.view(&reading), pd: self.pd, ring: None, arrived };
        let response = if joined {
            requester.handle_joined(now, packet, &mut memory)
        } else {
            requester.handle_response(now, packet, &mut memory)
        };
        paths.observe(&mut self.on_path, self.number.get(), requester, false, now);
        Some(response)
    }

    /// Records that the network marked a request (ECN).
    pub(in crate::device::shard) fn request_was_marked(&mut self) {
        self.owes_echo = true;
    }

    /// Handles ECN information in a packet from the peer: the report that a request was marked, and the mark
    /// of a response with data.
    pub(in crate::device::shard) fn take_marks(
        &mut self,
        bth: &Bth,
        is_marked: bool,
        now: Time,
        resources: &mut Resources,
    ) {
        let is_echo = bth.opcode == Opcode::CNP || bth.has_becn();
        let has_data = bth.opcode.operation() != Operation::ACKNOWLEDGE;
        resources.counters.ecn_echoes_received += u64::from(is_echo);
        resources.paths.marked(&self.on_path, is_echo, is_marked && has_data, now);
    }

    /// Returns true if a response with this header answers an outstanding PSN.
    pub(in crate::device::shard) fn has_outstanding(&self, bth: &Bth) -> bool {
        self.requester.as_ref().is_some_and(|requester| requester.has_outstanding(bth))
    }

    /// Handles a request of which only the BTH could be parsed (contract rocev2 7.9). Returns false if the QP does not
    /// have a responder.
    pub(in crate::device::shard) fn handle_malformed(&mut self, bth: &Bth) -> bool {
        let Some(responder) = &mut self.responder else { return false };
        let _handled = responder.handle_malformed(bth);
        true
    }

    /// Handles the outcome of a placement in another process. Returns true if the message in progress holds a
    /// receive.
    pub(in crate::device::shard) fn answer(&mut self, placement: Placement) -> bool {
        let Some(responder) = &mut self.responder else { return false };
        let handled = responder.answer(placement);
        let holds_receive = responder.message_srq().is_some();
        if let Some(from) = self.awaits_proof.take_if(|_| handled.is_proof()) {
            self.heard(&from, || true);
        }
        holds_receive
    }

    /// Records the proven source address of the peer. `soft` returns true if the peer is a software device;
    /// packets then go to the port of the proven source.
    pub(in crate::device::shard) fn heard(&mut self, from: &Heard, soft: impl FnOnce() -> bool) {
        if let Some(route) = &mut self.route {
            let was_member = route.is_to_member();
            route.heard(from, soft);
            if !was_member && route.is_to_member() {
                self.reconsider_path();
            }
        }
    }

    /// Records a source address that is proven if the pending placement in another process succeeds.
    pub(in crate::device::shard) fn will_hear(&mut self, from: Heard) {
        self.awaits_proof = Some(from);
    }

    /// Sends responses first, then requests. Returns true if the QP may have more to send.
    pub(in crate::device::shard) fn send_packets(
        &mut self,
        outgoing: &mut Outgoing,
        now: Time,
        resources: &mut Resources,
    ) -> bool {
        let Some(route) = &self.route else { return false };
        let mut sent = 0;
        if let Some(responder) = &mut self.responder {
            let (shared, serial) = (self.shared.as_deref_mut(), responder.serial());
            let mut target =
                QpTarget::of_shared(self.number, &mut self.reception, resources, shared, serial, now);
            let owed_echo = self.owes_echo;
            sent += outgoing.push_run(route, PACKETS_IN_TURN, |out| {
                let start = out.len();
                let transmit = responder.poll_transmit(&mut target, out)?;
                if std::mem::take(&mut self.owes_echo) {
                    Bth::set_becn(&mut out[start..]);
                }
                Some(transmit)
            });
            drop(target);
            resources.counters.ecn_echoes_sent += u64::from(owed_echo && !self.owes_echo);
        }
        if let Some(requester) = &mut self.requester {
            let Resources { reader, tables, paths, counters, .. } = resources;
            let reading = reader.enter();
            let memory =
                QpMemory { keys: tables.keys.view(&reading), pd: self.pd, ring: None, arrived: None };
            paths.admit(&mut self.on_path, self.number.get(), route, requester, now);
            sent += outgoing
                .push_run(route, PACKETS_IN_TURN - sent, |out| requester.poll_transmit(now, &memory, out));
            paths.observe(&mut self.on_path, self.number.get(), requester, true, now);
            counters.congestion_waits += u64::from(requester.is_held_back());
        }
        sent == PACKETS_IN_TURN
    }

    /// Sends copies of the last acknowledgement while `has_room` returns true, for a QP that is about to stop
    /// receiving.
    pub(in crate::device::shard) fn send_final_ack(
        &mut self,
        outgoing: &mut Outgoing,
        has_room: impl Fn(&Outgoing) -> bool,
    ) {
        let (Some(route), Some(responder)) = (&self.route, &mut self.responder) else { return };
        for _ in 0..FINAL_ACK_COPIES {
            if !has_room(outgoing) || outgoing.push_run(route, 1, |out| responder.final_ack(out)) == 0 {
                return;
            }
        }
    }

    /// Reports completions and events, and publishes the state of a shared TGT.
    #[inline]
    pub(in crate::device::shard) fn report(&mut self, resources: &mut Resources) {
        if self.requester.as_ref().is_some_and(Requester::has_reports)
            || self.responder.as_ref().is_some_and(ResponderState::has_event)
            || self.shared.is_some()
        {
            self.report_all(resources);
        }
    }

    #[inline(never)]
    fn report_all(&mut self, resources: &mut Resources) {
        // Complete the failed request before the flushed requests, since programs take the first completion with an
        // error as the cause.
        self.report_completions(resources);
        if self.report_events(resources) {
            self.report_completions(resources);
        }
        // The state must be visible before the responses that reveal it are sent.
        self.publish(resources);
        if let Some(shared) = &mut self.shared {
            shared.notify(self.number, &resources.events, &mut resources.outbox);
        }
    }

    fn report_completions(&mut self, resources: &mut Resources) {
        let Some(requester) = &mut self.requester else { return };
        let mut completer = resources.completer();
        while let Some(completion) = requester.poll_completion() {
            if let Some(cq) = &self.send_cq {
                completer.complete(cq, completion, false);
            }
        }
    }

    /// Reports events. Returns true if any were reported.
    fn report_events(&mut self, resources: &mut Resources) -> bool {
        let (mut any, mut failed) = (false, false);
        while let Some(event) = self.requester.as_mut().and_then(Requester::poll_event) {
            any = true;
            match event {
                RequesterEvent::Failed(_) => {
                    self.fail();
                    self.enter_error(resources);
                }
                RequesterEvent::Drained => self.raise(AsyncEventKind::SqDrained, &resources.events),
            }
        }
        while let Some(event) = self.responder.as_mut().and_then(ResponderState::poll_event) {
            any = true;
            let kind = match event {
                ResponderEvent::CommunicationEstablished => AsyncEventKind::CommunicationEstablished,
                ResponderEvent::Failed(code) => {
                    if self.attributes.state != QpState::Error {
                        self.fail();
                        self.enter_error(resources);
                    }
                    failed = true;
                    failure(code)
                }
            };
            self.raise(kind, &resources.events);
        }
        if failed {
            self.end_remote_message(true, resources);
        }
        any
    }

    /// Returns the time of the next timeout, if any.
    pub(in crate::device::shard) fn next_timeout(&self) -> Option<Time> {
        let requester = self.requester.as_ref().and_then(Requester::next_timeout);
        if self.shared.is_none() && self.on_path.pause_end.is_none() {
            return requester;
        }
        let shared = self.shared.as_ref().and_then(|shared| shared.next_timeout());
        requester.into_iter().chain(shared).chain(self.on_path.pause_end).min()
    }

    /// Handles a timeout. Returns true if the peer has not answered in time.
    pub(in crate::device::shard) fn handle_timeout(&mut self, now: Time, resources: &mut Resources) -> bool {
        let mut is_silent = false;
        if let Some(requester) = &mut self.requester {
            let before = requester.counters().timeouts;
            requester.handle_timeout(now);
            is_silent = requester.counters().timeouts != before;
            resources.paths.observe(&mut self.on_path, self.number.get(), requester, false, now);
            if is_silent && let Some(route) = &mut self.route {
                route.silent();
                self.reconsider_path();
            }
        }
        if let Some(shared) = &mut self.shared {
            shared.ask_again(self.number, now, &mut resources.outbox);
        }
        is_silent
    }
}

/// Returns the kind of event that a fatal NAK raises at the responder.
fn failure(code: NakCode) -> AsyncEventKind {
    match code {
        NakCode::INVALID_REQUEST => AsyncEventKind::QpRequestError,
        NakCode::REMOTE_ACCESS | NakCode::INVALID_RD_REQUEST => AsyncEventKind::QpAccessError,
        _ => AsyncEventKind::QpFatal,
    }
}
