//! All connections, with indices.
//!
//! Every change of a state, of a timer or of the peer's ids goes through this module, so that the indices
//! and the counts of half-open connections always agree with the connections.

use super::connection::{Addresses, Connection, ConnectionId, ConnectionState, RemoteKey};
use super::listener::Listeners;
use std::collections::{BTreeMap, BTreeSet};
use trunkline_verbs::{PeerHost, QpNumber};

#[derive(Debug, Default)]
pub(super) struct Table {
    connections: BTreeMap<ConnectionId, Connection>,
    /// Connections by the peer's comm id, to recognise a repeated REQ (contract rocev2 12.5).
    by_remote_id: BTreeMap<RemoteKey<u32>, ConnectionId>,
    /// Connections by the peer's QP, to find connections that another REQ from the QP makes stale. Connections in timewait
    /// are excluded.
    by_remote_qpn: BTreeMap<RemoteKey<QpNumber>, ConnectionId>,
    /// Connections that wait for an RTU, by QP. Data may arrive before the RTU.
    awaiting_rtu: BTreeMap<QpNumber, ConnectionId>,
    /// Connections whose REQ is unanswered, by the addresses of both ends.
    asking: BTreeSet<(Addresses, ConnectionId)>,
    timers: BTreeSet<(u64, ConnectionId)>,
    half_open: BTreeMap<PeerHost, usize>,
    half_open_total: usize,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }

    pub(super) const fn half_open_total(&self) -> usize {
        self.half_open_total
    }

    pub(super) fn half_open_of(&self, host: PeerHost) -> usize {
        self.half_open.get(&host).copied().unwrap_or(0)
    }

    pub(super) fn contains(&self, id: ConnectionId) -> bool {
        self.connections.contains_key(&id)
    }

    pub(super) fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.connections.get(&id)
    }

    /// Returns a connection for changes to its fields, except the state, the timer and the peer's ids, which have indices.
    pub(super) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.get_mut(&id)
    }

    pub(super) fn with_remote_id(&self, key: &RemoteKey<u32>) -> Option<&Connection> {
        self.by_remote_id.get(key).and_then(|id| self.get(*id))
    }

    pub(super) fn with_remote_qpn(&self, key: &RemoteKey<QpNumber>) -> Option<&Connection> {
        self.by_remote_qpn.get(key).and_then(|id| self.get(*id))
    }

    /// Returns the connections of a local QP that are, or may be, established. There is no index, because this is needed
    /// only for the rare REQ of this node that its peer refuses as stale.
    pub(super) fn with_local_qpn(&self, qpn: QpNumber) -> Vec<ConnectionId> {
        let is_its = |connection: &&Connection| {
            let state = &connection.state;
            connection.local_qpn == qpn
                && matches!(
                    state,
                    ConnectionState::RepReceived | ConnectionState::RepSent | ConnectionState::Established
                )
        };
        self.connections.values().filter(is_its).map(|connection| connection.id).collect()
    }

    /// Returns the connections between two addresses whose REQ is unanswered.
    pub(super) fn asking(&self, addresses: Addresses) -> Vec<ConnectionId> {
        let all = (addresses, ConnectionId(0))..=(addresses, ConnectionId(u32::MAX));
        self.asking.range(all).map(|(_, id)| *id).collect()
    }

    pub(super) fn awaiting_rtu(&self, qpn: QpNumber) -> Option<ConnectionId> {
        self.awaiting_rtu.get(&qpn).copied()
    }

    pub(super) fn insert(&mut self, listeners: &mut Listeners, connection: Connection) {
        let id = connection.id;
        self.connections.insert(id, connection);
        self.index_peer(id);
        self.count(listeners, id, true);
    }

    /// Changes the peer's ids when its REP arrives. `change` sets them.
    pub(super) fn set_peer(&mut self, id: ConnectionId, change: impl FnOnce(&mut Connection)) {
        self.unindex_peer(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            change(connection);
        }
        self.index_peer(id);
    }

    /// Changes the state, and removes the timer and the message of the previous state.
    pub(super) fn enter(&mut self, listeners: &mut Listeners, id: ConnectionId, state: ConnectionState) {
        self.set_timer(id, None);
        self.count(listeners, id, false);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.state = state;
            connection.unanswered = None;
            if connection.state == ConnectionState::Timewait {
                forget(&mut self.by_remote_qpn, connection.remote_qpn_key(), id);
            }
        }
        self.count(listeners, id, true);
    }

    /// Records that a request was delivered to its program and no longer counts against the backlog.
    pub(super) fn stop_counting(&mut self, listeners: &mut Listeners, id: ConnectionId) {
        let state = self.connections.get_mut(&id).map(|connection| &mut connection.state);
        let Some(ConnectionState::ReqReceived(waiting)) = state else { return };
        if let Some(listener) = waiting.take() {
            listeners.count(listener, false);
        }
    }

    pub(super) fn set_timer(&mut self, id: ConnectionId, at: Option<u64>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(old) = connection.timer.take() {
            self.timers.remove(&(old, id));
        }
        connection.timer = at;
        if let Some(at) = at {
            self.timers.insert((at, id));
        }
    }

    pub(super) fn next_timer(&self) -> Option<(u64, ConnectionId)> {
        self.timers.first().copied()
    }

    pub(super) fn remove(&mut self, listeners: &mut Listeners, id: ConnectionId) {
        self.set_timer(id, None);
        self.count(listeners, id, false);
        self.unindex_peer(id);
        self.connections.remove(&id);
    }

    pub(super) fn ids(&self) -> Vec<ConnectionId> {
        self.connections.keys().copied().collect()
    }

    pub(super) fn states(&self) -> impl Iterator<Item = &ConnectionState> {
        self.connections.values().map(|connection| &connection.state)
    }

    /// Checks the indices, for tests and fuzzing.
    ///
    /// # Panics
    /// When an index disagrees with the connections.
    pub(super) fn check(&self) {
        let half_open = self.states().filter(|state| state.is_half_open()).count();
        assert_eq!((half_open, half_open), (self.half_open_total, self.half_open.values().sum()));
        let asking = self.states().filter(|state| **state == ConnectionState::ReqSent).count();
        assert_eq!(asking, self.asking.len());
        let timers = self.connections.values().filter(|connection| connection.timer.is_some()).count();
        assert_eq!(timers, self.timers.len());
        for connection in self.connections.values() {
            let id = connection.id;
            assert!(connection.timer.is_none_or(|at| self.timers.contains(&(at, id))));
            let is_waiting = connection.state != ConnectionState::Established;
            assert_eq!(connection.timer.is_some(), is_waiting, "{:?}", connection.state);
            if connection.is_known() {
                assert_eq!(self.by_remote_id.get(&connection.remote_id_key()), Some(&id));
                let is_over = connection.state == ConnectionState::Timewait;
                let by_qpn = self.by_remote_qpn.get(&connection.remote_qpn_key());
                assert!(is_over || by_qpn == Some(&id));
            }
        }
        let known = self.connections.values().filter(|connection| connection.is_known()).count();
        assert_eq!(known, self.by_remote_id.len());
        assert!(self.by_remote_qpn.len() <= known);
    }

    fn index_peer(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get(&id).filter(|connection| connection.is_known()) else {
            return;
        };
        self.by_remote_id.insert(connection.remote_id_key(), id);
        self.by_remote_qpn.insert(connection.remote_qpn_key(), id);
    }

    fn unindex_peer(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get(&id).filter(|connection| connection.is_known()) else {
            return;
        };
        forget(&mut self.by_remote_id, connection.remote_id_key(), id);
        forget(&mut self.by_remote_qpn, connection.remote_qpn_key(), id);
    }

    /// Maintains the counts per state of half-open connections, listeners' backlogs, and QPs that await an RTU.
    fn count(&mut self, listeners: &mut Listeners, id: ConnectionId, more: bool) {
        let Some(connection) = self.connections.get(&id) else { return };
        if let ConnectionState::ReqReceived(Some(listener)) = connection.state {
            listeners.count(listener, more);
        }
        if connection.state == ConnectionState::ReqSent {
            let asking = (connection.addresses, id);
            if more {
                self.asking.insert(asking);
            } else {
                self.asking.remove(&asking);
            }
        }
        if connection.state == ConnectionState::RepSent {
            if more {
                self.awaiting_rtu.insert(connection.local_qpn, id);
            } else {
                forget(&mut self.awaiting_rtu, connection.local_qpn, id);
            }
        }
        if let Some(host) = connection.host.filter(|_| connection.state.is_half_open()) {
            let of_host = self.half_open.entry(host).or_default();
            if more {
                *of_host += 1;
                self.half_open_total += 1;
            } else {
                *of_host = of_host.saturating_sub(1);
                self.half_open_total = self.half_open_total.saturating_sub(1);
            }
            if *of_host == 0 {
                self.half_open.remove(&host);
            }
        }
    }
}

/// Removes an entry if it still refers to this connection.
fn forget<K: Ord>(index: &mut BTreeMap<K, ConnectionId>, key: K, id: ConnectionId) {
    if index.get(&key) == Some(&id) {
        index.remove(&key);
    }
}
