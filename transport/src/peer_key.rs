//! The name of a peer within a node. Everything may use it.
#![forbid(unsafe_code)]

/// A peer node as this node's pollers know it. A key stays the same over reconnects and is never given
/// to another peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerKey(pub u64);
