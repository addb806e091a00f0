//! Honest nodes in separate processes, and how an attack drives them.

mod load;
mod namespace;
mod node;
mod party;
mod service;

pub(crate) use namespace::{ANOTHER, mount_namespace, network_namespace, open_to_all, runtime_of_another};
pub(crate) use node::{NodeArguments, serve};
pub(crate) use party::{PORT, Pair, Party, Setup};
