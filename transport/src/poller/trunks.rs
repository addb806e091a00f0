//! The trunks of a poller. The work request numbers of a trunk contain its place in the table.
#![forbid(unsafe_code)]

use crate::budget::Shares;
use crate::trunk::{Cancelling, Resources, Trunk};
use crate::{Awaited, PeerKey};
use slab::Slab;
use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;
use trunkline_verbs::Time;

/// Maximum number of keepalives sent in one pass, so that other work is not delayed further, and the device's
/// background thread does not consider the poller stalled.
const KEEPALIVES_AT_ONCE: u32 = 64;
/// Minimum number of keepalives in one pass whose acknowledgements do not wake the poller one by one.
const MANY_KEEPALIVES: u32 = 8;
/// Time within which live peers acknowledge keepalives, in milliseconds.
const ACKNOWLEDGED_MS: u64 = 500;

/// All trunks, including trunks that are being taken down.
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

    /// Iterates over all trunks, including trunks that are being taken down.
    pub(super) fn all(&self) -> impl Iterator<Item = &Trunk> {
        self.0.iter().map(|(_, trunk)| trunk)
    }

    /// Returns the sessions whose peers have stalled for too long, or have not sent their settings.
    pub(super) fn stalled(&self, res: &Resources) -> Vec<(PeerKey, u32, &'static str)> {
        let stalled = |trunk: &Trunk| Some((trunk.peer(), trunk.number(), trunk.stalled(res)?));
        self.busy(res).filter_map(|(_, trunk)| stalled(trunk)).collect()
    }

    pub(super) fn slots(&self) -> Vec<usize> {
        self.0.iter().map(|(slot, _)| slot).collect()
    }

    /// Returns the places of the trunks that are being taken down.
    pub(super) fn dying(&self, res: &Resources) -> Vec<usize> {
        self.busy(res).filter(|(_, trunk)| !trunk.is_live()).map(|(slot, _)| slot).collect()
    }

    /// Removes cancelled messages from the queues of all trunks.
    pub(super) fn cancel(&mut self, cancelling: &mut Cancelling<'_>, shares: &mut Shares) {
        for (_, trunk) in &mut self.0 {
            trunk.cancel(cancelling, shares);
        }
    }

    /// Iterates over the busy trunks and their places. All other trunks have only a keepalive timer.
    fn busy<'a>(&'a self, res: &'a Resources) -> impl Iterator<Item = (usize, &'a Trunk)> {
        res.busy.iter().filter_map(|&slot| Some((slot, self.0.get(slot)?)))
    }

    /// Runs the timers of each busy trunk.
    pub(super) fn timers(&mut self, res: &mut Resources) {
        let mut busy = mem::take(&mut res.busy);
        busy.retain(|&slot| {
            let Some(trunk) = self.0.get_mut(slot) else { return false };
            trunk.timers(res);
            !trunk.comes_to_rest()
        });
        busy.append(&mut res.busy);
        res.busy = busy;
    }

    /// Completes work that trunks have posted without a signal before they paused.
    pub(super) fn complete_tails(&mut self, res: &mut Resources) {
        if res.time.now() < res.tails.due() {
            return;
        }
        let mut slots = res.tails.take();
        let mut next = Time::MAX;
        slots.retain(|&slot| {
            let due = self.0.get_mut(slot).and_then(|trunk| trunk.complete_tail(res));
            next = next.min(due.unwrap_or(Time::MAX));
            due.is_some()
        });
        res.tails.put_back(slots, next);
    }

    /// Sends keepalives to silent peers. When a keepalive is due, keepalives that are due soon are sent with it, so
    /// that the number of wake-ups does not grow with the number of sessions.
    pub(super) fn probe(
        &mut self,
        res: &mut Resources,
        awaited: impl FnOnce() -> BTreeMap<PeerKey, Awaited>,
    ) {
        let now_ms = res.time.now_ms();
        if now_ms < res.probe_ms {
            return;
        }
        let awaited = awaited();
        let of = |trunk: &Trunk| awaited.get(&trunk.peer()).copied().unwrap_or_default();
        let mut is_any_due = mem::take(&mut res.has_more_keepalives);
        for (_, trunk) in self.0.iter_mut().filter(|(_, trunk)| trunk.probe_ms() <= now_ms) {
            is_any_due |= trunk.must_probe(res, of(trunk), false);
        }
        let mut probed = 0;
        for (_, trunk) in self.0.iter_mut().filter(|_| is_any_due) {
            if trunk.must_probe(res, of(trunk), true) {
                if probed == KEEPALIVES_AT_ONCE {
                    res.has_more_keepalives = true;
                    break;
                }
                trunk.probe(res);
                probed += 1;
            }
        }
        if probed >= MANY_KEEPALIVES && !awaited.values().any(|&awaited| awaited == Awaited::Reply) {
            res.nap_until_ms = now_ms + ACKNOWLEDGED_MS.min(res.shared.limits.keepalive_ms);
        }
        let next_ms = self.0.iter().map(|(_, trunk)| trunk.probe_ms()).min().unwrap_or(u64::MAX);
        res.probe_ms = if res.has_more_keepalives { now_ms } else { next_ms };
    }

    /// Returns the time of the next call of [`Trunks::timers`]. For `retry`, see [`Trunk::next_timer`].
    pub(super) fn next_timer(&self, res: &Resources, retry: Duration) -> Option<Time> {
        let probe = (!self.is_empty()).then(|| res.time.at_ms(res.probe_ms));
        self.busy(res).filter_map(|(_, trunk)| trunk.next_timer(res, retry)).chain(probe).min()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the sessions without queued messages or work in flight, by peer and number.
    pub(super) fn quiet_sessions(&self) -> Vec<(PeerKey, u32)> {
        let quiet = self.live().filter(|trunk| trunk.is_open() && trunk.is_quiet());
        quiet.map(|trunk| (trunk.peer(), trunk.number())).collect()
    }

    /// Returns true if all trunks are without queued messages and work in flight.
    pub(super) fn is_quiet(&self) -> bool {
        self.0.iter().all(|(_, trunk)| trunk.is_quiet())
    }

    /// Returns true if bytes of large messages are being sent or received.
    pub(super) fn is_transferring(&self, res: &Resources) -> bool {
        self.busy(res).any(|(_, trunk)| trunk.is_transferring())
    }

    /// Returns true if a trunk waits for an acknowledgement.
    pub(super) fn await_acknowledgement(&self, res: &Resources) -> bool {
        self.busy(res).any(|(_, trunk)| trunk.awaits_acknowledgement())
    }
}
