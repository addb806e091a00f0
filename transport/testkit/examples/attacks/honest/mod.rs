//! Honest nodes in separate processes, and the commands with which an attack controls them.

mod arguments;
mod certificates;
mod load;
mod namespace;
mod node;
mod party;
mod service;

pub(crate) use arguments::NodeArguments;
pub(crate) use namespace::{ANOTHER, mount_namespace, network_namespace, open_to_all, runtime_of_another};
pub(crate) use node::serve;
pub(crate) use party::{PORT, Party, PartyPair, Setup};
