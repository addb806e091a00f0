//! A client that is connected to its server, and the nodes or processes of both.

use crate::calls::client::{CallerKind, Client};
use crate::calls::nodes::{LinkFlag, Nodes};
use crate::calls::paths;
use crate::calls::servers::{Fleet, Servers};
use crate::calls::worker::{Measurement, Plan};
use crate::meter::failure::Failure;
use crate::meter::pin::{self, Cores};
use crate::meter::recorder::Sample;
use std::sync::Arc;
use std::time::Duration;
use trunkline::Node;
use trunkline_testkit::output;

/// Time limit for shared memory in a probe. Its set-up takes some milliseconds.
const PROBE: Duration = Duration::from_millis(300);

/// A connected client and its server.
pub(crate) struct Session {
    client: Client,
    node: Arc<Node>,
    servers: Servers,
}

impl Session {
    /// Starts both nodes, each on its core, and connects them. The calling thread stays pinned to the client's core.
    ///
    /// # Errors
    /// Returns an error if a node does not start or the first call fails.
    pub(crate) fn start(
        link: LinkFlag,
        nodes: &Nodes,
        kind: CallerKind,
        cores: Option<Cores>,
    ) -> Result<Self, Failure> {
        cores.map_or(Ok(()), |cores| pin::to(cores.client))?;
        let fleet = Fleet {
            address: nodes.peer_address,
            link,
            servers: 1,
            pollers: nodes.pollers,
            services: 0,
            core: cores.map(|cores| cores.server),
            encrypted: nodes.encrypted,
        };
        let servers = fleet.start()?;
        let (node, address) = (Arc::new(servers.client(nodes.address)?), servers.addresses[0]);
        let client = Client::connect(Arc::clone(&node), address, kind)?;
        if link == LinkFlag::Shm {
            paths::await_memory(&node, address)?;
        }
        Ok(Self { client, node, servers })
    }

    /// Resolves `auto` to a link by starting two nodes and checking the path between them. If the path is not shared
    /// memory, also returns the reason, and prints it unless `is_quiet` is true.
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
        let session = Self::start(link, nodes, CallerKind::Poller, None)?;
        let why = paths::become_memory(&session.node, session.client.server(), PROBE).err();
        if let (Some(why), false) = (why, is_quiet) {
            output::err(&format!("note: the link is udp: {why}"));
        }
        Ok((if why.is_none() { LinkFlag::Shm } else { LinkFlag::Udp }, why))
    }

    /// Measures calls.
    ///
    /// # Errors
    /// Returns an error if a call fails or the server has exited.
    pub(crate) fn measure(&self, plan: Plan) -> Result<Sample, Failure> {
        self.client.measure(plan).map_err(|why| self.servers.named(why))
    }

    /// Runs a measurement with the given number of workers.
    ///
    /// # Errors
    /// Returns an error if a worker's call fails or the server has exited.
    pub(crate) fn run(&self, measurement: &Arc<Measurement>, workers: usize) -> Result<(), Failure> {
        self.client.run(measurement, workers).map_err(|why| self.servers.named(why))
    }

    pub(crate) const fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    pub(crate) const fn servers(&self) -> &Servers {
        &self.servers
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.node.shutdown();
    }
}
