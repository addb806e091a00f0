//! Effects of packets on a QP, and its outgoing packets.

use super::Qp;
use super::memory::QpMemory;
use super::route::Heard;
use super::target::QpTarget;
use crate::device::shard::ControlEvent;
use crate::device::shard::link_endpoint::Outgoing;
use crate::device::shard::local::ArrivedPayload;
use crate::device::shard::resources::Resources;
use trunkline_roce::engine::{
    Handled, NakCode, Placement, Requester, RequesterEvent, ResponderEvent, ResponderState, Response,
};
use trunkline_roce::wire::{Bth, Opcode, Operation, Packet};
use trunkline_verbs::{AsyncEventKind, QpState, Time};

/// Maximum number of packets that a QP sends per turn.
const PACKETS_IN_TURN: usize = 64;
/// Copies of the last acknowledgement of a QP that stops receiving.
const FINAL_ACK_COPIES: usize = 3;

impl Qp {
    /// Keeps a request that has to wait for a placement in another process; returns false if it need not
    /// wait.
    pub(in crate::device::shard) fn keep(&mut self, packet: &[u8], joined: bool) -> bool {
        match &mut self.shared {
            Some(shared) if shared.is_waiting() => {
                shared.keep(packet, joined);
                true
            }
            _ => false,
        }
    }

    /// Hands a request to the responder; `None` when there is no responder. `joined` is true if the request
    /// may have the payload of several packets.
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

    /// Returns true if the QP has work for the send path after a request: a packet or an event, the state of a
    /// shared TGT, or a path to choose.
    pub(in crate::device::shard) fn wants_service(&self) -> bool {
        self.has_output()
            || self.responder.as_ref().is_some_and(ResponderState::has_event)
            || self.shared.is_some()
            || self.path.epoch == 0
    }

    /// Hands a response to the requester; `None` when there is no requester. `joined` is as for requests. `arrived` is the
    /// payload of an answer to a READ if it is in a ring; the packet has only its length.
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

    /// Notes that the network marked a request.
    pub(in crate::device::shard) fn request_was_marked(&mut self) {
        self.owes_echo = true;
    }

    /// Takes the report of the peer that a request was marked, if the packet is one, and the mark of a response with data.
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

    /// Returns true if a response with this header answers a PSN that is outstanding.
    pub(in crate::device::shard) fn has_outstanding(&self, bth: &Bth) -> bool {
        self.requester.as_ref().is_some_and(|requester| requester.has_outstanding(bth))
    }

    /// Handles a request of which only the BTH could be read (contract rocev2 7.9); returns true if there is
    /// an answer.
    pub(in crate::device::shard) fn handle_malformed(&mut self, bth: &Bth) -> bool {
        let Some(responder) = &mut self.responder else { return false };
        let _handled = responder.handle_malformed(bth);
        true
    }

    /// Handles the outcome of a placement in another process; returns true if the message in progress holds a
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

    /// Records the proven source address of the peer; `soft` peers are reached at that port.
    pub(in crate::device::shard) fn heard(&mut self, from: &Heard, soft: impl FnOnce() -> bool) {
        if let Some(route) = &mut self.route {
            let was_member = route.is_to_member();
            route.heard(from, soft);
            if !was_member && route.is_to_member() {
                self.reconsider_path();
            }
        }
    }

    /// Records a source address that is proven if the packet's placement in another process succeeds.
    pub(in crate::device::shard) fn will_hear(&mut self, from: Heard) {
        self.awaits_proof = Some(from);
    }

    /// Sends answers first, then requests; returns true if the QP has more.
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

    /// Repeats the last acknowledgement, of a QP that is about to stop receiving, while `has_room`.
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
        // Complete the failed request before the flushed work: programs take the first bad completion for the
        // cause.
        self.report_completions(resources);
        if self.report_events(resources) {
            self.report_completions(resources);
        }
        // Publish the state before the answers are sent.
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

    /// Reports events; returns true if there were any.
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

    /// Returns the time of the next timeout.
    pub(in crate::device::shard) fn next_timeout(&self) -> Option<Time> {
        let requester = self.requester.as_ref().and_then(Requester::next_timeout);
        if self.shared.is_none() && self.on_path.pause_end.is_none() {
            return requester;
        }
        let shared = self.shared.as_ref().and_then(|shared| shared.next_timeout());
        requester.into_iter().chain(shared).chain(self.on_path.pause_end).min()
    }

    /// Handles a timeout. Returns true if an answer was missing.
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

/// Returns the event that a fatal NAK raises at the target.
fn failure(code: NakCode) -> AsyncEventKind {
    match code {
        NakCode::INVALID_REQUEST => AsyncEventKind::QpRequestError,
        NakCode::REMOTE_ACCESS | NakCode::INVALID_RD_REQUEST => AsyncEventKind::QpAccessError,
        _ => AsyncEventKind::QpFatal,
    }
}
