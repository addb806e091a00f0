//! One poller's shares of budgets. Only that poller uses them, so counting needs no atomics except for a new
//! portion.
//!
//! Most units are taken from those already reserved for the peer, its host and all, and are put back there.
//! [`Share::take_reserved`] and [`Share::put_back_reserved`] decide that by comparisons only. If they refuse,
//! other functions apply the full rules.
#![forbid(unsafe_code)]

use super::account::{Levels, Published};
use super::entries::{Entries, OfPeer};
use super::leaves::PARTS;
use super::reservation::Reservation;
use super::{Budget, BudgetLedger, Exhausted, Leaves, Limit};
use crate::PeerKey;
use std::array;
use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use trunkline_machine::mutant;

/// Units that must be free.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Units that must be free within the peer's own limit; at least `of_all`.
    pub(super) of_peer: usize,
    /// Units that must be free within its host's limit, and within the limit for all.
    pub(super) of_all: usize,
}

/// Level of the limit that would be exceeded.
#[derive(Debug, Clone, Copy)]
enum Level {
    Peer,
    Host,
    All,
}

/// Use of one budget by all peers.
#[derive(Debug)]
struct ByAll {
    published: Arc<Published>,
    /// Units in use, except those of the part that is set aside.
    reservation: Reservation,
    /// Units in use of the part that is set aside, by all hosts.
    set_aside: usize,
    /// Lower bound of the limits for uses that leave a part, by [`PARTS`].
    below: [Levels; PARTS.len()],
}

impl ByAll {
    fn new(budget: &Budget, poller: u16) -> Self {
        Self {
            published: budget.published.get(usize::from(poller)).cloned().unwrap_or_default(),
            reservation: Reservation::default(),
            set_aside: 0,
            below: PARTS.map(|leaves| budget.levels.map(|limit| leaves.limit(limit, 1))),
        }
    }

    /// Returns true if no peer uses anything.
    #[inline]
    fn is_unused(&self) -> bool {
        self.reservation.used() == 0 && self.set_aside == 0
    }

    #[inline]
    fn publish(&self) {
        self.published.used.store(self.reservation.used(), Ordering::Relaxed);
    }
}

/// One poller's part of a [`Budget`], or of `N` that it uses together.
#[derive(Debug)]
pub struct Share<const N: usize = 1> {
    budgets: [Arc<Budget>; N],
    of: [ByAll; N],
    entries: Entries<N>,
    cache: UnitCache,
}

/// Maximum number of units in a cache, and number of units taken at once to fill it.
const CACHE_UNITS: usize = 32;
const FILL: usize = 16;

