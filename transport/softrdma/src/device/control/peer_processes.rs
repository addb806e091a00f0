//! Connections whose peers are other processes of this host.
//!
//! Owns the map from connections to peer processes. A killed process does not send DREQs, but the registry shows
//! immediately that it is dead, because the lock of its slot is free. Its connections then end as if by DREQs, a
//! limited number of them per turn. A process that is stopped, or whose forked child holds the lock, does not count as
//! dead. Processes of another user, registry or host are not recorded here; their death is detected by retries.

use super::Control;
use crate::device::shards::reach::Reach;
use crate::device::sharing::Due;
use crate::host::MemberId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use trunkline_verbs::{CmIdNumber, Time};

/// Maximum number of connections ended per turn.
const ENDS_IN_TURN: usize = 64;
/// Delay before connecting again to a process that could not be reached.
const WATCH_AGAIN: Duration = Duration::from_millis(200);

/// Connections by peer process.
#[derive(Debug, Default)]
pub(super) struct PeerProcesses {
    connections: BTreeMap<MemberId, BTreeSet<CmIdNumber>>,
    members: BTreeMap<CmIdNumber, MemberId>,
    /// Dead processes with connections that are not ended yet.
    dead: BTreeSet<MemberId>,
    /// Processes that are not watched yet, so their death would not be reported.
    unwatched: BTreeSet<MemberId>,
    /// Time of the next attempt to watch the processes in `unwatched`.
    watch_again: Option<Time>,
}

impl PeerProcesses {
    fn insert(&mut self, id: CmIdNumber, member: MemberId) {
        self.remove(id);
        self.members.insert(id, member);
        self.connections.entry(member).or_default().insert(id);
    }

    /// Removes a connection that has ended.
    pub(super) fn remove(&mut self, id: CmIdNumber) {
        let Some(member) = self.members.remove(&id) else { return };
        let Some(ids) = self.connections.get_mut(&member) else { return };
        ids.remove(&id);
        if ids.is_empty() {
            self.connections.remove(&member);
            self.dead.remove(&member);
            self.unwatched.remove(&member);
        }
    }

    fn died(&mut self, member: MemberId) {
        if self.connections.contains_key(&member) {
            self.dead.insert(member);
        }
    }

    /// Removes and returns a connection whose peer process has died.
    fn take_orphan(&mut self) -> Option<CmIdNumber> {
        let member = self.dead.first()?;
        let id = self.connections.get(member).and_then(|ids| ids.first().copied())?;
        self.remove(id);
        Some(id)
    }

    /// Records that the death of a process would not be reported, and schedules another attempt to watch it.
    fn watch_later(&mut self, member: MemberId, now: Time) {
        if self.connections.contains_key(&member) {
            self.unwatched.insert(member);
            // Do not postpone the time: processes may be added continually.
            self.watch_again.get_or_insert(now + WATCH_AGAIN);
        }
    }

    /// Takes the unwatched processes, if it is time to watch them again.
    fn take_unwatched(&mut self, now: Time) -> BTreeSet<MemberId> {
        if self.watch_again.is_none_or(|again| again > now) {
            return BTreeSet::new();
        }
        self.watch_again = None;
        std::mem::take(&mut self.unwatched)
    }

    /// Returns the time of the next [`Control::serve_peer_processes`].
    pub(super) fn next_timeout(&self) -> Option<Time> {
        if self.dead.is_empty() { self.watch_again } else { Some(Time(0)) }
    }
}

impl Control {
    /// Records the process of this host, if any, that owns the QP named by a connection's peer.
    pub(super) fn note_peer_process(&mut self, id: CmIdNumber, now: Time) {
        let endpoint = self.connections.get(id);
        let peer = endpoint.and_then(|endpoint| Some((endpoint.offered?.qpn, endpoint.peer?.ip())));
        if let Some(member) = peer.and_then(|(qp, at)| self.qps.member_of(qp, at)) {
            self.insert_peer_process(id, member, now);
        }
    }

    /// Returns the uid of the peer's process if the uid is proven
    /// ([`CmId::local_user`](trunkline_verbs::CmId::local_user)). A QP number in a REQ or REP is not sufficient,
    /// because it can be forged. The message must also come from a port of the process that owns the QP.
    pub(in crate::device) fn local_user(&self, id: CmIdNumber) -> Option<u32> {
        let endpoint = self.connections.get(id)?;
        let peer = endpoint.offered?;
        self.qps.user_of(peer.qpn, endpoint.peer?.ip(), peer.local_port)
    }

