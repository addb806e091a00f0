//! One poller's share of a budget. Its own, so counting needs no atomics but for a new portion.
#![forbid(unsafe_code)]

use super::account::{self, Account};
use super::{Budget, BudgetLedger, Exhausted, Leaves, Limit};
use crate::PeerKey;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use trunkline_mutants::mutant;

/// Units of one account that a poller has.
#[derive(Debug, Default)]
struct Purse {
    reserved: usize,
    used: usize,
}

impl Purse {
    /// Uses units, after reserving those that are missing. Returns whether it could.
    fn take(&mut self, units: usize, portion: usize, account: &Account, limit: usize) -> bool {
        let used = self.used.saturating_add(units);
        let missing = used.saturating_sub(self.reserved);
        if missing > 0 {
            let Some(more) = account.reserve(missing, missing.max(portion), limit) else { return false };
            self.reserved += more;
        }
        self.used = used;
        true
    }

    /// The same for a use with a lower limit than others have. What this poller has reserved may be what the others
    /// reserved up to theirs, so it is not enough to have it.
    fn take_below(&mut self, units: usize, portion: usize, account: &Account, limit: usize) -> bool {
        let unused = (self.reserved - self.used).saturating_sub(units);
        if self.reserved - self.used >= units && account.reserved() - unused > limit {
            return false;
        }
        self.take(units, portion, account, limit)
    }

    /// Ends the use of units; keeps a portion for the next ones.
    fn put_back(&mut self, units: usize, portion: usize, account: &Account) {
        self.used -= units;
        if self.reserved - self.used > 2 * portion {
            account.release(self.reserved - self.used - portion);
            self.reserved = self.used + portion;
        }
    }
}

#[derive(Debug)]
struct OfPeer {
    account: Arc<Account>,
    purse: Purse,
    /// The peer is down: its entry goes when nothing of it is used any more.
    is_leaving: bool,
}

#[derive(Debug)]
struct OfHost {
    accounts: Arc<account::OfHost>,
    purse: Purse,
    /// Of the units in use: those of what is set aside.
    set_aside: usize,
    /// Peers of the host that have an entry.
    peers: usize,
}

impl OfHost {
    /// Takes units of what is set aside. They are few, so there are no portions of them.
    fn take_set_aside(&mut self, units: usize, budget: &Budget) -> bool {
        let (limit, of_host) = (budget.limit, &self.accounts.set_aside);
        if of_host.reserve(units, units, limit.set_aside_per_host()).is_none() {
            return false;
        }
        if budget.set_aside.reserve(units, units, limit.set_aside()).is_none() {
            of_host.release(units);
            return false;
        }
        self.set_aside += units;
        true
    }

    /// Puts back up to so many units of what is set aside; returns how many.
    fn put_back_set_aside(&mut self, units: usize, budget: &Budget) -> usize {
        let units = units.min(self.set_aside);
        if units > 0 {
            self.set_aside -= units;
            self.accounts.set_aside.release(units);
            budget.set_aside.release(units);
        }
        units
    }
}

/// What one poller has of a [`Budget`].
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    poller: usize,
    /// But for what is set aside.
    purse: Purse,
    peers: BTreeMap<PeerKey, OfPeer>,
    hosts: BTreeMap<IpAddr, OfHost>,
    /// Units in use of what is set aside, by all hosts.
    set_aside: usize,
}

impl Share {
    /// The share of the poller with this index.
    #[must_use]
    pub fn new(budget: &Arc<Budget>, poller: u16) -> Self {
        Self {
            budget: Arc::clone(budget),
            poller: usize::from(poller),
            purse: Purse::default(),
            peers: BTreeMap::new(),
            hosts: BTreeMap::new(),
            set_aside: 0,
        }
    }

    /// Takes units for a peer.
    ///
    /// # Errors
    /// Which limit would be exceeded; then nothing was taken.
    pub fn take(&mut self, peer: PeerKey, units: usize) -> Result<(), Exhausted> {
        self.take_leaving(peer, units, Leaves::Nothing)
    }

    /// Takes units for a peer, and leaves a part of each limit free.
    ///
    /// # Errors
    /// Which limit would be exceeded; then nothing was taken.
    pub fn take_leaving(&mut self, peer: PeerKey, units: usize, leaves: Leaves) -> Result<(), Exhausted> {
        let Budget { name, limit, portion, .. } = &*self.budget;
        let take = if leaves == Leaves::Nothing { Purse::take } else { Purse::take_below };
        let within = |limit| leaves.limit(limit, units);
        let peer = charged(&self.peers, peer);
        let (of_peer, of_host) = entries(&self.budget, &mut self.peers, &mut self.hosts, peer);
        if !take(&mut of_peer.purse, units, portion.per_peer, &of_peer.account, within(limit.per_peer)) {
            self.count(|published| &published.refused_to_peer);
            return Err(Exhausted::Peer { name, limit: limit.per_peer });
        }
        let per_host = if mutant!(hosts_have_no_limit) { usize::MAX } else { within(limit.per_host()) };
        if !take(&mut of_host.purse, units, portion.per_host, &of_host.accounts.all, per_host) {
            of_peer.purse.put_back(units, portion.per_peer, &of_peer.account);
            self.count(|published| &published.refused_to_host);
            return Err(Exhausted::Host { name, limit: limit.per_host() });
        }
        let general = within(limit.in_all - limit.set_aside());
        if take(&mut self.purse, units, portion.in_all, &self.budget.general, general) {
            self.publish();
            return Ok(());
        }
        if of_host.take_set_aside(units, &self.budget) {
            self.set_aside += units;
            self.publish();
            return Ok(());
        }
        of_peer.purse.put_back(units, portion.per_peer, &of_peer.account);
        of_host.purse.put_back(units, portion.per_host, &of_host.accounts.all);
        self.count(|published| &published.refused_to_all);
        Err(Exhausted::All { name, limit: limit.in_all })
    }