/// Units taken in advance for the peer that took the last one, so that most uses of single units within a
/// turn cost a comparison. They come from this poller's reserve, so other pollers do not have fewer because
/// of them. They are put back before any other peer, or a use that leaves another part, takes a unit here.
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
        Self::of([budget], poller)
    }

    /// Takes units for a peer.
    ///
    /// # Errors
    /// The limit that would be exceeded; no units were taken.
    #[inline]
    pub fn take(&mut self, peer: PeerKey, units: usize) -> Result<(), Exhausted> {
        self.take_each(peer, [units], Leaves::Nothing)
    }

    /// Takes units for a peer, and leaves a part of each limit free.
    ///
    /// # Errors
    /// The limit that would be exceeded; no units were taken.
    #[inline]
    pub fn take_leaving(&mut self, peer: PeerKey, units: usize, leaves: Leaves) -> Result<(), Exhausted> {
        self.take_each(peer, [units], leaves)
    }

    /// Takes one unit for a peer, from the cache if possible. [`Share::settle_cache`] follows at the end of
    /// the poller's turn.
    ///
    /// # Errors
    /// The limit that would be exceeded; no units were taken.
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
        // Peers that alternate would fill it for nothing.
        let is_again = self.cache.last.replace(peer) == Some(peer);
        if is_again && self.take_reserved(peer, [1 + FILL], leaves) {
            (self.cache.peer, self.cache.leaves, self.cache.units) = (Some(peer), leaves, FILL);
            return Ok(());
        }
        self.take_each(peer, [1], leaves)
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
        self.put_back_each(peer, [1]);
    }

    /// Publishes the units in use, without those in the cache. Called at the end of a turn.
    #[inline]
    pub fn settle_cache(&self) {
        if self.cache.units > 0 {
            let used = self.of[0].reservation.used().saturating_sub(self.cache.units);
            self.of[0].published.used.store(used, Ordering::Relaxed);
        }
    }

    /// Puts back the units in the cache.
    fn empty_cache(&mut self) {
        if let Some(peer) = self.cache.peer.take() {
            let units = mem::take(&mut self.cache.units);
            self.put_back_each(peer, [units]);
        }
    }

    /// Puts back units taken for a peer.
    #[inline]
    pub fn put_back(&mut self, peer: PeerKey, units: usize) {
        self.put_back_each(peer, [units]);
    }

    /// Returns the limits of the whole budget.
    #[must_use]
    pub fn limit(&self) -> Limit {
        let [budget] = &self.budgets;
        budget.limit
    }

    /// Returns the units in use for a peer.
    #[must_use]
    pub fn used_by(&self, peer: PeerKey) -> usize {
        let used = self.entries.get(peer).map_or(0, |of_peer| of_peer.of[0].reservation.used());
        used - self.in_cache(peer)
    }

    /// Returns the use by each peer, along with the owner's own counts.
    #[must_use]
    pub fn ledger(&self, counted: BTreeMap<PeerKey, usize>) -> BudgetLedger {
        let [ledger] = self.ledgers([counted]);
        ledger
    }
}

impl<const N: usize> Share<N> {
    pub(super) fn of(budgets: [&Arc<Budget>; N], poller: u16) -> Self {
        let of = budgets.map(|budget| ByAll::new(budget, poller));
        Self {
            budgets: budgets.map(Arc::clone),
            of,
            entries: Entries::default(),
            cache: UnitCache::default(),
        }
    }

    /// Takes units of each budget for a peer, and leaves a part of each limit free.
    ///
    /// # Errors
    /// The limit that would be exceeded; no units were taken.
    #[inline]
    pub(super) fn take_each(
        &mut self,
        peer: PeerKey,
        units: [usize; N],
        leaves: Leaves,
    ) -> Result<(), Exhausted> {
        if self.take_reserved(peer, units, leaves) {
            return Ok(());
        }
        self.take_by_the_limits(peer, units, leaves)
    }

    /// Takes units if they are reserved on all levels, and certainly within the limit of a use with these
    /// `leaves`.
    #[inline(always)]
    fn take_reserved(&mut self, peer: PeerKey, units: [usize; N], leaves: Leaves) -> bool {
        let Some((of_peer, of_host)) = self.entries.hinted(peer) else { return false };
        let (by_peer, by_host, by_all) = (&mut of_peer.of, &mut of_host.of, &mut self.of);
        let has = |at: usize| {
            by_peer[at].reservation.has(units[at])
                && by_host[at].reservation.has(units[at])
                && by_all[at].reservation.has(units[at])
        };
        if mutant!(another_peer_is_charged) || !(0..N).all(has) {
            return false;
        }
        if leaves != Leaves::Nothing {
            let Some(which) = leaves.part() else { return false };
            let is_below = |at: usize| {
                let (limits, general) = (&by_all[at].below[which], &self.budgets[at].general);
                by_peer[at].reservation.is_below(units[at], &by_peer[at].account, limits.per_peer)
                    && by_host[at].reservation.is_below(units[at], &by_host[at].accounts.all, limits.per_host)
                    && by_all[at].reservation.is_below(units[at], general, limits.in_all)
            };
            if !(0..N).all(is_below) {
                return false;
            }
        }
        (0..N).for_each(|at| {
            by_peer[at].reservation.take_reserved(units[at]);
            by_host[at].reservation.take_reserved(units[at]);
            by_all[at].reservation.take_reserved(units[at]);
            by_all[at].publish();
        });
        true
    }

