//! A client node that calls several servers.

use crate::calls::echo::{Calls, Request};
use crate::calls::servers::{Fleet, Local, Servers};
use crate::calls::worker::Measurement;
use crate::meter::failure::Failure;
use crate::meter::pin::{self, Cores};
use crate::meter::stopwatch::Stopwatch;
use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use trunkline::{Bytes, Node, PollerIndex, Status, block_on};

/// The client and its servers. They are stopped on drop.
pub(super) struct Client {
    node: Node,
    fleet: Fleet,
    servers: Servers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    OneAfterTheOther,
    AtOnce,
}

/// Calls from a worker to the services of one server in turn.
struct Turns {
    clients: Vec<Local>,
    next: Cell<usize>,
}

impl Client {
    /// Starts all nodes. The calling thread stays pinned to the client's core.
    ///
    /// # Errors
    /// Returns an error if a node does not start.
    pub(super) fn start(fleet: Fleet, cores: Option<Cores>) -> Result<Self, Failure> {
        cores.map_or(Ok(()), |cores| pin::to(cores.client))?;
        let servers = fleet.start()?;
        Ok(Self { node: servers.client(None)?, fleet, servers })
    }

    /// Runs at least one worker per server until the measurement is over.
    ///
    /// # Errors
    /// Returns an error if a worker's call fails.
    pub(super) fn work(&self, measurement: &Arc<Measurement>, workers: u16) -> Result<(), Failure> {
        self.first_calls(Stopwatch::start(), Order::AtOnce)?;
        let workers = workers.max(self.fleet.servers);
        let tasks: Vec<_> = (0..workers)
            .zip(self.servers.addresses.iter().copied().cycle())
            .map(|(worker, server)| {
                let (services, measurement) = (self.fleet.services, Arc::clone(measurement));
                self.node.run_on(PollerIndex(worker % self.fleet.pollers), async move |context| {
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

    /// Makes the first call to each server. Returns the durations of these calls in nanoseconds.
    ///
    /// # Errors
    /// Returns an error if a call fails.
    pub(super) fn first_calls(&self, watch: Stopwatch, order: Order) -> Result<Vec<u64>, Failure> {
        let call = |&server: &SocketAddr| {
            self.node.run_on(PollerIndex(0), async move |context| {
                let began_ns = watch.now_ns();
                Local::connect(&context, server, 0)?.echo(Bytes::new()).await?;
                Ok::<_, Status>(watch.now_ns() - began_ns)
            })
        };
        let calls = self.servers.addresses.iter().map(call);
        match order {
            Order::OneAfterTheOther => calls.map(|call| self.wait(call)).collect(),
            Order::AtOnce => calls.collect::<Vec<_>>().into_iter().map(|call| self.wait(call)).collect(),
        }
    }

    fn wait<T>(&self, call: impl Future<Output = Result<Result<T, Status>, Status>>) -> Result<T, Failure> {
        block_on(call).and_then(|ended| ended).map_err(|status| self.named(&status))
    }

    fn named(&self, status: &Status) -> Failure {
        self.servers.named(format!("a call failed: {status}"))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.node.shutdown();
    }
}

impl Calls for Turns {
    async fn call(&self, _: Request, payload: Bytes) -> Result<Bytes, Status> {
        let next = self.next.get();
        self.next.set((next + 1) % self.clients.len());
        self.clients[next].echo(payload).await
    }
}
