//! Report on a node, with its provider, objects, counters, and traffic by lane.
#![forbid(unsafe_code)]

pub mod histogram;
pub mod ledger;
mod log_limit;
mod prometheus;
pub(crate) mod record;
mod status;
mod utc;

pub use histogram::Histogram;
pub use log_limit::LogLimit;
pub use record::{EventKind, Held, NodeEvents, NodeRecord, RecordedEvent};
pub use status::{MethodStatus, NodeStatus, PathStatus, PeerStatus};
pub use utc::utc;

use crate::{BudgetReport, PeerKey, PollerIndex};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};
use trunkline_verbs::fork::FORKED;
use trunkline_verbs::{Counter, QpPath, QueuePair};

/// The state and the counters of a node at one moment.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NodeReport {
    /// Family of the device: `softrdma` or `rdma-core`.
    pub provider: &'static str,
    /// Paths to the peers of the node's sessions: `shm`, `udp`, or `shm+udp` if both are in use. Without a session,
    /// or on a device with one path, it is the device's link, such as `udp`. `paths` lists the path to each peer.
    pub link: String,
    /// Name of the device.
    pub device: String,
    /// The node's first address, as used by peers.
    pub address: SocketAddr,
    /// Index of that address in the device's GID table.
    pub gid_index: Option<u16>,
    /// Reason for the choice of the provider and the device.
    pub why: String,
    /// Kind of the node's connections: `xrc` or `rc`. With `rc`, the QPs below are RC QPs.
    pub connections: &'static str,
    /// Reason for the choice of this kind.
    pub connections_why: String,
    /// Number of devices that the node has used in succession. It exceeds 1 if the device was removed and came back.
    pub incarnations: u64,
    /// Time at which the device was removed; `None` while it is present.
    pub removed_since: Option<SystemTime>,
    /// Time until the node's certificate expires; zero once it has expired, and `None` without an identity.
    pub certificate_expires_in: Option<Duration>,
    /// Number of pollers of the node.
    pub pollers: u16,
    /// Number of CPUs that the process may use.
    pub cpus: usize,
    /// True if the pollers share CPUs with each other or with other threads, and therefore yield and sleep instead of
    /// spinning.
    pub oversubscribed: bool,
    /// Number of INI QPs, one per poller and peer.
    pub ini: u32,
    /// Number of TGT QPs, one per poller of each peer.
    pub tgt: u32,
    /// Number of SRQs, one per poller.
    pub srqs: u32,
    /// Number of RNR NAKs sent and received since the start.
    pub rnr: u64,
    /// Number of packets retransmitted since the start. Probes for lost packets are counted in `device_counters`, as
    /// `tail_loss_probes`.
    pub retransmits: u64,
    /// Number of requests refused because the peer uses the other kind of connections, if the device reports them. Each
    /// such peer is logged once. Both sides must set the same `NodeBuilder::connections`.
    pub other_kind: u64,
    /// Counters of the current and earlier devices, such as `retransmits` and `drop_bad_icrc`.
    pub device_counters: Vec<EventCounter>,
    /// Counters of the node. `session_refused_unproven` counts requests refused with a cookie, and
    /// `session_cookies_unanswered` counts cookies that were not returned within 5 s, for at most 64 hosts at a time.
    /// `session_dial_backs_unanswered` counts sessions of peers that did not answer this node's connection, and
    /// `frames_of_unknown_kind` counts ignored frames of kinds unknown to this version. A node with an identity also
    /// reports `handshakes_begun`, `handshakes_failed` and `handshakes_renewed`. Its `sessions_proven`,
    /// `sessions_local` and `sessions_unproven` count sessions with peers that proved a name, with local users, and
    /// with other peers.
    pub counters: Vec<EventCounter>,
    /// Use and limits of the resources of the node that peers can occupy.
    pub budgets: Vec<BudgetReport>,
    /// Limits on concurrent calls of the offered services and their methods.
    pub limits: Vec<LimitReport>,
    /// Calls of this node's methods, ordered by service and method. Requests for unknown methods are counted in a row
    /// with an empty service and the method `_OTHER`.
    pub served: Vec<MethodReport>,
    /// Calls from this node to methods of its peers, ordered by service and method.
    pub called: Vec<MethodReport>,
    /// Paths that packets take to each peer, ordered by address; empty if the device has only one path.
    pub paths: Vec<PathReport>,
    /// Servers of balanced channels.
    pub servers: Vec<ServerReport>,
    /// Messages by peer, local poller and remote poller.
    pub traffic: Vec<LaneReport>,
}

impl NodeReport {
    /// Returns the value of a counter of the node or its device; `None` if it does not exist.
    #[must_use]
    pub fn counter(&self, name: &str) -> Option<u64> {
        let counters = self.counters.iter().chain(&self.device_counters);
        counters
            .filter(|counter| counter.name == name)
            .map(|counter| counter.value)
            .reduce(|sum, value| sum + value)
    }

