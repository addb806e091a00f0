//! Packets that arrive.
//!
//! Owns the checks of a packet before it reaches an engine (contract rocev2 8.8): ICRC, form,
//! QP, P_Key, address, service. Each failure is silent on the wire and counted by cause.

use super::Card;
use super::completions::Completer;
use super::memory::QpMemory;
use super::peers::Judgement;
use super::qp::Qp;
use super::sharing::RemotePlacement;
use super::target::QpTarget;
use crate::device::counters::CardCounters;
use crate::device::numbers::NumberMap;
use crate::link::{Datagram, ReceiveBatch};
use trunkline_roce::engine::{Handled, Response, is_request};
use trunkline_roce::wire::{Bth, ICRC_LENGTH, IpUdp, Packet, QP1, Service, icrc};
use trunkline_verbs::{PKEY_DEFAULT, QpType, Time};

impl Card {
    /// Takes one batch off the link; returns whether more may wait.
    pub(super) fn receive(&mut self, now: Time) -> bool {
        let Some(mut batch) = self.received.take() else { return false };
        let count = self.link.receive(&mut batch);
        self.handle_batch(&batch, now);
        let more = count >= batch.capacity();
        self.received = Some(batch);
        more
    }

    fn handle_batch(&mut self, batch: &ReceiveBatch, now: Time) {
        for datagram in batch.iter() {
            self.counters.packets_received += 1;
            self.handle(datagram, now);
        }
    }

    fn handle(&mut self, datagram: Datagram<'_>, now: Time) {
        let Some(judgement) = self.judge(datagram, now) else {
            self.counters.bad_icrc += 1;
            return;
        };
        let body = &datagram.bytes[..datagram.bytes.len() - ICRC_LENGTH];
        let packet = match Packet::parse(body) {
            Ok(packet) => packet,
            Err(error) => {
                self.counters.malformed += 1;
                if error.is_answerable() && judgement == Judgement::Take {
                    self.handle_malformed(body, datagram);
                }
                return;
            }
        };
        // Ours is the default key, a full member: the low 15 bits decide (contract rocev2 8.2).
        if (packet.bth.pkey ^ PKEY_DEFAULT) & 0x7fff != 0 {
            self.counters.wrong_pkey += 1;
        } else if judgement == Judgement::Refuse {
            self.counters.unproven += 1;
        } else if packet.bth.destination == QP1 {
            self.handle_mad(&packet, datagram.source, datagram.destination, now);
        } else if judgement == Judgement::Unsure {
            self.counters.unproven += 1;
        } else {
            self.handle_for_qp(&packet, datagram, now);
        }
    }

    /// Checks the ICRC; `None` when it is wrong.
    fn judge(&mut self, datagram: Datagram<'_>, now: Time) -> Option<Judgement> {
        let headers = IpUdp::new(datagram.source, datagram.destination);
        let source = datagram.source.ip();
        if source.is_ipv6() || self.peers.is_soft(source) {
            return icrc::check(&headers, datagram.bytes).then_some(Judgement::Take);
        }
        let identification = icrc::solve_identification(&headers, datagram.bytes)?;
        Some(self.peers.judge(source, identification, now))
    }

    fn handle_for_qp(&mut self, packet: &Packet<'_>, datagram: Datagram<'_>, now: Time) {
        let number = packet.bth.destination.get();
        let believed = if is_request(packet.bth.opcode) {
            let Self { qps, counters, .. } = self;
            let Some(qp) = addressed(qps, &packet.bth, datagram, counters) else { return };
            match &mut qp.executor {
                Some(executor) if executor.is_waiting() => {
                    executor.keep(&datagram.bytes[..datagram.bytes.len() - ICRC_LENGTH]);
                    return;
                }
                _ => {}
            }
            let Some(handled) = self.take_request(number, packet, now) else {
                self.counters.wrong_half += 1;
                return;
            };
            handled.plausible()
        } else {
            let Self { qps, keys, counters, .. } = self;
            let Some(qp) = addressed(qps, &packet.bth, datagram, counters) else { return };
            let Some(requester) = &mut qp.requester else {
                counters.wrong_half += 1;
                return;
            };
            let mut memory = QpMemory { keys, pd: qp.pd };
            let response = requester.handle_response(now, packet, &mut memory);
            response == Response::Progress
        };
        let Self { qps, peers, opened, .. } = self;
        if believed && let Some(route) = qps.get_mut(number).and_then(|qp| qp.route.as_mut()) {
            let source = datagram.source;
            // Who shares an address with us is of our kind.
            let ip = source.ip();
            route.heard(source, || peers.is_soft(ip) || opened.contains(&ip));
        }
        self.mark_ready(number);
    }

    /// Hands a request to the responder of a QP; `None` when it has none.
    pub(super) fn take_request(&mut self, number: u32, packet: &Packet<'_>, now: Time) -> Option<Handled> {
        let Self { qps, keys, srqs, counters, events, unknown_srq, cm, sharing, .. } = self;
        let qp = qps.get_mut(number)?;
        let responder = qp.responder.as_mut()?;
        let mut target = QpTarget {
            number: qp.number,
            keys,
            srqs,
            reception: &mut qp.reception,
            completer: Completer { events, counters },
            unknown_srq: *unknown_srq,
            remote: RemotePlacement::of(&mut qp.executor, sharing, responder.serial(), now),
            note: None,
        };
        let handled = responder.handle_request(packet, &mut target);
        if qp.awaits_rtu && handled.plausible() {
            // Data that overtakes the RTU stands for it (contract rocev2 12.4).
            qp.awaits_rtu = false;
            cm.machine.communication_established(qp.number);
        }
        if handled == Handled::Waiting {
            // Before the request to another member leaves.
            self.publish(number);
        }
        Some(handled)
    }

    /// Answers a request whose lengths break the rules of its opcode, so that only its BTH could
    /// be read (contract rocev2 7.9).
    fn handle_malformed(&mut self, body: &[u8], datagram: Datagram<'_>) {
        let Ok(bth) = Bth::parse(body) else { return };
        if (bth.pkey ^ PKEY_DEFAULT) & 0x7fff != 0 || bth.destination == QP1 || !is_request(bth.opcode) {
            return;
        }
        let Some(qp) = addressed(&mut self.qps, &bth, datagram, &mut self.counters) else { return };
        if let Some(responder) = &mut qp.responder {
            let _handled = responder.handle_malformed(&bth);
            self.mark_ready(bth.destination.get());
        }
    }
}

/// The QP that a packet names, if it may come to it.
fn addressed<'a>(
    qps: &'a mut NumberMap<Box<Qp>>,
    bth: &Bth,
    datagram: Datagram<'_>,
    counters: &mut CardCounters,
) -> Option<&'a mut Box<Qp>> {
    let Some(qp) = qps.get_mut(bth.destination.get()) else {
        counters.unknown_qp += 1;
        return None;
    };
    // contract rocev2 8.3: both addresses, not the UDP source port.
    let connected = qp.route.is_some_and(|route| {
        route.destination.ip() == datagram.source.ip() && route.source.ip() == datagram.destination.ip()
    });
    if !connected {
        counters.wrong_address += 1;
        return None;
    }
    let service = match qp.attributes.qp_type {
        QpType::Rc => Service::RC,
        QpType::XrcIni | QpType::XrcTgt => Service::XRC,
    };
    if bth.opcode.service() != service {
        counters.wrong_service += 1;
        return None;
    }
    Some(qp)
}
