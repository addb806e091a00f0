//! Arguments of an attack's node, shared by all programs that run such nodes.

use crate::hostile_link::HostileLink;
use clap::Args;
use std::net::SocketAddr;
use trunkline::{Connections, Node, NodeBuilder, ProviderChoice};
use trunkline_softrdma::device::{LinkChoice, LinkFactory, SoftOptions};
use trunkline_testkit::Hostility;
use trunkline_transport::NodeOptions;

/// Arguments of `attacks node`.
#[derive(Debug, Clone, Args)]
pub(crate) struct NodeArguments {
    /// Address that it listens on.
    pub(super) listen: SocketAddr,
    /// Kind of connections.
    #[arg(long, default_value = "xrc")]
    connections: Connections,
    /// Number of pollers.
    #[arg(long, default_value_t = 1)]
    pub(super) pollers: u16,
    /// Kind of misbehaviour.
    #[arg(long)]
    hostile: Option<Hostility>,
}

impl NodeArguments {
    /// Returns the node, without services.
    pub(crate) fn builder(&self) -> NodeBuilder {
        let mut options = NodeOptions::new();
        if let Some(hostility) = self.hostile {
            let link = LinkFactory::new(move || Ok(Box::new(HostileLink::new(hostility))));
            options = options.device(SoftOptions {
                addresses: vec![self.listen.ip()],
                link: LinkChoice::Custom(link),
                ..SoftOptions::default()
            });
        }
        Node::builder()
            .transport(options)
            .listen(self.listen)
            .provider(ProviderChoice::Soft)
            .connections(self.connections)
            .pollers(self.pollers)
    }
}
