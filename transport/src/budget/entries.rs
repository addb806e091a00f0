//! The peers and hosts that have units in a poller's shares of `N` budgets, found by the hints of the
//! poller's keys.
#![forbid(unsafe_code)]

use super::Budget;
use super::account::{Account, HostAccounts};
use super::reservation::Reservation;
use crate::{PeerKey, PeerMap};
use slab::Slab;
use std::collections::BTreeMap;
use std::sync::Arc;
use trunkline_verbs::PeerHost;

/// A peer's part of one budget.
#[derive(Debug)]
pub(super) struct ByPeer {
    pub(super) account: Arc<Account>,
    pub(super) reservation: Reservation,
}

/// A host's part of one budget.
#[derive(Debug)]
pub(super) struct ByHost {
    pub(super) accounts: Arc<HostAccounts>,
    pub(super) reservation: Reservation,
    /// Units in use that were set aside.
    pub(super) set_aside: usize,
}

#[derive(Debug)]
pub(super) struct OfPeer<const N: usize> {
    pub(super) of: [ByPeer; N],
    /// True if the peer is down: its entry is removed once nothing of it is in use.
    pub(super) is_leaving: bool,
    /// Index of the peer's host.
    host: usize,
}

impl<const N: usize> OfPeer<N> {
    pub(super) fn uses_nothing(&self) -> bool {
        self.of.iter().all(|of| of.reservation.used() == 0)
    }
}

#[derive(Debug)]
pub(super) struct OfHost<const N: usize> {
    host: PeerHost,
    pub(super) of: [ByHost; N],
    /// Number of peers of the host that have an entry.
    peers: usize,
}

impl ByHost {
    /// Takes units that are set aside. They are few, so they are not reserved in portions.
    pub(super) fn take_set_aside(&mut self, units: usize, budget: &Budget) -> bool {
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

    /// Returns true if [`ByHost::take_set_aside`] could take `units` now.
    pub(super) fn could_take_set_aside(&self, units: usize, budget: &Budget) -> bool {
        self.accounts.set_aside.could_reserve(units, budget.limit.set_aside_per_host())
            && budget.set_aside.could_reserve(units, budget.limit.set_aside())
    }

    /// Puts back up to the given number of units that were set aside. Returns their number.
    pub(super) fn put_back_set_aside(&mut self, units: usize, budget: &Budget) -> usize {
        let units = units.min(self.set_aside);
        if units > 0 {
            self.set_aside -= units;
            self.accounts.set_aside.release(units);
            budget.set_aside.release(units);
        }
        units
    }
}

/// All peers and hosts of a share.
#[derive(Debug)]
pub(super) struct Entries<const N: usize> {
    peers: PeerMap<OfPeer<N>>,
    hosts: Slab<OfHost<N>>,
    places: BTreeMap<PeerHost, usize>,
}

impl<const N: usize> Default for Entries<N> {
    fn default() -> Self {
        Self { peers: PeerMap::default(), hosts: Slab::new(), places: BTreeMap::new() }
    }
}

impl<const N: usize> Entries<N> {
    /// Returns the entries of a peer and of its host if the key's hint finds them. [`Entries::find`] always
    /// finds them.
    #[inline(always)]
    pub(super) fn hinted(&mut self, peer: PeerKey) -> Option<(&mut OfPeer<N>, &mut OfHost<N>)> {
        let of_peer = self.peers.hinted(peer)?;
        let of_host = self.hosts.get_mut(of_peer.host)?;
        Some((of_peer, of_host))
    }

    /// Returns the entries of a peer and of its host.
    pub(super) fn find(&mut self, peer: PeerKey) -> Option<(&mut OfPeer<N>, &mut OfHost<N>)> {
        let of_peer = self.peers.get_mut(peer)?;
        let of_host = self.hosts.get_mut(of_peer.host)?;
        Some((of_peer, of_host))
    }

    /// Returns the entries of a peer and of its host, inserted if missing. A leaving peer stops leaving.
    pub(super) fn make(
        &mut self,
        budgets: &[Arc<Budget>; N],
        peer: PeerKey,
    ) -> (&mut OfPeer<N>, &mut OfHost<N>) {
        let Self { peers, hosts, places } = self;
        // A peer that has charges stays with its host.
        let place = peers.get(peer).map(|of_peer| of_peer.host).unwrap_or_else(|| {
            let host = budgets[0].peer_hosts.of(peer);
            let by_host = |budget: &Arc<Budget>| ByHost {
                accounts: budget.host(host),
                reservation: Reservation::default(),
                set_aside: 0,
            };
            let made = || OfHost { host, of: budgets.each_ref().map(by_host), peers: 0 };
            *places.entry(host).or_insert_with(|| hosts.insert(made()))
        });
        let by_peer = |budget: &Arc<Budget>| ByPeer {
            account: budget.account(peer),
            reservation: Reservation::default(),
        };
        let of_host = &mut hosts[place];
        let of_peer = peers.get_or_insert_with(peer, || {
            of_host.peers += 1;
            OfPeer { of: budgets.each_ref().map(by_peer), is_leaving: false, host: place }
        });
        of_peer.is_leaving = false;
        (of_peer, of_host)
    }

    /// Returns the entry of a peer.
    pub(super) fn get(&self, peer: PeerKey) -> Option<&OfPeer<N>> {
        self.peers.get(peer)
    }

    /// Iterates over all peers, in the order of their keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = (PeerKey, &OfPeer<N>)> {
        self.peers.iter()
    }

    /// Releases the units reserved for a peer, and for its host if no other peer of it is left. Returns how
    /// many of the units that are set aside were in use: zero, unless the whole share is dropped.
    pub(super) fn remove(&mut self, budgets: &[Arc<Budget>; N], peer: PeerKey) -> [usize; N] {
        let Some(OfPeer { of, host, .. }) = self.peers.remove(peer) else { return [0; N] };
        for (budget, ByPeer { account, reservation }) in budgets.iter().zip(of) {
            account.release(reservation.reserved());
            budget.give_up(peer, account);
        }
        let of_host = &mut self.hosts[host];
        of_host.peers -= 1;
        if of_host.peers > 0 {
            return [0; N];
        }
        let OfHost { host, of, .. } = self.hosts.remove(host);
        self.places.remove(&host);
        let mut set_aside = [0; N];
        for ((budget, mut of), set_aside) in budgets.iter().zip(of).zip(&mut set_aside) {
            *set_aside = of.put_back_set_aside(of.set_aside, budget);
            of.accounts.all.release(of.reservation.reserved());
            budget.give_up_host(host, of.accounts);
        }
        set_aside
    }
}
