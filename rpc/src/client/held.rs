//! Calls to a draining server, which keeps its session until its handlers end. Calls with
//! [`Connect::Wait`](trunkline_transport::Connect::Wait) are held until that session ends, and are then repeated in order of
//! arrival.
//!
//! `Calls` returns the held calls to the poller, because their route may then lead to another server.

use crate::call::{AdmissionClass, Submission};
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use trunkline_machine::mutant;
#[cfg(feature = "identity")]
use trunkline_transport::Connect;
use trunkline_transport::{PeerKey, PollerIndex};
use trunkline_verbs::Time;

/// Maximum number of held calls. Beyond it, only calls with [`AdmissionClass::Waits`] are held.
pub(super) const MOST: usize = 65_536;

/// Calls that wait for the next session of their server.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Calls in order of arrival.
    calls: BTreeMap<u64, (PeerKey, Submission)>,
    deadlines: BTreeSet<(Time, u64)>,
    last: u64,
    /// Calls to be repeated now.
    ready: Vec<Submission>,
}

impl Held {
    pub(super) fn len(&self) -> usize {
        self.calls.len() + self.ready.len()
    }

    /// Returns true if a call of this class may be held. The limit applies to calls that do not wait for room. It bounds the
    /// memory of these calls even if a draining server never ends its session.
    pub(super) fn has_room(&self, entry: AdmissionClass) -> bool {
        entry == AdmissionClass::Waits || self.calls.len() < MOST
    }

    /// Returns the servers that held calls wait for.
    pub(super) fn servers(&self) -> impl Iterator<Item = PeerKey> {
        self.calls.values().map(|(peer, _)| *peer)
    }

    /// Returns true if a call is to be repeated.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns the first deadline.
    pub(super) fn next_timer(&self) -> Option<Time> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Holds a call until the session with its server ends. A call with a route is repeated at once, and waits for the
    /// route if the route has no server.
    pub(super) fn push(&mut self, peer: PeerKey, call: Submission) {
        if call.route.is_some() {
            return self.ready.push(call);
        }
        self.deadlines.insert((call.deadline, self.last));
        self.calls.insert(self.last, (peer, call));
        self.last += 1;
    }

    /// Adds a call to be repeated now, unless it has ended.
    pub(super) fn make_again(&mut self, call: Submission) {
        if call.completion.is_some() {
            self.ready.push(call);
        }
    }

    /// Takes the calls to a server that fail if the server is unreachable.
    #[cfg(feature = "identity")]
    pub(super) fn take_fail_fast(&mut self, peer: PeerKey) -> Vec<Submission> {
        let calls = self.remove(|(of, call)| *of == peer && call.connect == Connect::FailFast);
        calls.into_iter().map(|(_, call)| call).collect()
    }

    /// Marks the held calls to a server for repetition, because its session begins or ends.
    pub(super) fn release(&mut self, peer: PeerKey) {
        let calls = self.remove(|(of, _)| *of == peer);
        self.ready.extend(calls.into_iter().map(|(_, call)| call));
    }

    /// Takes the calls to be repeated now.
    pub(super) fn take_ready(&mut self) -> Vec<Submission> {
        mem::take(&mut self.ready)
    }

    /// Takes the calls whose deadline has passed.
    pub(super) fn late(&mut self, now: Time) -> Vec<(PeerKey, Submission)> {
        let mut late = Vec::new();
        while let Some((_, number)) = self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= now)
        {
            self.deadlines.pop_first();
            late.extend(self.calls.remove(&number));
        }
        late
    }

    /// Takes the calls that match, with their servers.
    pub(super) fn take(&mut self, which: impl Fn(&Submission) -> bool) -> Vec<(PeerKey, Submission)> {
        let (mut taken, ready) = (self.remove(|(_, call)| which(call)), mem::take(&mut self.ready));
        let (chosen, left) = ready.into_iter().partition::<Vec<_>, _>(|call| which(call));
        self.ready = left;
        taken.extend(chosen.into_iter().map(|call| (call.server, call)));
        taken
    }

    fn remove(&mut self, which: impl Fn(&(PeerKey, Submission)) -> bool) -> Vec<(PeerKey, Submission)> {
        if self.calls.is_empty() {
            return Vec::new();
        }
        let chosen = self.calls.iter().filter(|(_, held)| which(held)).map(|(number, _)| *number);
        let chosen = chosen.collect::<Vec<_>>();
        let taken = chosen.into_iter().filter_map(|number| Some((number, self.calls.remove(&number)?)));
        let taken = taken.collect::<Vec<_>>();
        taken.iter().for_each(|(number, (_, call))| {
            self.deadlines.remove(&(call.deadline, *number));
        });
        taken.into_iter().map(|(_, held)| held).collect()
    }
}

/// Peers that accept no more calls in their session, because they drain or have sent DRAINED. A poller that sent DRAINED has
/// answered all calls from this poller and runs no further calls from it. Such pollers are stored with the arrival time of
/// the frame.
#[derive(Debug, Default)]
pub(super) struct DrainedPollers(BTreeMap<PeerKey, BTreeMap<PollerIndex, Time>>);

impl DrainedPollers {
    /// Adds a draining peer. `drained` is the poller that sent DRAINED, with the time of arrival.
    pub(super) fn insert(&mut self, peer: PeerKey, drained: Option<(PollerIndex, Time)>) {
        let pollers = self.0.entry(peer).or_default();
        if let Some((poller, now)) = drained {
            pollers.entry(poller).or_insert(now);
        }
    }

    /// Returns true if a peer refuses further calls in the current session.
    #[inline]
    pub(super) fn refuses(&self, peer: PeerKey) -> bool {
        !self.0.is_empty() && self.0.contains_key(&peer) && !mutant!(drained_servers_get_calls)
    }

    pub(super) fn contains(&self, peer: PeerKey, poller: PollerIndex) -> bool {
        self.0.get(&peer).is_some_and(|pollers| pollers.contains_key(&poller))
    }

    /// Returns true if any poller of the peer has sent DRAINED. The peer's other pollers then start no calls either.
    pub(super) fn has(&self, peer: PeerKey) -> bool {
        self.0.get(&peer).is_some_and(|pollers| !pollers.is_empty())
    }

    /// Returns the arrival time of the first DRAINED frame from a peer's pollers.
    pub(super) fn since(&self, peer: PeerKey) -> Option<Time> {
        self.0.get(&peer)?.values().min().copied()
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = PeerKey> {
        self.0.keys().copied()
    }

    /// Removes a peer whose session begins or ends.
    pub(super) fn forget(&mut self, peer: PeerKey) {
        self.0.remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use super::super::peer_queue::tests::{PEER, call};
    use super::*;

    #[test]
    fn non_waiting_calls_are_held_up_to_limit_and_until_deadline() {
        use AdmissionClass::{Reserved, Tries, Waits};
        let mut held = Held::default();
        let has_room = |held: &Held| [Tries, Reserved, Waits].map(|entry| held.has_room(entry));
        (1..MOST).for_each(|_| held.push(PEER, call(0, false, Tries)));
        assert_eq!(has_room(&held), [true; 3]);
        held.push(PEER, call(0, false, Tries));
        assert_eq!(has_room(&held), [false, false, true]);
        // The deadlines end all held calls.
        let deadline = held.next_timer().unwrap();
        assert_eq!(held.late(Time(deadline.0 - 1)).len(), 0);
        assert_eq!(held.late(deadline).len(), MOST);
        assert_eq!((held.len(), held.next_timer(), has_room(&held)), (0, None, [true; 3]));
    }
}
