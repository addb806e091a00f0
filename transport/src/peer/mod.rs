//! Peers of a node: their keys, maps by them, their hosts, and the secret numbers by which they are told apart.

pub(crate) mod epochs;
pub(crate) mod hash;
mod host;
mod key;
mod map;
pub(crate) mod secret;

pub use host::PeerHosts;
pub use key::{InvalidPeer, PeerKey};
pub use map::PeerMap;
