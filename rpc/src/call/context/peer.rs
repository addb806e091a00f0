//! The node that made a call.

use std::fmt;
use std::net::SocketAddr;
use trunkline_transport::PeerKey;

/// The node that made a call. The value stays the same when that node reconnects or restarts at the same address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer(PeerKey);

impl Peer {
    pub(crate) fn new(key: PeerKey) -> Self {
        Self(key)
    }

    pub(super) fn key(self) -> PeerKey {
        self.0
    }

    /// Returns the address that the node listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Peer").field(&self.address()).finish()
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address().fmt(f)
    }
}
