//! Packets through memory shared by processes of the host.
//!
//! Owns the order in which rings are polled, and the checks of a packet before it reaches an engine. A packet
//! that does not come from the process of its QP's peer is dropped. Invalid bytes end the pair.

use super::{Ends, KINDS, LocalPaths, RING_BYTES, Taken};
use crate::device::shard::Shard;
use crate::device::shard::qp_table::{QpTable, ServedQp};
use crate::device::shard::resources::Resources;
use crate::device::tables::directory::ShardIndex;
use crate::device::threads::wake_up::Watcher;
use crate::host::{AreaHandle, MemberId};
use std::os::fd::RawFd;
use trunkline_machine::rings::shared::Wanted;
use trunkline_roce::engine::{Response, is_request};
use trunkline_roce::wire::{Packet, QP1, is_read_response};
use trunkline_verbs::{AsyncEventKind, Counter, PKEY_DEFAULT, QpPath, Time, VerbsError};

/// Maximum number of packets taken from a ring in one turn.
const PACKETS_IN_TURN: usize = 64;
/// Number of bytes after which a ring's turn ends. A READ requests its next piece at the end of a turn, while
/// the rest of its window is still in flight.
const BYTES_IN_TURN: usize = 48 << 10;

impl Shard {
    /// Handles packets in the rings that are not parked. Returns true if more may be waiting.
    #[inline]
    pub(in crate::device) fn receive_by_memory(&mut self, now: Time) -> bool {
        !self.local.is_unused() && self.look_into_memory(now)
    }

    fn look_into_memory(&mut self, now: Time) -> bool {
        let Self { local, qps, resources, taken, .. } = self;
        for number in local.look(&mut resources.outbox, now) {
            qps.mark_ready(number);
        }
        if local.has_changed() {
            for number in qps.numbers() {
                qps.mark_ready(number);
            }
        }
        if !local.is_active() {
            return false;
        }
        let (mut more, mut at) = (false, 0);
        while let Some(pair) = local.active(at) {
            let (mut count, mut bytes) = (0, 0);
            while count < PACKETS_IN_TURN
                && bytes < BYTES_IN_TURN
                && let Some(length) = receive_one(local, qps, resources, taken, pair, now)
            {
                bytes += length;
                count += 1;
            }
            more |= count == PACKETS_IN_TURN || bytes >= BYTES_IN_TURN;
            // If the pair has ended, this position holds another pair or is empty.
            if local.active(at) == Some(pair) && !(count == 0 && local.park_idle(at, now)) {
                at += 1;
            }
        }
        more
    }

    /// Handles another member's message if it is about shared memory. Returns true if it is.
    pub(in crate::device) fn handle_memory_message(
        &mut self,
        from: MemberId,
        message: (u8, &[u8]),
        area: Option<AreaHandle>,
        now: Time,
    ) -> bool {
        KINDS.contains(&message.0) && {
            if let Some(pair) = self.local.ended_by(from, message) {
                self.receive_last(pair, now);
            }
            self.local.handle(from, message, area, &mut self.resources.outbox, now);
            true
        }
    }

    /// Handles the last packets of a member in shared memory, and then the end of the connection with the member.
    pub(in crate::device) fn member_gone(&mut self, member: MemberId, now: Time) {
        for pair in self.local.pairs_with(member) {
            self.receive_last(pair, now);
        }
        self.local.member_gone(member, now);
    }

    /// Handles the packets in the ring of a pair that is about to end. They may include acknowledgements that
    /// are not repeated.
    fn receive_last(&mut self, pair: usize, now: Time) {
        let Self { local, qps, resources, taken, .. } = self;
        let mut bytes = 0;
        // Stop after the size of one ring, since a live member may keep writing.
        while bytes < RING_BYTES
            && let Some(length) = receive_one(local, qps, resources, taken, pair, now)
        {
            bytes += length;
        }
    }

    /// Releases the memory shared with other processes, and notifies these processes. Called when the device is
    /// removed.
    pub(in crate::device) fn leave_memory(&mut self) {
        self.local.leave(&mut self.resources.outbox);
    }

    /// Notifies the link that a thread is about to sleep on its descriptors, and parks all rings. Returns
    /// true if packets are already waiting.
    pub(in crate::device) fn arm(&mut self, watcher: Watcher, wanted: Wanted, now: Time) -> bool {
        let waits = if watcher == Watcher::Poller { self.link.arm_poller() } else { self.link.arm() };
        waits | self.local.park(wanted) | self.local.look_at_rung(now)
    }

    /// Calls [`Shard::arm`] again, for a thread that sleeps while another thread has done work.
    pub(in crate::device) fn arm_again(&mut self, now: Time) -> bool {
        self.link.arm() | self.local.park_again() | self.local.look_at_rung(now)
    }

    /// Polls the rings whose senders may have woken a thread. `by_link` is false only if the wake-up was not caused by
    /// a descriptor of the link.
    pub(in crate::device) fn woken(&mut self, by_link: bool, now: Time) {
        self.link.woken(by_link);
        self.local.look_at_rung(now);
    }

    /// Returns the descriptor through which members that share memory wake the thread that sleeps for the
    /// shard.
    pub(in crate::device) fn bell(&self) -> Option<RawFd> {
        self.local.descriptor()
    }

