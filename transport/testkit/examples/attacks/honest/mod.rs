//! Honest nodes in separate processes, and how an attack drives them.

mod another_user;
mod load;
mod namespace;
mod node;
mod party;
mod service;

pub(crate) use another_user::{ANOTHER, open_to_all, runtime_of_another};
pub(crate) use namespace::{mount_namespace, network_namespace};
pub(crate) use node::{NodeArguments, serve};
pub(crate) use party::{PORT, Pair, Setup};
