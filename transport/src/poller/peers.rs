//! A poller's table of peers, with their trunks and the messages that wait for a session.
#![forbid(unsafe_code)]

use crate::budget::{Counted, Shares};
use crate::command::SessionUp;
use crate::peer::hash::PeerHash;
use crate::trunk::{Cancelling, MessageQueue, Resources};
use crate::{Connect, Destination, PeerDown, PeerEvent, PeerKey, PollerChoice, SendFailure, SendOutcome};
use slab::Slab;
use std::collections::HashMap;
use std::time::Duration;
use trunkline_machine::mutant;
use trunkline_verbs::Time;

/// A poller's state for one peer.
#[derive(Debug, Default)]
struct Peer {
    /// True if the driver has the key.
    named: bool,
    /// Messages that wait for the next session.
    waiting: MessageQueue,
    /// Number of messages sent so far without a specific poller of the peer as their destination.
    turns: u32,
    /// Request for a session that the CM machine has not answered yet.
    asked: Option<Connect>,
    /// Cause of the last failed attempt to connect, and the earliest time of the next attempt. `None` if something else
    /// happened after the attempt.
    away: Option<(PeerDown, Time)>,
    /// Place of the peer's trunk in the poller's table.
    trunk: Option<usize>,
    /// Number of trunks of earlier sessions that are being taken down.
    dying: usize,
    /// Session that came up while an earlier one is being taken down.
    pending: Option<Box<SessionUp>>,
    forgotten: bool,
}

impl Peer {
    /// Returns the cause of the last failed attempt to connect, and the time until the next attempt.
    fn due_in(&self, now: Time) -> Option<(PeerDown, Duration)> {
        let (cause, next) = self.away?;
        (next > now && !mutant!(calls_wait_for_the_next_attempt)).then(|| (cause, next - now))
    }
}

/// Next step after freeing a trunk of a peer.
#[derive(Debug)]
pub(super) enum Next {
    Nothing,
    /// A session came up while the trunk was being taken down.
    Activate(Box<SessionUp>),
    /// Messages wait for a session.
    Ask,
}

#[derive(Debug)]
pub(super) struct Peers(PeerTable<Peer>);

impl Peers {
    pub(super) fn new(hash: PeerHash) -> Self {
        Self(PeerTable::new(hash))
    }

    /// Adds a peer unless it is in the table. Returns the key with this poller's hint.
    pub(super) fn add(&mut self, key: PeerKey) -> PeerKey {
        let (key, peer) = self.0.entry(key);
        peer.forgotten = false;
        key
    }

    /// Adds a peer that the driver names. Returns the key with this poller's hint, and true if the peer needs
    /// a session.
    #[inline]
    pub(super) fn name(&mut self, key: PeerKey) -> (PeerKey, bool) {
        let (key, peer) = self.0.entry(key);
        peer.named = true;
        peer.forgotten = false;
        (key, peer.trunk.is_none() && peer.pending.is_none())
    }

    /// Returns the choice of poller for a message to a peer, and the place of the peer's trunk in the poller's table.
    /// Messages without a chosen poller are sent to the remote poller with this poller's index, so that they share
    /// frames. If the peer has more than the `count` pollers of this node, they are sent in turn to that remote
    /// poller and to every `count`th poller after it.
    #[inline]
    pub(super) fn route(
        &mut self,
        key: PeerKey,
        destination: Destination,
        own: u32,
        count: u32,
    ) -> Option<(PollerChoice, Option<usize>)> {
        let peer = self.0.get_mut(key)?;
        let choice = match destination {
            Destination::Poller(poller) => PollerChoice::new(poller.0.into()),
            Destination::Choice(choice) => choice,
            Destination::Any => {
                let turn = peer.turns;
                peer.turns = turn.wrapping_add(count);
                PollerChoice::new(turn.wrapping_add(own))
            }
        };
        Some((choice, peer.trunk))
    }

    pub(super) fn trunk(&self, key: PeerKey) -> Option<usize> {
        self.0.get(key).and_then(|peer| peer.trunk)
    }

