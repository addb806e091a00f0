//! Load of a run: the services of the nodes, and the programs that call them.

pub(crate) mod client;
mod ordered;
pub(crate) mod service;
pub(crate) mod streams;
