//! Paths through memory that this process shares with other processes of the host.
//!
//! Owns the pairs of areas, and the choice of each QP's path. A pair connects this shard with a partner, which is a
//! shard of a member. QPs send packets through the ring of a pair instead of the link, with the same PSNs but without
//! an ICRC. A packet in a ring may contain the payload of several packets. To the engine, a change of path looks like a
//! loss, duplicates or reordering, which it handles, so a path may change in either direction at any moment. Called
//! only by the shard, which passes received packets to its QPs. Calls must never wait.
//!
//! | part | what it owns |
//! |---|---|
//! | `pair` | two areas, with a ring in each direction |
//! | `bell` | the wake-up of a shard by its partners |
//! | `handover` | the agreement of two members on a pair |
//! | `message` | the messages for that agreement |
//! | `memory_packets` | packets in and out of the rings |
//! | `choice` | the path policy, and a QP's chosen path |
//! | `init` | the parts from which a device's shards create pairs, and the limit on pairs |
//!
//! # From offer to use
//! The number of a peer's QP identifies its member and shard. When the first QP is connected to that shard,
//! this side offers an area. The other side maps it and accepts with an area, or refuses. Each side writes
//! into its area the number of the peer's area that it has mapped; from then on the peer sends through the
//! ring. Before that, and after a pair ends, QPs use the network.
//!
//! # Polling and parking
//! Recently active rings are polled in each turn. The others are parked: one parked ring is polled per turn, and the
//! senders of parked rings wake this side through its bell, an eventfd. All rings are parked before a thread sleeps for
//! the shard; the thread then polls the rings whose senders have the bell once more. A poller that does not wait for
//! acknowledgements is not woken for one, and handles it with the next packet or timer. Senders without the bell,
//! because there are [`MAX_BELLS`] already or descriptors have run out, wake this side through a message between
//! members. The message arrives at the first shard; the thread that receives it also runs the shard to which the
//! message is addressed.

mod bell;
mod choice;
mod handover;
mod init;
mod memory_packets;
mod message;
mod pair;

pub(in crate::device) use choice::PathPolicy;
pub(super) use choice::{Choice, QpPath};
pub(in crate::device) use init::LocalInit;
pub use init::MAX_SHARED_BYTES;
pub(super) use memory_packets::serve_without_memory;
pub(in crate::device) use message::Refusal;
pub(super) use message::{Ends, KINDS};
pub(super) use pair::{ArrivedPayload, RING_BYTES, RingPayload};

use super::outbox::MemberOutbox;
use crate::device::tables::directory::ShardIndex;
use crate::host::{Areas, Host, MemberId, Targets};
use bell::ShardBell;
use init::Room;
use message::Message;
use pair::{MemoryPair, Written};
use slab::Slab;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use trunkline_machine::mutant;
use trunkline_machine::rings::shared::Wanted;
use trunkline_verbs::{Counter, QpNumber, Time};

/// Time without packets after which a ring is parked.
const IDLE_NS: u64 = 1_000_000;
/// Time after which the receiver of a ring counts as stopped if it does not take packets while QPs wait for space or
/// for a response. The QPs then return to the network.
const STALLED_NS: u64 = 100_000_000;
/// Delay before a pair is offered again after it ended or could not be created. Doubled each time, up to
/// [`AGAIN_DOUBLINGS`] times.
const AGAIN_NS: u64 = 100_000_000;
const AGAIN_DOUBLINGS: u32 = 8;
/// Time after which an unanswered offer is repeated, since the offer or its answer may have been dropped, or the peer
/// may be stopped. The descriptors of the offers stay in the peer's socket, so at most [`AGAIN_DOUBLINGS`] offers are
/// repeated without an answer.
const ANSWER_NS: u64 = 1_000_000_000;
/// Maximum number of pairs whose senders have the bell. All their rings are polled before each sleep.
const MAX_BELLS: usize = 64;
/// Time for which the background machine polls after the last packet before it sleeps.
const LINGER_NS: u64 = 50_000;

