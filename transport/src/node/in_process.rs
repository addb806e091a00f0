//! A network of nodes inside one process, for tests.
#![forbid(unsafe_code)]

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use trunkline_softrdma::device::SoftOptions;
use trunkline_softrdma::link::Hub;

/// A network of nodes inside one process. The nodes reach only each other, without ports, sockets or files.
///
/// Nodes join the network through `NodeBuilder::in_process` and get an address in it, `Node::local_address`. Clones
/// refer to the same network.
#[derive(Clone, Default)]
pub struct InProcessNetwork(Arc<Network>);

#[derive(Default)]
struct Network {
    hub: Arc<Hub>,
    /// Number of addresses assigned so far.
    given: AtomicU32,
}

/// First assigned address, a loopback address because other hosts cannot reach it.
const FIRST: u32 = u32::from_be_bytes([127, 64, 0, 1]);

impl InProcessNetwork {
    /// Creates a network without nodes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a new address, unique among the network's first four million addresses.
    pub(crate) fn address(&self) -> IpAddr {
        let given = self.0.given.fetch_add(1, Ordering::Relaxed) % (1 << 22);
        Ipv4Addr::from(FIRST + given).into()
    }

    /// Returns the options of a device with this address of the network.
    pub(crate) fn device(&self, address: IpAddr) -> SoftOptions {
        let link = trunkline_softrdma::device::LinkChoice::InProcess(Arc::clone(&self.0.hub));
        SoftOptions { addresses: vec![address], link, ..SoftOptions::default() }
    }
}

impl fmt::Debug for InProcessNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcessNetwork").field("nodes", &self.0.given).finish()
    }
}
