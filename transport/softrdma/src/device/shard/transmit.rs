//! The send path of a shard.
//!
//! Owns the order in which QPs are served. Each QP sends a limited number of packets per turn, so that a long message
//! or READ does not delay other QPs.

use super::Shard;
use super::local::serve_without_memory;
use std::net::{IpAddr, SocketAddr};
use trunkline_machine::mutant;
use trunkline_roce::wire::Mad;
use trunkline_verbs::{AsyncEventKind, Psn, Time, UdpPorts};

/// Number of queued packets at which they are passed to the link.
const PACKETS_AT_ONCE: usize = 64;
/// Maximum number of queued final acknowledgements. Above this limit, QPs stop without sending one.
const FINAL_ACK_QUEUE_LIMIT: usize = 4 * PACKETS_AT_ONCE;

impl Shard {
    /// Serves QPs until none is ready, the link is full, or each has had its share of turns.
    #[inline]
    pub(in crate::device) fn flush(&mut self, now: Time) {
        let has_overflowed = self.overflows_served != self.resources.tables.overflows();
        if self.qps.ready() > 0
            || self.resources.paths.has_released()
            || has_overflowed
            || !self.resources.outbox.is_empty()
            || !self.link.is_idle()
        {
            self.flush_some(now);
        }
    }

    // Not inlined into `flush`, which usually returns immediately.
    #[inline(never)]
    fn flush_some(&mut self, now: Time) {
        let turns = self.qps.ready() + 4;
        for _ in 0..turns {
            while let Some(number) = self.resources.paths.next_released() {
                self.qps.mark_ready(number);
            }
            if self.link.outgoing().len() >= PACKETS_AT_ONCE && !self.send(now) {
                return;
            }
            if !self.serve_next(now) {
                break;
            }
        }
        self.serve_overflows();
        if !self.resources.outbox.is_empty() {
            self.resources.outbox.send(&mut self.resources.control_events);
            self.link.note_use(now);
        }
        if !self.link.is_idle() {
            self.send(now);
        }
    }

    /// Passes the queued packets to the link. Returns true if all of them were sent.
    pub(in crate::device) fn send(&mut self, now: Time) -> bool {
        self.resources.counters.packets_sent += self.link.send(now) as u64;
        self.link.is_idle()
    }

    /// Queues a management datagram.
    pub(in crate::device) fn push_mad(
        &mut self,
        from: IpAddr,
        to: IpAddr,
        ports: UdpPorts,
        psn: Psn,
        mad: &Mad,
    ) {
        let source = match ports.own {
            Some(UdpPorts::OTHER) if mutant!(refusals_leave_from_the_own_port) => self.link.source(from),
            Some(UdpPorts::OTHER) => self.link.other_source(from),
            Some(own) => SocketAddr::new(from, own),
            None => self.link.source(from),
        };
        self.link.outgoing().push_mad(source, SocketAddr::new(to, ports.peer), ports.view, psn, mad);
    }

    /// Repeats the last acknowledgement of a QP that is about to stop receiving. If that acknowledgement was lost, the
    /// peer would retransmit until its retries run out, since the QP no longer exists. Several copies are sent, since
    /// each can be lost.
    pub(super) fn send_final_ack(&mut self, number: u32) {
        let Self { qps, link, local, resources, packet, .. } = self;
        let Some(qp) = qps.get_mut(number) else { return };
        // Shared memory does not lose packets, and published packets stay there.
        if !qp.send_final_ack_by_memory(local, packet, resources) {
            qp.send_final_ack(link.outgoing(), |outgoing| outgoing.len() < FINAL_ACK_QUEUE_LIMIT);
        }
    }

    /// Serves the next ready QP. Returns false if none is ready.
    fn serve_next(&mut self, now: Time) -> bool {
        let Self { qps, link, local, resources, packet, .. } = self;
        let Some(served) = qps.pop_ready() else { return false };
        let qp = &mut *served.qp;
        let pair = qp.choose_path(local, &mut resources.outbox, now);
        if pair.is_none() && local.must_use_memory() {
            serve_without_memory(served, packet, resources, now);
            return true;
        }
        let more = match pair {
            Some(pair) => qp.send_by_memory(pair, local, packet, now, resources),
            None => qp.send_packets(link.outgoing(), now, resources),
        };
        qp.report(resources);
        if let Some(pair) = pair {
            local.publish(pair, &mut resources.outbox);
        }
        served.finish(more);
        true
    }

    /// Handles the timers that have expired.
    pub(in crate::device) fn run_timers(&mut self, now: Time) {
        let Self { qps, local, resources, .. } = self;
        while let Some(number) = qps.pop_due(now) {
            if let Some(qp) = qps.get_mut(number)
                && qp.handle_timeout(now, resources)
                && let Some(pair) = qp.pair_in_use()
            {
                local.note_silence(pair, now);
            }
            qps.mark_ready(number);
        }
    }

    /// Handles CQs that have lost a completion since the last call (contract H5). QPs that use such a CQ go to ERR. An
    /// XRC SRQ that completes into such a CQ is in error, and senders see the SRQ as empty (contract G10). TGTs
    /// continue, since they also serve other SRQs.
    fn serve_overflows(&mut self) {
        // Moving QPs to ERR flushes their work, which may overflow other CQs.
        while self.overflows_served != self.resources.tables.overflows() {
            self.overflows_served = self.resources.tables.overflows();
            let Self { qps, resources, .. } = self;
            resources.tables.srqs.end_overflowed(&resources.reader.enter(), &resources.events);
            for number in qps.numbers() {
                let Some(qp) = qps.get_mut(number) else { continue };
                if qp.has_overflowed() {
                    qp.break_down(AsyncEventKind::QpFatal, resources);
                    qps.mark_ready(number);
                }
            }
        }
    }
}