/// Reason why a pair is missing while an offer is pending.
const AWAITED: &str = "the peer's answer to an offer of shared memory is awaited";
const UNANSWERED: &str = "the peer has not answered an offer of shared memory";

/// A shard of a member. It may be this shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Partner {
    member: MemberId,
    shard: u8,
}

/// State of memory sharing with a partner.
#[derive(Debug, Clone, Copy)]
struct Known {
    pair: Option<usize>,
    /// Reason why there is no pair.
    why: &'static str,
    /// Time from which a pair may be offered again; `None` means never.
    again: Option<Time>,
    /// Number of times that a pair with the partner ended or could not be created.
    ended: u32,
    /// Number of unanswered offers since the partner's last answer.
    unanswered: u32,
}

#[derive(Debug, Default)]
struct Counts {
    sent: u64,
    received: u64,
    wakes: u64,
    ended: u64,
    nonsense: u64,
    unknown: u64,
}

/// A shard's pairs, partners and paths.
#[derive(Debug)]
pub(in crate::device) struct LocalPaths {
    /// Index of this shard.
    shard: u8,
    /// `None` on an in-process network.
    host: Option<Arc<Host>>,
    targets: Option<Arc<Targets>>,
    policy: PathPolicy,
    /// The allocator of areas, or the reason why this process cannot share memory.
    areas: Result<Areas, &'static str>,
    room: Arc<Room>,
    pairs: Slab<MemoryPair>,
    partners: BTreeMap<Partner, Known>,
    /// Pairs that are not parked.
    active: Vec<usize>,
    /// Pairs that are checked in each turn; see [`MemoryPair::is_settled`].
    unsettled: Vec<usize>,
    /// Index of the pair whose ring is polled next if it is parked.
    next_parked: usize,
    /// Incremented when the choice of any QP may change. Starts at 1.
    epoch: u64,
    has_changed: bool,
    /// Earliest time at which a pair with any partner may be offered again.
    again: Option<Time>,
    last_number: u64,
    lingers: bool,
    /// Bell that wakes the thread that sleeps for this shard. `None` in a simulation, if the shard does not share
    /// memory, or if descriptors have run out.
    bell: Option<ShardBell>,
    /// Packets that must wake the thread that last went to sleep.
    wanted: Wanted,
    counts: Counts,
}

/// Outcome of taking a packet from a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// A packet of this length, at the front of the buffer.
    Packet(usize),
    Nothing,
    /// The pair has ended.
    Ended,
}

impl LocalPaths {
    pub(super) fn new(init: LocalInit, of: ShardIndex) -> Self {
        let LocalInit { host, targets, policy, areas, room, first_number } = init;
        // Only a simulated host lacks a directory.
        let lingers = host.as_ref().is_some_and(|host| host.directory().is_some());
        let shares = lingers && areas.is_ok() && !matches!(policy, PathPolicy::Network(_));
        let bell = if shares { ShardBell::new() } else { None };
        Self {
            shard: of.0,
            host,
            targets,
            policy,
            areas,
            room,
            pairs: Slab::new(),
            partners: BTreeMap::new(),
            active: Vec::new(),
            unsettled: Vec::new(),
            next_parked: 0,
            epoch: 1,
            has_changed: false,
            again: None,
            last_number: first_number >> 1,
            lingers,
            bell,
            wanted: Wanted::All,
            counts: Counts::default(),
        }
    }

    /// Returns the epoch. It changes when the choice of any QP may change, and is never 0.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns [`LocalPaths::must_choose`], and resets it.
    pub(super) fn has_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Returns true if QPs have to choose their paths again.
    pub(super) fn must_choose(&self) -> bool {
        self.has_changed
    }

    /// Returns true if QPs must not use the network.
    pub(super) fn must_use_memory(&self) -> bool {
        self.policy == PathPolicy::Memory
    }

    fn changed(&mut self) {
        self.epoch += 1;
        self.has_changed = true;
    }

