//! What the threads of a node share: the device's objects, the pools, the directory of peers,
//! the way to the CM thread.
#![forbid(unsafe_code)]

use crate::PeerKey;
use crate::buffer::{BlockPool, Registry};
use crate::poller::handle::PollerHandle;
use crate::report::Traffic;
use crate::session::cm_thread::CmHandle;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use trunkline_verbs::{Device, ProtectionDomain, SrqNumber, XrcDomain};

/// How many objects of a kind exist now.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) ini: AtomicU32,
    pub(crate) tgt: AtomicU32,
}

/// The limits that a node was started with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) max_message_bytes: usize,
    pub(crate) keepalive_ms: u64,
    pub(crate) ack_timeout: u8,
    pub(crate) srq_depth: u32,
}

/// Shared by the pollers, the CM thread and the handle of the node.
#[derive(Debug)]
pub(crate) struct NodeShared {
    /// Random number of this incarnation; never 0.
    pub(crate) epoch: u64,
    pub(crate) limits: Limits,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) pd: Arc<dyn ProtectionDomain>,
    pub(crate) xrcd: Arc<dyn XrcDomain>,
    /// SRQ numbers by poller.
    pub(crate) srqs: Vec<SrqNumber>,
    pub(crate) pollers: Vec<PollerHandle>,
    pub(crate) cm: CmHandle,
    /// Memory that peers READ.
    pub(crate) sources: Arc<BlockPool>,
    /// Memory that we READ into.
    pub(crate) sinks: Arc<BlockPool>,
    /// Memory of the application's registered buffers.
    pub(crate) buffers: Arc<BlockPool>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) peers: Mutex<Directory>,
    pub(crate) traffic: Traffic,
    pub(crate) gauges: Gauges,
    /// The first listening address, once known.
    pub(crate) local_address: OnceLock<SocketAddr>,
}

impl NodeShared {
    /// The key of the peer that listens at `address`.
    pub(crate) fn peer_key(&self, address: SocketAddr) -> PeerKey {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).key(address)
    }

    /// The key of the peer that listens at `address`, if it has one.
    pub(crate) fn known_key(&self, address: SocketAddr) -> Option<PeerKey> {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.keys.get(&canonical(address)).copied()
    }

    /// Makes sure that an address has this key again, if it was forgotten meanwhile.
    pub(crate) fn restore_key(&self, address: SocketAddr, key: PeerKey) {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.keys.entry(canonical(address)).or_insert(key);
    }

    /// A peer will not come back under its key.
    pub(crate) fn forget(&self, address: SocketAddr, key: PeerKey) {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).forget(address, key);
        self.traffic.forget(key);
    }
}

impl Drop for NodeShared {
    fn drop(&mut self) {
        // Blocks in the application's hands know their pools; those must not hold the device.
        for pool in [&self.sources, &self.sinks, &self.buffers] {
            pool.close();
        }
    }
}

/// Which key which peer has. Keys are never given out twice.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    keys: HashMap<SocketAddr, PeerKey>,
    last: u64,
}

impl Directory {
    fn key(&mut self, address: SocketAddr) -> PeerKey {
        *self.keys.entry(canonical(address)).or_insert_with(|| {
            self.last += 1;
            PeerKey(self.last)
        })
    }

    /// Frees the address of a forgotten peer; its key stays used.
    fn forget(&mut self, address: SocketAddr, key: PeerKey) {
        let address = canonical(address);
        if self.keys.get(&address) == Some(&key) {
            self.keys.remove(&address);
        }
    }
}

/// One spelling per address: IPv4 inside of IPv6 as IPv4, no flow label.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
