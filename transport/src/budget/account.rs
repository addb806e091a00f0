//! Units of a budget that a node's pollers have reserved, in total, per host and per peer.
#![forbid(unsafe_code)]

use super::{BudgetReport, Limit};
use crate::PeerHosts;
use crate::PeerKey;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use trunkline_machine::mutant;
use trunkline_verbs::PeerHost;

/// Divisor of a limit. The quotient is the maximum number of reserved units that all pollers together may leave unused.
const UNUSED_PART: usize = 8;

/// A number of reserved units.
#[derive(Debug, Default)]
pub(super) struct Units(AtomicUsize);

impl Units {
    /// Reserves `want` units, or `need` if too few are free. Returns the number reserved.
    pub(super) fn reserve(&self, need: usize, want: usize, limit: usize) -> Option<usize> {
        let limit = in_force(limit);
        let try_reserve = |units: usize| {
            let add = |reserved: usize| reserved.checked_add(units).filter(|&sum| sum <= limit);
            // Relaxed: the count does not publish other data.
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

/// Units reserved by all pollers for one peer, for the peers of one host, or for all peers.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// Reserved units of a peer or a host. In the account for all peers, the set-aside units are not included.
    pub(super) units: Units,
    /// Reserved units of the set-aside part. Not counted for a peer.
    pub(super) set_aside: Units,
}

/// Accounts that all pollers share, by peer or by host.
#[derive(Debug)]
pub(super) struct Accounts<K>(Mutex<BTreeMap<K, Arc<Account>>>);

impl<K: Ord> Accounts<K> {
    /// Returns the account of a key, and opens it if it is missing.
    pub(super) fn open(&self, key: K) -> Arc<Account> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(key).or_default())
    }

    /// Drops a poller's reference, and the account if that was the last one.
    pub(super) fn give_up(&self, key: K, reference: Arc<Account>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(reference);
        // Pollers get their references under the lock, so a sole reference stays the only one.
        if all.get(&key).is_some_and(|kept| Arc::strong_count(kept) == 1) {
            all.remove(&key);
        }
    }
}

/// Numbers that one poller publishes. Only that poller writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Published {
    /// Units in use outside the part that is set aside.
    pub(super) used: AtomicUsize,
    pub(super) set_aside: AtomicUsize,
    /// Numbers of refusals because of the limit per peer, per host, and for all peers.
    pub(super) refused: [AtomicU64; 3],
}

/// The budget of one resource of a node.
#[derive(Debug)]
pub struct Budget {
    pub(super) name: &'static str,
    pub(super) limit: Limit,
    pub(super) all: Arc<Account>,
    pub(super) peers: Accounts<PeerKey>,
    pub(super) hosts: Accounts<PeerHost>,
    pub(super) peer_hosts: Arc<PeerHosts>,
    pub(super) published: Box<[Arc<Published>]>,
}

impl Budget {
    /// Creates a budget that `pollers` pollers of a node share. `peer_hosts` returns the host of each peer.
    #[must_use]
    pub fn new(name: &'static str, limit: Limit, pollers: u16, peer_hosts: &Arc<PeerHosts>) -> Arc<Self> {
        Arc::new(Self {
            name,
            limit,
            all: Arc::default(),
            peers: Accounts(Mutex::default()),
            hosts: Accounts(Mutex::default()),
            peer_hosts: Arc::clone(peer_hosts),
            published: (0..pollers).map(|_| Arc::default()).collect(),
        })
    }

    /// Creates another budget of the same node.
    pub(crate) fn sibling(&self, name: &'static str, limit: Limit) -> Arc<Self> {
        let pollers = u16::try_from(self.published.len()).unwrap_or(u16::MAX);
        Self::new(name, limit, pollers, &self.peer_hosts)
    }

    /// Returns the number of units that a poller reserves in one step and keeps. It is 0 if the limit is too small to
    /// divide.
    pub(super) fn portion(&self, limit: usize) -> usize {
        // A poller keeps up to two portions that it does not use.
        limit / (2 * UNUSED_PART * self.published.len().max(1))
    }

    /// Returns the budget's state and its refusals.
    #[must_use]
    pub fn report(&self) -> BudgetReport {
        let used = self.published.iter().flat_map(|poller| [&poller.used, &poller.set_aside]);
        let used = used.map(|units| units.load(Ordering::Relaxed) as u64).sum();
        let refused = |level: usize| {
            self.published.iter().map(|poller| poller.refused[level].load(Ordering::Relaxed)).sum()
        };
        let [refused_to_peer, refused_to_host, refused_to_all] = [0, 1, 2].map(refused);
        let Self { name, limit, .. } = *self;
        BudgetReport { name, used, limit, refused_to_peer, refused_to_host, refused_to_all }
    }
}
