//! A budget counted under its owner's lock. A pool uses it, whose blocks are few and large.
#![forbid(unsafe_code)]

use super::{BudgetReport, Limit};
use crate::PeerHosts;
use crate::PeerKey;
use std::collections::BTreeMap;
use std::sync::Arc;
use trunkline_verbs::PeerHost;

#[derive(Debug, Clone, Copy, Default)]
struct OfHost {
    used: usize,
    /// Units in use of the part that is set aside for hosts that use little.
    set_aside: usize,
}

/// Units in use, by peer, within a [`Limit`].
#[derive(Debug)]
pub(crate) struct Tally {
    limit: Limit,
    used: usize,
    /// Units in use of the part that is set aside.
    set_aside: usize,
    /// Units in use by each peer, and its host.
    peers: BTreeMap<PeerKey, (PeerHost, usize)>,
    hosts: BTreeMap<PeerHost, OfHost>,
    peer_hosts: Arc<PeerHosts>,
    refused_to_peer: u64,
    refused_to_host: u64,
    refused_to_all: u64,
}

impl Tally {
    pub(crate) fn new(limit: Limit, peer_hosts: &Arc<PeerHosts>) -> Self {
        Self {
            limit,
            used: 0,
            set_aside: 0,
            peers: BTreeMap::new(),
            hosts: BTreeMap::new(),
            peer_hosts: Arc::clone(peer_hosts),
            refused_to_peer: 0,
            refused_to_host: 0,
            refused_to_all: 0,
        }
    }

    /// Creates another tally of the same node.
    pub(crate) fn sibling(&self, limit: Limit) -> Self {
        Self::new(limit, &self.peer_hosts)
    }

    pub(crate) fn limit(&self) -> Limit {
        self.limit
    }

    /// Returns the units in use.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Charges a peer, or only the total without one. Returns true if the limits allow it.
    pub(crate) fn charge(&mut self, units: usize, peer: Option<PeerKey>) -> bool {
        let limit = self.limit;
        let Some(peer) = peer else {
            let is_allowed = self.used.saturating_add(units) <= limit.in_all;
            self.used += if is_allowed { units } else { 0 };
            self.refused_to_all += u64::from(!is_allowed);
            return is_allowed;
        };
        let (host, of_peer) = self.peers.get(&peer).copied().unwrap_or_else(|| (self.peer_hosts.of(peer), 0));
        let mut of_host = self.hosts.get(&host).copied().unwrap_or_default();
        if of_peer.saturating_add(units) > limit.per_peer {
            self.refused_to_peer += 1;
            return false;
        }
        if of_host.used.saturating_add(units) > limit.per_host() {
            self.refused_to_host += 1;
            return false;
        }
        let is_within = |used: usize, limit: usize| used.saturating_add(units) <= limit;
        if !is_within(self.used - self.set_aside, limit.in_all - limit.set_aside()) {
            if !is_within(of_host.set_aside, limit.set_aside_per_host())
                || !is_within(self.set_aside, limit.set_aside())
            {
                self.refused_to_all += 1;
                return false;
            }
            of_host.set_aside += units;
            self.set_aside += units;
        }
        of_host.used += units;
        self.used += units;
        self.peers.insert(peer, (host, of_peer + units));
        self.hosts.insert(host, of_host);
        true
    }

    /// Discharges units that are not in use any more.
    pub(crate) fn discharge(&mut self, units: usize, peer: Option<PeerKey>) {
        self.used -= units;
        let Some(peer) = peer else { return };
        let Some((host, of_peer)) = self.peers.get_mut(&peer) else { return };
        let host = *host;
        *of_peer -= units;
        if *of_peer == 0 {
            self.peers.remove(&peer);
        }
        if let Some(of_host) = self.hosts.get_mut(&host) {
            let set_aside = of_host.set_aside.min(units);
            of_host.set_aside -= set_aside;
            self.set_aside -= set_aside;
            of_host.used -= units;
            if of_host.used == 0 {
                self.hosts.remove(&host);
            }
        }
    }

    /// Returns the report of the tally, as a budget of this name.
    pub(crate) fn report(&self, name: &'static str) -> BudgetReport {
        BudgetReport {
            name,
            used: self.used as u64,
            limit: self.limit,
            refused_to_peer: self.refused_to_peer,
            refused_to_host: self.refused_to_host,
            refused_to_all: self.refused_to_all,
        }
    }
}
