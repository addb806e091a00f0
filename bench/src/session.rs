//! A client connected to its server, and the nodes or processes of both.

use crate::client::{Client, Job, Kind};
use crate::echo::{EchoServer, Mirror};
use crate::failure::Failure;
use crate::feed::{FeedServer, Source, stream_budget};
use crate::in_process::Host;
use crate::nodes::{LinkFlag, Nodes};
use crate::paths;
use crate::peer::Peer;
use crate::pin::{self, Cores};
use crate::recorder::Sample;
use crate::worker::Plan;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use trunkline::Node;
use trunkline_testkit::{fresh_ip, output};

/// Time for which a probe waits for shared memory. Agreement takes some milliseconds.
const PROBE: Duration = Duration::from_millis(300);

/// Location of the server.
enum Server {
    Process(Peer),
    /// A node in this process, with the host that both nodes share.
    Here {
        node: Node,
        _host: Host,
    },
}

/// Both sides of the measurement.
pub(crate) struct Session {
    client: Client,
    node: Arc<Node>,
    server: Server,
}

impl Session {
    /// Starts both nodes, each on its core, and connects them. The calling thread stays pinned to the client's core.
    ///
    /// # Errors
    /// Fails with the reason if a node does not start or the first call fails.
    pub(crate) fn start(
        link: LinkFlag,
        nodes: &Nodes,
        kind: Kind,
        cores: Option<Cores>,
    ) -> Result<Self, Failure> {
        let server_ip = nodes.peer_address.unwrap_or_else(|| fresh_ip().into());
        let client_ip = nodes.address.unwrap_or_else(|| fresh_ip().into());
        cores.map_or(Ok(()), |cores| pin::to(cores.client))?;
        let (node, server, address) = if link == LinkFlag::Process {
            within_process(client_ip, server_ip, nodes.pollers, cores)?
        } else {
            let peer = Peer::start(server_ip, link, nodes.pollers, cores.map(|cores| cores.server))?;
            let builder = link.builder().listen(SocketAddr::new(client_ip, 0)).pollers(nodes.pollers);
            let node = builder.start().map_err(|error| error.to_string())?;
            let address = peer.addresses[0];
            (node, Server::Process(peer), address)
        };
        let node = Arc::new(node);
        let client = Client::connect(Arc::clone(&node), address, kind)?;
        if link == LinkFlag::Shm {
            paths::await_memory(&node, address)?;
        }
        Ok(Self { client, node, server })
    }

    /// Resolves `auto` to a link by starting two nodes and checking their path. If that is not shared memory, the reason is
    /// returned too, and printed unless `is_quiet`.
    ///
    /// # Errors
    /// See [`Session::start`].
    pub(crate) fn link(
        link: LinkFlag,
        nodes: &Nodes,
        is_quiet: bool,
    ) -> Result<(LinkFlag, Option<&'static str>), Failure> {
        if link != LinkFlag::Auto {
            return Ok((link, None));
        }
        let session = Self::start(link, nodes, Kind::Poller, None)?;
        let why = paths::become_memory(&session.node, session.client.server(), PROBE).err();
        if let (Some(why), false) = (why, is_quiet) {
            output::err(&format!("note: the link is udp: {why}"));
        }
        Ok((if why.is_none() { LinkFlag::Shm } else { LinkFlag::Udp }, why))
    }

    /// Measures calls.
    ///
    /// # Errors
    /// Fails with the reason if a call fails, or if the server has died.
    pub(crate) fn measure(&self, plan: Plan) -> Result<Sample, Failure> {
        self.client.measure(plan).map_err(|why| self.death().unwrap_or(Failure::Unmeasured(why)))
    }

    /// Runs a job on the given number of workers.
    ///
    /// # Errors
    /// Fails with the reason if a worker cannot call, or if the server has died.
    pub(crate) fn run<J: Job>(&self, job: &Arc<J>, workers: usize) -> Result<(), Failure> {
        self.client.run(job, workers).map_err(|why| self.death().unwrap_or(Failure::Unmeasured(why)))
    }

    /// Returns the client.
    pub(crate) const fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the client's node.
    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    /// Returns the number of the server process.
    pub(crate) fn server_process(&self) -> Option<u32> {
        match &self.server {
            Server::Process(peer) => Some(peer.process()),
            Server::Here { .. } => None,
        }
    }

    /// Returns how the server process ended, if it has ended.
    pub(crate) fn death(&self) -> Option<Failure> {
        match &self.server {
            Server::Process(peer) => peer.death(),
            Server::Here { .. } => None,
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.node.shutdown();
        if let Server::Here { node, .. } = &self.server {
            node.shutdown();
        }
    }
}

fn within_process(
    client: IpAddr,
    server: IpAddr,
    pollers: u16,
    cores: Option<Cores>,
) -> Result<(Node, Server, SocketAddr), String> {
    let host = Host::new()?;
    let serving = stream_budget(host.node(server, pollers));
    let serving = serving.serve(EchoServer::new(Mirror)).serve(FeedServer::new(Source));
    // A node's threads inherit the core of the thread that starts it.
    let started = thread::scope(|scope| {
        let start = || {
            cores.map_or(Ok(()), |cores| pin::to(cores.server))?;
            serving.start().map_err(|error| error.to_string())
        };
        scope.spawn(start).join().unwrap_or_else(|_| Err("the server's node panicked".to_owned()))
    })?;
    let address = started.local_address();
    let node = host.node(client, pollers).start().map_err(|error| error.to_string())?;
    Ok((node, Server::Here { node: started, _host: host }, address))
}
