//! The receive path of a shard.
//!
//! Owns the checks of a packet before it reaches an engine (contract rocev2 8.8): ICRC, form, QP, P_Key, address,
//! service. A packet that fails a check is dropped silently, and counted by cause. A packet for a QP of another shard
//! is handed over after the ICRC check. The ICRC of a packet that an address translator has changed is checked again
//! with the headers stored for its QP or connection.

use super::Shard;
use super::outbox::ControlEvent;
use super::peers::Checker;
use super::qp::Qp;
use super::qp::route::Heard;
use crate::link::{Datagram, IcmpError, Origin, Verdict};
use trunkline_machine::mutant;
use trunkline_roce::cm;
use trunkline_roce::engine::{Handled, Response, is_request};
use trunkline_roce::wire::cm::CmMessage;
use trunkline_roce::wire::icrc::Flow;
use trunkline_roce::wire::{Bth, ICRC_LENGTH, IpUdp, Mad, Opcode, Operation, Packet, QP1, QuotedPacket};
use trunkline_verbs::{PKEY_DEFAULT, Time};

impl Shard {
    /// Receives one batch from the link. Returns true if more packets may be waiting.
    // Not inlined, since many turns poll only memory.
    #[inline(never)]
    pub(in crate::device) fn receive(&mut self, now: Time) -> bool {
        let Self { link, peers, .. } = self;
        let mut judge = Checker { peers, now };
        let Some((batch, more)) = link.receive(&mut judge) else { return false };
        for (datagram, origin) in batch.iter_with_origin() {
            self.resources.counters.packets_received += 1;
            self.resources.counters.packets_marked += u64::from(origin.is_marked);
            self.handle(&datagram, origin, false, now);
        }
        self.link.recycle(batch);
        while let Some(error) = self.link.next_icmp_error() {
            self.handle_icmp_error(&error);
        }
        more
    }

    /// Passes a report on an undelivered packet for QP 1 to control. Reports on other packets are ignored, since
    /// retries end a connection whose peer is gone.
    #[cold]
    fn handle_icmp_error(&mut self, error: &IcmpError) {
        let (from, to, cause) = (error.source.ip(), error.destination.ip(), error.cause);
        if let QuotedPacket::Mad { transaction } = error.packet {
            let report = cm::UnreachableReport { from, to, transaction, cause };
            self.resources.control_events.push(ControlEvent::Unreachable(report));
        }
    }

    /// Handles the packets that other shards handed over.
    #[inline]
    pub(super) fn receive_handed_over(&mut self, now: Time) {
        if self.neighbours.has_packets(self.index) {
            self.take_handed_over(now);
        }
    }

    #[inline(never)]
    fn take_handed_over(&mut self, now: Time) {
        let mut packets = std::mem::take(&mut self.handed_over);
        self.neighbours.receive(self.index, &mut packets);
        for packet in packets.drain(..) {
            self.handle(&packet.datagram(), packet.origin, true, now);
        }
        self.handed_over = packets;
    }

    /// Passes a packet to the shard that owns its QP. Returns false if no other shard owns it.
    fn hand_over(&mut self, body: &[u8], datagram: &Datagram<'_>, origin: Origin) -> bool {
        let Ok(bth) = Bth::parse(body) else { return false };
        let number = bth.destination.get();
        if bth.destination == QP1 || self.qps.contains(number) {
            return false;
        }
        match self.neighbours.hand_over(self.index, number, datagram, origin) {
            None => return false,
            Some(true) => self.resources.counters.handed_over += 1,
            Some(false) => self.resources.counters.not_handed_over += 1,
        }
        true
    }

