//! Nodes of a measurement, with their services and callers.

pub(crate) mod client;
pub(crate) mod echo;
pub(crate) mod feed;
pub(crate) mod nodes;
pub(crate) mod paths;
pub(crate) mod payload;
pub(crate) mod servers;
pub(crate) mod session;
pub(crate) mod worker;
