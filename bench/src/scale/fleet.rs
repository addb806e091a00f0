//! A client node and some servers: nodes in this process, or in a separate one.

use crate::echo::Calls;
use crate::failure::Failure;
use crate::in_process::Host;
use crate::nodes::LinkFlag;
use crate::peer::Peer;
use crate::pin::{self, Cores};
use crate::servers::{Local, Wanted, serve};
use crate::stopwatch::Stopwatch;
use crate::worker::Measurement;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use trunkline::{Bytes, Node, NodeBuilder, PollerIndex, Status, block_on};
use trunkline_testkit::fresh_ip;

/// A running fleet, which ends when this value is dropped.
pub(super) struct Fleet {
    client: Node,
    addresses: Vec<SocketAddr>,
    wanted: Wanted,
    servers: Servers,
}

enum Servers {
    Process(Peer),
    /// Nodes in this process, with the host that they share.
    Here {
        nodes: Vec<Node>,
        _host: Host,
    },
}

/// The calls of a worker to one server, to its services in turn.
struct Turns {
    clients: Vec<Local>,
    next: std::cell::Cell<usize>,
}

impl Fleet {
    /// Starts the fleet. The calling thread stays pinned to the client's core.
    ///
    /// # Errors
    /// Fails with the reason if a node does not start.
    pub(super) fn start(link: LinkFlag, wanted: Wanted, cores: Option<Cores>) -> Result<Self, Failure> {
        cores.map_or(Ok(()), |cores| pin::to(cores.client))?;
        let listening = |builder: NodeBuilder| {
            builder.listen(SocketAddr::new(fresh_ip().into(), 0)).pollers(wanted.pollers)
        };
        let named = |error: trunkline::StartError| error.to_string();
        if link != LinkFlag::Process {
            let peer = Peer::start_fleet(wanted, link, cores.map(|cores| cores.server))?;
            let client = listening(link.builder()).start().map_err(named)?;
            let addresses = peer.addresses.clone();
            return Ok(Self { client, addresses, wanted, servers: Servers::Process(peer) });
        }
        let host = Host::new()?;
        let builder = || host.node(fresh_ip().into(), wanted.pollers);
        let serving = (0..wanted.servers).map(|_| serve(builder(), wanted.services)).collect::<Vec<_>>();
        // A node's threads inherit the core of the thread that starts it.
        let nodes = thread::scope(|scope| {
            let start = || {
                cores.map_or(Ok(()), |cores| pin::to(cores.server))?;
                serving
                    .into_iter()
                    .map(|node| node.start().map_err(named))
                    .collect::<Result<Vec<_>, String>>()
            };
            scope.spawn(start).join().unwrap_or_else(|_| Err("a server's node panicked".to_owned()))
        })?;
        let addresses = nodes.iter().map(Node::local_address).collect();
        let client = builder().start().map_err(named)?;
        Ok(Self { client, addresses, wanted, servers: Servers::Here { nodes, _host: host } })
    }

    /// Runs the workers, at least one per server, until the measurement is over.
    ///
    /// # Errors
    /// Fails with the reason if a worker cannot call.
    pub(super) fn work(&self, measurement: &Arc<Measurement>, workers: u16) -> Result<(), Failure> {
        self.first_calls(Stopwatch::start(), true)?;
        let workers = workers.max(self.wanted.servers);
        let tasks: Vec<_> = (0..workers)
            .map(|worker| {
                let server = self.addresses[usize::from(worker) % self.addresses.len()];
                let (services, measurement) = (self.wanted.services, Arc::clone(measurement));
                self.client.run_on(PollerIndex(worker % self.wanted.pollers), async move |context| {
                    let connect = |service| Local::connect(&context, server, service);
                    match (0..services).map(connect).collect::<Result<Vec<_>, _>>() {
                        Ok(clients) => measurement.work(&Turns { clients, next: 0.into() }).await,
                        Err(status) => measurement.failed(status.to_string()),
                    }
                })
            })
            .collect();
        for task in tasks {
            block_on(task).map_err(|status| self.named(&status))?;
        }
        Ok(())
    }

    /// Makes the first call to each server, all at once or one after the other. Returns the duration of each in nanoseconds.
    ///
    /// # Errors
    /// Fails with the reason if a call fails.
    pub(super) fn first_calls(&self, watch: Stopwatch, at_once: bool) -> Result<Vec<u64>, Failure> {
        let call = |server: SocketAddr| {
            self.client.run_on(PollerIndex(0), async move |context| {
                let began_ns = watch.now_ns();
                Local::connect(&context, server, 0)?.echo(Bytes::new()).await?;
                Ok::<_, Status>(watch.now_ns() - began_ns)
            })
        };
        if at_once {
            let calls = self.addresses.iter().map(|server| call(*server)).collect::<Vec<_>>();
            return calls.into_iter().map(|call| self.wait(call)).collect();
        }
        self.addresses.iter().map(|server| self.wait(call(*server))).collect()
    }

    fn wait<T>(&self, call: impl Future<Output = Result<Result<T, Status>, Status>>) -> Result<T, Failure> {
        block_on(call).and_then(|ended| ended).map_err(|status| self.named(&status))
    }

    fn named(&self, status: &Status) -> Failure {
        let death = match &self.servers {
            Servers::Process(peer) => peer.death(),
            Servers::Here { .. } => None,
        };
        death.unwrap_or_else(|| Failure::Unmeasured(format!("a call failed: {status}")))
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.client.shutdown();
        if let Servers::Here { nodes, .. } = &self.servers {
            nodes.iter().for_each(Node::shutdown);
        }
    }
}

impl Calls for Turns {
    async fn echo(&self, payload: Bytes) -> Result<Bytes, Status> {
        let next = self.next.get();
        self.next.set((next + 1) % self.clients.len());
        self.clients[next].echo(payload).await
    }

    async fn absorb(&self, payload: Bytes) -> Result<Bytes, Status> {
        self.echo(payload).await
    }

    async fn digest(&self, payload: Bytes) -> Result<Bytes, Status> {
        self.echo(payload).await
    }

    async fn post(&self, payload: Bytes) -> Result<(), Status> {
        self.echo(payload).await.map(drop)
    }
}
