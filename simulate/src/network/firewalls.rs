//! Stateful firewalls. A host behind a firewall receives only datagrams of flows that the host has opened.
//!
//! A datagram sent by the host opens a flow between two sockets. Each further datagram of the flow, in either direction,
//! keeps the flow open.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use trunkline_softrdma::link::Datagram;
use trunkline_verbs::Time;

/// Time after which an unused flow is closed. Shorter times are unusual for UDP.
pub(super) const FORGOTTEN: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct Firewalls {
    hosts: BTreeSet<IpAddr>,
    /// Time at which each flow was last used, by the host's socket and the peer's socket.
    flows: BTreeMap<(SocketAddr, SocketAddr), Time>,
}

impl Firewalls {
    /// Puts a host behind a firewall without open flows.
    pub(super) fn add(&mut self, host: IpAddr) {
        self.hosts.insert(host);
    }

    pub(super) fn remove(&mut self, host: IpAddr) {
        self.hosts.remove(&host);
        self.flows.retain(|(own, _), _| own.ip() != host);
    }

    /// Records a datagram sent by a host.
    pub(super) fn departs(&mut self, now: Time, datagram: &Datagram<'_>) {
        if self.hosts.contains(&datagram.source.ip()) {
            self.flows.insert((datagram.source, datagram.destination), now);
        }
    }

    /// Returns true if the firewall passes a datagram to its host.
    pub(super) fn admits(&mut self, now: Time, datagram: &Datagram<'_>) -> bool {
        let Datagram { source, destination, .. } = *datagram;
        if !self.hosts.contains(&destination.ip()) || source.ip() == destination.ip() {
            return true;
        }
        let Some(used) = self.flows.get_mut(&(destination, source)) else { return false };
        let is_open = now - *used <= FORGOTTEN;
        if is_open {
            *used = now;
        }
        is_open
    }
}
