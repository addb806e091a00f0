//! Client that makes calls from tasks on its node's poller, from threads or from tokio tasks.

use crate::calls::echo::{EchoClient, EchoLocal};
use crate::calls::worker::{Measurement, Plan};
use crate::meter::recorder::Sample;
use clap::ValueEnum;
use serde::Serialize;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use trunkline::{Bytes, Node, PollerIndex, block_on};

/// Maximum number of calls in flight from threads. Each call in flight occupies a thread.
pub(crate) const MOST_THREADS: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CallerKind {
    /// Tasks on the client node's poller.
    Poller,
    /// Threads that block, one for each outstanding call.
    Thread,
    /// Tasks of a tokio runtime with one thread.
    Tokio,
}

impl CallerKind {
    /// Returns the name used on the command line and in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Poller => "poller",
            Self::Thread => "thread",
            Self::Tokio => "tokio",
        }
    }
}

/// Client that calls one server from one kind of caller.
#[derive(Debug)]
pub(crate) struct Client {
    node: Arc<Node>,
    server: SocketAddr,
    kind: CallerKind,
    client: EchoClient,
}

impl Client {
    /// Connects and makes the first call.
    ///
    /// # Errors
    /// Returns an error if the first call fails.
    pub(crate) fn connect(node: Arc<Node>, server: SocketAddr, kind: CallerKind) -> Result<Self, String> {
        let client = EchoClient::connect(&node, server).map_err(|status| status.to_string())?;
        block_on(client.echo(Bytes::new())).map_err(|status| format!("the first call failed: {status}"))?;
        Ok(Self { node, server, kind, client })
    }

    /// Returns a client that any thread may use.
    pub(crate) const fn sendable(&self) -> &EchoClient {
        &self.client
    }

    pub(crate) const fn server(&self) -> SocketAddr {
        self.server
    }

    /// Measures calls according to the plan.
    ///
    /// # Errors
    /// Returns an error if a call failed, or if too few calls completed.
    pub(crate) fn measure(&self, plan: Plan) -> Result<Sample, String> {
        let measurement = Arc::new(Measurement::begin(plan));
        self.run(&measurement, plan.outstanding)?;
        measurement.finish()
    }

    /// Runs a measurement with the given number of workers, and waits until all of them have finished.
    ///
    /// # Errors
    /// Returns an error if a worker's call fails.
    pub(crate) fn run(&self, measurement: &Arc<Measurement>, workers: usize) -> Result<(), String> {
        match self.kind {
            CallerKind::Poller => self.on_poller(measurement, workers),
            CallerKind::Thread => {
                thread::scope(|scope| {
                    for _ in 0..workers {
                        scope.spawn(|| block_on(measurement.work(&self.client)));
                    }
                });
                Ok(())
            }
            CallerKind::Tokio => self.on_tokio(measurement, workers),
        }
    }

    fn on_poller(&self, measurement: &Arc<Measurement>, workers: usize) -> Result<(), String> {
        let tasks: Vec<_> = (0..workers)
            .map(|_| {
                let (server, measurement) = (self.server, Arc::clone(measurement));
                self.node.run_on(PollerIndex(0), async move |context| {
                    match EchoLocal::connect(&context, server) {
                        Ok(calls) => measurement.work(&calls).await,
                        Err(status) => measurement.failed(status.to_string()),
                    }
                })
            })
            .collect();
        for task in tasks {
            block_on(task).map_err(|status| format!("a task on the poller failed: {status}"))?;
        }
        Ok(())
    }

    fn on_tokio(&self, measurement: &Arc<Measurement>, workers: usize) -> Result<(), String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .map_err(|error| format!("cannot start tokio: {error}"))?;
        let tasks = tokio::task::LocalSet::new();
        for _ in 0..workers {
            let (client, measurement) = (self.client.clone(), Arc::clone(measurement));
            drop(tasks.spawn_local(async move { measurement.work(&client).await }));
        }
        runtime.block_on(tasks);
        Ok(())
    }
}