    /// Returns the shard that owns a QP's peer. Shared TGTs belong to the first shard of their executor.
    fn partner_of(&self, peer: QpNumber, at: IpAddr) -> Option<Partner> {
        let host = self.host.as_ref()?;
        let number = peer.get();
        let executor = self.targets.as_ref().and_then(|targets| targets.executor_of(number));
        let home = executor.map(|member| (member, ShardIndex::FIRST.0)).or_else(|| host.home_of(number));
        let (member, shard) = home.filter(|(member, _)| host.has_port_at(*member, at))?;
        Some(Partner { member, shard })
    }

    /// Chooses the path to the QP with number `peer` at the address `at`. `before` is the last choice for the peer. Its
    /// pair is chosen again if the peer's number and port are no longer owned, because the last packets of a dead
    /// member stay in the pair until the pair is dropped.
    pub(super) fn choose(
        &mut self,
        peer: QpNumber,
        at: IpAddr,
        before: Choice,
        outbox: &mut MemberOutbox,
        now: Time,
    ) -> Choice {
        // A child of a fork must not offer areas on behalf of its parent.
        self.is_own_process();
        if let PathPolicy::Network(reason) = self.policy {
            return Choice::network(reason.ours());
        }
        let Some(partner) = self.partner_of(peer, at) else {
            let is_there =
                |index: &usize| self.pairs.get(*index).is_some_and(|pair| pair.number() == before.area);
            if let Some(index) = before.pair.filter(is_there) {
                return self.choose_pair(index);
            }
            return Choice::network("the peer is not a process of this user on this host");
        };
        self.choose_partner(partner, outbox, now)
    }

    fn choose_partner(&mut self, partner: Partner, outbox: &mut MemberOutbox, now: Time) -> Choice {
        let known = self.partners.get(&partner).copied();
        if let Some(index) = known.and_then(|known| known.pair) {
            return self.choose_pair(index);
        }
        match known {
            Some(Known { why, again: None, .. }) => Choice { is_final: true, ..Choice::network(why) },
            Some(Known { why, again: Some(again), .. }) if now < again => Choice::network(why),
            _ => self.offer(partner, outbox, now),
        }
    }

    fn choose_pair(&self, index: usize) -> Choice {
        let pair = &self.pairs[index];
        let why =
            if pair.is_stalled() { "the peer has stopped taking what is in shared memory" } else { AWAITED };
        let pair_index = pair.has_other().then_some(index);
        Choice {
            pair: pair_index,
            area: pair.number(),
            is_used: pair.is_attached() && !pair.is_stalled(),
            why,
            is_final: false,
        }
    }

