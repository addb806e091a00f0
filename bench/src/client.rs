//! The client: tasks on its node's poller, threads, or tasks of tokio.

use crate::echo::{EchoClient, EchoLocal};
use crate::recorder::Sample;
use crate::worker::{Measurement, Plan};
use clap::ValueEnum;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use trunkline::{Bytes, Node, PollerIndex, block_on};

/// Most calls under way by threads: each needs one.
pub(crate) const MOST_THREADS: usize = 256;

/// Who makes the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Tasks on the client node's poller.
    Poller,
    /// Threads that block, one for each call under way.
    Thread,
    /// Tasks of a tokio runtime with one thread.
    Tokio,
}

impl Kind {
    /// Its name on the command line and in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Poller => "poller",
            Self::Thread => "thread",
            Self::Tokio => "tokio",
        }
    }
}

/// Calls of one kind to one server.
#[derive(Debug)]
pub(crate) struct Client {
    node: Arc<Node>,
    server: SocketAddr,
    kind: Kind,
    client: EchoClient,
}

impl Client {
    /// Connects, and makes the first call.
    ///
    /// # Errors
    /// Why that fails.
    pub(crate) fn connect(node: Arc<Node>, server: SocketAddr, kind: Kind) -> Result<Self, String> {
        let client = EchoClient::connect(&node, server).map_err(|status| status.to_string())?;
        block_on(client.echo(Bytes::new())).map_err(|status| format!("the first call failed: {status}"))?;
        Ok(Self { node, server, kind, client })
    }

    /// The client that any thread may use.
    pub(crate) const fn sendable(&self) -> &EchoClient {
        &self.client
    }

    /// Measures.
    ///
    /// # Errors
    /// Why a call failed, or that too few ended.
    pub(crate) fn measure(&self, plan: Plan) -> Result<Sample, String> {
        match self.kind {
            Kind::Poller => self.on_poller(plan),
            Kind::Thread => self.on_threads(plan),
            Kind::Tokio => self.on_tokio(plan),
        }
    }

    fn on_poller(&self, plan: Plan) -> Result<Sample, String> {
        let measurement = Arc::new(Measurement::begin(plan));
        let tasks: Vec<_> = (0..plan.outstanding)
            .map(|_| {
                let (server, measurement) = (self.server, Arc::clone(&measurement));
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
        measurement.finish()
    }

    fn on_threads(&self, plan: Plan) -> Result<Sample, String> {
        let measurement = Measurement::begin(plan);
        thread::scope(|scope| {
            for _ in 0..plan.outstanding {
                scope.spawn(|| block_on(measurement.work(&self.client)));
            }
        });
        measurement.finish()
    }

    fn on_tokio(&self, plan: Plan) -> Result<Sample, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .map_err(|error| format!("cannot start tokio: {error}"))?;
        let tasks = tokio::task::LocalSet::new();
        let measurement = Arc::new(Measurement::begin(plan));
        for _ in 0..plan.outstanding {
            let (client, measurement) = (self.client.clone(), Arc::clone(&measurement));
            drop(tasks.spawn_local(async move { measurement.work(&client).await }));
        }
        // The set ends when its tasks have.
        runtime.block_on(tasks);
        measurement.finish()
    }
}
