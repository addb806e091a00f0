//! The load of a run, which consists of the nodes' services and the programs that call them.

pub(crate) mod client;
mod ordered;
pub(crate) mod service;
pub(crate) mod streams;
