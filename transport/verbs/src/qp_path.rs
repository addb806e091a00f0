//! Paths of QPs' packets to their peers.

use std::net::IpAddr;

/// The way that a QP's packets take now, for reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct QpPath {
    /// Its name: `shm` for memory that the peer's process shares, [`QpPath::NONE`] while the device may use nothing else and cannot use
    /// that, else the device's link, such as `udp`.
    pub name: &'static str,
    /// Why it is not shared memory; empty where that does not matter.
    pub why: &'static str,
}

impl QpPath {
    /// The name of the way of a QP that has none: what it sends is lost.
    pub const NONE: &str = "none";
}

/// QPs of a device that take the same way to the same address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerPath {
    /// The address of the peer.
    pub address: IpAddr,
    /// The way.
    pub path: QpPath,
    /// Number of QPs.
    pub qps: u32,
}
