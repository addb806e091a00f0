//! The hosts of a node's peers.
//!
//! [`PeerHost`] defines a host, and the device identifies the owner of each address. An address may move to another
//! owner while units are charged to its peer, so budgets keep a peer's host until the last discharge.
#![forbid(unsafe_code)]

use crate::PeerKey;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use trunkline_verbs::{AddressOwner, Device, PeerHost};

/// The hosts of a node's peers.
#[derive(Debug, Default)]
pub struct PeerHosts(Mutex<KnownHosts>);

#[derive(Debug, Default)]
struct KnownHosts {
    device: Option<Weak<dyn Device>>,
    /// Hosts of the addresses of all peers in the CM machine's table, cached for other threads.
    known: BTreeMap<IpAddr, PeerHost>,
}

impl PeerHosts {
    /// Sets the device that identifies the owners of addresses.
    pub(crate) fn open(&self, device: &Arc<dyn Device>) {
        self.lock().device = Some(Arc::downgrade(device));
    }

    pub(crate) fn of(&self, peer: PeerKey) -> PeerHost {
        let known = self.lock().known.get(&peer.host()).copied();
        known.unwrap_or_else(|| self.ask(peer.host()))
    }

    /// Queries the device for the owner of a peer's address, and stores the host.
    pub(crate) fn learn(&self, peer: PeerKey) -> PeerHost {
        let host = self.ask(peer.host());
        self.lock().known.insert(peer.host(), host);
        host
    }

    /// Removes the host of an address that no longer has a peer.
    pub(crate) fn forget(&self, address: IpAddr) {
        self.lock().known.remove(&address);
    }

    fn ask(&self, address: IpAddr) -> PeerHost {
        // The device may make system calls, so the lock is released before the query.
        let device = self.lock().device.as_ref().and_then(Weak::upgrade);
        PeerHost::new(address, device.map_or(AddressOwner::OtherHost, |device| device.address_owner(address)))
    }

    fn lock(&self) -> MutexGuard<'_, KnownHosts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