    /// Returns the messages that wait for a session with the peer.
    pub(super) fn waiting(&mut self, key: PeerKey) -> Option<&mut MessageQueue> {
        self.0.get_mut(key).map(|peer| &mut peer.waiting)
    }

    /// Returns the session request for the CM machine, which is `connect`, or [`Connect::Wait`] if a message waits
    /// through failed attempts. Returns `None` if the same request is pending, if a new session waits for the end of
    /// an earlier session, or if messages would not wait for the result. The CM machine does not respond to a request
    /// if the session is up.
    pub(super) fn ask(&mut self, key: PeerKey, connect: Connect, now: Time) -> Option<Connect> {
        let peer = self.0.get_mut(key).filter(|peer| peer.pending.is_none())?;
        let connect = if peer.waiting.waits() { Connect::Wait } else { connect };
        if peer.asked.is_some_and(|asked| asked == Connect::Wait || connect == Connect::FailFast) {
            return None;
        }
        if connect == Connect::FailFast && peer.due_in(now).is_some() {
            return None;
        }
        peer.asked = Some(connect);
        Some(connect)
    }

    /// Returns the cause of the last failed attempt to connect to the peer.
    pub(super) fn away(&self, key: PeerKey) -> Option<PeerDown> {
        self.0.get(key).and_then(|peer| peer.away).map(|(cause, _)| cause)
    }

    /// Returns the cause of the last failed attempt and the time until the next attempt; `None` if a message may now
    /// wait for an attempt.
    pub(super) fn due_in(&self, key: PeerKey, now: Time) -> Option<(PeerDown, Duration)> {
        self.0.get(key).and_then(|peer| peer.due_in(now))
    }

    /// Records a failed attempt to connect, and the earliest time of the next attempt.
    pub(super) fn went_away(&mut self, key: PeerKey, cause: PeerDown, next: Time) {
        if let Some(peer) = self.0.get_mut(key) {
            peer.away = Some((cause, next));
        }
    }

    /// Records that the peer connects to this node. Messages no longer wait for this node's next attempt.
    pub(super) fn returned(&mut self, key: PeerKey) {
        if let Some(peer) = self.0.get_mut(key) {
            peer.away = None;
        }
    }

    /// Handles a session that is up. Returns the session if it can be used now. Otherwise keeps it until an earlier
    /// session is taken down.
    pub(super) fn session_up(&mut self, mut session: Box<SessionUp>) -> Option<Box<SessionUp>> {
        let (key, peer) = self.0.entry(session.peer);
        session.peer = key;
        (peer.asked, peer.forgotten) = (None, false);
        if peer.dying > 0 || peer.trunk.is_some() {
            peer.pending = Some(session);
            return None;
        }
        Some(session)
    }

    /// Records the peer's new trunk.
    pub(super) fn trunk_made(&mut self, key: PeerKey, slot: usize) {
        if let Some(peer) = self.0.get_mut(key) {
            peer.trunk = Some(slot);
        }
    }

    /// Takes the messages that wait for a session. Called when the peer's trunk can be used; until then, callers get
    /// the cause of the last failure.
    pub(super) fn take_waiting(&mut self, key: PeerKey) -> MessageQueue {
        let Some(peer) = self.0.get_mut(key) else { return MessageQueue::default() };
        peer.away = None;
        std::mem::take(&mut peer.waiting)
    }

    /// Records that the trunk is being taken down.
    pub(super) fn trunk_dying(&mut self, key: PeerKey, slot: usize) {
        if let Some(peer) = self.0.get_mut(key)
            && peer.trunk == Some(slot)
        {
            peer.trunk = None;
            peer.dying += 1;
        }
    }

    /// Records that a trunk of the peer was freed. Returns the next step.
    pub(super) fn trunk_freed(&mut self, key: PeerKey) -> Next {
        let Some(peer) = self.0.get_mut(key) else { return Next::Nothing };
        peer.dying -= 1;
        if peer.dying > 0 {
            return Next::Nothing;
        }
        if let Some(session) = peer.pending.take() {
            return Next::Activate(session);
        }
        if !peer.waiting.is_empty() {
            return Next::Ask;
        }
        if peer.forgotten {
            self.0.remove(key);
        }
        Next::Nothing
    }

