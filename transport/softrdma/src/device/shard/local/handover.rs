//! Agreement of two members on a pair of areas.
//!
//! Owns the offers and their outcomes. QPs use the network until each side has mapped the other side's area.

use super::bell::ShardBell;
use super::choice::{Choice, PathPolicy};
use super::message::{Ends, Message, Refusal, VERSION};
use super::pair::{AREA_BYTES, MemoryPair};
use super::{AWAITED, Known, LocalPaths, MAX_BELLS, Partner};
use crate::device::shard::outbox::MemberOutbox;
use crate::device::tables::directory::MAX_SHARDS;
use crate::host::{AreaHandle, MappedArea, MemberId, OwnArea};
use trunkline_verbs::Time;

impl LocalPaths {
    /// Offers an area to a shard of a member.
    pub(super) fn offer(&mut self, partner: Partner, outbox: &mut MemberOutbox, now: Time) -> Choice {
        let is_ours = self.host.as_ref().is_some_and(|host| host.me() == partner.member);
        let is_same = is_ours && partner.shard == self.shard;
        let (own, number, handle) = match self.make_area(partner.member) {
            Ok(made) => made,
            Err(why) => return self.remember(partner, why, now),
        };
        if is_same {
            let index = self.insert(MemoryPair::with_itself(partner, own, number, now));
            self.activate(index);
            return self.choose_pair(index);
        }
        let message = Message::Offer { version: VERSION, area: number };
        if !self.hand_over(partner, handle, message, outbox) {
            return self.remember(partner, "too many messages to other processes wait", now);
        }
        self.insert(MemoryPair::new(partner, own, number, now));
        Choice::network(AWAITED)
    }

    /// Sends a message with an area. Returns false if it does not fit in the outbox.
    fn hand_over(&self, to: Partner, area: AreaHandle, message: Message, outbox: &mut MemberOutbox) -> bool {
        let ends = Ends { from: self.shard, to: to.shard };
        outbox.hand_over(to.member, area, |out| message.write(ends, out))
    }

