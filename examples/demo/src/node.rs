//! Settings that the nodes of both halves have in common.

use crate::cli::Demo;
use crate::failure::Failure;
use crate::tree::Tree;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use trunkline::NodeBuilder;

/// A node at `address`, with the pollers and faults that the command line asks for.
pub(crate) fn builder(demo: &Demo, address: IpAddr) -> Result<NodeBuilder, Failure> {
    let mut builder = trunkline::Node::builder()
        .listen(SocketAddr::new(address, 0))
        .pollers(demo.pollers)
        // Less than the supervisor waits for the process to end.
        .grace(Duration::from_secs(1))
        .allow_unauthenticated(demo.allow_unauthenticated)
        .device_flags(&demo.device);
    if let Some(faults) = demo.faults() {
        builder = builder.faults(&faults).map_err(|error| Failure::Start(error.to_string()))?;
    }
    Ok(builder)
}

/// The tree that the server serves and the client compares with.
pub(crate) fn tree(demo: &Demo) -> Result<Tree, Failure> {
    let root = root(demo);
    Tree::walk(&root, demo.tree.is_none()).map_err(Failure::file(&root))
}

/// The tree's root directory.
pub(crate) fn root(demo: &Demo) -> PathBuf {
    demo.tree.clone().unwrap_or_else(checkout)
}

/// The root of the checkout when run by cargo, otherwise the working directory.
fn checkout() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from("."), |crate_root| PathBuf::from(crate_root).join("../.."))
}
