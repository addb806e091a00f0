//! Units of a budget that a node's pollers have reserved: in total, for each host, and for each peer.
#![forbid(unsafe_code)]

use super::{BudgetReport, Limit};
use crate::PeerHosts;
use crate::PeerKey;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use trunkline_machine::mutant;
use trunkline_verbs::PeerHost;

/// Divisor of a limit: pollers together may keep this part reserved without using it.
const UNUSED_PART: usize = 8;

/// Reserved units, out of a limit.
#[derive(Debug, Default)]
pub(super) struct Account(AtomicUsize);

impl Account {
    /// Reserves `want` units, or `need` if too few are free. Returns the number reserved.
    pub(super) fn reserve(&self, need: usize, want: usize, limit: usize) -> Option<usize> {
        let limit = in_force(limit);
        let try_reserve = |units: usize| {
            let add = |reserved: usize| reserved.checked_add(units).filter(|&sum| sum <= limit);
            // The count publishes nothing else, so it needs no order.
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
        };
        if try_reserve(want) {
            return Some(want);
        }
        try_reserve(need).then_some(need)
    }

    /// Returns true if `units` could be reserved now.
    pub(super) fn could_reserve(&self, units: usize, limit: usize) -> bool {
        self.reserved().checked_add(units).is_some_and(|sum| sum <= in_force(limit))
    }

    /// Returns the number of reserved units.
    #[inline]
    pub(super) fn reserved(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn release(&self, units: usize) {
        self.0.fetch_sub(units, Ordering::Relaxed);
    }
}

fn in_force(limit: usize) -> usize {
    if mutant!(budgets_have_no_limit) { usize::MAX } else { limit }
}

/// Units reserved for the peers of a host.
#[derive(Debug, Default)]
pub(super) struct HostAccounts {
    /// All units of the host.
    pub(super) all: Account,
    /// Units of the part that is set aside.
    pub(super) set_aside: Account,
}

/// Numbers that one poller publishes. Only that poller writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Published {
    /// Units in use, except those of the part that is set aside.
    pub(super) used: AtomicUsize,
    pub(super) set_aside: AtomicUsize,
    pub(super) refused_to_peer: AtomicU64,
    pub(super) refused_to_host: AtomicU64,
    pub(super) refused_to_all: AtomicU64,
}

/// Units of each kind of account.
#[derive(Debug, Clone, Copy)]
pub(super) struct Levels {
    pub(super) per_peer: usize,
    pub(super) per_host: usize,
    pub(super) in_all: usize,
}

impl Levels {
    pub(super) fn map(self, of: impl Fn(usize) -> usize) -> Self {
        Self { per_peer: of(self.per_peer), per_host: of(self.per_host), in_all: of(self.in_all) }
    }
}

/// The budget of one resource of a node.
#[derive(Debug)]
pub struct Budget {
    pub(super) name: &'static str,
    pub(super) limit: Limit,
    /// Limits, except for the part that is set aside.
    pub(super) levels: Levels,
    /// Number of units that a poller reserves at once, and keeps; 0 for a limit that is too small to divide.
    pub(super) portions: Levels,
    /// Reserved units, except those of the part that is set aside.
    pub(super) general: Account,
    pub(super) set_aside: Account,
    peers: Mutex<BTreeMap<PeerKey, Arc<Account>>>,
    hosts: Mutex<BTreeMap<PeerHost, Arc<HostAccounts>>>,
    pub(super) peer_hosts: Arc<PeerHosts>,
    pub(super) published: Box<[Arc<Published>]>,
}

impl Budget {
    /// Creates a budget that this number of pollers share, of a node whose peers are at these hosts.
    #[must_use]
    pub fn new(name: &'static str, limit: Limit, pollers: u16, peer_hosts: &Arc<PeerHosts>) -> Arc<Self> {
        // A poller keeps up to two portions that it does not use.
        let portion = |limit: usize| limit / (2 * UNUSED_PART * usize::from(pollers.max(1)));
        let whole = Levels { per_peer: limit.per_peer, per_host: limit.per_host(), in_all: limit.in_all };
        Arc::new(Self {
            name,
            limit,
            levels: Levels { in_all: limit.in_all - limit.set_aside(), ..whole },
            portions: whole.map(portion),
            general: Account::default(),
            set_aside: Account::default(),
            peers: Mutex::default(),
            hosts: Mutex::default(),
            peer_hosts: Arc::clone(peer_hosts),
            published: (0..pollers).map(|_| Arc::default()).collect(),
        })
    }

    /// Returns the budget's state and its refusals.
    #[must_use]
    pub fn report(&self) -> BudgetReport {
        let sum = |of: fn(&Published) -> &AtomicU64| {
            self.published.iter().map(|poller| of(poller).load(Ordering::Relaxed)).sum()
        };
        let used = self.published.iter().flat_map(|poller| [&poller.used, &poller.set_aside]);
        let used = used.map(|units| units.load(Ordering::Relaxed) as u64);
        BudgetReport {
            name: self.name,
            used: used.sum(),
            limit: self.limit,
            refused_to_peer: sum(|poller| &poller.refused_to_peer),
            refused_to_host: sum(|poller| &poller.refused_to_host),
            refused_to_all: sum(|poller| &poller.refused_to_all),
        }
    }

    /// Returns the account of a peer. It is the same for all pollers.
    pub(super) fn account(&self, peer: PeerKey) -> Arc<Account> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(peers.entry(peer).or_default())
    }

    /// Returns the accounts of a host. They are the same for all pollers.
    pub(super) fn host(&self, host: PeerHost) -> Arc<HostAccounts> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(hosts.entry(host).or_default())
    }

    /// Drops a poller's reference to the account of a peer.
    pub(super) fn give_up(&self, peer: PeerKey, account: Arc<Account>) {
        give_up(&self.peers, peer, account);
    }

    /// Drops a poller's reference to the accounts of a host.
    pub(super) fn give_up_host(&self, host: PeerHost, accounts: Arc<HostAccounts>) {
        give_up(&self.hosts, host, accounts);
    }
}

/// Drops a poller's reference, and the entry if that was the last one.
fn give_up<K: Ord, T>(all: &Mutex<BTreeMap<K, Arc<T>>>, key: K, reference: Arc<T>) {
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    drop(reference);
    // Pollers get their references under the lock, so a sole reference stays the only one.
    if all.get(&key).is_some_and(|kept| Arc::strong_count(kept) == 1) {
        all.remove(&key);
    }
}
