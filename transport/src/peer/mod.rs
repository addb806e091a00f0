//! Peers of a node: keys, maps by key, hosts, and the secret numbers that distinguish peers.

pub(crate) mod epochs;
pub(crate) mod hash;
mod host;
mod key;
mod map;
pub(crate) mod secret;

pub use host::PeerHosts;
pub use key::{InvalidPeer, PeerKey};
pub use map::PeerMap;
