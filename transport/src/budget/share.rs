//! One poller's share of a budget. Its own, so counting needs no atomics but for a new portion.
#![forbid(unsafe_code)]

use super::account::Account;
use super::{Budget, BudgetLedger, Exhausted, Limit};
use crate::PeerKey;
use std::collections::BTreeMap;
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

/// What one poller has of a [`Budget`].
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    poller: usize,
    purse: Purse,
    peers: BTreeMap<PeerKey, OfPeer>,
}

impl Share {
    /// The share of the poller with this index.
    #[must_use]
    pub fn new(budget: &Arc<Budget>, poller: u16) -> Self {
        let poller = usize::from(poller);
        Self { budget: Arc::clone(budget), poller, purse: Purse::default(), peers: BTreeMap::new() }
    }

    /// Takes units for a peer.
    ///
    /// # Errors
    /// Which limit would be exceeded; then nothing was taken.
    pub fn take(&mut self, peer: PeerKey, units: usize) -> Result<(), Exhausted> {
        let budget = &self.budget;
        let peer = charged(&self.peers, peer);
        let of_peer = self.peers.entry(peer).or_insert_with(|| OfPeer {
            account: budget.account(peer),
            purse: Purse::default(),
            is_leaving: false,
        });
        of_peer.is_leaving = false;
        let (limit, portion) = (budget.limit, budget.portion);
        if !of_peer.purse.take(units, portion.per_peer, &of_peer.account, limit.per_peer) {
            self.count(|published| &published.refused_to_peer);
            return Err(Exhausted::Peer { name: self.budget.name, limit: limit.per_peer });
        }
        if !self.purse.take(units, portion.in_all, &budget.all, limit.in_all) {
            of_peer.purse.put_back(units, portion.per_peer, &of_peer.account);
            self.count(|published| &published.refused_to_all);
            return Err(Exhausted::All { name: self.budget.name, limit: limit.in_all });
        }
        self.publish();
        Ok(())
    }

    /// Puts back units that were taken for a peer.
    pub fn put_back(&mut self, peer: PeerKey, units: usize) {
        let budget = &self.budget;
        let Some(of_peer) = self.peers.get_mut(&peer) else { return };
        of_peer.purse.put_back(units, budget.portion.per_peer, &of_peer.account);
        self.purse.put_back(units, budget.portion.in_all, &budget.all);
        let is_over = of_peer.is_leaving && of_peer.purse.used == 0;
        self.publish();
        if is_over {
            self.remove(peer);
        }
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
        }
    }

    fn publish(&self) {
        if let Some(published) = self.budget.published.get(self.poller) {
            published.used.store(self.purse.used, Ordering::Relaxed);
        }
    }

    fn count(&self, of: impl Fn(&super::account::Published) -> &AtomicU64) {
        if let Some(counter) = self.budget.published.get(self.poller).map(of) {
            // Only this poller writes it.
            counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.all.release(self.purse.reserved);
        for peer in self.peers.keys().copied().collect::<Vec<_>>() {
            self.remove(peer);
        }
        self.purse = Purse::default();
        self.publish();
    }
}

/// Who is charged: the peer itself.
fn charged(peers: &BTreeMap<PeerKey, OfPeer>, peer: PeerKey) -> PeerKey {
    let other = peers.keys().find(|other| **other != peer);
    other.copied().filter(|_| mutant!(another_peer_is_charged)).unwrap_or(peer)
}
