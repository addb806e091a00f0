//! What a node reports about itself: provider, objects, counters, traffic by lane.
#![forbid(unsafe_code)]

use crate::{BudgetReport, PeerKey, PollerIndex};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// A node at one moment.
#[derive(Debug, Clone)]
pub struct NodeReport {
    /// Family of the device: `softrdma` or `rdma-core`.
    pub provider: &'static str,
    /// What its packets travel on.
    pub link: String,
    /// Name of the device.
    pub device: String,
    /// The node's first address, as peers know it.
    pub address: SocketAddr,
    /// Index of that address in the device's table of GIDs.
    pub gid_index: Option<u16>,
    /// Why this provider and this device.
    pub why: String,
    /// What its connections are: `xrc`, or `rc` (then the QPs below are RC QPs).
    pub connections: &'static str,
    /// Why those.
    pub connections_why: String,
    /// Devices that the node has had one after the other: more than 1 when its device was removed and
    /// came back.
    pub incarnations: u64,
    /// Since when the device is away; `None` while there is one.
    pub removed_since: Option<SystemTime>,
    /// Pollers of the node.
    pub pollers: u16,
    /// CPUs that the process may use.
    pub cpus: usize,
    /// Whether its pollers have to share CPUs, with each other or with other threads, and
    /// therefore yield and sleep instead of spinning.
    pub oversubscribed: bool,
    /// INI QPs now: one per poller and peer.
    pub ini: u32,
    /// TGT QPs now: one per poller of each peer.
    pub tgt: u32,
    /// SRQs: one per poller.
    pub srqs: u32,
    /// RNR NAKs sent and received since the start.
    pub rnr: u64,
    /// Packets sent again since the start.
    pub retransmits: u64,
    /// Requests of peers that were refused because these want connections of the other kind, as far as the
    /// device reports it; the log names each peer once. Both sides need the same
    /// `NodeBuilder::connections`.
    pub other_kind: u64,
    /// All counters of the device, with those of the devices before it, and two of the node's own:
    /// `session_refused_unproven`, requests that were refused with a cookie, and `frames_of_unknown_kind`, frames that
    /// were ignored because this version does not know their kind.
    pub counters: Vec<DeviceCounter>,
    /// What peers may use of this node, and do.
    pub budgets: Vec<BudgetReport>,
    /// Limits of the services that the upper half offers, and of their methods.
    pub limits: Vec<LimitReport>,
    /// The ways that packets take to peers now, as far as the device has more than one.
    pub paths: Vec<PathReport>,
    /// Messages by peer, local and remote poller.
    pub traffic: Vec<LaneReport>,
}

/// How many calls of a service, or of one of its methods, may run at once, and do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitReport {
    /// The service, or `service.method`.
    pub name: String,
    /// Calls that run now, on all pollers.
    pub running: u32,
    /// Most that may.
    pub limit: u32,
    /// Calls that were refused for it since the start.
    pub refused: u64,
}

/// QPs that take the same way to the same address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathReport {
    /// The address of the peer.
    pub address: IpAddr,
    /// The way: `shm` for memory that the peer's process shares, else the device's link, such as `udp`.
    pub path: &'static str,
    /// Why it is not shared memory; empty where that is no question.
    pub why: &'static str,
    /// How many QPs, those that receive included.
    pub qps: u32,
}

/// A counter of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceCounter {
    /// Name in snake case, such as `rnr_nak_sent`; the same event has the same name on every provider.
    pub name: &'static str,
    /// Events since the node started.
    pub value: u64,
}

/// Messages between one poller here and one poller of a peer, since the peer is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneReport {
    /// The peer.
    pub peer: PeerKey,
    /// Where it listens.
    pub address: SocketAddr,
    /// The poller here.
    pub local: PollerIndex,
    /// The poller there.
    pub remote: PollerIndex,
    /// Messages sent.
    pub sent: u64,
    /// Messages received.
    pub received: u64,
}

impl NodeReport {
    /// INI and TGT QPs together.
    #[must_use]
    pub fn qps(&self) -> u32 {
        self.ini + self.tgt
    }
}

/// The counters of one lane. Only its poller writes them, so a load and a store are enough.
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

type Lanes = BTreeMap<(u16, u16), Arc<LaneCounters>>;

/// The counters of all lanes of a node. They outlive sessions, not peers.
#[derive(Debug, Default)]
pub(crate) struct Traffic(Mutex<BTreeMap<PeerKey, Lanes>>);

impl Traffic {
    /// The counters of a lane; the same ones for the same lane.
    pub(crate) fn lane(&self, peer: PeerKey, local: PollerIndex, remote: PollerIndex) -> Arc<LaneCounters> {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(peers.entry(peer).or_default().entry((local.0, remote.0)).or_default())
    }

    pub(crate) fn forget(&self, peer: PeerKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&peer);
    }

    /// All lanes, ordered.
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
