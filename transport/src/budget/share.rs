//! One poller's share of a budget. Its own, so counting needs no atomics but for a new portion.
//!
//! Most units are taken from what is reserved already, for the peer, its host and all, and put back to it. That is
//! decided by comparing, in [`Share::take_reserved`] and [`Share::put_back_reserved`]; all rules are in the
//! functions that follow when these have refused.
#![forbid(unsafe_code)]

use super::account::{Levels, Published};
use super::entries::Entries;
use super::purse::Purse;
use super::{Budget, BudgetLedger, Exhausted, Leaves, Limit};
use crate::PeerKey;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use trunkline_mutants::mutant;

/// Units that have to be free.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Of the peer's own limit; at least `of_all`.
    pub(super) of_peer: usize,
    /// Of that of its host, and of what all may use.
    pub(super) of_all: usize,
}

/// Whose limit would be exceeded.
#[derive(Debug, Clone, Copy)]
enum Level {
    Peer,
    Host,
    All,
}

/// What one poller has of a [`Budget`].
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    published: Arc<Published>,
    /// But for what is set aside.
    purse: Purse,
    /// Units in use of what is set aside, by all hosts.
    set_aside: usize,
    /// The least that the limits can be for uses that leave an eighth, and a quarter.
    below: [Levels; 2],
    entries: Entries,
}

impl Share {
    /// The share of the poller with this index.
    #[must_use]
    pub fn new(budget: &Arc<Budget>, poller: u16) -> Self {
        Self {
            budget: Arc::clone(budget),
            published: budget.published.get(usize::from(poller)).cloned().unwrap_or_default(),
            purse: Purse::default(),
            set_aside: 0,
            below: [Leaves::Eighth, Leaves::Quarter]
                .map(|leaves| budget.levels.map(|limit| leaves.limit(limit, 1))),
            entries: Entries::default(),
        }
    }

    /// Takes units for a peer.
    ///
    /// # Errors
    /// Which limit would be exceeded; then nothing was taken.
    #[inline]
    pub fn take(&mut self, peer: PeerKey, units: usize) -> Result<(), Exhausted> {
        self.take_leaving(peer, units, Leaves::Nothing)
    }

    /// Takes units for a peer, and leaves a part of each limit free.
    ///
    /// # Errors
    /// Which limit would be exceeded; then nothing was taken.
    #[inline]
    pub fn take_leaving(&mut self, peer: PeerKey, units: usize, leaves: Leaves) -> Result<(), Exhausted> {
        if self.take_reserved(peer, units, leaves) {
            return Ok(());
        }
        self.take_by_the_limits(peer, units, leaves)
    }

    /// Takes units if they are reserved on all levels, and are certainly within what a use that leaves so much may take.
    #[inline(always)]
    fn take_reserved(&mut self, peer: PeerKey, units: usize, leaves: Leaves) -> bool {
        let Some((of_peer, of_host)) = self.entries.hinted(peer) else { return false };
        if !of_peer.purse.has(units) || !of_host.purse.has(units) || !self.purse.has(units) {
            return false;
        }
        let below = match leaves {
            Leaves::Nothing => None,
            Leaves::Eighth => Some(&self.below[0]),
            Leaves::Quarter => Some(&self.below[1]),
        };
        let is_below = below.is_none_or(|limits| {
            of_peer.purse.is_below(units, &of_peer.account, limits.per_peer)
                && of_host.purse.is_below(units, &of_host.accounts.all, limits.per_host)
                && self.purse.is_below(units, &self.budget.general, limits.in_all)
        });
        if !is_below || mutant!(another_peer_is_charged) {
            return false;
        }
        of_peer.purse.take_reserved(units);
        of_host.purse.take_reserved(units);
        self.purse.take_reserved(units);
        self.publish();
        true
    }

    #[cold]
    #[inline(never)]
    fn take_by_the_limits(&mut self, peer: PeerKey, units: usize, leaves: Leaves) -> Result<(), Exhausted> {
        let peer = charged(&self.entries, peer);
        let taken = self.take_on_all_levels(peer, units, leaves);
        self.settle(peer);
        let level = match taken {
            Ok(()) => return Ok(()),
            Err(level) => level,
        };
        Err(self.refusal(level))
    }

