//! Servers: nodes in a child process, or nodes in this process that exchange packets through queues.
//!
//! The child process runs this program, prints the addresses of its nodes, and serves until its parent exits.

mod services;

pub(crate) use services::Local;

use crate::calls::echo::{EchoServer, Mirror};
use crate::calls::feed::{FeedServer, Source};
use crate::calls::nodes::{self, LinkFlag};
use crate::meter::child::{self, Child};
use crate::meter::failure::Failure;
use crate::meter::pin;
use clap::Args;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use trunkline::{Limit, Node, NodeBuilder, ProviderChoice};
use trunkline_softrdma::device::{LinkChoice, SoftOptions};
use trunkline_softrdma::link::Hub;
use trunkline_testkit::{Folder, fresh_ip, output};
use trunkline_transport::NodeOptions;

/// Time after the parent's death at which the process exits even if its nodes do not shut down.
const LAST: Duration = Duration::from_secs(5);
/// Limit on the decoded arguments per peer, in bytes. Open streams count towards it.
const DECODED: usize = 1 << 30;

/// Description of the servers, and arguments of their process.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Fleet {
    /// Address of the server if there is only one; otherwise an unused loopback address.
    #[arg(long)]
    pub(crate) address: Option<IpAddr>,
    #[arg(long, value_enum)]
    pub(crate) link: LinkFlag,
    #[arg(long)]
    pub(crate) servers: u16,
    /// Number of pollers per server.
    #[arg(long)]
    pub(crate) pollers: u16,
    /// Number of services per server. The services differ only in their names.
    #[arg(long)]
    pub(crate) services: u16,
    #[arg(long)]
    pub(crate) core: Option<usize>,
    /// True if nodes have identities.
    #[arg(long)]
    pub(crate) encrypted: bool,
}

/// Running servers, which are stopped when this value is dropped.
#[derive(Debug)]
pub(crate) struct Servers {
    fleet: Fleet,
    pub(crate) addresses: Vec<SocketAddr>,
    place: ServerPlace,
}

#[derive(Debug)]
enum ServerPlace {
    Process(Child),
    /// Nodes in this process, with the state that they share.
    Here {
        nodes: Vec<Node>,
        host: Host,
    },
}

/// State shared by the nodes in this process.
#[derive(Debug)]
struct Host {
    hub: Arc<Hub>,
    folder: Folder,
}

impl Fleet {
    /// Starts the servers, pinned to their core if one is given.
    ///
    /// # Errors
    /// Returns an error if the servers do not start. A server process prints the details itself.
    pub(crate) fn start(self) -> Result<Servers, Failure> {
        if self.link == LinkFlag::Process {
            let folder =
                Folder::new().map_err(|error| format!("cannot make a temporary directory: {error}"))?;
            let host = Host { hub: Hub::new(), folder };
            // The threads of a node inherit the core of the thread that starts it.
            let nodes = thread::scope(|scope| {
                let start = || self.nodes(|address| host.builder(address));
                scope.spawn(start).join().unwrap_or_else(|_| Err("a server's node panicked".to_owned()))
            })?;
            let addresses = nodes.iter().map(Node::local_address).collect();
            return Ok(Servers { fleet: self, addresses, place: ServerPlace::Here { nodes, host } });
        }
        self.link.check()?;
        let mut arguments = ["serve", "--link", self.link.name()].map(str::to_owned).to_vec();
        for (name, count) in
            [("--servers", self.servers), ("--pollers", self.pollers), ("--services", self.services)]
        {
            arguments.extend([name.to_owned(), count.to_string()]);
        }
        arguments.extend(self.address.iter().flat_map(|ip| ["--address".to_owned(), ip.to_string()]));
        arguments.extend(self.core.iter().flat_map(|core| ["--core".to_owned(), core.to_string()]));
        arguments.extend(self.encrypted.then(|| "--encrypted".to_owned()));
        let mut child = Child::start(arguments)?;
        let line =
            child.read_line().map_err(|why| Failure::ServerDied(format!("it did not start: {why}")))?;
        let addresses = line.split_whitespace().map(str::parse).collect::<Result<_, _>>();
        let addresses = addresses.map_err(|error| format!("the server process prints `{line}`: {error}"))?;
        Ok(Servers { fleet: self, addresses, place: ServerPlace::Process(child) })
    }