    /// Returns the units in the cache of a peer.
    fn in_cache(&self, peer: PeerKey) -> usize {
        if self.cache.peer == Some(peer) { self.cache.units } else { 0 }
    }

    #[cold]
    #[inline(never)]
    fn take_by_the_limits(
        &mut self,
        peer: PeerKey,
        units: [usize; N],
        leaves: Leaves,
    ) -> Result<(), Exhausted> {
        let peer = charged(&self.entries, peer);
        let refused = (0..N).find_map(|at| {
            let level = self.take_on_all_levels(at, peer, units[at], leaves).err()?;
            (0..at).for_each(|taken| self.put_back_on_all_levels(taken, peer, units[taken]));
            Some((at, level))
        });
        self.settle(peer);
        refused.map_or(Ok(()), |(at, level)| Err(self.refusal(at, level)))
    }

    /// Takes units of one budget by the full rules. `Err` is the level whose limit would be exceeded.
    fn take_on_all_levels(
        &mut self,
        at: usize,
        peer: PeerKey,
        units: usize,
        leaves: Leaves,
    ) -> Result<(), Level> {
        let (of_peer, of_host) = self.entries.make(&self.budgets, peer);
        let (by_peer, by_host, by_all) = (&mut of_peer.of[at], &mut of_host.of[at], &mut self.of[at]);
        let budget = &*self.budgets[at];
        let Budget { levels, portions, .. } = budget;
        let take = if leaves == Leaves::Nothing { Reservation::take } else { Reservation::take_below };
        let within = |limit| leaves.limit(limit, units);
        if !take(
            &mut by_peer.reservation,
            units,
            portions.per_peer,
            &by_peer.account,
            within(levels.per_peer),
        ) {
            return Err(Level::Peer);
        }
        let per_host = if mutant!(hosts_have_no_limit) { usize::MAX } else { within(levels.per_host) };
        if !take(&mut by_host.reservation, units, portions.per_host, &by_host.accounts.all, per_host) {
            by_peer.reservation.put_back(units, portions.per_peer, &by_peer.account);
            return Err(Level::Host);
        }
        if take(&mut by_all.reservation, units, portions.in_all, &budget.general, within(levels.in_all)) {
            return Ok(());
        }
        if by_host.take_set_aside(units, budget) {
            by_all.set_aside += units;
            return Ok(());
        }
        by_peer.reservation.put_back(units, portions.per_peer, &by_peer.account);
        by_host.reservation.put_back(units, portions.per_host, &by_host.accounts.all);
        Err(Level::All)
    }

    /// Puts back units of each budget that were taken for a peer.
    #[inline]
    pub(super) fn put_back_each(&mut self, peer: PeerKey, units: [usize; N]) {
        if !self.put_back_reserved(peer, units) {
            self.put_back_and_release(peer, units);
        }
    }

    /// Puts back units if they stay reserved on all levels.
    #[inline(always)]
    fn put_back_reserved(&mut self, peer: PeerKey, units: [usize; N]) -> bool {
        let Some((of_peer, of_host)) = self.entries.hinted(peer) else { return false };
        let (by_peer, by_host, by_all) = (&mut of_peer.of, &mut of_host.of, &mut self.of);
        let keeps = |at: usize| {
            by_peer[at].reservation.keeps(units[at])
                && by_host[at].reservation.keeps(units[at])
                && by_all[at].reservation.keeps(units[at])
        };
        if !(0..N).all(keeps) {
            return false;
        }
        (0..N).for_each(|at| {
            by_peer[at].reservation.keep(units[at]);
            by_host[at].reservation.keep(units[at]);
            by_all[at].reservation.keep(units[at]);
            by_all[at].publish();
        });
        true
    }

