//! Peers that have announced, by DRAINED, that they run no more calls.

use std::collections::BTreeMap;
use trunkline_mutants::mutant;
use trunkline_transport::{PeerKey, PollerIndex};
use trunkline_verbs::Time;

/// Pollers of peers that have sent DRAINED in the peer's session, with the time of its arrival. They have answered all
/// calls that they have run for this poller, and run no more. Every call looks up its peer here, among possibly many.
#[derive(Debug, Default)]
pub(super) struct DrainedPollers(BTreeMap<PeerKey, BTreeMap<PollerIndex, Time>>);

impl DrainedPollers {
    pub(super) fn insert(&mut self, peer: PeerKey, poller: PollerIndex, now: Time) {
        self.0.entry(peer).or_default().entry(poller).or_insert(now);
    }

    pub(super) fn contains(&self, peer: PeerKey, poller: PollerIndex) -> bool {
        self.0.get(&peer).is_some_and(|pollers| pollers.contains_key(&poller))
    }

    /// Returns true if a peer gets no more calls. One of its pollers is enough: the others start none either.
    #[inline]
    pub(super) fn has(&self, peer: PeerKey) -> bool {
        !self.0.is_empty() && self.0.contains_key(&peer) && !mutant!(drained_servers_get_calls)
    }

    /// Returns the time at which the first DRAINED of a peer's pollers arrived.
    pub(super) fn since(&self, peer: PeerKey) -> Option<Time> {
        self.0.get(&peer)?.values().min().copied()
    }

    /// Forgets a peer, whose session has begun or ended.
    pub(super) fn forget(&mut self, peer: PeerKey) {
        self.0.remove(&peer);
    }
}