    /// Records a renewal of a session that cannot be used yet. The session's lanes switch as soon as it can be used.
    #[cfg(feature = "identity")]
    pub(super) fn pending_renewed(
        &mut self,
        key: PeerKey,
        number: u32,
        identity: crate::PeerIdentity,
        exchange: u32,
    ) {
        let pending = self.0.get_mut(key).and_then(|peer| peer.pending.as_mut());
        if let Some(session) = pending.filter(|session| session.number == number) {
            (session.identity, session.renewed_by) = (identity, Some(exchange));
        }
    }

    /// Takes a session that ended before it could be used.
    pub(super) fn take_pending(&mut self, key: PeerKey, number: u32) -> Option<Box<SessionUp>> {
        let peer = self.0.get_mut(key)?;
        peer.pending.take_if(|session| session.number == number)
    }

    /// Takes all sessions that could not be used yet.
    pub(super) fn take_all_pending(&mut self) -> Vec<SessionUp> {
        self.0.iter_mut().filter_map(|(_, peer)| peer.pending.take().map(|session| *session)).collect()
    }

    /// Reports the peer down, and fails the messages that wait for a session. If `keeps_waiting`, messages that may
    /// wait until their deadline remain. Returns true if any message still waits. After a failed attempt, `next` is
    /// the earliest time of the next attempt.
    pub(super) fn down(
        &mut self,
        key: PeerKey,
        cause: PeerDown,
        next: Option<Time>,
        keeps_waiting: bool,
        res: &mut Resources,
    ) -> bool {
        let Some(peer) = self.0.get_mut(key) else { return false };
        peer.asked = None;
        peer.away = next.map(|next| (cause, next));
        self.fail_waiting(key, cause, keeps_waiting, res);
        let waits = self.0.get(key).is_some_and(|peer| !peer.waiting.is_empty());
        res.shares.leave(key);
        res.events.peer(key, PeerEvent::Down { cause });
        waits
    }

    /// Fails the messages that waited for a failed attempt to connect. If `keeps_waiting`, messages that may wait
    /// until their deadline remain.
    pub(super) fn fail_waiting(
        &mut self,
        key: PeerKey,
        cause: PeerDown,
        keeps_waiting: bool,
        res: &mut Resources,
    ) {
        let Some(peer) = self.0.get_mut(key) else { return };
        let outcome = SendOutcome::Failed(SendFailure { may_have_arrived: false, cause });
        if keeps_waiting && !cause.is_final() && !mutant!(waiting_calls_fail_with_their_attempt) {
            peer.waiting.fail_fast(key, outcome, &mut res.shares, &mut res.events);
        } else {
            peer.waiting.fail(key, outcome, &mut res.shares, &mut res.events);
        }
    }

    /// Removes a peer that the CM machine has removed, unless it is still in use. The peer may be added
    /// again.
    pub(super) fn forget(&mut self, key: PeerKey) {
        let Some(peer) = self.0.get_mut(key) else { return };
        if peer.named || !peer.waiting.is_empty() || peer.trunk.is_some() || peer.pending.is_some() {
            return;
        }
        peer.forgotten = true;
        if peer.dying == 0 {
            self.0.remove(key);
        }
    }

    /// Removes cancelled messages that wait for a session.
    pub(super) fn cancel(&mut self, cancelling: &mut Cancelling<'_>, shares: &mut Shares) {
        for (key, peer) in self.0.iter_mut() {
            peer.waiting.cancel(key, cancelling, shares);
        }
    }

    /// Fails waiting messages whose deadline has passed.
    pub(super) fn expire(&mut self, res: &mut Resources) {
        for (key, peer) in self.0.iter_mut() {
            peer.waiting.expire(key, res.time.now(), &mut res.shares, &mut res.events);
        }
    }

