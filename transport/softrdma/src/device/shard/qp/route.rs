//! Source and destination addresses of a QP's packets.
//!
//! Owns the choice of the peer's UDP port (contract rocev2 8.3). A software peer may share its address with other
//! processes, and then uses a separate port. It is also reachable at its device's port (4791 by default), through the
//! process that holds that port. A foreign peer is reachable only at 4791. In a single-flow connection, the source port
//! of the peer's request replaces the port of its device.
//!
//! The port is learned only from proof: a request with the expected PSN that was accepted in full, or a response to an
//! outstanding PSN. A QP sends all packets to the learned port, never to the source of the packet that it answers, so a
//! forger does not receive the QP's PSNs. A forger that has the addresses and the QP number, and guesses the PSN, is
//! accepted with one request in 2^24, or with one response in 2^24 / n while n PSNs are outstanding. Half of all
//! guessed requests are duplicates, which have no effect.
//!
//! | time-outs without an answer | destination of the next packets |
//! |---|---|
//! | 0 or 1 | the peer's proven port; its device's port before there is proof |
//! | 2, 4, ... | its device's port: the peer may have moved |
//! | 3, 5, ... | the proven port: the process that holds the device's port may be the silent one |

use crate::link::{Datagram, Segmentation};
use std::net::SocketAddr;
use trunkline_machine::mutant;
use trunkline_roce::wire::IpUdp;
use trunkline_verbs::{PeerView, UdpPorts};

/// Number of consecutive time-outs after which the peer may have moved.
const MAY_HAVE_MOVED: u32 = 2;

/// Source of a packet that proved the peer's address.
#[derive(Debug, Clone, Copy)]
pub(in crate::device::shard) struct Heard {
    pub(in crate::device::shard) from: SocketAddr,
    /// True if a member of this host sends from the source.
    pub(in crate::device::shard) is_member: bool,
}

/// The addresses of a QP and its peer, and the peer's proven port.
#[derive(Debug, Clone, Copy)]
pub(in crate::device) struct Route {
    source: SocketAddr,
    destination: SocketAddr,
    /// UDP port of the peer's device.
    home: u16,
    /// UDP port from which the last proof came.
    seen: u16,
    /// True if packets cross a network.
    is_between_hosts: bool,
    /// True if the peer is a member of this host.
    is_to_member: bool,
    /// True if the peer is proven to be a software device.
    is_to_soft: bool,
    /// True if the peer named itself a software device when the connection manager connected the QP.
    is_named_soft: bool,
    /// Number of time-outs since the last proof.
    silences: u32,
    /// Addresses for computing ICRCs, if address translation changes the addresses of packets.
    view: Option<PeerView>,
}

impl Route {
    pub(in crate::device::shard) fn new(source: SocketAddr, destination: SocketAddr) -> Self {
        let port = destination.port();
        Self {
            source,
            destination,
            home: port,
            seen: port,
            is_between_hosts: false,
            is_to_member: false,
            is_to_soft: false,
            is_named_soft: false,
            silences: 0,
            view: None,
        }
    }

    /// Sets whether packets cross a network.
    pub(in crate::device::shard) fn between_hosts(self, is_between_hosts: bool) -> Self {
        Self { is_between_hosts, ..self }
    }

    /// Returns true if packets cross a network.
    pub(in crate::device::shard) fn is_between_hosts(&self) -> bool {
        self.is_between_hosts
    }

    /// Sets the UDP ports of the connection. `is_soft` is true if the peer has named itself a software device.
    pub(in crate::device::shard) fn set_ports(&mut self, ports: UdpPorts, is_soft: bool) {
        self.is_named_soft = is_soft;
        if let Some(own) = ports.own.filter(|_| !mutant!(one_flow_uses_any_port)) {
            self.source.set_port(own);
        }
        self.destination.set_port(ports.peer);
        (self.home, self.seen) = (ports.peer, ports.peer);
        self.view = ports.view;
    }

    /// Returns true if the peer named itself a software device in a message of the connection manager.
    pub(in crate::device::shard) fn is_named_soft(&self) -> bool {
        self.is_named_soft
    }

    /// Returns the headers that the ICRC of packets to the peer covers.
    pub(in crate::device::shard) fn covered(&self) -> IpUdp {
        match self.view {
            Some(PeerView { own, peer }) if !mutant!(icrc_covers_translated_addresses) => {
                IpUdp::new(own, peer)
            }
            _ => IpUdp::new(self.source, self.destination),
        }
    }

    /// Returns the kind of segmentation for packets to the peer.
    pub(in crate::device::shard) fn segmentation(&self) -> Segmentation {
        let (is_v4, covers_v4) = (self.source.is_ipv4(), self.covered().source.is_ipv4());
        match (is_v4, covers_v4) {
            _ if !self.is_to_soft => Segmentation::No,
            (true, true) => Segmentation::Numbered,
            (_, false) => Segmentation::Plain,
            // The address translator chooses the identification of such a packet.
            (false, true) => Segmentation::No,
        }
    }