    fn handle(&mut self, datagram: &Datagram<'_>, origin: Origin, was_handed_over: bool, now: Time) {
        let verdict = match origin.verdict {
            Some(verdict) => {
                self.peers.inherit(datagram, verdict);
                verdict
            }
            None => {
                let verdict = self.peers.check(datagram, now);
                match verdict.or_else(|| self.check_translated(datagram, origin, was_handed_over)) {
                    Some(verdict) => verdict,
                    None => return,
                }
            }
        };
        let body = &datagram.bytes[..datagram.bytes.len() - ICRC_LENGTH];
        if self.neighbours.are_many() && !was_handed_over {
            let judged = Origin { verdict: Some(verdict), ..origin };
            if self.hand_over(body, datagram, judged) {
                return;
            }
        }
        let verdict = match verdict {
            Verdict::Taken { is_soft: true } => verdict,
            _ => match self.check_named_soft(datagram, verdict) {
                Some(verdict) => verdict,
                None => return,
            },
        };
        let counters = &mut self.resources.counters;
        // Borrow the packet from the result, which is too large to move.
        let parsed = Packet::parse(body);
        let packet = match &parsed {
            Ok(packet) => packet,
            Err(error) => {
                counters.malformed += 1;
                if error.is_answerable() && verdict != Verdict::Unsure {
                    self.handle_malformed(body, datagram, origin);
                }
                return;
            }
        };
        // The device's P_Key is the default key, a full member, so only the low 15 bits must match (contract
        // rocev2 8.2).
        if (packet.bth.pkey ^ PKEY_DEFAULT) & 0x7fff != 0 {
            counters.wrong_pkey += 1;
        } else if packet.bth.destination == QP1 {
            self.handle_mad(packet, datagram, origin, verdict);
        } else if verdict == Verdict::Unsure && !self.proves_itself(packet, datagram, origin) {
            self.resources.counters.unproven += 1;
        } else if packet.bth.opcode == Opcode::CNP {
            self.handle_cnp(&packet.bth, datagram, origin, now);
        } else {
            self.handle_for_qp(packet, datagram, origin, now);
        }
    }

    /// Checks the ICRC of a packet against the headers that it had before address translation. Returns `None` if the
    /// ICRC is wrong, or if the packet is handed to the shard that owns the QP. Management datagrams pass this check,
    /// since control checks their ICRC.
    #[cold]
    fn check_translated(
        &mut self,
        datagram: &Datagram<'_>,
        origin: Origin,
        was_handed_over: bool,
    ) -> Option<Verdict> {
        let Self { qps, peers, .. } = self;
        let body = datagram.bytes.get(..datagram.bytes.len().saturating_sub(ICRC_LENGTH)).unwrap_or_default();
        let bth = Bth::parse(body).ok();
        let verdict = bth.and_then(|bth| match qps.get(bth.destination.get()) {
            _ if bth.destination == QP1 => {
                let is_mad = Packet::parse(body).is_ok_and(|packet| Mad::from_packet(&packet).is_some());
                is_mad.then_some(Verdict::Taken { is_soft: true })
            }
            Some(qp) => peers.check_translated(datagram, &qp.covered_by_peer()?),
            None => None,
        });
        let goes_on = verdict.is_some()
            || !was_handed_over
                && self.neighbours.are_many()
                && self.hand_over(body, datagram, Origin { verdict: None, ..origin });
        if !goes_on {
            self.resources.counters.bad_icrc += 1;
        }
        verdict
    }

    /// Judges a packet whose sender is not known as a software device. If the peer of its QP has named itself one, other
    /// packets with its address, which may be forged, do not change how its packets are judged. Returns `None` if the
    /// packet is dropped.
    fn check_named_soft(&mut self, datagram: &Datagram<'_>, verdict: Verdict) -> Option<Verdict> {
        let bth = Bth::parse(datagram.bytes).ok();
        let qp = bth.and_then(|bth| self.qps.get(bth.destination.get()));
        if datagram.source.is_ipv6() || !qp.is_some_and(Qp::is_peer_named_soft) {
            return Some(verdict);
        }
        let checked = self.peers.check_named_soft(datagram);
        self.resources.counters.unproven += u64::from(checked.is_none());
        checked
    }

    /// Counts a management datagram for which control has found a wrong ICRC.
    pub(in crate::device) fn count_bad_icrc(&mut self) {
        self.resources.counters.bad_icrc += 1;
    }

    /// Passes a packet for QP 1 to control.
    fn handle_mad(&mut self, packet: &Packet<'_>, datagram: &Datagram<'_>, origin: Origin, verdict: Verdict) {
        let Some(mad) = Mad::from_packet(packet) else {
            self.resources.counters.bad_mads += 1;
            return;
        };
        let (from, to, is_member) = (datagram.source, datagram.destination, origin.is_member);
        let difference = match verdict {
            Verdict::Taken { is_soft: true } => Flow::new(&IpUdp::new(from, to)).difference(datagram.bytes),
            // Solve for the sender's identification.
            Verdict::Taken { is_soft: false } | Verdict::Unsure => Some(0),
        };
        let difference = difference.unwrap_or(0);
        if difference == 0 {
            let pair = (from.ip(), to.ip());
            match CmMessage::parse(&mad) {
                CmMessage::Req(req) => self.peers.saw_guid(pair, req.ca_guid),
                CmMessage::Rep(rep) => self.peers.saw_guid(pair, rep.ca_guid),
                _ => {}
            }
        }
        let mad = Box::new(mad);
        self.resources.control_events.push(ControlEvent::Mad { from, is_member, to, difference, mad });
    }

