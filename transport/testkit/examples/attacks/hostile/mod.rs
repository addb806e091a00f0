//! Peers that break the rules of the session protocol: the node's own code over a link that changes what it
//! sends and receives, so that its other side sees any misbehaviour with right packets.

mod frame;
mod link;

pub(crate) use frame::Hostility;
pub(crate) use link::HostileLink;