    /// Returns the earliest deadline of a waiting message.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.0.iter().filter_map(|(_, peer)| peer.waiting.next_deadline()).min()
    }

    /// Counts the messages that wait for sessions.
    pub(super) fn count(&self, counted: &mut Counted) {
        for (key, peer) in self.0.iter() {
            counted.queued(key, peer.waiting.size());
        }
    }

    /// Returns true if the table holds no waiting messages.
    pub(super) fn is_quiet(&self) -> bool {
        self.0.iter().all(|(_, peer)| peer.waiting.is_empty())
    }
}

/// Number of remembered places of peers that were named by address.
const RECENT: usize = 64;

/// A table with a value per peer. Keys returned by the table are found through their hints. Other keys, such as keys
/// built from addresses, are looked up.
#[derive(Debug)]
pub(super) struct PeerTable<T> {
    entries: Slab<(PeerKey, T)>,
    places: HashMap<PeerKey, usize, PeerHash>,
    /// Places that [`PeerTable::entry`] looked up, indexed by some bits of the key. A place may belong to another
    /// peer by now.
    recent: [usize; RECENT],
}

impl<T: Default> PeerTable<T> {
    pub(super) fn new(hash: PeerHash) -> Self {
        Self { entries: Slab::new(), places: HashMap::with_hasher(hash), recent: [0; RECENT] }
    }

    /// Returns the place of a peer, which does not change until the peer is removed.
    #[inline(always)]
    pub(super) fn place(&self, peer: PeerKey) -> Option<usize> {
        match self.entries.get(peer.hint()) {
            Some((key, _)) if *key == peer => Some(peer.hint()),
            _ => self.look_up(peer),
        }
    }

    #[inline(never)]
    fn look_up(&self, peer: PeerKey) -> Option<usize> {
        self.places.get(&peer).copied()
    }

    /// Returns the value at a place that [`PeerTable::place`] has just returned.
    #[inline]
    pub(super) fn at(&mut self, place: usize) -> Option<&mut T> {
        self.entries.get_mut(place).map(|(_, value)| value)
    }

    #[inline]
    pub(super) fn get(&self, peer: PeerKey) -> Option<&T> {
        self.entries.get(self.place(peer)?).map(|(_, value)| value)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, peer: PeerKey) -> Option<&mut T> {
        self.at(self.place(peer)?)
    }

    /// Returns the value of a peer, inserted if missing, and its key with the table's hint. Also accepts keys
    /// built from addresses.
    #[inline]
    pub(super) fn entry(&mut self, peer: PeerKey) -> (PeerKey, &mut T) {
        let place = peer.hint();
        if self.entries.get(place).is_some_and(|(key, _)| *key == peer) {
            let (key, value) = &mut self.entries[place];
            return (*key, value);
        }
        self.search(peer)
    }

    #[inline(never)]
    fn search(&mut self, peer: PeerKey) -> (PeerKey, &mut T) {
        let recent = peer.mix() % RECENT;
        let mut place = self.recent[recent];
        if self.entries.get(place).is_none_or(|(key, _)| *key != peer) {
            place = self.look_up(peer).unwrap_or_else(|| self.add(peer));
            self.recent[recent] = place;
        }
        let (key, value) = &mut self.entries[place];
        (*key, value)
    }

    #[cold]
    fn add(&mut self, peer: PeerKey) -> usize {
        let entry = self.entries.vacant_entry();
        let place = entry.key();
        let key = peer.at(place);
        entry.insert((key, T::default()));
        self.places.insert(key, place);
        place
    }

    pub(super) fn remove(&mut self, peer: PeerKey) {
        if let Some(place) = self.places.remove(&peer) {
            self.entries.remove(place);
        }
    }

    /// Iterates over all peers, in the order of their places.
    pub(super) fn iter(&self) -> impl Iterator<Item = (PeerKey, &T)> {
        self.entries.iter().map(|(_, (key, value))| (*key, value))
    }