    /// Puts back units that were taken for a peer.
    pub fn put_back(&mut self, peer: PeerKey, units: usize) {
        let budget = &self.budget;
        let Some(of_peer) = self.peers.get_mut(&peer) else { return };
        of_peer.purse.put_back(units, budget.portion.per_peer, &of_peer.account);
        let is_over = of_peer.is_leaving && of_peer.purse.used == 0;
        if let Some(of_host) = self.hosts.get_mut(&peer.host()) {
            of_host.purse.put_back(units, budget.portion.per_host, &of_host.accounts.all);
            let set_aside = of_host.put_back_set_aside(units, budget);
            self.set_aside -= set_aside;
            self.purse.put_back(units - set_aside, budget.portion.in_all, &budget.general);
        }
        self.publish();
        if is_over {
            self.remove(peer);
        }
    }

    /// Whether a peer could take so many units of its own limit, and so many of those of its host and of all.
    ///
    /// # Errors
    /// Which limit would be exceeded.
    pub(super) fn check(&mut self, peer: PeerKey, of_peer: usize, of_all: usize) -> Result<(), Exhausted> {
        self.take(peer, of_all)?;
        let budget = &self.budget;
        let (limit, portion) = (budget.limit.per_peer, budget.portion.per_peer);
        let more = of_peer.saturating_sub(of_all);
        let is_free = self.peers.get_mut(&peer).is_none_or(|of_peer| {
            let is_free = of_peer.purse.take(more, portion, &of_peer.account, limit);
            if is_free {
                of_peer.purse.put_back(more, portion, &of_peer.account);
            }
            is_free
        });
        self.put_back(peer, of_all);
        if is_free {
            return Ok(());
        }
        self.count(|published| &published.refused_to_peer);
        Err(Exhausted::Peer { name: self.budget.name, limit })
    }

    /// The limits of the whole budget.
    #[must_use]
    pub fn limit(&self) -> Limit {
        self.budget.limit
    }

    /// Units in use for a peer.
    #[must_use]
    pub fn used_by(&self, peer: PeerKey) -> usize {
        self.peers.get(&peer).map_or(0, |of_peer| of_peer.purse.used)
    }

    /// The peer is down: what is reserved for it is released, now or when it is put back.
    pub fn leave(&mut self, peer: PeerKey) {
        let Some(of_peer) = self.peers.get_mut(&peer) else { return };
        of_peer.is_leaving = true;
        if of_peer.purse.used == 0 {
            self.remove(peer);
        }
    }

    /// What is used by whom, next to what the owner itself counts.
    #[must_use]
    pub fn ledger(&self, counted: BTreeMap<PeerKey, usize>) -> BudgetLedger {
        let used = self.peers.iter().map(|(&peer, of_peer)| (peer, of_peer.purse.used));
        BudgetLedger {
            name: self.budget.name,
            limit: self.budget.limit,
            used: used.filter(|(_, used)| *used > 0).collect(),
            counted,
        }
    }

    fn remove(&mut self, peer: PeerKey) {
        if let Some(OfPeer { account, purse, .. }) = self.peers.remove(&peer) {
            account.release(purse.reserved);
            self.budget.give_up(peer, account);
            self.leave_host(peer.host());
        }
    }

    /// One peer less of a host has an entry.
    fn leave_host(&mut self, host: IpAddr) {
        let Some(of_host) = self.hosts.get_mut(&host) else { return };
        of_host.peers -= 1;
        if of_host.peers == 0
            && let Some(mut of_host) = self.hosts.remove(&host)
        {
            // A peer that is removed uses nothing, unless the whole share is dropped.
            self.set_aside -= of_host.put_back_set_aside(of_host.set_aside, &self.budget);
            of_host.accounts.all.release(of_host.purse.reserved);
            self.budget.give_up_host(host, of_host.accounts);
        }
    }

    fn publish(&self) {
        if let Some(published) = self.budget.published.get(self.poller) {
            published.used.store(self.purse.used + self.set_aside, Ordering::Relaxed);
        }
    }

    fn count(&self, of: impl Fn(&account::Published) -> &AtomicU64) {
        if let Some(counter) = self.budget.published.get(self.poller).map(of) {
            // Only this poller writes it.
            counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.general.release(self.purse.reserved);
        for peer in self.peers.keys().copied().collect::<Vec<_>>() {
            self.remove(peer);
        }
        self.purse = Purse::default();
        self.publish();
    }
}

/// The entries of a peer and of its host, made if they are not there.
fn entries<'a>(
    budget: &Budget,
    peers: &'a mut BTreeMap<PeerKey, OfPeer>,
    hosts: &'a mut BTreeMap<IpAddr, OfHost>,
    peer: PeerKey,
) -> (&'a mut OfPeer, &'a mut OfHost) {
    let host = peer.host();
    let of_host = hosts.entry(host).or_insert_with(|| OfHost {
        accounts: budget.host(host),
        purse: Purse::default(),
        set_aside: 0,
        peers: 0,
    });
    let of_peer = peers.entry(peer).or_insert_with(|| {
        of_host.peers += 1;
        OfPeer { account: budget.account(peer), purse: Purse::default(), is_leaving: false }
    });
    of_peer.is_leaving = false;
    (of_peer, of_host)
}

/// Who is charged: the peer itself.
fn charged(peers: &BTreeMap<PeerKey, OfPeer>, peer: PeerKey) -> PeerKey {
    if !mutant!(another_peer_is_charged) {
        return peer;
    }
    peers.keys().find(|other| **other != peer).copied().unwrap_or(peer)
}
