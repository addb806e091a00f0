//! The trunks of a poller. Work request numbers name their places in the table.
#![forbid(unsafe_code)]

use crate::PeerKey;
use crate::budget::Shares;
use crate::trunk::{Cancelling, Resources, Trunk};
use slab::Slab;
use std::time::Duration;
use trunkline_verbs::Time;

/// All trunks, including those that are being taken down.
#[derive(Debug, Default)]
pub(super) struct Trunks(Slab<Trunk>);

impl Trunks {
    /// Adds the trunk that `make` creates for a place in the table. Returns the place.
    pub(super) fn add(&mut self, make: impl FnOnce(usize) -> Trunk) -> usize {
        let entry = self.0.vacant_entry();
        let slot = entry.key();
        entry.insert(make(slot));
        slot
    }

    pub(super) fn get(&self, slot: usize) -> Option<&Trunk> {
        self.0.get(slot)
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut Trunk> {
        self.0.get_mut(slot)
    }

    pub(super) fn remove(&mut self, slot: usize) -> Option<Trunk> {
        self.0.try_remove(slot)
    }

    /// Returns the place of a session's trunk. Tries `likely` first.
    pub(super) fn find(&self, likely: Option<usize>, peer: PeerKey, number: u32) -> Option<usize> {
        let is_it = |trunk: &Trunk| trunk.peer() == peer && trunk.number() == number;
        likely
            .filter(|&slot| self.0.get(slot).is_some_and(is_it))
            .or_else(|| self.0.iter().find(|(_, trunk)| is_it(trunk)).map(|(slot, _)| slot))
    }

    /// Iterates over the live trunks.
    pub(super) fn live(&self) -> impl Iterator<Item = &Trunk> {
        self.0.iter().map(|(_, trunk)| trunk).filter(|trunk| trunk.is_live())
    }

    /// Iterates over all trunks, including those that are being taken down.
    pub(super) fn all(&self) -> impl Iterator<Item = &Trunk> {
        self.0.iter().map(|(_, trunk)| trunk)
    }

    /// Returns the sessions whose peers have taken nothing for too long, or sent no settings.
    pub(super) fn stalled(&self, res: &Resources) -> Vec<(PeerKey, u32, &'static str)> {
        let stalled =
            self.all().filter_map(|trunk| Some((trunk.peer(), trunk.number(), trunk.stalled(res)?)));
        stalled.collect()
    }

    /// Returns the places of all trunks.
    pub(super) fn slots(&self) -> Vec<usize> {
        self.0.iter().map(|(slot, _)| slot).collect()
    }

    /// Returns the places of the trunks that are being taken down.
    pub(super) fn dying(&self) -> Vec<usize> {
        self.0.iter().filter(|(_, trunk)| !trunk.is_live()).map(|(slot, _)| slot).collect()
    }

    /// Removes cancelled messages that have not left.
    pub(super) fn cancel(&mut self, cancelling: &mut Cancelling<'_>, shares: &mut Shares) {
        for (_, trunk) in &mut self.0 {
            trunk.cancel(cancelling, shares);
        }
    }

    /// Runs the timers of each trunk.
    pub(super) fn timers(&mut self, res: &mut Resources) {
        for (_, trunk) in &mut self.0 {
            trunk.timers(res);
        }
    }

    /// Returns the time at which [`Trunks::timers`] has something to do. `retry` is as for
    /// [`Trunk::next_timer`].
    pub(super) fn next_timer(&self, res: &Resources, retry: Duration) -> Option<Time> {
        self.0.iter().filter_map(|(_, trunk)| trunk.next_timer(res, retry)).min()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the sessions, by peer and number, in which nothing waits and nothing is in flight.
    pub(super) fn quiet_sessions(&self) -> Vec<(PeerKey, u32)> {
        let quiet = self.live().filter(|trunk| trunk.is_open() && trunk.is_quiet());
        quiet.map(|trunk| (trunk.peer(), trunk.number())).collect()
    }

    /// Returns true if nothing waits and nothing is in flight on any trunk.
    pub(super) fn is_quiet(&self) -> bool {
        self.0.iter().all(|(_, trunk)| trunk.is_quiet())
    }

    /// Returns true if bytes of large messages are being sent or received.
    pub(super) fn is_transferring(&self) -> bool {
        self.0.iter().any(|(_, trunk)| trunk.is_transferring())
    }
}