    /// Returns the report of a node in a forked child, where none of its threads run. `address` is the node's
    /// address.
    #[doc(hidden)]
    #[must_use]
    pub fn forked(address: SocketAddr) -> Self {
        Self {
            provider: "",
            link: String::new(),
            device: String::new(),
            address,
            gid_index: None,
            why: FORKED.to_owned(),
            connections: "",
            connections_why: String::new(),
            incarnations: 0,
            removed_since: None,
            certificate_expires_in: None,
            pollers: 0,
            cpus: 0,
            oversubscribed: false,
            ini: 0,
            tgt: 0,
            srqs: 0,
            rnr: 0,
            retransmits: 0,
            other_kind: 0,
            device_counters: Vec::new(),
            counters: Vec::new(),
            budgets: Vec::new(),
            limits: Vec::new(),
            served: Vec::new(),
            called: Vec::new(),
            paths: Vec::new(),
            servers: Vec::new(),
            traffic: Vec::new(),
        }
    }
}

/// Returns the names of the paths in use, or the device's link if no path is in use.
pub(crate) fn link_of<'p>(paths: impl Iterator<Item = &'p str>, of_device: String) -> String {
    let names = paths.collect::<BTreeSet<_>>();
    if names.is_empty() { of_device } else { Vec::from_iter(names).join("+") }
}

/// The limit on concurrent calls of a service or a method, and its use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitReport {
    /// Name of the service, or `service.method`.
    pub name: String,
    /// Calls currently running, on all pollers.
    pub running: u32,
    /// Maximum number of running calls.
    pub limit: u32,
    /// Calls refused because of the limit since the start.
    pub refused: u64,
}

/// Calls of one method, either as server or as client, on all pollers since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MethodReport {
    /// Name of the service.
    pub service: &'static str,
    /// Name of the method.
    pub method: &'static str,
    /// Number of finished calls, including failed ones. Streams count when they end. Requests refused by a
    /// draining server are not counted here but in `requests_refused_draining`.
    pub calls: u64,
    /// Failed calls, by code. Codes without calls are omitted.
    pub failed: Vec<FailedCalls>,
    /// Number of failed calls that ended early: on a server before the handler started, on a client before the request
    /// was passed to the transport.
    pub refused: u64,
    /// Number of calls that are running.
    pub running: u64,
    /// Durations of the calls that were not refused.
    ///
    /// The clock is read once per turn of a poller. On a server, the duration extends from the turn that starts the
    /// handler to the turn in which the handler ends, so it is 0 for a handler that ends in its first poll. On a
    /// client, it extends from the turn that sends the request to the turn that takes the reply.
    pub latency: Histogram,
    /// Queueing times of the calls that had to wait, on a server for a worker of the pool, on a client for queue space.
    /// The clock is also read whenever a job of the pool is queued.
    pub queued: Histogram,
}

/// Failed calls of one method with one code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailedCalls {
    /// Name of the code, such as `UNAVAILABLE`, or `ERROR` for an error of the method's own type.
    pub code: &'static str,
    /// Number of these calls.
    pub calls: u64,
}

/// The QPs that take the same path to the same address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathReport {
    /// Address that the peer listens on, with the UDP port of its device if that is not this node's.
    pub address: PeerKey,
    /// Path: `shm` for memory shared with the peer's process, or the device's link, such as `udp`.
    pub path: &'static str,
    /// Reason why the path is not shared memory; empty if that does not apply.
    pub why: &'static str,
    /// Number of QPs, including receiving ones.
    pub qps: u32,
}

/// A server of a balanced channel, and its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerReport {
    /// Target of the channel.
    pub target: String,
    /// Address of the server, with the UDP port of its device if that is not this node's.
    pub address: PeerKey,
    /// State: `up`, `connecting`, `unreachable`, `left out` or `not serving`. A server is `left out` if it is up but
    /// gets no calls, followed by `: fails` or `: slow` if its calls failed or were slow. It is `not serving` while it
    /// reports this for a service that the channel calls.
    pub state: &'static str,
    /// Calls of the channel that are in progress on this server.
    pub calls: usize,
    /// Calls of the channel, on all its servers, that were not retried because the retry budget was used up.
    pub unretried: u64,
    /// Number of the target's servers after the first 1,024, which the channel does not use.
    pub omitted: usize,
}

/// A counter of a node or of its device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventCounter {
    /// Name in snake case, such as `rnr_nak_sent`. The same event has the same name on every provider.
    pub name: &'static str,
    /// Number of events since the node started.
    pub value: u64,
}

impl From<Counter> for EventCounter {
    fn from(Counter { name, value }: Counter) -> Self {
        Self { name, value }
    }
}

