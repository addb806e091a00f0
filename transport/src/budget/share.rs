//! One poller's share of a budget. Only that poller uses the share, so atomics are needed only to reserve a portion.
//!
//! A unit is charged on three levels: to the peer, to its host and to all peers. Most units are taken from the
//! reserved units of each level, and are put back there. [`Share::take_reserved`] and [`Share::put_back_reserved`]
//! check this with a few comparisons. If they return false, other functions apply the full rules.
#![forbid(unsafe_code)]

use super::account::Published;
use super::reservation::Reservation;
use super::{Budget, BudgetLedger, Exhausted, Leaves, Limit};
use crate::{PeerKey, PeerMap};
use slab::Slab;
use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use trunkline_machine::mutant;
use trunkline_verbs::PeerHost;

/// Units that must be free.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Units that must be free within the peer's own limit; at least `of_all`.
    pub(super) of_peer: usize,
    /// Units that must be free within the limit for the peer's host, and within the limit for all peers.
    pub(super) of_all: usize,
}

/// Indices of the levels.
const PEER: usize = 0;
const HOST: usize = 1;
const ALL: usize = 2;

#[derive(Debug)]
struct OfPeer {
    held: Reservation,
    /// True if the peer is down. Its entry is removed once all its units are put back.
    is_leaving: bool,
    /// Index of the peer's host.
    host: usize,
}

#[derive(Debug)]
struct OfHost {
    host: PeerHost,
    held: Reservation,
    /// Set-aside units in use.
    set_aside: usize,
    /// Number of peers of the host that have an entry.
    peers: usize,
}

/// One poller's part of a [`Budget`].
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    published: Arc<Published>,
    /// Units of all peers, outside the part that is set aside.
    all: Reservation,
    /// Set-aside units in use by all hosts.
    set_aside: usize,
    peers: PeerMap<OfPeer>,
    hosts: Slab<OfHost>,
    places: BTreeMap<PeerHost, usize>,
    cache: UnitCache,
}

/// Maximum number of units in a cache, and number of units taken in one step to fill it.
const CACHE_UNITS: usize = 32;
const FILL: usize = 16;

/// Units taken in advance for the peer that took the last one, so that taking a single unit usually costs one
/// comparison. They come from this poller's reserved units, and are put back before another peer, or a use with other
/// `leaves`, takes a unit from this share.
#[derive(Debug, Default)]
struct UnitCache {
    peer: Option<PeerKey>,
    leaves: Leaves,
    units: usize,
    /// Peer that took the last unit from outside the cache.
    last: Option<PeerKey>,
}

impl Share {
    /// Creates the share of the poller with this index.
    #[must_use]
    pub fn new(budget: &Arc<Budget>, poller: u16) -> Self {
        let limit = budget.limit;
        let general = limit.in_all - limit.set_aside();
        Self {
            budget: Arc::clone(budget),
            published: budget.published.get(usize::from(poller)).cloned().unwrap_or_default(),
            all: Reservation::new(budget, Arc::clone(&budget.all), general, limit.in_all),
            set_aside: 0,
            peers: PeerMap::default(),
            hosts: Slab::new(),
            places: BTreeMap::new(),
            cache: UnitCache::default(),
        }
    }

    /// Takes units for a peer.
    ///
    /// # Errors
    /// Returns the limit that would be exceeded. No units are taken then.
    #[inline]
    pub fn take(&mut self, peer: PeerKey, units: usize) -> Result<(), Exhausted> {
        self.take_leaving(peer, units, Leaves::Nothing)
    }

    /// Takes units for a peer, and leaves a part of each limit free.
    ///
    /// # Errors
    /// Returns the limit that would be exceeded. No units are taken then.
    #[inline]
    pub fn take_leaving(&mut self, peer: PeerKey, units: usize, leaves: Leaves) -> Result<(), Exhausted> {
        if self.take_reserved(peer, units, leaves) {
            return Ok(());
        }
        self.take_by_the_limits(peer, units, leaves)
    }

    /// Takes one unit for a peer, from the cache if possible. The poller calls [`Share::settle_cache`] at the end of
    /// its turn.
    ///
    /// # Errors
    /// Returns the limit that would be exceeded. No units are taken then.
    #[inline]
    pub fn take_one(&mut self, peer: PeerKey, leaves: Leaves) -> Result<(), Exhausted> {
        let UnitCache { peer: of, leaves: left, units, .. } = &mut self.cache;
        if *units > 0 && *left == leaves && *of == Some(peer) {
            *units -= 1;
            return Ok(());
        }
        self.fill_cache(peer, leaves)
    }

