//! Nodes of one process that exchange packets through queues instead of sockets.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use trunkline::{Node, NodeBuilder, ProviderChoice};
use trunkline_softrdma::device::{LinkChoice, SoftOptions};
use trunkline_softrdma::link::Hub;
use trunkline_testkit::Folder;
use trunkline_transport::NodeOptions;

/// State that these nodes share.
#[derive(Debug)]
pub(crate) struct Host {
    hub: Arc<Hub>,
    folder: Folder,
}

impl Host {
    /// Creates a host without nodes.
    ///
    /// # Errors
    /// Fails if no temporary directory can be created.
    pub(crate) fn new() -> Result<Self, String> {
        let folder = Folder::new().map_err(|error| format!("cannot make a temporary directory: {error}"))?;
        Ok(Self { hub: Hub::new(), folder })
    }

    /// Returns a builder for a node with this address.
    pub(crate) fn node(&self, address: IpAddr, pollers: u16) -> NodeBuilder {
        let device = SoftOptions {
            addresses: vec![address],
            link: LinkChoice::InProcess(Arc::clone(&self.hub)),
            runtime_directory: Some(self.folder.path().to_owned()),
            ..SoftOptions::default()
        };
        let options = NodeOptions::new().device(device).provider(ProviderChoice::Soft);
        Node::builder().transport(options).listen(SocketAddr::new(address, 0)).pollers(pollers)
    }
}
