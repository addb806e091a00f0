//! The path of a QP's packets, through the network or memory shared with the peer's process.
//!
//! Owns the decision of when a QP chooses its path again. The requester and the responder do not depend on the choice:
//! packets that are not answered on the old path are retransmitted on the new one.

use super::Qp;
use super::memory::QpMemory;
use super::target::QpTarget;
use crate::device::shard::local::{LocalPaths, QpPath, RingPayload};
use crate::device::shard::outbox::MemberOutbox;
use crate::device::shard::paths::Paths;
use crate::device::shard::resources::Resources;
use std::net::IpAddr;
use trunkline_machine::mutant;
use trunkline_roce::engine::{Requester, ResponderState};
use trunkline_verbs::{QpState, ReadAllowance, Time};

/// Maximum number of packets that a QP sends in one turn.
const PACKETS_IN_TURN: usize = 64;

impl Qp {
    /// Chooses the path again if the possible paths may have changed. Returns the pair to send through, or
    /// `None` if the QP uses the network.
    #[inline]
    pub(in crate::device::shard) fn choose_path(
        &mut self,
        local: &mut LocalPaths,
        outbox: &mut MemberOutbox,
        now: Time,
    ) -> Option<usize> {
        if self.path.epoch != local.epoch() {
            self.choose_again(local, outbox, now);
        }
        self.pair_in_use()
    }

    #[cold]
    fn choose_again(&mut self, local: &mut LocalPaths, outbox: &mut MemberOutbox, now: Time) {
        let Some(route) = &self.route else { return };
        let (used, pair) = (self.path.choice.is_used, self.path.choice.pair);
        let choice = local.choose(
            self.attributes.destination_qp,
            route.destination().ip(),
            self.path.choice,
            outbox,
            now,
        );
        self.path = QpPath { epoch: local.epoch(), choice };
        if let Some(requester) = &mut self.requester {
            requester.set_loss_rare(choice.is_used && choice.pair.is_some());
        }
        if (used, pair) != (choice.is_used, choice.pair)
            && (used || choice.is_used)
            && let Some(requester) = &mut self.requester
        {
            requester.resend();
        }
    }

    /// Schedules a new choice for a QP that does not use memory, since its peer may now be reachable through
    /// memory.
    pub(in crate::device::shard) fn reconsider_path(&mut self) {
        if !self.path.choice.is_used {
            self.path.epoch = 0;
        }
    }

    /// Returns the pair through which the QP sends; `None` if it uses the network.
    pub(in crate::device::shard) fn pair_in_use(&self) -> Option<usize> {
        self.path.choice.pair.filter(|_| self.path.choice.is_used)
    }

    /// Returns the amount that new READs may request; `None` without congestion control.
    pub(in crate::device::shard) fn read_allowance(
        &mut self,
        paths: &mut Paths,
        now: Time,
    ) -> Option<ReadAllowance> {
        let (route, requester) = (self.route.as_ref()?, self.requester.as_mut()?);
        paths.read_allowance(&mut self.on_path, self.number.get(), route, requester, now)
    }

    /// Removes the QP from the congestion control of its path.
    pub(in crate::device::shard) fn leave_path(&mut self, resources: &mut Resources) {
        if let Some(requester) = &mut self.requester {
            resources.paths.leave(&mut self.on_path);
            requester.admit(None);
        }
    }

    /// Resets the path of a QP whose peer changes, or that is no longer connected.
    pub(super) fn forget_path(&mut self) {
        self.path = QpPath::default();
        if let Some(requester) = &mut self.requester {
            requester.set_loss_rare(false);
        }
    }

    /// Returns true if the QP uses this pair, from which a packet was received. A QP with another path chooses again
    /// first, because the packet shows that the peer has chosen this pair. A QP that only responds does not have a
    /// timeout that causes a new choice.
    pub(in crate::device::shard) fn is_reached_by(
        &mut self,
        pair: usize,
        local: &mut LocalPaths,
        outbox: &mut MemberOutbox,
        now: Time,
    ) -> bool {
        if self.path.epoch != local.epoch() || self.path.choice.pair != Some(pair) {
            self.choose_again(local, outbox, now);
        }
        let is_peers = self.path.choice.pair == Some(pair) || mutant!(source_of_memory_is_not_checked);
        self.route.is_some() && is_peers
    }