    /// Takes units by the rules. `Err` is the level whose limit would be exceeded.
    fn take_on_all_levels(&mut self, peer: PeerKey, units: usize, leaves: Leaves) -> Result<(), Level> {
        let Budget { levels, portions, .. } = &*self.budget;
        let take = if leaves == Leaves::Nothing { Purse::take } else { Purse::take_below };
        let within = |limit| leaves.limit(limit, units);
        let (of_peer, of_host) = self.entries.make(&self.budget, peer);
        if !take(&mut of_peer.purse, units, portions.per_peer, &of_peer.account, within(levels.per_peer)) {
            return Err(Level::Peer);
        }
        let per_host = if mutant!(hosts_have_no_limit) { usize::MAX } else { within(levels.per_host) };
        if !take(&mut of_host.purse, units, portions.per_host, &of_host.accounts.all, per_host) {
            of_peer.purse.put_back(units, portions.per_peer, &of_peer.account);
            return Err(Level::Host);
        }
        if take(&mut self.purse, units, portions.in_all, &self.budget.general, within(levels.in_all)) {
            return Ok(());
        }
        if of_host.take_set_aside(units, &self.budget) {
            self.set_aside += units;
            return Ok(());
        }
        of_peer.purse.put_back(units, portions.per_peer, &of_peer.account);
        of_host.purse.put_back(units, portions.per_host, &of_host.accounts.all);
        Err(Level::All)
    }

    /// Puts back units that were taken for a peer.
    #[inline]
    pub fn put_back(&mut self, peer: PeerKey, units: usize) {
        if !self.put_back_reserved(peer, units) {
            self.put_back_and_release(peer, units);
        }
    }

    /// Puts back units if they stay reserved on all levels.
    #[inline(always)]
    fn put_back_reserved(&mut self, peer: PeerKey, units: usize) -> bool {
        let Some((of_peer, of_host)) = self.entries.hinted(peer) else { return false };
        if !of_peer.purse.keeps(units) || !of_host.purse.keeps(units) || !self.purse.keeps(units) {
            return false;
        }
        of_peer.purse.keep(units);
        of_host.purse.keep(units);
        self.purse.keep(units);
        self.publish();
        true
    }

    #[cold]
    #[inline(never)]
    fn put_back_and_release(&mut self, peer: PeerKey, units: usize) {
        let (budget, portions) = (&*self.budget, &self.budget.portions);
        let Some((of_peer, of_host)) = self.entries.find(peer) else { return };
        of_peer.purse.put_back(units, portions.per_peer, &of_peer.account);
        let is_over = of_peer.is_leaving && of_peer.purse.used() == 0;
        of_host.purse.put_back(units, portions.per_host, &of_host.accounts.all);
        // What is set aside comes first.
        let set_aside = of_host.put_back_set_aside(units, budget);
        self.set_aside -= set_aside;
        self.purse.put_back(units - set_aside, portions.in_all, &budget.general);
        self.settle(peer);
        if is_over {
            self.remove(peer);
        }
    }

    /// Completes a change by the rules: what follows may be counted only, unless the peer is leaving, or its host
    /// uses what is set aside.
    fn settle(&mut self, peer: PeerKey) {
        let portions = &self.budget.portions;
        if let Some((of_peer, of_host)) = self.entries.find(peer) {
            of_peer.purse.settle(portions.per_peer, of_peer.is_leaving);
            of_host.purse.settle(portions.per_host, of_host.set_aside > 0);
        }
        self.purse.settle(portions.in_all, false);
        self.publish();
        self.published.set_aside.store(self.set_aside, Ordering::Relaxed);
    }