    /// Takes one unit, and more for the cache if they are reserved.
    #[inline(never)]
    fn fill_cache(&mut self, peer: PeerKey, leaves: Leaves) -> Result<(), Exhausted> {
        self.empty_cache();
        // Alternating peers would fill the cache without ever using it.
        let is_again = self.cache.last.replace(peer) == Some(peer);
        if is_again && self.take_reserved(peer, 1 + FILL, leaves) {
            (self.cache.peer, self.cache.leaves, self.cache.units) = (Some(peer), leaves, FILL);
            return Ok(());
        }
        self.take_leaving(peer, 1, leaves)
    }

    /// Puts back one unit taken by a use with these `leaves`, into the cache if possible.
    #[inline]
    pub fn put_back_one(&mut self, peer: PeerKey, leaves: Leaves) {
        let UnitCache { peer: of, leaves: left, units, .. } = &mut self.cache;
        // A use that leaves more must not take the unit from the cache.
        if *units < CACHE_UNITS && *left == leaves && *of == Some(peer) {
            *units += 1;
            return;
        }
        self.put_back(peer, 1);
    }

    /// Publishes the units in use, without the units in the cache. Called at the end of a turn.
    #[inline]
    pub fn settle_cache(&self) {
        if self.cache.units > 0 {
            let used = self.all.used().saturating_sub(self.cache.units);
            self.published.used.store(used, Ordering::Relaxed);
        }
    }

    /// Puts back the units in the cache.
    fn empty_cache(&mut self) {
        if let Some(peer) = self.cache.peer.take() {
            let units = mem::take(&mut self.cache.units);
            self.put_back(peer, units);
        }
    }

    /// Puts back units taken for a peer.
    #[inline]
    pub fn put_back(&mut self, peer: PeerKey, units: usize) {
        if !self.put_back_reserved(peer, units) {
            self.put_back_and_release(peer, units);
        }
    }

    /// Returns the limits of the whole budget.
    #[must_use]
    pub fn limit(&self) -> Limit {
        self.budget.limit
    }

    /// Returns the units in use for a peer.
    #[must_use]
    pub fn used_by(&self, peer: PeerKey) -> usize {
        self.peers.get(peer).map_or(0, |of_peer| of_peer.held.used()) - self.in_cache(peer)
    }

    /// Returns the units in use by each peer, and the owner's own counts for comparison.
    #[must_use]
    pub fn ledger(&self, counted: BTreeMap<PeerKey, usize>) -> BudgetLedger {
        let in_use = |(peer, of_peer): (PeerKey, &OfPeer)| (peer, of_peer.held.used() - self.in_cache(peer));
        let used = self.peers.iter().map(in_use).filter(|(_, used)| *used > 0).collect();
        BudgetLedger { name: self.budget.name, limit: self.budget.limit, used, counted }
    }

    /// Returns the peer's reservation on each level if the key's hint is valid.
    #[inline(always)]
    fn hinted(&mut self, peer: PeerKey) -> Option<[&mut Reservation; 3]> {
        let of_peer = self.peers.hinted(peer)?;
        let of_host = self.hosts.get_mut(of_peer.host)?;
        Some([&mut of_peer.held, &mut of_host.held, &mut self.all])
    }

    /// Takes units if they are reserved on all levels and within the limits for a use with these `leaves`.
    #[inline(always)]
    fn take_reserved(&mut self, peer: PeerKey, units: usize, leaves: Leaves) -> bool {
        let Some(levels) = self.hinted(peer) else { return false };
        if mutant!(another_peer_is_charged) || !levels.iter().all(|level| level.has(units)) {
            return false;
        }
        if leaves != Leaves::Nothing && !levels.iter().all(|level| level.is_below(units, leaves)) {
            return false;
        }
        levels.into_iter().for_each(|level| level.take_reserved(units));
        self.publish();
        true
    }

    #[inline]
    fn publish(&self) {
        self.published.used.store(self.all.used(), Ordering::Relaxed);
    }

    /// Returns the units in the cache of a peer.
    fn in_cache(&self, peer: PeerKey) -> usize {
        if self.cache.peer == Some(peer) { self.cache.units } else { 0 }
    }