    fn make_area(&mut self, with: MemberId) -> Result<(OwnArea, u64, AreaHandle), &'static str> {
        let has_pairs = self.pairs.iter().any(|(_, pair)| pair.partner().member == with);
        self.room.check(has_pairs)?;
        let areas = self.areas.as_ref().map_err(|why| *why)?;
        let (own, handle) = areas.make(AREA_BYTES)?;
        self.last_number += 1;
        Ok((own, self.last_number, handle))
    }

    /// Handles a message from another member, and the area or bell sent with it. Returns false if the message
    /// is malformed.
    pub(in crate::device::shard) fn handle(
        &mut self,
        member: MemberId,
        (kind, bytes): (u8, &[u8]),
        area: Option<AreaHandle>,
        outbox: &mut MemberOutbox,
        now: Time,
    ) -> bool {
        // A child of a fork drops the shared memory, and refuses offers.
        self.is_own_process();
        let read = Message::read(kind, bytes)
            .filter(|(ends, _)| ends.to == self.shard && usize::from(ends.from) < MAX_SHARDS);
        let Some((Ends { from: shard, .. }, message)) = read else {
            self.counts.unknown += 1;
            return false;
        };
        let from = Partner { member, shard };
        match (message, area) {
            (Message::Offer { version, area }, Some(handle)) => {
                if let Err(reason) = self.accept(from, version, area, handle, outbox, now) {
                    let _asked_again = self.send(from, Message::Refuse { reason }, outbox);
                }
            }
            (Message::Accept { version, area, offered }, Some(handle)) => {
                self.accepted(from, version, area, handle, offered, outbox, now);
            }
            // The descriptor was lost, for example because this process has reached its descriptor limit.
            (Message::Offer { .. }, None) => {
                let _asked_again = self.send(from, Message::Refuse { reason: Refusal::NoRoom }, outbox);
            }
            (Message::Accept { offered, .. }, None) => {
                if let Some(index) = self.awaits(from, offered) {
                    self.end(index, Refusal::NoRoom.ours(), outbox, now);
                }
            }
            (Message::Refuse { reason }, None) => self.refused(from, reason, now),
            (Message::Wake, None) => self.woken(from, now),
            (Message::Bell, handle) => {
                let pair = self.partners.get(&from).and_then(|known| known.pair);
                if let Some(pair) = pair.and_then(|index| self.pairs.get_mut(index)) {
                    pair.bell = handle.and_then(ShardBell::take);
                }
            }
            (Message::End { area }, None) => {
                let index = self.partners.get(&from).and_then(|known| known.pair);
                if let Some(index) = index.filter(|index| self.pairs[*index].is_with(area)) {
                    drop(self.drop_pair(index));
                    self.remember(from, "the peer has stopped looking into shared memory", now);
                }
            }
            _ => {
                self.counts.unknown += 1;
                return false;
            }
        }
        true
    }

    /// Returns the pair that a message from another member ends, if any. The peer no longer writes into the pair's
    /// ring.
    pub(in crate::device::shard) fn ended_by(
        &mut self,
        member: MemberId,
        (kind, bytes): (u8, &[u8]),
    ) -> Option<usize> {
        // A child of a fork drops the shared memory.
        self.is_own_process();
        let (ends, message) = Message::read(kind, bytes)?;
        let from = Partner { member, shard: ends.from };
        let index = self.partners.get(&from).and_then(|known| known.pair)?;
        let is_ended = match message {
            Message::End { area } => self.pairs[index].is_with(area),
            Message::Offer { .. } => self.pairs[index].has_other(),
            _ => false,
        };
        is_ended.then_some(index)
    }

    /// Handles the offer of an area.
    fn accept(
        &mut self,
        from: Partner,
        version: u32,
        number: u64,
        handle: AreaHandle,
        outbox: &mut MemberOutbox,
        now: Time,
    ) -> Result<(), Refusal> {
        if let PathPolicy::Network(reason) = self.policy {
            return Err(reason);
        }
        if version != VERSION {
            return Err(Refusal::OtherVersion);
        }
        let areas = self.areas.as_ref().map_err(|_| Refusal::NoRoom)?;
        let area = areas.map(handle, AREA_BYTES).map_err(|why| {
            tracing::debug!(member = ?from, cause = why, "offer of shared memory refused");
            Refusal::NoRoom
        })?;
        let pair = self.partners.get(&from).and_then(|known| known.pair);
        if let Some(index) = pair.filter(|index| !self.pairs[*index].has_other()) {
            // The two members offered memory to each other at the same time.
            self.attach(index, area, number, outbox, now);
            return Ok(());
        }
        if let Some(index) = pair {
            // The peer has dropped the old pair. If a new pair cannot be created now, QPs may choose again
            // later.
            drop(self.drop_pair(index));
            self.remember(from, "the peer has begun to share memory again", now);
        }
        let (own, own_number, handle) = self.make_area(from.member).map_err(|_| Refusal::NoRoom)?;
        let message = Message::Accept { version: VERSION, area: own_number, offered: number };
        if !self.hand_over(from, handle, message, outbox) {
            return Err(Refusal::NoRoom);
        }
        let index = self.insert(MemoryPair::new(from, own, own_number, now));
        self.attach(index, area, number, outbox, now);
        Ok(())
    }

    /// Handles the acceptance of an offer, and the peer's area.
    fn accepted(
        &mut self,
        from: Partner,
        version: u32,
        number: u64,
        handle: AreaHandle,
        offered: u64,
        outbox: &mut MemberOutbox,
        now: Time,
    ) {
        let Some(index) = self.awaits(from, offered) else { return };
        let mapped = match &self.areas {
            Ok(areas) if version == VERSION => areas.map(handle, AREA_BYTES),
            Ok(_) => Err(Refusal::OtherVersion.ours()),
            Err(why) => Err(*why),
        };
        match mapped {
            Ok(area) => self.attach(index, area, number, outbox, now),
            Err(why) => self.end(index, why, outbox, now),
        }
    }

    /// Returns the pair for which this area was offered, if the offer is not answered yet.
    fn awaits(&self, from: Partner, offered: u64) -> Option<usize> {
        let pair = self.partners.get(&from).and_then(|known| known.pair);
        pair.filter(|index| !self.pairs[*index].has_other() && self.pairs[*index].number() == offered)
    }

    fn attach(&mut self, index: usize, area: MappedArea, number: u64, outbox: &mut MemberOutbox, now: Time) {
        self.pairs[index].attach(area, number, now);
        let given = self.pairs.iter().filter(|(_, pair)| pair.gave_bell).count();
        let bell = self.bell.as_ref().filter(|_| given < MAX_BELLS).and_then(|bell| bell.handle().ok());
        if let Some(handle) = bell {
            self.pairs[index].gave_bell =
                self.hand_over(self.pairs[index].partner(), handle, Message::Bell, outbox);
        }
        self.has_answered(self.pairs[index].partner());
        self.activate(index);
        self.changed();
    }

    /// Resets the number of unanswered offers, since the partner has answered.
    fn has_answered(&mut self, partner: Partner) {
        if let Some(known) = self.partners.get_mut(&partner) {
            known.unanswered = 0;
        }
    }

    fn refused(&mut self, from: Partner, reason: Refusal, now: Time) {
        let pair = self.partners.get(&from).and_then(|known| known.pair);
        let Some(index) = pair.filter(|index| !self.pairs[*index].has_other()) else { return };
        drop(self.drop_pair(index));
        self.has_answered(from);
        if reason == Refusal::NoRoom {
            // The peer may have room later, when pairs end and descriptors are closed.
            self.remember(from, reason.theirs(), now);
            return;
        }
        let (ended, unanswered) = self.past(from);
        self.partners
            .insert(from, Known { pair: None, why: reason.theirs(), again: None, ended, unanswered });
    }

    pub(super) fn woken(&mut self, from: Partner, now: Time) {
        let Some(index) = self.partners.get(&from).and_then(|known| known.pair) else { return };
        if self.pairs[index].has_other() {
            self.pairs[index].unpark(now);
            self.activate(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pair::{ATTACHED, Written};
    use super::super::{AGAIN_DOUBLINGS, ANSWER_NS, LocalInit, Room, UNANSWERED};
    use super::*;
    use crate::device::tables::directory::ShardIndex;
    use crate::host::testing::hosts;
    use crate::host::{Areas, Host};
    use std::sync::Arc;

    const THEIRS: u64 = 500;

    /// A shard's paths, another member, and the count of pairs.
    struct Scene {
        _folder: trunkline_testkit::Folder,
        local: LocalPaths,
        outbox: MemberOutbox,
        room: Arc<Room>,
        other: Arc<Host>,
    }

    fn scene() -> Scene {
        let (folder, [host, other]) = hosts();
        let init = LocalInit::new(Some(host), None, PathPolicy::Memory, 7);
        let room = Arc::clone(&init.room);
        let local = LocalPaths::new(init, ShardIndex::FIRST);
        Scene { _folder: folder, local, outbox: MemberOutbox::new(None), room, other }
    }

    impl Scene {
        fn partner(&self) -> Partner {
            Partner { member: self.other.me(), shard: 0 }
        }

        fn receive(&mut self, from: u8, message: Message, area: Option<AreaHandle>) -> bool {
            let mut bytes = Vec::new();
            let kind = message.write(Ends { from, to: 0 }, &mut bytes);
            let member = self.other.me();
            self.local.handle(member, (kind, &bytes), area, &mut self.outbox, Time::default())
        }

        fn offered_area(&self) -> AreaHandle {
            Areas::new(&self.other).unwrap().make(AREA_BYTES).unwrap().1
        }

        fn known(&self) -> Known {
            self.local.partners[&self.partner()]
        }

        fn choose(&mut self, partner: Partner) -> Choice {
            self.local.choose_partner(partner, &mut self.outbox, Time::default())
        }

        fn is_final(&mut self) -> bool {
            self.choose(self.partner()).is_final
        }
    }

    #[test]
    fn acceptance_without_descriptor_ends_offer_temporarily() {
        let mut scene = scene();
        scene.local.offer(scene.partner(), &mut scene.outbox, Time::default());
        let offered = scene.local.last_number;
        let accept = Message::Accept { version: VERSION, area: THEIRS, offered };
        assert!(scene.known().pair.is_some() && scene.receive(0, accept, None));
        let known = scene.known();
        assert!(known.pair.is_none() && known.again.is_some(), "{known:?}");
    }

    /// Without the repetition, a lost message would keep two processes on the network for as long as both live.
    #[test]
    fn offer_without_answer_is_repeated_limited_times() {
        let mut scene = scene();
        let partner = scene.partner();
        let mut now = Time::default();
        scene.local.offer(partner, &mut scene.outbox, now);
        for time in 1..=AGAIN_DOUBLINGS {
            let offered = scene.local.last_number;
            now = now.plus_ns(ANSWER_NS - 1);
            scene.local.look(&mut scene.outbox, now);
            assert!(scene.known().pair.is_some(), "{time}: too early");
            now = now.plus_ns(1);
            scene.local.look(&mut scene.outbox, now);
            let known = scene.known();
            assert_eq!((known.pair, known.why), (None, UNANSWERED), "{time}");
            now = known.again.unwrap();
            scene.local.choose_partner(partner, &mut scene.outbox, now);
            assert!(scene.known().pair.is_some() && scene.local.last_number > offered, "{time}");
        }
        scene.local.look(&mut scene.outbox, now.plus_ns(100 * ANSWER_NS));
        assert!(scene.known().pair.is_some(), "a stopped process gets no more of them");
        let offered = scene.local.last_number;
        let accept = Message::Accept { version: VERSION, area: THEIRS, offered };
        let area = scene.offered_area();
        assert!(scene.receive(0, accept, Some(area)) && scene.choose(partner).pair.is_some());
    }

    /// Without the reset, the QPs of a process that was stopped, or that ended some pairs, would stay on
    /// the network after the next lost message.
    #[test]
    fn answered_offer_resets_repeat_count() {
        let mut scene = scene();
        let partner = scene.partner();
        let mut now = Time::default();
        for _ in 0..2 {
            for time in 1..=AGAIN_DOUBLINGS {
                scene.local.choose_partner(partner, &mut scene.outbox, now);
                now = now.plus_ns(ANSWER_NS);
                scene.local.look(&mut scene.outbox, now);
                let known = scene.known();
                assert_eq!((known.pair, known.why), (None, UNANSWERED), "{time}");
                now = known.again.unwrap();
            }
            scene.local.choose_partner(partner, &mut scene.outbox, now);
            let accept = Message::Accept { version: VERSION, area: THEIRS, offered: scene.local.last_number };
            let area = scene.offered_area();
            assert!(scene.receive(0, accept, Some(area)) && scene.choose(partner).pair.is_some());
            assert!(scene.receive(0, Message::End { area: THEIRS }, None) && scene.known().pair.is_none());
            now = now.max(scene.known().again.unwrap());
        }
    }

    #[test]
    fn forked_child_neither_accepts_nor_sends_offers() {
        let mut scene = scene();
        scene.local.offer(scene.partner(), &mut scene.outbox, Time::default());
        scene.local.areas.as_ref().unwrap().pretend_child();
        let area = scene.offered_area();
        assert!(scene.receive(0, Message::Offer { version: VERSION, area: THEIRS }, Some(area)));
        let messages =
            scene.outbox.waiting_for_tests().map(|(kind, bytes)| Message::read(kind, bytes).unwrap().1);
        assert_eq!(messages.last(), Some(Message::Refuse { reason: Refusal::Forked }));
        // Choosing a path may be the first use of the shared area after the fork.
        scene.local.policy = PathPolicy::Memory;
        let count = scene.outbox.waiting_for_tests().count();
        let choice = scene.local.choose(
            trunkline_verbs::QpNumber::new(17),
            [127, 0, 0, 1].into(),
            Choice::network(""),
            &mut scene.outbox,
            Time::default(),
        );
        assert_eq!(choice.why, Refusal::Forked.ours());
        assert_eq!(scene.outbox.waiting_for_tests().count(), count);
    }

    /// The numbers of a member that has left do not have an owner, but its last packets are still in the pair.
    #[test]
    fn pair_of_departed_member_is_chosen_until_dropped() {
        let mut scene = scene();
        let partner = scene.partner();
        scene.local.offer(partner, &mut scene.outbox, Time::default());
        let accept = Message::Accept { version: VERSION, area: THEIRS, offered: scene.local.last_number };
        let area = scene.offered_area();
        assert!(scene.receive(0, accept, Some(area)));
        let before = scene.choose(partner);
        let again = |scene: &mut Scene| {
            let number = trunkline_verbs::QpNumber::new(17);
            let outbox = &mut scene.outbox;
            scene.local.choose(number, [127, 0, 0, 1].into(), before, outbox, Time::default())
        };
        assert!(before.pair.is_some());
        assert_eq!(again(&mut scene), before);
        scene.local.member_gone(partner.member, Time::default());
        scene.local.offer(partner, &mut scene.outbox, Time::default());
        assert_eq!(scene.known().pair, before.pair, "another pair in its place");
        assert_eq!(again(&mut scene).why, "the peer is not a process of this user on this host");
    }

    #[test]
    fn removed_device_refuses_offers_as_removed() {
        let mut scene = scene();
        scene.local.leave(&mut scene.outbox);
        let area = scene.offered_area();
        assert!(scene.receive(0, Message::Offer { version: VERSION, area: THEIRS }, Some(area)));
        let (kind, bytes) = scene.outbox.waiting_for_tests().last().unwrap();
        let refusal = Message::Refuse { reason: Refusal::Removed };
        assert_eq!(Message::read(kind, bytes), Some((Ends { from: 0, to: 0 }, refusal)));
    }

    #[test]
    fn only_refusal_for_lack_of_room_is_temporary() {
        for (reason, ends) in [(Refusal::NoRoom, true), (Refusal::AsksForUdp, false)] {
            let mut scene = scene();
            scene.local.offer(scene.partner(), &mut scene.outbox, Time::default());
            assert!(scene.known().pair.is_some() && scene.receive(0, Message::Refuse { reason }, None));
            let known = scene.known();
            assert_eq!((known.pair, known.why, known.again.is_some()), (None, reason.theirs(), ends));
            assert_eq!(scene.is_final(), !ends);
        }
    }

    #[test]
    fn message_from_invalid_shard_is_dropped() {
        let mut scene = scene();
        for from in [32, u8::MAX] {
            let area = scene.offered_area();
            assert!(!scene.receive(from, Message::Offer { version: VERSION, area: THEIRS }, Some(area)));
        }
        assert!(scene.local.partners.is_empty() && scene.local.counts.unknown == 2);
    }

    /// If the reason were final, a device that must use memory would break QPs whose peers have not answered
    /// yet.
    #[test]
    fn renewed_offer_without_room_is_not_final() {
        let mut scene = scene();
        let offer = Message::Offer { version: VERSION, area: THEIRS };
        let area = scene.offered_area();
        assert!(scene.receive(0, offer, Some(area)) && scene.known().pair.is_some());
        while scene.room.check(false).is_ok() {
            scene.room.take();
        }
        scene.room.take();
        let area = scene.offered_area();
        assert!(scene.receive(0, offer, Some(area)));
        assert!(scene.known().pair.is_none() && !scene.is_final(), "{:?}", scene.known());
    }

    #[test]
    fn refusal_is_final_only_for_refusing_peer() {
        let mut scene = scene();
        scene.local.offer(scene.partner(), &mut scene.outbox, Time::default());
        let reason = Refusal::AsksForUdp;
        assert!(scene.receive(0, Message::Refuse { reason }, None) && scene.is_final());
        // Another partner's reason has the same text, but is not final.
        let silent = Partner { shard: 1, ..scene.partner() };
        scene.local.remember(silent, reason.theirs(), Time::default());
        let choice = scene.choose(silent);
        assert_eq!((choice.why, choice.is_final), (reason.theirs(), false));
        let epoch = scene.local.epoch();
        scene.local.member_gone(scene.other.me(), Time::default());
        assert!(scene.local.epoch() > epoch && !scene.choose(scene.partner()).is_final);
    }

    #[test]
    fn settled_pair_is_checked_again_when_qp_waits_for_room() {
        let (mut scene, now) = (scene(), Time::default());
        scene.local.offer(scene.partner(), &mut scene.outbox, now);
        let offered = scene.local.last_number;
        let (theirs, area) = Areas::new(&scene.other).unwrap().make(AREA_BYTES).unwrap();
        let accept = Message::Accept { version: VERSION, area: THEIRS, offered };
        assert!(scene.receive(0, accept, Some(area)));
        let index = scene.known().pair.unwrap();
        scene.local.look(&mut scene.outbox, now);
        assert_eq!(scene.local.unsettled, [index], "the peer has not mapped our area");
        theirs.store(ATTACHED, offered);
        scene.local.look(&mut scene.outbox, now);
        assert!(scene.local.unsettled.is_empty() && !scene.local.waits_for_room());
        let (qp, packet) = (trunkline_verbs::QpNumber::new(17), [0; 1000]);
        let mut produced = 0;
        while scene.local.has_room(index, qp, &mut scene.outbox, now) {
            scene.local.push(index, &packet, Written::default());
            scene.local.publish(index, &mut scene.outbox);
            produced += 1008;
        }
        assert!(scene.local.waits_for_room() && scene.local.look(&mut scene.outbox, now).is_empty());
        theirs.store(64, produced);
        assert_eq!(scene.local.look(&mut scene.outbox, now), [17]);
        assert!(scene.local.unsettled.is_empty());
    }

    /// The message that wakes the receiver may be delayed at a link that is rarely polled.
    #[test]
    fn polling_thread_detects_arrivals_in_parked_ring() {
        let (mut scene, now) = (scene(), Time::default());
        scene.local.offer(scene.partner(), &mut scene.outbox, now);
        let offered = scene.local.last_number;
        let (theirs, area) = Areas::new(&scene.other).unwrap().make(AREA_BYTES).unwrap();
        let accept = Message::Accept { version: VERSION, area: THEIRS, offered };
        assert!(scene.receive(0, accept, Some(area)) && !scene.local.park_again());
        let look = |scene: &mut Scene| {
            for _ in 0..scene.local.pairs.capacity() {
                scene.local.look(&mut scene.outbox, now);
            }
            scene.local.is_active()
        };
        assert!(!look(&mut scene), "nothing has arrived");
        theirs.store(0, 16);
        assert!(look(&mut scene));
    }

    #[test]
    fn peers_beyond_limit_of_pairs_stay_on_network_and_get_later_offers() {
        let mut scene = scene();
        while scene.room.check(false).is_ok() {
            scene.room.take();
        }
        let partner = scene.partner();
        let choice = scene.choose(partner);
        assert_eq!((choice.pair, choice.is_used, choice.why), (None, false, Refusal::NoRoom.ours()));
        assert!(!choice.is_final && scene.known().again.is_some(), "{:?}", scene.known());
        scene.room.give_back(1);
        let later = scene.known().again.unwrap();
        scene.local.choose_partner(partner, &mut scene.outbox, later);
        assert!(scene.known().pair.is_some(), "{:?}", scene.known());
    }
}