    /// Iterates mutably over all peers, in the order of their places.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (PeerKey, &mut T)> {
        self.entries.iter_mut().map(|(_, (key, value))| (*key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PeerIdentity;
    use std::sync::Arc;
    use trunkline_machine::Runtime;
    use trunkline_softrdma::device::{LinkChoice, SoftDevice, SoftOptions};
    use trunkline_verbs::{CqInit, Device, QpInit, QpType};

    fn session(device: &SoftDevice, peer: PeerKey, number: u32) -> Box<SessionUp> {
        let cq = device.create_cq(CqInit { capacity_cqe: 1, ..CqInit::default() }).unwrap();
        let qp = device.create_qp(QpInit {
            pd: Some(device.alloc_pd().unwrap()),
            send_cq: Some(Arc::clone(&cq)),
            receive_cq: Some(cq),
            ..QpInit::new(QpType::Rc)
        });
        Box::new(SessionUp {
            peer,
            number,
            epoch: 1,
            qp: qp.unwrap(),
            srqs: Vec::new(),
            read_depth: 0,
            is_accepted: false,
            identity: PeerIdentity::Unproven,
            settings: None,
            #[cfg(feature = "identity")]
            keys: None,
            #[cfg(feature = "identity")]
            renewed_by: None,
        })
    }

    #[test]
    fn session_waiting_for_end_of_earlier_session_is_not_requested() {
        let link = LinkChoice::InProcess(Arc::default());
        let addresses = vec!["127.0.0.1".parse().unwrap()];
        let device = SoftDevice::open(SoftOptions { link, addresses, ..SoftOptions::default() }).unwrap();
        let (key, now) = (PeerKey::new("127.0.0.2:7471".parse().unwrap()), Time(0));
        let mut peers = Peers::new(PeerHash::new(&Runtime::threads()));
        assert!(peers.name(key).1);
        assert_eq!(peers.ask(key, Connect::FailFast, now), Some(Connect::FailFast));
        assert_eq!(peers.ask(key, Connect::FailFast, now), None, "it was asked");
        assert_eq!(peers.ask(key, Connect::Wait, now), Some(Connect::Wait), "a caller waits now");
        assert_eq!(peers.ask(key, Connect::Wait, now), None);
        assert!(peers.session_up(session(&device, key, 1)).is_some());
        peers.trunk_made(key, 5);
        peers.trunk_dying(key, 5);
        assert!(peers.session_up(session(&device, key, 2)).is_none(), "the first is being taken down");
        assert_eq!(peers.ask(key, Connect::FailFast, now), None, "the second is there");
        assert!(matches!(peers.trunk_freed(key), Next::Activate(_)));
        peers.trunk_made(key, 6);
        peers.trunk_dying(key, 6);
        assert_eq!(
            peers.ask(key, Connect::FailFast, now),
            Some(Connect::FailFast),
            "the second is over, too"
        );
    }
}

#[cfg(test)]
mod peer_table_tests {
    use super::*;
    use trunkline_machine::Runtime;

    #[test]
    fn key_finds_only_its_own_peer_at_reused_place() {
        let mut table = PeerTable::<u32>::new(PeerHash::new(&Runtime::threads()));
        let named = PeerKey::numbered;
        for number in 0..10 {
            *table.entry(named(number)).1 = number;
        }
        let (old, _) = table.entry(named(4));
        assert_eq!((table.place(old), table.get(old), table.get(named(4))), (Some(4), Some(&4), Some(&4)));
        table.remove(named(4));
        assert_eq!((table.get(old), table.get(named(4))), (None, None));
        *table.entry(named(11)).1 = 11;
        assert_eq!(table.place(named(11)), Some(4), "the place is taken by another");
        assert_eq!(table.get(old), None);
        *table.entry(old).1 = 40;
        assert_eq!(
            (table.get(old), table.get(named(4)), table.get(named(11))),
            (Some(&40), Some(&40), Some(&11))
        );
        assert_eq!(table.iter().map(|(_, value)| *value).sum::<u32>(), 45 - 4 + 11 + 40);
    }
}