    /// Returns the headers covered by the ICRC of the peer's packets; `None` if they are the received
    /// headers.
    pub(in crate::device::shard) fn covered_by_peer(&self) -> Option<IpUdp> {
        self.view.map(|PeerView { own, peer }| IpUdp::new(peer, own))
    }

    /// Returns the address that packets are sent from.
    pub(in crate::device::shard) fn source(&self) -> SocketAddr {
        self.source
    }

    /// Returns the address that packets are sent to.
    pub(in crate::device::shard) fn destination(&self) -> SocketAddr {
        self.destination
    }

    /// Returns true if a datagram has the IP addresses of a packet from the peer.
    pub(in crate::device::shard) fn is_of(&self, datagram: &Datagram<'_>) -> bool {
        is_same_address(&self.destination, &datagram.source)
            && is_same_address(&self.source, &datagram.destination)
    }

    /// Records the proven source of the peer. `soft` returns true if the peer is a software device; packets
    /// then go to the port of the proven source.
    pub(in crate::device::shard) fn heard(&mut self, source: &Heard, soft: impl FnOnce() -> bool) {
        self.silences = 0;
        self.is_to_member |= source.is_member;
        let port = source.from.port();
        let has_moved = port != self.destination.port();
        if !self.is_to_soft {
            self.is_to_soft = self.is_named_soft || soft();
        }
        if has_moved && self.is_to_soft {
            self.seen = port;
            self.destination.set_port(port);
        }
    }

    /// Returns true if the peer is proven to be a software device.
    pub(in crate::device::shard) fn is_to_soft(&self) -> bool {
        self.is_to_soft
    }

    /// Returns true if a packet comes from the peer's proven port, and not, for example, from another program at the peer's
    /// address.
    pub(in crate::device::shard) fn is_from_proven_port(&self, from: SocketAddr) -> bool {
        from.port() == self.seen
    }

    /// Records that a packet through memory proved the peer to be a member of this host.
    pub(in crate::device::shard) fn heard_by_memory(&mut self) {
        self.silences = 0;
        self.is_to_member = true;
    }

    /// Returns true if the peer is proven to be a member of this host.
    pub(in crate::device::shard) fn is_to_member(&self) -> bool {
        self.is_to_member
    }

    /// Counts a time-out without an answer, and chooses the port for the next packets.
    pub(in crate::device::shard) fn silent(&mut self) {
        self.silences = self.silences.saturating_add(1);
        let goes_home = self.silences >= MAY_HAVE_MOVED && self.silences.is_multiple_of(2);
        self.destination.set_port(if goes_home { self.home } else { self.seen });
    }
}

/// Returns true if two socket addresses have the same IP address.
fn is_same_address(one: &SocketAddr, other: &SocketAddr) -> bool {
    match (one, other) {
        (SocketAddr::V4(one), SocketAddr::V4(other)) => one.ip() == other.ip(),
        (SocketAddr::V6(one), SocketAddr::V6(other)) => one.ip() == other.ip(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn from(port: u16) -> Heard {
        Heard { from: SocketAddr::new(IpAddr::from([127, 0, 0, 2]), port), is_member: false }
    }

    fn route() -> Route {
        Route::new(SocketAddr::new(IpAddr::from([127, 0, 0, 1]), 40_000), from(4791).from)
    }

    #[test]
    fn requests_alternate_between_known_port_of_peer_and_4791_after_silence() {
        let mut route = route();
        let mut after_silence = || {
            route.silent();
            route.destination.port()
        };
        assert_eq!([after_silence(), after_silence(), after_silence()], [4791; 3], "never seen");
        route.heard(&from(50_000), || true);
        assert_eq!(route.destination.port(), 50_000);
        let mut after_silence = || {
            route.silent();
            route.destination.port()
        };
        let ports = [(); 6].map(|()| after_silence());
        assert_eq!(ports, [50_000, 4791, 50_000, 4791, 50_000, 4791]);
        route.heard(&from(50_001), || true);
        route.silent();
        assert_eq!(route.destination.port(), 50_001);
        route.heard(&from(4791), || true);
        route.silent();
        assert_eq!(route.destination.port(), 4791);
    }

    #[test]
    fn ports_of_connection_replace_ports_of_devices() {
        let mut route = route();
        route.set_ports(UdpPorts { own: Some(5000), ..UdpPorts::new(5001) }, false);
        assert_eq!((route.source.port(), route.destination.port()), (5000, 5001));
        route.heard(&from(50_000), || true);
        let ports = [(); 2].map(|()| {
            route.silent();
            route.destination.port()
        });
        assert_eq!(ports, [50_000, 5001]);
        route.set_ports(UdpPorts::new(4791), false);
        assert_eq!((route.source.port(), route.destination.port()), (5000, 4791));
    }

    #[test]
    fn foreign_peer_is_reached_at_4791_only() {
        let mut route = route();
        route.heard(&from(50_000), || false);
        assert_eq!(route.destination, from(4791).from);
    }
}
