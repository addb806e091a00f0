//! Packets, completions and events that leave.
//!
//! Owns the order in which QPs are served: each in turn, some packets at a time, so that a long
//! message or READ does not hold up the others.

use super::Card;
use super::completions::Completer;
use super::memory::QpMemory;
use super::qp::Qp;
use super::route::Route;
use super::sharing::RemotePlacement;
use super::target::QpTarget;
use crate::link::SendBatch;
use trunkline_mutants::mutant;
use trunkline_roce::engine::{NakCode, RequesterEvent, ResponderEvent, Transmit};
use trunkline_roce::wire::{IpUdp, icrc};
use trunkline_verbs::{AsyncEventKind, QpState, Time};

/// Packets of one QP before the next has its turn.
const PACKETS_IN_TURN: usize = 64;
/// Packets gathered before the link is called.
const PACKETS_AT_ONCE: usize = 64;
/// How often the last acknowledgement of a QP that stops receiving is repeated.
const FINAL_ACK_COPIES: usize = 3;
/// Packets that may wait when many QPs stop one after the other; beyond that, QPs stop silently.
const FINAL_ACK_QUEUE_LIMIT: usize = 4 * PACKETS_AT_ONCE;

impl Card {
    /// Puts a QP on the list of those that want service.
    pub(super) fn mark_ready(&mut self, number: u32) {
        if let Some(qp) = self.qps.get_mut(number)
            && !qp.is_ready
        {
            qp.is_ready = true;
            self.ready.push_back(number);
        }
    }

    /// Serves QPs until none wants more, the link has no room, or each had a fair number of turns.
    pub(in crate::device) fn flush(&mut self, now: Time) {
        let turns = self.ready.len() + 4;
        for _ in 0..turns {
            if self.outgoing.len() >= PACKETS_AT_ONCE && !self.send(now) {
                return;
            }
            let Some(number) = self.ready.pop_front() else { break };
            self.serve(number, now);
        }
        self.serve_overflows();
        self.send_to_members(now);
        self.send(now);
    }

    /// Passes the gathered packets to the link; returns whether all of them were sent.
    pub(super) fn send(&mut self, now: Time) -> bool {
        if !self.outgoing.is_empty() {
            let before = self.outgoing.len();
            self.link.send(&mut self.outgoing, now);
            self.counters.packets_sent += (before - self.outgoing.len()) as u64;
        }
        self.outgoing.is_empty()
    }

    /// Repeats the last acknowledgement of a QP whose owner is about to stop it receiving. The peer may
    /// still wait for that acknowledgement, which can have been lost, and would retransmit to a QP that
    /// no longer exists until its retries run out. Several copies are sent, since each can be lost.
    pub(super) fn send_final_ack(&mut self, number: u32) {
        let Self { qps, outgoing, .. } = self;
        let Some(qp) = qps.get_mut(number) else { return };
        let (Some(route), Some(responder)) = (qp.route, &mut qp.responder) else { return };
        for _ in 0..FINAL_ACK_COPIES {
            if outgoing.len() >= FINAL_ACK_QUEUE_LIMIT
                || !push(outgoing, route, |out| responder.final_ack(out))
            {
                return;
            }
        }
    }

    fn serve(&mut self, number: u32, now: Time) {
        let Some(qp) = self.qps.get_mut(number) else { return };
        qp.is_ready = false;
        let mut more = false;
        if let Some(route) = qp.route {
            more = self.serve_packets(number, route, now);
        }
        // The request that failed completes before what is flushed because of it: programs take the first bad completion for the cause.
        self.serve_completions(number);
        self.serve_events(number);
        self.serve_completions(number);
        // Before the answers leave.
        self.publish(number);
        self.notify_handles(number);
        let Self { qps, timers, ready, .. } = self;
        let Some(qp) = qps.get_mut(number) else { return };
        if let Some(requester) = &mut qp.requester {
            timers.schedule(number, &mut qp.scheduled, requester.next_timeout());
        }
        if let Some(executor) = &qp.executor {
            timers.schedule(number, &mut qp.scheduled, executor.next_timeout());
        }
        if more && !qp.is_ready {
            qp.is_ready = true;
            ready.push_back(number);
        }
    }