    #[cold]
    #[inline(never)]
    fn take_by_the_limits(&mut self, peer: PeerKey, units: usize, leaves: Leaves) -> Result<(), Exhausted> {
        let peer = self.charged(peer);
        let refused = self.take_on_all_levels(peer, units, leaves);
        self.settle(peer);
        refused.map_err(|level| self.refusal(level))
    }

    /// Takes units according to the full rules. `Err` is the level whose limit would be exceeded.
    fn take_on_all_levels(&mut self, peer: PeerKey, units: usize, leaves: Leaves) -> Result<(), usize> {
        let host = self.insert(peer);
        let (Some(of_peer), Some(of_host)) = (self.peers.get_mut(peer), self.hosts.get_mut(host)) else {
            return Err(PEER);
        };
        if !of_peer.held.take(units, leaves) {
            return Err(PEER);
        }
        if !of_host.held.take(units, leaves) {
            of_peer.held.put_back(units);
            return Err(HOST);
        }
        if self.all.take(units, leaves) {
            return Ok(());
        }
        // Units that are set aside are few, so they are not reserved in portions.
        let limit = self.budget.limit;
        let [set_aside, all] = [&of_host.held, &self.all].map(|held| &held.account().set_aside);
        if set_aside.reserve(units, units, limit.set_aside_per_host()).is_some() {
            if all.reserve(units, units, limit.set_aside()).is_some() {
                of_host.set_aside += units;
                self.set_aside += units;
                return Ok(());
            }
            set_aside.release(units);
        }
        of_peer.held.put_back(units);
        of_host.held.put_back(units);
        Err(ALL)
    }

    /// Inserts the entries of a peer and of its host if missing. A peer that is marked as leaving is unmarked. Returns
    /// the place of the host.
    fn insert(&mut self, peer: PeerKey) -> usize {
        let Self { budget, peers, hosts, places, .. } = self;
        let limit = budget.limit;
        // Keep the host of a peer that has charges.
        let place = peers.get(peer).map(|of_peer| of_peer.host).unwrap_or_else(|| {
            let host = budget.peer_hosts.of(peer);
            *places.entry(host).or_insert_with(|| {
                let per_host = limit.per_host();
                let in_force = if mutant!(hosts_have_no_limit) { usize::MAX } else { per_host };
                let held = Reservation::new(budget, budget.hosts.open(host), in_force, per_host);
                hosts.insert(OfHost { host, held, set_aside: 0, peers: 0 })
            })
        });
        let of_peer = peers.get_or_insert_with(peer, || {
            hosts[place].peers += 1;
            let held = Reservation::new(budget, budget.peers.open(peer), limit.per_peer, limit.per_peer);
            OfPeer { held, is_leaving: false, host: place }
        });
        of_peer.is_leaving = false;
        place
    }

    /// Puts back units if they stay reserved on all levels.
    #[inline(always)]
    fn put_back_reserved(&mut self, peer: PeerKey, units: usize) -> bool {
        let Some(levels) = self.hinted(peer) else { return false };
        if !levels.iter().all(|level| level.keeps(units)) {
            return false;
        }
        levels.into_iter().for_each(|level| level.keep(units));
        self.publish();
        true
    }

    #[cold]
    #[inline(never)]
    fn put_back_and_release(&mut self, peer: PeerKey, units: usize) {
        let Some(of_peer) = self.peers.get_mut(peer) else { return };
        let is_leaving = of_peer.is_leaving;
        let of_host = &mut self.hosts[of_peer.host];
        of_peer.held.put_back(units);
        of_host.held.put_back(units);
        // Put back units that were set aside first.
        let set_aside = units.min(of_host.set_aside);
        if set_aside > 0 {
            of_host.set_aside -= set_aside;
            self.set_aside -= set_aside;
            of_host.held.account().set_aside.release(set_aside);
            self.all.account().set_aside.release(set_aside);
        }
        self.all.put_back(units - set_aside);
        self.settle(peer);
        if is_leaving {
            self.leave(peer);
        }
    }

    /// Completes a change made under the full rules. Later changes may take the fast path, unless the peer is leaving
    /// or its host uses set-aside units.
    fn settle(&mut self, peer: PeerKey) {
        if let Some(of_peer) = self.peers.get_mut(peer) {
            of_peer.held.settle(of_peer.is_leaving);
            let of_host = &mut self.hosts[of_peer.host];
            of_host.held.settle(of_host.set_aside > 0);
        }
        self.all.settle(false);
        self.publish();
        self.published.set_aside.store(self.set_aside, Ordering::Relaxed);
    }