    #[cold]
    #[inline(never)]
    fn put_back_and_release(&mut self, peer: PeerKey, units: [usize; N]) {
        (0..N).for_each(|at| self.put_back_on_all_levels(at, peer, units[at]));
        self.settle(peer);
        if self.entries.find(peer).is_some_and(|(of_peer, _)| of_peer.is_leaving) {
            self.leave(peer);
        }
    }

    /// Puts back units of one budget.
    fn put_back_on_all_levels(&mut self, at: usize, peer: PeerKey, units: usize) {
        let Some((of_peer, of_host)) = self.entries.find(peer) else { return };
        let (by_peer, by_host, by_all) = (&mut of_peer.of[at], &mut of_host.of[at], &mut self.of[at]);
        let budget = &*self.budgets[at];
        let portions = &budget.portions;
        by_peer.reservation.put_back(units, portions.per_peer, &by_peer.account);
        by_host.reservation.put_back(units, portions.per_host, &by_host.accounts.all);
        // Units that were set aside are put back first.
        let set_aside = by_host.put_back_set_aside(units, budget);
        by_all.set_aside -= set_aside;
        by_all.reservation.put_back(units - set_aside, portions.in_all, &budget.general);
    }

    /// Completes a change by the full rules. Later changes may be only counted, unless the peer is leaving or
    /// its host uses units that are set aside.
    fn settle(&mut self, peer: PeerKey) {
        let mut found = self.entries.find(peer);
        for (at, (by_all, budget)) in self.of.iter_mut().zip(&self.budgets).enumerate() {
            let portions = &budget.portions;
            if let Some((of_peer, of_host)) = &mut found {
                of_peer.of[at].reservation.settle(portions.per_peer, of_peer.is_leaving);
                let by_host = &mut of_host.of[at];
                by_host.reservation.settle(portions.per_host, by_host.set_aside > 0);
            }
            by_all.reservation.settle(portions.in_all, false);
            by_all.publish();
            by_all.published.set_aside.store(by_all.set_aside, Ordering::Relaxed);
        }
    }

    /// Checks that a peer could take the units of each budget that it uses. It does not take them, so another
    /// poller may take them afterwards.
    ///
    /// # Errors
    /// The limit that would be exceeded.
    #[inline]
    pub(super) fn check(&mut self, peer: PeerKey, rooms: [Room; N]) -> Result<(), Exhausted> {
        if self.of.iter().all(ByAll::is_unused) {
            return Ok(());
        }
        if let Some((of_peer, of_host)) = self.entries.hinted(peer) {
            let (by_peer, by_host, by_all) = (&of_peer.of, &of_host.of, &self.of);
            let has_room = |at: usize| {
                let (own, Room { of_peer, of_all }) = (&by_peer[at], rooms[at]);
                // The room exceeds the units that a poller keeps reserved for a peer, so the account decides.
                own.reservation.used() == 0
                    || own.reservation.reaches(of_peer, &own.account, self.budgets[at].limit.per_peer)
                        && by_host[at].reservation.has(of_all)
                        && by_all[at].reservation.has(of_all)
            };
            if (0..N).all(has_room) {
                return Ok(());
            }
        }
        let refused = (0..N).find_map(|at| Some((at, self.check_by_the_limits(at, peer, rooms[at]).err()?)));
        refused.map_or(Ok(()), |(at, level)| Err(self.refusal(at, level)))
    }