    /// Returns true if a packet from an unknown peer is plausible because it acknowledges an outstanding PSN, and does
    /// not have a payload.
    fn proves_itself(&self, packet: &Packet<'_>, datagram: &Datagram<'_>, origin: Origin) -> bool {
        packet.bth.opcode.operation() == Operation::ACKNOWLEDGE
            && packet.payload.is_empty()
            && self
                .qps
                .get(packet.bth.destination.get())
                .is_some_and(|qp| qp.is_connected(datagram, origin) && qp.has_outstanding(&packet.bth))
    }

    fn handle_for_qp(&mut self, packet: &Packet<'_>, datagram: &Datagram<'_>, origin: Origin, now: Time) {
        let Self { qps, resources, peers, link, local, .. } = self;
        let is_connected = |qp: &mut Qp| {
            qp.is_connected(datagram, origin) && !qp.is_doubtful_gap(&packet.bth, datagram.source)
        };
        let Some((qp, mark)) = qps.addressed(&packet.bth, &mut resources.counters, is_connected) else {
            return;
        };
        if let Some(pair) = qp.pair_in_use() {
            local.note_silence(pair, now);
        }
        let source = || Heard { from: datagram.source, is_member: origin.is_member };
        // Members are software devices, and so are peers at an address of this device.
        let soft = || {
            let (from, to) = (datagram.source.ip(), datagram.destination.ip());
            origin.is_member || peers.is_soft((from, to)) || link.is_open(from)
        };
        let is_request = is_request(packet.bth.opcode);
        let is_proof = if is_request {
            if qp.keep(&datagram.bytes[..datagram.bytes.len() - ICRC_LENGTH], false) {
                return;
            }
            qp.handle_request(packet, false, now, resources).map(|handled| {
                // Marks on other packets may be forged, like the packets' addresses.
                if origin.is_marked && handled.is_in_sequence() {
                    qp.request_was_marked();
                }
                if handled == Handled::Waiting && soft() {
                    qp.will_hear(source());
                }
                handled.is_proof()
            })
        } else {
            let response = qp.handle_response(packet, false, None, now, resources);
            let has_mark = origin.is_marked || packet.bth.has_becn();
            if has_mark && response.is_some_and(Response::is_proof) {
                qp.take_marks(&packet.bth, origin.is_marked, now, resources);
            }
            response.map(Response::is_proof)
        };
        match is_proof {
            Some(is_proof) if is_proof || mutant!(route_follows_any_packet) => qp.heard(&source(), soft),
            Some(_) => {}
            None => {
                resources.counters.wrong_half += 1;
                return;
            }
        }
        if !is_request || qp.wants_service() {
            mark.set();
        }
    }

    /// Handles a congestion notification, with which NICs report ECN marks (contract rocev2 8.7). A notification does
    /// not prove a route and is not answered. Software devices do not send notifications.
    #[cold]
    fn handle_cnp(&mut self, bth: &Bth, datagram: &Datagram<'_>, origin: Origin, now: Time) {
        match self.qps.get_mut(bth.destination.get()) {
            None => self.resources.counters.unknown_qp += 1,
            Some(qp) if !qp.is_connected(datagram, origin) => self.resources.counters.wrong_address += 1,
            Some(qp)
                if qp.is_peer_named_soft()
                    || self.peers.is_soft((datagram.source.ip(), datagram.destination.ip())) =>
            {
                self.resources.counters.wrong_half += 1;
            }
            Some(qp) => qp.take_marks(bth, false, now, &mut self.resources),
        }
    }

    /// Answers a request whose lengths break the rules of its opcode, so that only its BTH could
    /// be read (contract rocev2 7.9).
    fn handle_malformed(&mut self, body: &[u8], datagram: &Datagram<'_>, origin: Origin) {
        let Ok(bth) = Bth::parse(body) else { return };
        if (bth.pkey ^ PKEY_DEFAULT) & 0x7fff != 0 || bth.destination == QP1 || !is_request(bth.opcode) {
            return;
        }
        let is_connected =
            |qp: &mut Qp| qp.is_connected(datagram, origin) && !qp.is_doubtful_gap(&bth, datagram.source);
        let addressed = self.qps.addressed(&bth, &mut self.resources.counters, is_connected);
        if let Some((qp, mark)) = addressed
            && qp.handle_malformed(&bth)
        {
            mark.set();
        }
    }
}