    /// Sends packets through memory, responses before requests. Returns true if the QP may have more to send.
    pub(in crate::device::shard) fn send_by_memory(
        &mut self,
        pair: usize,
        local: &mut LocalPaths,
        packet: &mut Vec<u8>,
        now: Time,
        resources: &mut Resources,
    ) -> bool {
        if self.on_path.is_controlled() {
            self.leave_path(resources);
        }
        // The state must be visible before any response that reveals it.
        self.publish(resources);
        let mut sent = 0;
        while sent < PACKETS_IN_TURN
            && self.has_output()
            && local.has_room(pair, self.number, &mut resources.outbox, now)
        {
            packet.clear();
            let Some(payload) = local.payload(pair) else { break };
            if !self.next_packet(now, resources, Some(&payload), packet) {
                break;
            }
            let written = payload.written();
            local.push(pair, packet, written);
            sent += 1;
        }
        sent == PACKETS_IN_TURN
    }

    /// Retransmits the last acknowledgement of a QP that is about to stop receiving. Returns false if the QP
    /// does not use memory, or if the ring is full.
    pub(in crate::device::shard) fn send_final_ack_by_memory(
        &mut self,
        local: &mut LocalPaths,
        packet: &mut Vec<u8>,
        resources: &mut Resources,
    ) -> bool {
        let pair =
            self.path.choice.pair.filter(|_| self.path.choice.is_used && self.path.epoch == local.epoch());
        let (Some(pair), Some(responder)) = (pair, &mut self.responder) else { return false };
        packet.clear();
        responder.final_ack(packet).is_none() || local.push_if_room(pair, packet, &mut resources.outbox)
    }

    /// Returns true if the QP may have a packet to send.
    #[inline]
    pub(super) fn has_output(&self) -> bool {
        self.responder.as_ref().is_some_and(ResponderState::has_output)
            || self.requester.as_ref().is_some_and(Requester::has_output)
    }

    /// Writes the next packet, which may join the payload of several packets. The payload is written into
    /// `ring` if it is given. Returns false if there is no packet to send.
    fn next_packet(
        &mut self,
        now: Time,
        resources: &mut Resources,
        ring: Option<&RingPayload<'_>>,
        packet: &mut Vec<u8>,
    ) -> bool {
        if let Some(responder) = self.responder.as_mut().filter(|responder| responder.has_output()) {
            let (shared, serial) = (self.shared.as_deref_mut(), responder.serial());
            let mut target =
                QpTarget::of_shared(self.number, &mut self.reception, resources, shared, serial, now)
                    .with_ring(ring);
            if responder.poll_joined(&mut target, packet).is_some() {
                return true;
            }
        }
        let Some(requester) = self.requester.as_mut().filter(|requester| requester.has_output()) else {
            return false;
        };
        let Resources { reader, tables, .. } = resources;
        let reading = reader.enter();
        let memory = QpMemory { keys: tables.keys.view(&reading), pd: self.pd, ring, arrived: None };
        requester.poll_joined(now, &memory, packet).is_some()
    }

    /// Records that a packet through memory proved its sender to be the peer.
    pub(in crate::device::shard) fn heard_by_memory(&mut self) {
        if let Some(route) = &mut self.route {
            route.heard_by_memory();
        }
    }

    /// Returns the reason why the QP does not use memory; `None` if it uses memory.
    pub(in crate::device::shard) fn why_not_memory(&self) -> Option<&'static str> {
        (!self.path.choice.is_used).then_some(self.path.choice.why)
    }

    /// Returns the reason why the QP can never use memory; `None` if it can.
    pub(in crate::device::shard) fn why_never_memory(&self) -> Option<&'static str> {
        self.path.choice.is_final.then_some(self.path.choice.why)
    }

    /// Returns true if the QP is connected, and neither in RESET nor in ERR.
    pub(in crate::device::shard) fn can_break(&self) -> bool {
        self.route.is_some() && !matches!(self.attributes.state, QpState::Reset | QpState::Error)
    }

    /// Returns the address of the QP's peer, if it is connected.
    pub(in crate::device::shard) fn peer_address(&self) -> Option<IpAddr> {
        self.route.as_ref().map(|route| route.destination().ip())
    }

    /// Discards the QP's next packets, as if the network had lost them.
    pub(in crate::device::shard) fn send_nowhere(
        &mut self,
        packet: &mut Vec<u8>,
        now: Time,
        resources: &mut Resources,
    ) {
        if self.route.is_none() {
            return;
        }
        for _ in 0..PACKETS_IN_TURN {
            packet.clear();
            if !self.next_packet(now, resources, None, packet) {
                break;
            }
        }
    }
}