    /// Parks all rings again, for a thread that sleeps while another thread has done work. Returns true if
    /// packets have arrived before the rings were parked.
    pub(in crate::device) fn park_memory_again(&mut self) -> bool {
        self.local.park_again()
    }

    /// Returns the shard to which another member's message is addressed, if the message is about shared
    /// memory.
    pub(in crate::device) fn memory_message_is_for((kind, bytes): (u8, &[u8])) -> Option<ShardIndex> {
        KINDS.contains(&kind).then(|| Ends::read(bytes).map(|ends| ShardIndex(ends.to)))?
    }

    /// Returns true if the link stays armed while datagrams are received, and all rings are parked.
    pub(in crate::device) fn stays_armed(&self) -> bool {
        self.link.stays_armed() && !self.local.is_active()
    }

    /// Fails if the device must use memory and cannot reach peers at this address through memory.
    pub(in crate::device) fn check_path(&self, at: std::net::IpAddr) -> Result<(), VerbsError> {
        self.local.check(at).map_err(VerbsError::AddressNotAvailable)
    }

    /// Returns the current path of a QP's packets.
    pub(in crate::device) fn path(&self, number: u32) -> Option<QpPath> {
        Some(match self.qps.get(number)?.why_not_memory() {
            Some(why) if self.local.must_use_memory() => QpPath { name: QpPath::NONE, why },
            Some(why) => QpPath { name: self.link.name(), why },
            None => QpPath { name: QpPath::MEMORY, why: "" },
        })
    }

    /// Returns the number of packets that a QP has received in sequence.
    pub(in crate::device) fn received_packets(&self, number: u32) -> Option<u64> {
        Some(self.qps.get(number)?.counters().1?.packets)
    }

    /// Appends the counters of shared memory.
    pub(in crate::device) fn memory_counters(&self, into: &mut Vec<Counter>) {
        self.local.counters(into);
    }
}

/// Serves a QP of a device that must use memory, while the QP cannot use it. The QP's packets are discarded,
/// so its timeouts expire as if the peer did not answer. A QP that can never use memory goes to ERR.
pub(in crate::device::shard) fn serve_without_memory(
    served: ServedQp<'_>,
    packet: &mut Vec<u8>,
    resources: &mut Resources,
    now: Time,
) {
    let qp = &mut *served.qp;
    match qp.why_never_memory() {
        Some(why) if qp.can_break() => {
            let peer = qp.peer_address().map(tracing::field::display);
            tracing::error!(
                qp = served.number,
                peer,
                cause = why,
                remedy = "allow UDP too: leave out TRUNKLINE_LINK=shm (or setting link)",
                "peer not reached through shared memory, the only path allowed"
            );
            qp.break_down(AsyncEventKind::QpFatal, resources);
        }
        _ => qp.send_nowhere(packet, now, resources),
    }
    qp.report(resources);
    served.finish(false);
}

/// Handles the next packet of a ring. Returns the packet's length, or `None` if the ring is empty or the pair
/// has ended.
#[inline]
fn receive_one(
    local: &mut LocalPaths,
    qps: &mut QpTable,
    resources: &mut Resources,
    taken: &mut Vec<u8>,
    pair: usize,
    now: Time,
) -> Option<usize> {
    let Taken::Packet(length) = local.take(pair, taken, &mut resources.outbox, now) else { return None };
    let is_sound = handle(local, qps, resources, pair, &taken[..length], now);
    if !is_sound {
        local.is_nonsense(pair, &mut resources.outbox, now);
        return None;
    }
    local.release(pair);
    Some(length)
}

/// Handles a packet from a ring. Returns false if the packet is invalid.
fn handle(
    local: &mut LocalPaths,
    qps: &mut QpTable,
    resources: &mut Resources,
    pair: usize,
    bytes: &[u8],
    now: Time,
) -> bool {
    // Borrow the packet from the result, which is too large to move.
    let parsed = Packet::parse_joined(bytes);
    let Ok(packet) = &parsed else {
        resources.counters.malformed += 1;
        return false;
    };
    if packet.bth.pkey != PKEY_DEFAULT || packet.bth.destination == QP1 {
        resources.counters.wrong_pkey += 1;
        return false;
    }
    let outbox = &mut resources.outbox;
    let addressed =
        qps.addressed(&packet.bth, &mut resources.counters, |qp| qp.is_reached_by(pair, local, outbox, now));
    let Some((qp, mark)) = addressed else { return true };
    let is_request = is_request(packet.bth.opcode);
    let is_proof = if is_request {
        if qp.keep(bytes, true) {
            return true;
        }
        qp.handle_request(packet, true, now, resources).map(trunkline_roce::engine::Handled::is_proof)
    } else {
        let payload_at = bytes.len() - packet.payload.len() - usize::from(packet.bth.pad);
        // The pair may have ended.
        let Some(arrived) = local.arrived(pair, payload_at) else { return true };
        let arrived = is_read_response(bytes).then_some(arrived);
        qp.handle_response(packet, true, arrived, now, resources).map(Response::is_proof)
    };
    match is_proof {
        Some(true) => qp.heard_by_memory(),
        Some(false) => {}
        None => {
            resources.counters.wrong_half += 1;
            return true;
        }
    }
    if !is_request || qp.wants_service() {
        mark.set();
    }
    true
}