    #[inline(never)]
    fn check_by_the_limits(&mut self, at: usize, peer: PeerKey, room: Room) -> Result<(), Level> {
        let Some((of_peer, of_host)) = self.entries.find(peer) else { return Ok(()) };
        let (by_peer, by_host, by_all) = (&of_peer.of[at], &of_host.of[at], &self.of[at]);
        let (budget, levels) = (&*self.budgets[at], &self.budgets[at].levels);
        if by_peer.reservation.used() == 0 {
            return Ok(());
        }
        let could_peer = |units| by_peer.reservation.could_take(units, &by_peer.account, levels.per_peer);
        let per_host = if mutant!(hosts_have_no_limit) { usize::MAX } else { levels.per_host };
        if !could_peer(room.of_all) {
            return Err(Level::Peer);
        }
        if !by_host.reservation.could_take(room.of_all, &by_host.accounts.all, per_host) {
            return Err(Level::Host);
        }
        if !by_all.reservation.could_take(room.of_all, &budget.general, levels.in_all)
            && !by_host.could_take_set_aside(room.of_all, budget)
        {
            return Err(Level::All);
        }
        if could_peer(room.of_peer) { Ok(()) } else { Err(Level::Peer) }
    }

    /// Marks the peer as down. Its reserved units are released, now or when they are put back.
    pub fn leave(&mut self, peer: PeerKey) {
        if self.in_cache(peer) > 0 {
            let units = mem::take(&mut self.cache.units);
            self.cache.peer = None;
            self.put_back_each(peer, array::from_fn(|at| if at == 0 { units } else { 0 }));
        }
        let Some((of_peer, _)) = self.entries.find(peer) else { return };
        if of_peer.uses_nothing() {
            return self.remove(peer);
        }
        of_peer.is_leaving = true;
        for of in &mut of_peer.of {
            of.reservation.release_unused(&of.account);
        }
        self.settle(peer);
    }

    /// Returns the use of each budget by each peer, along with the owner's own counts.
    pub(super) fn ledgers(&self, counted: [BTreeMap<PeerKey, usize>; N]) -> [BudgetLedger; N] {
        let mut counted = counted.into_iter();
        array::from_fn(|at| {
            let in_use = |peer, of_peer: &OfPeer<N>| of_peer.of[at].reservation.used() - self.in_cache(peer);
            let used = self.entries.iter().map(|(peer, of_peer)| (peer, in_use(peer, of_peer)));
            BudgetLedger {
                name: self.budgets[at].name,
                limit: self.budgets[at].limit,
                used: used.filter(|(_, used)| *used > 0).collect(),
                counted: counted.next().unwrap_or_default(),
            }
        })
    }

    fn remove(&mut self, peer: PeerKey) {
        let set_aside = self.entries.remove(&self.budgets, peer);
        for (by_all, set_aside) in self.of.iter_mut().zip(set_aside) {
            by_all.set_aside -= set_aside;
        }
    }

    /// Counts a refusal, and returns the limit.
    #[cold]
    fn refusal(&self, at: usize, level: Level) -> Exhausted {
        let Budget { name, limit, levels, .. } = &*self.budgets[at];
        let published = &self.of[at].published;
        let (counter, refusal) = match level {
            Level::Peer => (&published.refused_to_peer, Exhausted::Peer { name, limit: limit.per_peer }),
            Level::Host => (&published.refused_to_host, Exhausted::Host { name, limit: levels.per_host }),
            Level::All => (&published.refused_to_all, Exhausted::All { name, limit: limit.in_all }),
        };
        // Only this poller writes it.
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        refusal
    }
}

impl<const N: usize> Drop for Share<N> {
    fn drop(&mut self) {
        for peer in self.entries.iter().map(|(peer, _)| peer).collect::<Vec<_>>() {
            self.remove(peer);
        }
        for (by_all, budget) in self.of.iter().zip(&self.budgets) {
            budget.general.release(by_all.reservation.reserved());
            by_all.published.used.store(0, Ordering::Relaxed);
            by_all.published.set_aside.store(0, Ordering::Relaxed);
        }
    }
}

/// Returns the peer that is charged.
fn charged<const N: usize>(entries: &Entries<N>, peer: PeerKey) -> PeerKey {
    if !mutant!(another_peer_is_charged) {
        return peer;
    }
    entries.iter().map(|(other, _)| other).find(|other| *other != peer).unwrap_or(peer)
}
