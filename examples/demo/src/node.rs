//! Settings that the nodes of both halves share.

use crate::cli::Demo;
use crate::failure::Failure;
use crate::tree::Tree;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use trunkline::NodeBuilder;

/// Returns the builder of a node at `address`, with the pollers and faults of the command line.
pub(crate) fn builder(demo: &Demo, address: IpAddr) -> Result<NodeBuilder, Failure> {
    let mut builder = trunkline::Node::builder()
        .listen(SocketAddr::new(address, 0))
        .pollers(demo.pollers)
        // Shorter than the time that the supervisor waits for the process to end.
        .grace(Duration::from_secs(1))
        .allow_unauthenticated(demo.allow_unauthenticated)
        .device_flags(&demo.device);
    if let Some(faults) = demo.faults() {
        builder = builder.faults(&faults).map_err(|error| Failure::Start(error.to_string()))?;
    }
    Ok(builder)
}

/// Returns the tree that the server serves and with which the client compares.
pub(crate) fn tree(demo: &Demo) -> Result<Tree, Failure> {
    let root = root(demo);
    Tree::walk(&root, demo.tree.is_none()).map_err(Failure::file(&root))
}

/// Returns the tree's root directory.
pub(crate) fn root(demo: &Demo) -> PathBuf {
    demo.tree.clone().unwrap_or_else(checkout)
}

/// Returns the root of the checkout when run by cargo, otherwise the working directory.
fn checkout() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from("."), |crate_root| PathBuf::from(crate_root).join("../.."))
}
