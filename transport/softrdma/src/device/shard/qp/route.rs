//! Source and destination addresses of a QP's packets.
//!
//! Owns the choice of the peer's UDP port (contract rocev2 8.3). A software peer may share its address with
//! other processes, and then uses a separate port. The peer is also reachable at its device's port (4791 by
//! default), through the process that holds that port. A foreign peer is reached at 4791 only. In a
//! connection of one flow, the port that the peer's request came from stands for its device's port.
//!
//! The port is learned from proof only: a request with the expected PSN that was accepted in full, or a
//! response to a PSN that is outstanding. A QP sends everything to the learned port, never to the source of
//! the packet that it answers, so a forger does not receive the QP's PSNs. A forger with the addresses and
//! the QP number that guesses the PSN is accepted once in 2^24 packets as a request, and once in 2^24 / n as
//! a response while n PSNs are outstanding. A duplicate, half of all guesses, has no effect.
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

/// Time-outs after which the peer may have moved.
const MAY_HAVE_MOVED: u32 = 2;

/// Source of a packet that proved the peer's address.
#[derive(Debug, Clone, Copy)]
pub(in crate::device::shard) struct Heard {
    pub(in crate::device::shard) from: SocketAddr,
    /// True if a member of this host sends from there.
    pub(in crate::device::shard) is_member: bool,
}

/// The addresses of a QP and its peer, with the peer's proven port.
#[derive(Debug, Clone, Copy)]
pub(in crate::device) struct Route {
    source: SocketAddr,
    destination: SocketAddr,
    /// Port of the peer's device.
    home: u16,
    /// Port from which the peer's last proof came.
    seen: u16,
    /// True if packets pass a network.
    is_between_hosts: bool,
    /// True if the peer is a member of this host.
    is_to_member: bool,
    /// True if the peer is proven to be a software device.
    is_to_soft: bool,
    /// Number of time-outs since the last answer.
    silences: u32,
    /// Addresses that ICRCs cover in place of those above.
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
            silences: 0,
            view: None,
        }
    }

    /// Sets whether packets pass a network.
    pub(in crate::device::shard) fn between_hosts(self, is_between_hosts: bool) -> Self {
        Self { is_between_hosts, ..self }
    }

    /// Returns true if packets pass a network.
    pub(in crate::device::shard) fn is_between_hosts(&self) -> bool {
        self.is_between_hosts
    }

    /// Sets the UDP ports of the connection.
    pub(in crate::device::shard) fn set_ports(&mut self, ports: UdpPorts) {
        if let Some(own) = ports.own.filter(|_| !mutant!(one_flow_uses_any_port)) {
            self.source.set_port(own);
        }
        self.destination.set_port(ports.peer);
        (self.home, self.seen) = (ports.peer, ports.peer);
        self.view = ports.view;
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

    /// Returns the segmentation of packets to the peer.
    pub(in crate::device::shard) fn segmentation(&self) -> Segmentation {
        let (is_v4, covers_v4) = (self.source.is_ipv4(), self.covered().source.is_ipv4());
        match (is_v4, covers_v4) {
            _ if !self.is_to_soft => Segmentation::No,
            (true, true) => Segmentation::Numbered,
            (_, false) => Segmentation::Plain,
            // The translator of such a packet chooses the identification.
            (false, true) => Segmentation::No,
        }
    }

    /// Returns the headers covered by the ICRC of the peer's packets, if they differ from the received
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

    /// Returns true if a datagram came from the destination to the source of this route.
    pub(in crate::device::shard) fn is_of(&self, datagram: &Datagram<'_>) -> bool {
        is_same_address(&self.destination, &datagram.source)
            && is_same_address(&self.source, &datagram.destination)
    }

    /// Records the proven source of the peer; `soft` peers are reached at that port.
    pub(in crate::device::shard) fn heard(&mut self, source: &Heard, soft: impl FnOnce() -> bool) {
        self.silences = 0;
        self.is_to_member |= source.is_member;
        let port = source.from.port();
        let has_moved = port != self.destination.port();
        if has_moved || !self.is_to_soft {
            self.is_to_soft = soft();
        }
        if has_moved && self.is_to_soft {
            self.seen = port;
            self.destination.set_port(port);
        }
    }

    /// Records a proof that came through memory.
    pub(in crate::device::shard) fn heard_by_memory(&mut self) {
        self.silences = 0;
        self.is_to_member = true;
    }

    /// Returns true if the peer is proven to be a member of this host.
    pub(in crate::device::shard) fn is_to_member(&self) -> bool {
        self.is_to_member
    }

    /// Counts a time-out without an answer.
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
        route.set_ports(UdpPorts { own: Some(5000), ..UdpPorts::new(5001) });
        assert_eq!((route.source.port(), route.destination.port()), (5000, 5001));
        route.heard(&from(50_000), || true);
        let ports = [(); 2].map(|()| {
            route.silent();
            route.destination.port()
        });
        assert_eq!(ports, [50_000, 5001]);
        route.set_ports(UdpPorts::new(4791));
        assert_eq!((route.source.port(), route.destination.port()), (5000, 4791));
    }

    #[test]
    fn foreign_peer_is_reached_at_4791_only() {
        let mut route = route();
        route.heard(&from(50_000), || false);
        assert_eq!(route.destination, from(4791).from);
    }
}