    /// Sends answers first, then requests; returns whether the QP has more.
    fn serve_packets(&mut self, number: u32, route: Route, now: Time) -> bool {
        let Self { qps, keys, srqs, counters, events, outgoing, unknown_srq, sharing, .. } = self;
        let Some(qp) = qps.get_mut(number) else { return false };
        let Qp { number, requester, responder, reception, pd, executor, .. } = &mut **qp;
        let mut sent = 0;
        if let Some(responder) = responder {
            let mut target = QpTarget {
                number: *number,
                keys,
                srqs,
                reception,
                completer: Completer { events, counters },
                unknown_srq: *unknown_srq,
                remote: RemotePlacement::of(executor, sharing, responder.serial(), now),
                note: None,
            };
            while sent < PACKETS_IN_TURN {
                let left = push(outgoing, route, |out| responder.poll_transmit(&mut target, out));
                if !left {
                    break;
                }
                sent += 1;
            }
        }
        if let Some(requester) = requester {
            let memory = QpMemory { keys, pd: *pd };
            while sent < PACKETS_IN_TURN {
                let left = push(outgoing, route, |out| requester.poll_transmit(now, &memory, out));
                if !left {
                    break;
                }
                sent += 1;
            }
        }
        sent == PACKETS_IN_TURN
    }

    fn serve_completions(&mut self, number: u32) {
        let Self { qps, counters, events, .. } = self;
        let Some(qp) = qps.get_mut(number) else { return };
        let Some(requester) = &mut qp.requester else { return };
        let mut completer = Completer { events, counters };
        while let Some(completion) = requester.poll_completion() {
            if let Some(cq) = &qp.send_cq {
                completer.complete(cq, completion, false);
            }
        }
    }

    fn serve_events(&mut self, number: u32) {
        let Self { qps, srqs, counters, events, .. } = self;
        let Some(qp) = qps.get_mut(number) else { return };
        let mut completer = Completer { events, counters };
        let mut failed = false;
        while let Some(event) = qp.requester.as_mut().and_then(trunkline_roce::engine::Requester::poll_event)
        {
            match event {
                RequesterEvent::Failed(_) => {
                    qp.fail();
                    qp.enter_error(srqs, &mut completer);
                }
                RequesterEvent::Drained => qp.raise(AsyncEventKind::SqDrained, completer.events),
            }
        }
        while let Some(event) =
            qp.responder.as_mut().and_then(trunkline_roce::engine::ResponderState::poll_event)
        {
            let kind = match event {
                ResponderEvent::CommunicationEstablished => AsyncEventKind::CommunicationEstablished,
                ResponderEvent::Failed(code) => {
                    if qp.attributes.state != QpState::Error {
                        qp.fail();
                        qp.enter_error(srqs, &mut completer);
                    }
                    failed = true;
                    failure(code)
                }
            };
            qp.raise(kind, completer.events);
        }
        if failed {
            self.end_remote_message(number, true);
        }
    }

    /// Calls the QPs whose time has come.
    pub(super) fn run_timers(&mut self, now: Time) {
        while let Some(due) = self.timers.pop_due(now) {
            if mutant!(timers_do_not_fire) {
                continue;
            }
            let Some(qp) = self.qps.get_mut(due.number) else { continue };
            if !due.accept(&mut qp.scheduled) {
                continue;
            }
            if let Some(requester) = &mut qp.requester {
                let before = requester.counters().timeouts;
                requester.handle_timeout(now);
                if requester.counters().timeouts != before
                    && let Some(route) = &mut qp.route
                {
                    route.silent();
                }
            }
            self.ask_again(due.number, now);
            self.mark_ready(due.number);
        }
    }
}

/// Which event a fatal NAK raises at the target.
fn failure(code: NakCode) -> AsyncEventKind {
    match code {
        NakCode::INVALID_REQUEST => AsyncEventKind::QpRequestError,
        NakCode::REMOTE_ACCESS | NakCode::INVALID_RD_REQUEST => AsyncEventKind::QpAccessError,
        _ => AsyncEventKind::QpFatal,
    }
}

/// Appends the packet that `write` appends, with its ICRC; returns whether there was one.
fn push(batch: &mut SendBatch, route: Route, write: impl FnOnce(&mut Vec<u8>) -> Option<Transmit>) -> bool {
    let headers = IpUdp::new(route.source, route.destination);
    batch.push_if(route.source, route.destination, |out| {
        let start = out.len();
        if write(out).is_none() {
            return false;
        }
        let crc = icrc::icrc(&headers, &out[start..]);
        out.extend_from_slice(&crc.to_le_bytes());
        true
    })
}