    fn insert_peer_process(&mut self, id: CmIdNumber, member: MemberId, now: Time) {
        self.connections.processes().insert(id, member);
        if !self.qps.watch(member) {
            self.connections.processes().watch_later(member, now);
        }
    }

    /// Ends connections with processes of this host that have died. `lost` lists the dead processes, and the live
    /// processes whose connection with this process ended.
    pub(super) fn serve_peer_processes(&mut self, shards: &mut Reach<'_>, lost: &Due, now: Time) {
        let processes = self.connections.processes();
        lost.dead.iter().for_each(|member| processes.died(*member));
        lost.alive.iter().for_each(|member| processes.watch_later(*member, now));
        for member in self.connections.processes().take_unwatched(now) {
            if !self.qps.watch(member) {
                self.connections.processes().watch_later(member, now);
            }
        }
        let mut ended = false;
        for _ in 0..ENDS_IN_TURN {
            let Some(id) = self.connections.processes().take_orphan() else { break };
            self.peer_process_died(id, now);
            ended = true;
        }
        if ended {
            self.serve_cm(shards, now);
        }
    }

    /// Handles the death of a connection's peer process.
    fn peer_process_died(&mut self, id: CmIdNumber, now: Time) {
        let endpoint = self.connections.get(id);
        let peer = endpoint.and_then(|endpoint| Some((endpoint.connection?, endpoint.offered?.qpn)));
        let Some((connection, qp)) = peer else { return };
        // The TGT continues if another process has a handle on it (contract C7).
        match self.qps.heir_of(qp) {
            Some(heir) => self.insert_peer_process(id, heir, now),
            None => self.connections.machine().peer_died(now.0, connection),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_connections_of_dead_process_are_taken_once() {
        let [one, other] = [1, 2].map(|generation| MemberId { slot: 7, generation });
        let mut processes = PeerProcesses::default();
        for number in 0..1000 {
            processes.insert(CmIdNumber(number), if number % 2 == 0 { one } else { other });
        }
        processes.remove(CmIdNumber(10));
        processes.died(one);
        processes.died(one);
        assert_eq!(processes.next_timeout(), Some(Time(0)));
        let taken: Vec<u64> = std::iter::from_fn(|| processes.take_orphan()).map(|id| id.0).collect();
        assert_eq!(taken, (0..1000).filter(|number| number % 2 == 0 && *number != 10).collect::<Vec<_>>());
        processes.died(one);
        assert_eq!((processes.take_orphan(), processes.next_timeout()), (None, None));
        assert_eq!(processes.connections[&other].len(), 500);
    }

    #[test]
    fn unwatched_process_with_connections_is_retried() {
        let [one, other] = [1, 2].map(|slot| MemberId { slot, generation: 1 });
        let mut processes = PeerProcesses::default();
        for (number, member) in [(1, one), (2, other)] {
            processes.insert(CmIdNumber(number), member);
            processes.watch_later(member, Time(0));
        }
        let due = Time(0) + WATCH_AGAIN;
        assert_eq!(processes.next_timeout(), Some(due));
        assert!(processes.take_unwatched(Time(1)).is_empty());
        processes.remove(CmIdNumber(2));
        assert_eq!(processes.take_unwatched(due), BTreeSet::from([one]));
        assert_eq!(processes.next_timeout(), None);
    }

    /// Peers that connect continually do not delay the check of a process that cannot be watched.
    #[test]
    fn unwatched_process_is_retried_in_time_despite_further_unwatched_processes() {
        let mut processes = PeerProcesses::default();
        let mut watched = BTreeSet::new();
        for number in 0..30_u16 {
            let now = Time(0).plus_ns(u64::from(number) * 100_000_000);
            let member = MemberId { slot: number, generation: 1 };
            processes.insert(CmIdNumber(number.into()), member);
            processes.watch_later(member, now);
            watched.append(&mut processes.take_unwatched(now));
        }
        assert!(watched.contains(&MemberId { slot: 0, generation: 1 }), "{watched:?}");
    }
}