    /// Checks that a peer with units in use could take as many as `room` requires. The units are not taken, so
    /// another poller may take them afterwards.
    ///
    /// # Errors
    /// Returns the limit that would be exceeded.
    #[inline]
    pub(super) fn check(&mut self, peer: PeerKey, room: Room) -> Result<(), Exhausted> {
        if self.all.used() == 0 && self.set_aside == 0 {
            return Ok(());
        }
        // Check the account, since the requested room exceeds the units that a poller keeps reserved for a peer.
        if let Some([own, of_host, all]) = self.hinted(peer)
            && (own.used() == 0
                || own.reaches(room.of_peer) && of_host.has(room.of_all) && all.has(room.of_all))
        {
            return Ok(());
        }
        self.check_by_the_limits(peer, room).map_err(|level| self.refusal(level))
    }

    #[inline(never)]
    fn check_by_the_limits(&self, peer: PeerKey, room: Room) -> Result<(), usize> {
        let Some(of_peer) = self.peers.get(peer) else { return Ok(()) };
        if of_peer.held.used() == 0 {
            return Ok(());
        }
        let (of_host, limit, units) = (&self.hosts[of_peer.host], self.budget.limit, room.of_all);
        if !of_peer.held.could_take(units) {
            return Err(PEER);
        }
        if !of_host.held.could_take(units) {
            return Err(HOST);
        }
        let [set_aside, all] = [&of_host.held, &self.all].map(|held| &held.account().set_aside);
        let could_reserve = set_aside.could_reserve(units, limit.set_aside_per_host())
            && all.could_reserve(units, limit.set_aside());
        if !self.all.could_take(units) && !could_reserve {
            return Err(ALL);
        }
        if of_peer.held.could_take(room.of_peer) { Ok(()) } else { Err(PEER) }
    }

    /// Marks the peer as down. Its reserved units are released, now or when they are put back.
    pub fn leave(&mut self, peer: PeerKey) {
        if self.in_cache(peer) > 0 {
            self.empty_cache();
        }
        let Some(of_peer) = self.peers.get_mut(peer) else { return };
        if of_peer.held.used() == 0 {
            return self.remove(peer);
        }
        of_peer.is_leaving = true;
        of_peer.held.release_unused();
        self.settle(peer);
    }

    /// Releases the units reserved for a peer. With the last peer of a host, the units reserved for the host are
    /// released too.
    fn remove(&mut self, peer: PeerKey) {
        let Some(OfPeer { held, host, .. }) = self.peers.remove(peer) else { return };
        self.budget.peers.give_up(peer, held.close());
        self.hosts[host].peers -= 1;
        if self.hosts[host].peers > 0 {
            return;
        }
        let OfHost { host, held, set_aside, .. } = self.hosts.remove(host);
        self.places.remove(&host);
        // All units of the host are unused, unless the whole share is dropped.
        held.account().set_aside.release(set_aside);
        self.all.account().set_aside.release(set_aside);
        self.set_aside -= set_aside;
        self.budget.hosts.give_up(host, held.close());
    }

    /// Counts a refusal, and returns the limit.
    #[cold]
    fn refusal(&self, level: usize) -> Exhausted {
        let Budget { name, limit, .. } = *self.budget;
        let counter = &self.published.refused[level];
        // Only this poller writes the counter, so a load and a store suffice.
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        match level {
            PEER => Exhausted::Peer { name, limit: limit.per_peer },
            HOST => Exhausted::Host { name, limit: limit.per_host() },
            _ => Exhausted::All { name, limit: limit.in_all },
        }
    }

    /// Returns the peer that is charged.
    fn charged(&self, peer: PeerKey) -> PeerKey {
        if !mutant!(another_peer_is_charged) {
            return peer;
        }
        self.peers.iter().map(|(other, _)| other).find(|other| *other != peer).unwrap_or(peer)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        for peer in self.peers.iter().map(|(peer, _)| peer).collect::<Vec<_>>() {
            self.remove(peer);
        }
        self.all.release_all();
        self.published.used.store(0, Ordering::Relaxed);
        self.published.set_aside.store(0, Ordering::Relaxed);
    }
}