    /// Checks that peers at an address may be reachable through memory, if the device must use memory.
    pub(super) fn check(&self, at: IpAddr) -> Result<(), &'static str> {
        if self.policy != PathPolicy::Memory {
            return Ok(());
        }
        let host = self
            .host
            .as_ref()
            .ok_or("TRUNKLINE_LINK=shm (or setting link): the device's network is not the host's")?;
        // A peer on this host may open its address after this side connects.
        if at.to_canonical().is_loopback() || host.is_address_of_members(at) {
            return Ok(());
        }
        Err(
            "TRUNKLINE_LINK=shm (or setting link): no process of this user on this host has the peer's address",
        )
    }

    fn insert(&mut self, pair: MemoryPair) -> usize {
        let partner = pair.partner();
        self.room.take();
        let index = self.pairs.insert(pair);
        self.unsettle(index);
        let (ended, unanswered) = self.past(partner);
        self.partners
            .insert(partner, Known { pair: Some(index), why: AWAITED, again: None, ended, unanswered });
        index
    }

    /// Returns [`Known::ended`] and [`Known::unanswered`] of a partner.
    fn past(&self, partner: Partner) -> (u32, u32) {
        self.partners.get(&partner).map_or((0, 0), |known| (known.ended, known.unanswered))
    }

    /// Records that there is no pair with the partner until the next offer.
    fn remember(&mut self, partner: Partner, why: &'static str, now: Time) -> Choice {
        let (ended, unanswered) = self.past(partner);
        let again = now.plus_ns(AGAIN_NS << ended.min(AGAIN_DOUBLINGS));
        self.partners
            .insert(partner, Known { pair: None, why, again: Some(again), ended: ended + 1, unanswered });
        self.again = Some(self.again.map_or(again, |first| first.min(again)));
        Choice::network(why)
    }

    /// Sends a message. Returns false if it does not fit in the outbox.
    fn send(&self, to: Partner, message: Message, outbox: &mut MemberOutbox) -> bool {
        let ends = Ends { from: self.shard, to: to.shard };
        outbox.push(to.member, |out| message.write(ends, out))
    }

    fn activate(&mut self, index: usize) {
        if !self.active.contains(&index) {
            self.active.push(index);
        }
    }

    fn unsettle(&mut self, index: usize) {
        if !self.unsettled.contains(&index) {
            self.unsettled.push(index);
        }
    }

    /// Ends a pair and notifies the peer.
    fn end(&mut self, index: usize, why: &'static str, outbox: &mut MemberOutbox, now: Time) {
        let Some(pair) = self.drop_pair(index) else { return };
        let (partner, number) = (pair.partner(), pair.number());
        drop(pair);
        tracing::debug!(member = ?partner, cause = why, "shared memory no longer used with a member");
        self.remember(partner, why, now);
        // If the message is dropped, the other side detects that its ring is no longer emptied.
        let _full = self.send(partner, Message::End { area: number }, outbox);
    }

    /// Removes a pair. Its memory is released when the returned value is dropped.
    fn drop_pair(&mut self, index: usize) -> Option<MemoryPair> {
        let pair = self.pairs.try_remove(index)?;
        self.active.retain(|active| *active != index);
        self.unsettled.retain(|unsettled| *unsettled != index);
        self.room.give_back(1);
        if let Some(known) = self.partners.get_mut(&pair.partner()) {
            known.pair = None;
        }
        self.counts.ended += 1;
        if !mutant!(path_generation_is_not_bumped) {
            self.changed();
        }
        Some(pair)
    }

    /// Returns the indices of the pairs with a member whose areas are mapped here.
    pub(super) fn pairs_with(&mut self, member: MemberId) -> Vec<usize> {
        // A forked child does not map the areas, so this call drops its pairs.
        self.is_own_process();
        let with = |(_, pair): &(usize, &MemoryPair)| pair.partner().member == member && pair.has_other();
        self.pairs.iter().filter(with).map(|(index, _)| index).collect()
    }

    /// Drops the pairs with a member that has died or left, or that is alive but cannot be reached by messages. An
    /// unreachable member is offered memory again later, with a delay that doubles each time.
    pub(super) fn member_gone(&mut self, member: MemberId, now: Time) {
        if mutant!(memory_of_the_dead_is_kept) {
            return;
        }
        let (first, last) = (Partner { member, shard: 0 }, Partner { member, shard: u8::MAX });
        for partner in self.partners.range(first..=last).map(|(partner, _)| *partner).collect::<Vec<_>>() {
            let known = self.partners.get(&partner).copied();
            if let Some(index) = known.and_then(|known| known.pair) {
                drop(self.drop_pair(index));
            } else if known.is_some_and(|known| known.again.is_none()) {
                // QPs connected to this member may now have another choice.
                self.changed();
            }
            if self.host.as_ref().is_some_and(|host| host.is_alive(member)) {
                self.remember(partner, "messages do not reach the peer's process", now);
            } else {
                self.partners.remove(&partner);
            }
        }
    }

    /// Notifies the peers that the device is removed, and releases all memory.
    pub(super) fn leave(&mut self, outbox: &mut MemberOutbox) {
        for (_, pair) in &self.pairs {
            let _full = self.send(pair.partner(), Message::End { area: pair.number() }, outbox);
        }
        self.clear(Refusal::Removed);
    }

    fn clear(&mut self, reason: Refusal) {
        self.policy = PathPolicy::Network(reason);
        self.room.give_back(self.pairs.len());
        self.pairs.clear();
        self.partners.clear();
        self.active.clear();
        self.unsettled.clear();
        self.changed();
    }

    /// Returns true if this process created the areas. Otherwise this process is a child of a fork, and drops the
    /// areas.
    fn is_own_process(&mut self) -> bool {
        let is_own = self.areas.as_ref().map_or(true, Areas::is_own_process);
        if !is_own && !matches!(self.policy, PathPolicy::Network(Refusal::Forked)) {
            self.clear(Refusal::Forked);
        }
        is_own
    }

    /// Returns true if the shard does not have pairs, planned offers or changes to report to QPs.
    #[inline]
    pub(super) fn is_unused(&self) -> bool {
        self.pairs.is_empty() && self.again.is_none() && !self.has_changed
    }

    /// Returns true if rings are polled in each turn.
    pub(super) fn is_active(&self) -> bool {
        !self.active.is_empty()
    }

    /// Returns the pair at a position in the list of active pairs.
    pub(super) fn active(&self, at: usize) -> Option<usize> {
        self.active.get(at).copied()
    }

    /// Checks all pairs that are not settled. Returns the QPs that waited for room and may continue.
    pub(super) fn look(&mut self, outbox: &mut MemberOutbox, now: Time) -> Vec<u32> {
        if !self.is_own_process() {
            return Vec::new();
        }
        if self.again.is_some_and(|again| again <= now) {
            self.again = None;
            self.changed();
        }
        self.look_at_parked(now);
        if self.unsettled.is_empty() { Vec::new() } else { self.look_at_unsettled(outbox, now) }
    }

    #[inline(never)]
    fn look_at_unsettled(&mut self, outbox: &mut MemberOutbox, now: Time) -> Vec<u32> {
        let mut ready = Vec::new();
        let (mut has_changed, mut unanswered) = (false, Vec::new());
        let Self { pairs, partners, unsettled, .. } = self;
        unsettled.retain(|&index| {
            let Some(pair) = pairs.get_mut(index) else { return false };
            if !pair.has_other() && now.since(pair.heard()) >= ANSWER_NS {
                let known = partners.get_mut(&pair.partner());
                if let Some(known) = known.filter(|known| known.unanswered < AGAIN_DOUBLINGS) {
                    known.unanswered += 1;
                    unanswered.push(index);
                }
            }
            has_changed |= pair.has_become_attached() || pair.goes_on();
            // Ignore errors of the ring, which are detected again when the QPs send.
            if !pair.waiting.is_empty() && pair.has_room() != Ok(false) {
                pair.is_not_full();
                ready.append(&mut pair.waiting);
            } else if !pair.waiting.is_empty() && pair.has_stopped(now, STALLED_NS) {
                has_changed = true;
                ready.append(&mut pair.waiting);
            }
            !pair.is_settled()
        });
        if has_changed {
            self.changed();
        }
        for index in unanswered {
            self.end(index, UNANSWERED, outbox, now);
        }
        ready
    }

    /// Polls one of the parked rings, since the wake-up message may arrive late while the link is rarely polled.
    fn look_at_parked(&mut self, now: Time) {
        let index = self.next_parked;
        self.next_parked = if index + 1 < self.pairs.capacity() { index + 1 } else { 0 };
        if let Some(pair) = self.pairs.get_mut(index)
            && pair.is_parked_too_long()
        {
            pair.unpark(now);
            self.activate(index);
        }
    }

    /// Makes QPs choose their paths again if the peer has stopped emptying the ring. Called when a QP that sends
    /// through this pair times out, or receives a packet from the network.
    pub(super) fn note_silence(&mut self, index: usize, now: Time) {
        let pair = if self.is_own_process() { self.pairs.get_mut(index) } else { None };
        if pair.is_some_and(|pair| !pair.is_drained() && pair.has_stopped(now, STALLED_NS)) {
            self.unsettle(index);
            self.changed();
        }
    }

    /// Copies the next packet of a pair to the front of `into`, which never shrinks. The payload of a READ response
    /// stays in the ring; [`LocalPaths::arrived`] returns it.
    pub(super) fn take(
        &mut self,
        index: usize,
        into: &mut Vec<u8>,
        outbox: &mut MemberOutbox,
        now: Time,
    ) -> Taken {
        let Some(pair) = self.pairs.get_mut(index) else { return Taken::Ended };
        match pair.pop(into, now) {
            Ok(Some(length)) => {
                self.counts.received += 1;
                Taken::Packet(length)
            }
            Ok(None) => Taken::Nothing,
            Err(_) => {
                self.is_nonsense(index, outbox, now);
                Taken::Ended
            }
        }
    }

    /// Ends a pair because its memory contains invalid values.
    pub(super) fn is_nonsense(&mut self, index: usize, outbox: &mut MemberOutbox, now: Time) {
        self.counts.nonsense += 1;
        self.end(index, "the peer has written nonsense into shared memory", outbox, now);
    }

    /// Returns the payload of the last packet taken from the ring, from byte `at` of the packet.
    pub(super) fn arrived(&self, index: usize, at: usize) -> Option<ArrivedPayload<'_>> {
        self.pairs.get(index).map(|pair| pair.arrived(at))
    }

    /// Releases the handled packets of a pair, so that its sender may reuse their space.
    pub(super) fn release(&mut self, index: usize) {
        if let Some(pair) = self.pairs.get_mut(index) {
            pair.release();
        }
    }

    /// Returns true if there is room for a packet. Otherwise, [`LocalPaths::look`] returns the QP later, when there is
    /// room or the peer has stopped.
    pub(super) fn has_room(
        &mut self,
        index: usize,
        qp: QpNumber,
        outbox: &mut MemberOutbox,
        now: Time,
    ) -> bool {
        // A child of a fork does not map the memory, and any of its threads may be the first to send.
        if !self.is_own_process() {
            return false;
        }
        let Some(pair) = self.pairs.get_mut(index) else { return false };
        match pair.has_room() {
            Ok(true) => true,
            Ok(false) => {
                if !pair.waiting.contains(&qp.get()) {
                    pair.waiting.push(qp.get());
                    self.unsettle(index);
                }
                false
            }
            Err(_) => {
                self.is_nonsense(index, outbox, now);
                false
            }
        }
    }

    /// Writes a packet. The caller has checked that there is room, and calls [`LocalPaths::publish`] afterwards.
    pub(super) fn push(&mut self, index: usize, packet: &[u8], payload: Written) {
        let Some(pair) = self.pairs.get_mut(index) else { return };
        self.counts.sent += 1;
        pair.push(packet, payload);
    }

    /// Returns the place in the ring for the payload of the next packet. Call it only after [`LocalPaths::has_room`]
    /// has returned true.
    #[inline]
    pub(super) fn payload(&self, index: usize) -> Option<RingPayload<'_>> {
        self.pairs.get(index).map(MemoryPair::payload)
    }

    /// Writes and publishes a packet. Returns false if the ring does not have room for it.
    pub(super) fn push_if_room(&mut self, index: usize, packet: &[u8], outbox: &mut MemberOutbox) -> bool {
        let has_room = self.is_own_process()
            && self.pairs.get_mut(index).is_some_and(|pair| pair.has_room() == Ok(true));
        if has_room {
            self.push(index, packet, Written::default());
            self.publish(index, outbox);
        }
        has_room
    }

    /// Publishes the written packets to the other side.
    pub(super) fn publish(&mut self, index: usize, outbox: &mut MemberOutbox) {
        if self.pairs.get_mut(index).is_some_and(MemoryPair::publish) {
            self.wake(index, outbox);
        }
    }

    fn wake(&mut self, index: usize, outbox: &mut MemberOutbox) {
        let Some(pair) = self.pairs.get(index) else { return };
        self.counts.wakes += 1;
        if mutant!(parked_ring_is_not_woken) {
            return;
        }
        if pair.is_same() {
            let now = pair.heard();
            self.woken(pair.partner(), now);
        } else if !pair.bell.as_ref().is_some_and(ShardBell::ring)
            && !self.send(pair.partner(), Message::Wake, outbox)
        {
            // The next packet, or a retransmission of this packet, wakes the other side.
            self.pairs[index].was_not_woken();
        }
    }

    /// Parks the ring at a position in the list of active pairs if the ring has been idle. Returns true if the ring is
    /// no longer in the list.
    pub(super) fn park_idle(&mut self, at: usize, now: Time) -> bool {
        let pair = self.active.get(at).and_then(|index| self.pairs.get_mut(*index));
        let parks = pair.is_none_or(|pair| now.since(pair.heard()) >= IDLE_NS && pair.park(Wanted::All));
        if parks {
            self.active.remove(at);
        }
        parks
    }

    /// Parks all rings before a thread sleeps. `wanted` selects the packets that must wake the thread. Returns true if
    /// packets have arrived before the rings were parked.
    pub(super) fn park(&mut self, wanted: Wanted) -> bool {
        let was_less = std::mem::replace(&mut self.wanted, wanted) == Wanted::Urgent && wanted == Wanted::All;
        if self.active.is_empty() && !was_less {
            return false;
        }
        if !self.is_own_process() {
            return true;
        }
        let Self { active, pairs, .. } = self;
        if was_less {
            // Include the rings that are parked for urgent packets only.
            active.extend(pairs.iter().map(|(index, _)| index));
            active.sort_unstable();
            active.dedup();
        }
        active.retain(|index| pairs.get_mut(*index).is_some_and(|pair| !pair.park(wanted)));
        !active.is_empty()
    }

    /// Parks all rings again, for a thread that sleeps while another thread has done work. Returns true if
    /// packets have arrived before the rings were parked.
    pub(super) fn park_again(&mut self) -> bool {
        self.park(self.wanted)
    }

    /// Polls the parked rings whose senders have the bell. Returns true if packets have arrived.
    pub(super) fn look_at_rung(&mut self, now: Time) -> bool {
        if self.bell.is_none() || !self.is_own_process() {
            return false;
        }
        let Self { active, pairs, .. } = self;
        let before = active.len();
        for (index, pair) in pairs.iter_mut().filter(|(_, pair)| pair.gave_bell) {
            if pair.is_parked_too_long() {
                pair.unpark(now);
                if !active.contains(&index) {
                    active.push(index);
                }
            }
        }
        active.len() > before
    }

    /// Returns the descriptor of the bell, which wakes the thread that sleeps for this shard.
    pub(super) fn descriptor(&self) -> Option<RawFd> {
        self.bell.as_ref().map(ShardBell::descriptor)
    }

    /// Returns true if the machine should keep polling instead of sleeping.
    pub(super) fn lingers(&self, now: Time) -> bool {
        let is_recent = |index: &usize| now.since(self.pairs[*index].heard()) < LINGER_NS;
        self.lingers && self.active.iter().any(is_recent)
    }

    /// Returns true if QPs wait for room in a ring.
    pub(super) fn waits_for_room(&self) -> bool {
        self.unsettled.iter().any(|index| !self.pairs[*index].waiting.is_empty())
    }

    /// Appends the counters of shared memory.
    pub(super) fn counters(&self, into: &mut Vec<Counter>) {
        let pairs = self.pairs.iter().filter(|(_, pair)| pair.is_attached()).count() as u64;
        into.extend([
            Counter { name: "shm_peers", value: pairs },
            Counter { name: "shm_packets_sent", value: self.counts.sent },
            Counter { name: "shm_packets_received", value: self.counts.received },
            Counter { name: "shm_wakes", value: self.counts.wakes },
            Counter { name: "shm_peers_ended", value: self.counts.ended },
            Counter { name: "drop_shm_nonsense", value: self.counts.nonsense },
            Counter { name: "drop_shm_messages", value: self.counts.unknown },
        ]);
    }
}