    /// Whether a peer that uses any units could take so many more. It does not take them, so they may be gone
    /// to another poller afterwards.
    ///
    /// # Errors
    /// Which limit would be exceeded.
    #[inline]
    pub(super) fn check(&mut self, peer: PeerKey, room: Room) -> Result<(), Exhausted> {
        if let Some((of_peer, of_host)) = self.entries.hinted(peer)
            && (of_peer.purse.used() == 0
                // Of its own limit a peer needs more than a poller keeps reserved for it.
                || of_peer.purse.reaches(room.of_peer, &of_peer.account, self.budget.limit.per_peer)
                    && of_host.purse.has(room.of_all)
                    && self.purse.has(room.of_all))
        {
            return Ok(());
        }
        self.check_by_the_limits(peer, room).map_err(|level| self.refusal(level))
    }

    #[inline(never)]
    fn check_by_the_limits(&mut self, peer: PeerKey, room: Room) -> Result<(), Level> {
        let (budget, levels) = (&*self.budget, &self.budget.levels);
        let Some((of_peer, of_host)) = self.entries.find(peer) else { return Ok(()) };
        if of_peer.purse.used() == 0 {
            return Ok(());
        }
        let could_peer = |units| of_peer.purse.could_take(units, &of_peer.account, levels.per_peer);
        let per_host = if mutant!(hosts_have_no_limit) { usize::MAX } else { levels.per_host };
        if !could_peer(room.of_all) {
            return Err(Level::Peer);
        }
        if !of_host.purse.could_take(room.of_all, &of_host.accounts.all, per_host) {
            return Err(Level::Host);
        }
        if !self.purse.could_take(room.of_all, &budget.general, levels.in_all)
            && !of_host.could_take_set_aside(room.of_all, budget)
        {
            return Err(Level::All);
        }
        if could_peer(room.of_peer) { Ok(()) } else { Err(Level::Peer) }
    }

    /// The limits of the whole budget.
    #[must_use]
    pub fn limit(&self) -> Limit {
        self.budget.limit
    }

    /// Units in use for a peer.
    #[must_use]
    pub fn used_by(&self, peer: PeerKey) -> usize {
        self.entries.get(peer).map_or(0, |of_peer| of_peer.purse.used())
    }

    /// The peer is down: what is reserved for it is released, now or when it is put back.
    pub fn leave(&mut self, peer: PeerKey) {
        let Some((of_peer, _)) = self.entries.find(peer) else { return };
        if of_peer.purse.used() == 0 {
            return self.remove(peer);
        }
        of_peer.is_leaving = true;
        of_peer.purse.release_unused(&of_peer.account);
        self.settle(peer);
    }

    /// What is used by whom, next to what the owner itself counts.
    #[must_use]
    pub fn ledger(&self, counted: BTreeMap<PeerKey, usize>) -> BudgetLedger {
        let used = self.entries.iter().map(|(peer, of_peer)| (peer, of_peer.purse.used()));
        BudgetLedger {
            name: self.budget.name,
            limit: self.budget.limit,
            used: used.filter(|(_, used)| *used > 0).collect(),
            counted,
        }
    }

    fn remove(&mut self, peer: PeerKey) {
        self.set_aside -= self.entries.remove(&self.budget, peer);
    }

    #[inline]
    fn publish(&self) {
        self.published.used.store(self.purse.used(), Ordering::Relaxed);
    }

    /// Counts a refusal, and names the limit.
    #[cold]
    fn refusal(&self, level: Level) -> Exhausted {
        let Budget { name, limit, levels, .. } = &*self.budget;
        let published = &self.published;
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

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.general.release(self.purse.reserved());
        for peer in self.entries.iter().map(|(peer, _)| peer).collect::<Vec<_>>() {
            self.remove(peer);
        }
        self.published.used.store(0, Ordering::Relaxed);
        self.published.set_aside.store(0, Ordering::Relaxed);
    }
}

/// Who is charged: the peer itself.
fn charged(entries: &Entries, peer: PeerKey) -> PeerKey {
    if !mutant!(another_peer_is_charged) {
        return peer;
    }
    entries.iter().map(|(other, _)| other).find(|other| *other != peer).unwrap_or(peer)
}
