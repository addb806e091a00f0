//! Address translators, which replace the addresses of the hosts behind them.
//!
//! A datagram to a peer maps its source to a port of the translator for a limited time. Each further datagram, in either
//! direction, extends this time. A host behind a translator does not receive datagrams without a mapping.

use super::firewalls::FORGOTTEN;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use trunkline_softrdma::link::Datagram;
use trunkline_verbs::Time;

const FIRST_PORT: u16 = 40_000;

#[derive(Debug)]
struct Mapping {
    outside: SocketAddr,
    used: Time,
}

#[derive(Debug, Default)]
pub(super) struct Translators {
    /// Addresses of translators, by host behind them.
    hosts: BTreeMap<IpAddr, IpAddr>,
    /// Mappings by the host's socket and the peer's socket.
    mappings: BTreeMap<(SocketAddr, SocketAddr), Mapping>,
    /// Number of mappings created so far.
    count: u16,
}

impl Translators {
    /// Puts a host behind a translator without mappings.
    pub(super) fn add(&mut self, host: IpAddr, translator: IpAddr) {
        self.hosts.insert(host, translator);
    }

    pub(super) fn remove(&mut self, host: IpAddr) {
        self.hosts.remove(&host);
        self.mappings.retain(|(own, _), _| own.ip() != host);
    }

    pub(super) fn has(&self, host: IpAddr) -> bool {
        self.hosts.contains_key(&host)
    }

    /// Removes all mappings. New mappings use other ports.
    pub(super) fn forget(&mut self) {
        self.mappings.clear();
    }

    /// Returns the source address that the receiver of a datagram sees.
    pub(super) fn outward(&mut self, now: Time, datagram: &Datagram<'_>) -> SocketAddr {
        let Datagram { source, destination, .. } = *datagram;
        let Some(translator) = self.hosts.get(&source.ip()) else { return source };
        if source.ip() == destination.ip() {
            return source;
        }
        let count = &mut self.count;
        let mut new = || {
            *count += 1;
            Mapping { outside: SocketAddr::new(*translator, FIRST_PORT + *count), used: now }
        };
        let mapping = self.mappings.entry((source, destination)).or_insert_with(&mut new);
        if now - mapping.used > FORGOTTEN {
            *mapping = new();
        }
        mapping.used = now;
        mapping.outside
    }

    /// Returns the destination behind the translator, or `None` if there is no mapping.
    pub(super) fn inward(&mut self, now: Time, datagram: &Datagram<'_>) -> Option<SocketAddr> {
        let Datagram { source, destination, .. } = *datagram;
        if !self.hosts.values().any(|translator| *translator == destination.ip()) {
            return Some(destination);
        }
        let (key, mapping) = self.mappings.iter_mut().find(|((_, peer), mapping)| {
            (*peer, mapping.outside) == (source, destination) && now - mapping.used <= FORGOTTEN
        })?;
        mapping.used = now;
        Some(key.0)
    }
}
