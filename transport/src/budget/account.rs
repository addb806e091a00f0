//! What a node's pollers have reserved of a budget, in all and for each peer.
#![forbid(unsafe_code)]

use super::{BudgetReport, Limit};
use crate::PeerKey;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use trunkline_mutants::mutant;

/// Pollers together may keep this part of a limit without using it.
const UNUSED_PART: usize = 8;

/// Units that are reserved, out of a limit.
#[derive(Debug, Default)]
pub(super) struct Account(AtomicUsize);

impl Account {
    /// Reserves `want` units, or `need` if there are not so many; returns how many.
    pub(super) fn reserve(&self, need: usize, want: usize, limit: usize) -> Option<usize> {
        let limit = if mutant!(budgets_have_no_limit) { usize::MAX } else { limit };
        let try_reserve = |units: usize| {
            let add = |reserved: usize| reserved.checked_add(units).filter(|&sum| sum <= limit);
            // Nothing else is published by the count, so it needs no order.
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
        };
        if try_reserve(want) {
            return Some(want);
        }
        try_reserve(need).then_some(need)
    }

    pub(super) fn release(&self, units: usize) {
        self.0.fetch_sub(units, Ordering::Relaxed);
    }
}

/// What one poller publishes; only that poller writes it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Published {
    pub(super) used: AtomicUsize,
    pub(super) refused_to_peer: AtomicU64,
    pub(super) refused_to_all: AtomicU64,
}

/// The budget of one resource of a node.
#[derive(Debug)]
pub struct Budget {
    pub(super) name: &'static str,
    pub(super) limit: Limit,
    /// Units that a poller reserves at once, and keeps; 0 for a limit that is too small to be cut up.
    pub(super) portion: Limit,
    pub(super) all: Account,
    peers: Mutex<BTreeMap<PeerKey, Arc<Account>>>,
    pub(super) published: Box<[Published]>,
}

impl Budget {
    /// A budget of which so many pollers will have a share.
    #[must_use]
    pub fn new(name: &'static str, limit: Limit, pollers: u16) -> Arc<Self> {
        // A poller keeps up to two portions that it does not use.
        let portion = |limit: usize| limit / (2 * UNUSED_PART * usize::from(pollers.max(1)));
        Arc::new(Self {
            name,
            limit,
            portion: Limit { per_peer: portion(limit.per_peer), in_all: portion(limit.in_all) },
            all: Account::default(),
            peers: Mutex::default(),
            published: (0..pollers).map(|_| Published::default()).collect(),
        })
    }

    /// How it is and what it has done.
    #[must_use]
    pub fn report(&self) -> BudgetReport {
        let sum = |of: fn(&Published) -> &AtomicU64| {
            self.published.iter().map(|poller| of(poller).load(Ordering::Relaxed)).sum()
        };
        let used = self.published.iter().map(|poller| poller.used.load(Ordering::Relaxed) as u64);
        BudgetReport {
            name: self.name,
            used: used.sum(),
            limit: self.limit,
            refused_to_peer: sum(|poller| &poller.refused_to_peer),
            refused_to_all: sum(|poller| &poller.refused_to_all),
        }
    }

    /// The account of a peer, the same one for all pollers.
    pub(super) fn account(&self, peer: PeerKey) -> Arc<Account> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(peers.entry(peer).or_default())
    }

    /// A poller does not need the account of a peer any more.
    pub(super) fn give_up(&self, peer: PeerKey, account: Arc<Account>) {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        drop(account);
        // Pollers get theirs under the lock, so a sole reference stays one.
        if peers.get(&peer).is_some_and(|account| Arc::strong_count(account) == 1) {
            peers.remove(&peer);
        }
    }
}
