//! A network of the nodes of one process, for tests of programs.
#![forbid(unsafe_code)]

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use trunkline_softrdma::device::SoftOptions;
use trunkline_softrdma::link::Hub;

/// A network of nodes of one process, which reach each other and nothing else: it needs no port, no socket and no
/// file. Nodes join it by `NodeBuilder::in_process`, and have an address of their own in it, `Node::local_address`. Clones are the same network.
#[derive(Clone, Default)]
pub struct InProcessNetwork(Arc<Shared>);

#[derive(Default)]
struct Shared {
    hub: Arc<Hub>,
    /// Addresses that were given.
    given: AtomicU32,
}

/// Addresses are given from here on. They are loopback addresses, since no other host can reach them.
const FIRST: u32 = u32::from_be_bytes([127, 64, 0, 1]);

impl InProcessNetwork {
    /// A network without nodes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An address that no other node of the network has, unless four million have come before.
    pub(crate) fn address(&self) -> IpAddr {
        let given = self.0.given.fetch_add(1, Ordering::Relaxed) % (1 << 22);
        Ipv4Addr::from(FIRST + given).into()
    }

    /// How a device is opened that has this address of the network.
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
