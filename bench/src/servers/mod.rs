//! Several server nodes in one process, each with some services.

mod services;

pub(crate) use services::{Local, serve};

use crate::failure::Failure;
use crate::nodes::LinkFlag;
use std::net::SocketAddr;
use trunkline::Node;
use trunkline_testkit::fresh_ip;

/// Composition of a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) servers: u16,
    /// Pollers of each node.
    pub(crate) pollers: u16,
    /// Services of each server.
    pub(crate) services: u16,
}

/// Starts the servers of a fleet in this process.
///
/// # Errors
/// Fails with the reason if a node does not start.
pub(crate) fn start(wanted: Wanted, link: LinkFlag) -> Result<Vec<Node>, Failure> {
    let start = |_| {
        let builder = link.builder().listen(SocketAddr::new(fresh_ip().into(), 0)).pollers(wanted.pollers);
        serve(builder, wanted.services).start().map_err(|error| error.to_string().into())
    };
    (0..wanted.servers).map(start).collect()
}