    /// Serves in the child process until its parent exits.
    ///
    /// # Errors
    /// Returns an error if a node does not start.
    pub(crate) fn serve(self) -> Result<(), Failure> {
        let builder = |address| self.link.builder().listen(SocketAddr::new(address, 0));
        let nodes = self.nodes(builder)?;
        let addresses = nodes.iter().map(|node| node.local_address().to_string()).collect::<Vec<_>>();
        output::out(&addresses.join(" "))?;
        child::await_parent();
        thread::spawn(|| {
            thread::sleep(LAST);
            std::process::exit(i32::from(Failure::ServerDied(String::new()).code()));
        });
        nodes.iter().for_each(Node::shutdown);
        Ok(())
    }

    fn nodes(self, builder: impl Fn(IpAddr) -> NodeBuilder) -> Result<Vec<Node>, String> {
        self.core.map_or(Ok(()), pin::to)?;
        let start = |_| {
            let address = self.address.unwrap_or_else(|| fresh_ip().into());
            let builder = self
                .level(builder(address), address)?
                .pollers(self.pollers)
                .decoded_bytes(Limit { per_peer: DECODED, in_all: DECODED })
                .serve(EchoServer::new(Mirror))
                .serve(FeedServer::new(Source));
            services::serve(builder, self.services).start().map_err(|error| error.to_string())
        };
        (0..self.servers).map(start).collect()
    }

    /// Gives a node at this address an identity if the fleet is encrypted.
    fn level(self, node: NodeBuilder, address: IpAddr) -> Result<NodeBuilder, String> {
        if self.encrypted { nodes::encrypted(node, address) } else { Ok(node) }
    }
}

impl Servers {
    /// Starts a client node with as many pollers as a server, at this address or at an unused one.
    ///
    /// # Errors
    /// Returns an error if the node does not start.
    pub(crate) fn client(&self, address: Option<IpAddr>) -> Result<Node, String> {
        let address = address.unwrap_or_else(|| fresh_ip().into());
        let builder = match &self.place {
            ServerPlace::Process(_) => self.fleet.link.builder().listen(SocketAddr::new(address, 0)),
            ServerPlace::Here { host, .. } => host.builder(address),
        };
        let builder = self.fleet.level(builder, address)?;
        builder.pollers(self.fleet.pollers).start().map_err(|error| error.to_string())
    }

    pub(crate) fn process(&self) -> Option<u32> {
        match &self.place {
            ServerPlace::Process(child) => Some(child.process()),
            ServerPlace::Here { .. } => None,
        }
    }

    /// Returns the exit status of the process, if it has exited.
    pub(crate) fn death(&self) -> Option<Failure> {
        match &self.place {
            ServerPlace::Process(child) => child.death(),
            ServerPlace::Here { .. } => None,
        }
    }

    /// Returns a failure that reports the exit of the server process, or `why` if the process is still running.
    pub(crate) fn named(&self, why: String) -> Failure {
        self.death().unwrap_or(Failure::Unmeasured(why))
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        if let ServerPlace::Here { nodes, .. } = &self.place {
            nodes.iter().for_each(Node::shutdown);
        }
    }
}

impl Host {
    fn builder(&self, address: IpAddr) -> NodeBuilder {
        let device = SoftOptions {
            addresses: vec![address],
            link: LinkChoice::InProcess(Arc::clone(&self.hub)),
            runtime_directory: Some(self.folder.path().to_owned()),
            ..SoftOptions::default()
        };
        let options = NodeOptions::new().device(device).provider(ProviderChoice::Soft);
        Node::builder().transport(options).listen(SocketAddr::new(address, 0))
    }
}
