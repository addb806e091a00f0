//! Honest nodes in separate processes, and how an attack drives them.

mod load;
mod namespace;
mod node;
mod party;
mod service;

pub(crate) use namespace::{mount_namespace, network_namespace};
pub(crate) use node::{NodeArguments, serve};
pub(crate) use party::{PORT, Pair, Setup};
