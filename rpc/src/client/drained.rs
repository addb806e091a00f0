//! Peers that run no more calls in their session: they have refused one because they drain, or have sent DRAINED.

use std::collections::BTreeMap;
use trunkline_machine::mutant;
use trunkline_transport::{PeerKey, PollerIndex};
use trunkline_verbs::Time;

/// Peers that drain, each with its pollers that have sent DRAINED in the session, and the time of its arrival. Those pollers
/// have answered all calls that they have run for this one, and run no more. Every call looks up its peer here, among
/// possibly many.
#[derive(Debug, Default)]
pub(super) struct DrainedPollers(BTreeMap<PeerKey, BTreeMap<PollerIndex, Time>>);

impl DrainedPollers {
    /// Adds a peer that drains, and its poller that has sent DRAINED at this time.
    pub(super) fn insert(&mut self, peer: PeerKey, drained: Option<(PollerIndex, Time)>) {
        let pollers = self.0.entry(peer).or_default();
        if let Some((poller, now)) = drained {
            pollers.entry(poller).or_insert(now);
        }
    }

    /// Returns true if a peer refuses further calls in its session.
    #[inline]
    pub(super) fn refuses(&self, peer: PeerKey) -> bool {
        !self.0.is_empty() && self.0.contains_key(&peer) && !mutant!(drained_servers_get_calls)
    }

    pub(super) fn contains(&self, peer: PeerKey, poller: PollerIndex) -> bool {
        self.0.get(&peer).is_some_and(|pollers| pollers.contains_key(&poller))
    }

    /// Returns true if a poller of the peer has sent DRAINED. One is enough: the others start no call either.
    pub(super) fn has(&self, peer: PeerKey) -> bool {
        self.0.get(&peer).is_some_and(|pollers| !pollers.is_empty())
    }

    /// Returns the time at which the first DRAINED of a peer's pollers arrived.
    pub(super) fn since(&self, peer: PeerKey) -> Option<Time> {
        self.0.get(&peer)?.values().min().copied()
    }

    /// Returns the peers that drain.
    pub(super) fn peers(&self) -> impl Iterator<Item = PeerKey> {
        self.0.keys().copied()
    }

    /// Forgets a peer, whose session has begun or ended.
    pub(super) fn forget(&mut self, peer: PeerKey) {
        self.0.remove(&peer);
    }
}