/// The messages between a local poller and a poller of a peer since the peer was added.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneReport {
    /// The peer.
    pub peer: PeerKey,
    /// Address that the peer listens on.
    pub address: SocketAddr,
    /// Local poller.
    pub local: PollerIndex,
    /// Poller of the peer.
    pub remote: PollerIndex,
    /// Messages sent.
    pub sent: u64,
    /// Messages received.
    pub received: u64,
}

impl NodeReport {
    /// Returns the number of INI and TGT QPs.
    #[must_use]
    pub fn qps(&self) -> u32 {
        self.ini + self.tgt
    }
}

/// The counters of one lane. Only its poller writes them, so a load and a store suffice.
#[derive(Debug, Default)]
pub(crate) struct LaneCounters {
    sent: AtomicU64,
    received: AtomicU64,
}

impl LaneCounters {
    pub(crate) fn count_sent(&self, messages: usize) {
        self.sent.store(self.sent.load(Ordering::Relaxed) + messages as u64, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn count_received(&self) {
        self.received.store(self.received.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// QPs of all sessions, for reports. Sessions and pollers own the QPs and destroy them.
#[derive(Debug, Default)]
pub(crate) struct SessionQps(Mutex<BTreeMap<(PeerKey, u32), WeakQps>>);

/// QPs of one session. A destroyed QP is skipped.
type WeakQps = Vec<Weak<dyn QueuePair>>;

impl SessionQps {
    /// Adds a QP of a session.
    pub(crate) fn add(&self, peer: PeerKey, number: u32, qp: &Arc<dyn QueuePair>) {
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.entry((peer, number)).or_default().push(Arc::downgrade(qp));
    }

    pub(crate) fn close(&self, peer: PeerKey, number: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&(peer, number));
    }

    /// Returns the paths of a session's QPs.
    pub(crate) fn paths_of(&self, peer: PeerKey, number: u32) -> impl Iterator<Item = QpPath> + use<> {
        let sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let qps = sessions.get(&(peer, number)).cloned().unwrap_or_default();
        qps.into_iter().filter_map(|qp| qp.upgrade()?.path())
    }

    /// Returns the number of packets that a session's QPs have received, if the device reports it.
    pub(crate) fn received_packets(&self, peer: PeerKey, number: u32) -> u64 {
        let sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let qps = sessions.get(&(peer, number)).cloned().unwrap_or_default();
        drop(sessions);
        qps.into_iter().filter_map(|qp| qp.upgrade()?.received_packets()).sum()
    }

    /// Returns the paths to each peer. The QPs are queried without the lock.
    pub(crate) fn report(&self) -> Vec<PathReport> {
        let sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut paths = BTreeMap::<_, u32>::new();
        for ((peer, _), qps) in sessions {
            for path in qps.into_iter().filter_map(|qp| qp.upgrade()?.path()) {
                *paths.entry((peer, path)).or_default() += 1;
            }
        }
        let report = |((address, QpPath { name, why }), qps)| PathReport { address, path: name, why, qps };
        paths.into_iter().map(report).collect()
    }
}

type Lanes = BTreeMap<(u16, u16), Arc<LaneCounters>>;

/// The counters of all lanes of a node. They are kept when a session ends, until the peer is removed.
#[derive(Debug, Default)]
pub(crate) struct Traffic(Mutex<BTreeMap<PeerKey, Lanes>>);

impl Traffic {
    /// Returns the counters of a lane, and creates them at the first call.
    pub(crate) fn lane(&self, peer: PeerKey, local: PollerIndex, remote: PollerIndex) -> Arc<LaneCounters> {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(peers.entry(peer).or_default().entry((local.0, remote.0)).or_default())
    }

    pub(crate) fn forget(&self, peer: PeerKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&peer);
    }

    /// Returns the numbers of messages sent to a peer and received from it, on all lanes.
    pub(crate) fn of_peer(&self, peer: PeerKey) -> (u64, u64) {
        let peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lanes = peers.get(&peer).into_iter().flat_map(BTreeMap::values);
        lanes.fold((0, 0), |(sent, received), lane| {
            (sent + lane.sent.load(Ordering::Relaxed), received + lane.received.load(Ordering::Relaxed))
        })
    }

    pub(crate) fn report(&self) -> Vec<LaneReport> {
        let peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lanes = peers
            .iter()
            .flat_map(|(&peer, lanes)| {
                lanes.iter().map(move |(&(local, remote), counters)| LaneReport {
                    peer,
                    address: peer.address(),
                    local: PollerIndex(local),
                    remote: PollerIndex(remote),
                    sent: counters.sent.load(Ordering::Relaxed),
                    received: counters.received.load(Ordering::Relaxed),
                })
            })
            .collect::<Vec<_>>();
        lanes.sort_by_key(|lane| (lane.peer, lane.local, lane.remote));
        lanes
    }
}
