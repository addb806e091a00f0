//! A node: what a program starts once.

use crate::executor::PollerContext;
use crate::inbox::{Inbox, Work};
use crate::server::Service;
use crate::upper::RpcPoller;
use crate::{Code, Status};
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use trunkline_rings::cell::{self, Getter};
use trunkline_softrdma::device::{OpenError, SoftOptions};
use trunkline_softrdma::link::{FaultPlan, FaultPlanError};
use trunkline_transport::{
    Connections, NicOptions, NodeOptions, NodeReport, Pinning, PollerIndex, ProviderChoice,
};

/// How long a shutdown waits for calls that run.
const GRACE: Duration = Duration::from_secs(1);

/// Why a node did not start: the cause and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The transport could not start.
    #[error(transparent)]
    Transport(#[from] trunkline_transport::StartError),
    /// A setting of the software device in the environment is wrong.
    #[error(transparent)]
    Environment(#[from] OpenError),
    /// An address to listen on is none.
    #[error("cannot listen on {address}: {cause}")]
    BadAddress {
        /// As it was given.
        address: String,
        /// Why.
        cause: std::io::Error,
    },
    /// Two services have the same name, or names of the same hash.
    #[error(
        "the service {0} is offered twice; give one of them another name: #[trunkline::service(name = \"...\")]"
    )]
    DuplicateService(&'static str),
}

/// Settings of a node. The defaults suit one service on one machine.
#[derive(Debug)]
#[must_use]
pub struct NodeBuilder {
    options: NodeOptions,
    listen: Result<Vec<SocketAddr>, (String, std::io::Error)>,
    pollers: u16,
    faults: Option<FaultPlan>,
    services: Vec<Service>,
}

impl NodeBuilder {
    fn new() -> Self {
        Self {
            options: NodeOptions::new(),
            listen: Ok(Vec::new()),
            pollers: 1,
            faults: None,
            services: Vec::new(),
        }
    }

    /// Also listens here; port 0 takes a free one. A node that only calls may do without: it takes
    /// its NIC's, or on the software device a loopback address of its own.
    pub fn listen(mut self, address: impl ToSocketAddrs + fmt::Debug) -> Self {
        if let Ok(all) = &mut self.listen {
            match address.to_socket_addrs() {
                Ok(more) => all.extend(more),
                Err(cause) => self.listen = Err((format!("{address:?}"), cause)),
            }
        }
        self
    }

    /// Offers a service.
    pub fn serve(mut self, service: impl Into<Service>) -> Self {
        self.services.push(service.into());
        self
    }

    /// Number of pollers, 1 (the default) to 32. Each is a thread, and each has a handler of every
    /// service.
    pub fn pollers(mut self, pollers: u16) -> Self {
        self.pollers = pollers;
        self
    }

    /// Which provider; else `TRUNKLINE_PROVIDER`, else `Auto`.
    pub fn provider(mut self, provider: ProviderChoice) -> Self {
        self.options = self.options.provider(provider);
        self
    }

    /// XRC or RC connections; else `TRUNKLINE_CONNECTIONS`, else XRC if the device has it. All nodes
    /// that are to speak with each other need the same.
    pub fn connections(mut self, connections: Connections) -> Self {
        self.options = self.options.connections(connections);
        self
    }

    /// Which NIC; else `TRUNKLINE_DEVICE` and `TRUNKLINE_GID_INDEX`, else the first that can serve.
    pub fn nic(mut self, nic: NicOptions) -> Self {
        self.options = self.options.nic(nic);
        self
    }

    /// On which CPUs the pollers run; `Off` by default.
    pub fn pinning(mut self, pinning: Pinning) -> Self {
        self.options = self.options.pinning(pinning);
        self
    }

    /// Listens on other than loopback addresses although peers are not authenticated.
    pub fn allow_unauthenticated(mut self, allow: bool) -> Self {
        self.options = self.options.allow_unauthenticated(allow);
        self
    }

    /// Largest message in bytes, arguments or answer with their headers: 64 MiB and 64 KiB by
    /// default.
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.options = self.options.max_message_bytes(bytes);
        self
    }

    /// Memory for large messages that are being received or still held: 256 MiB by default.
    pub fn rendezvous_bytes(mut self, bytes: usize) -> Self {
        self.options = self.options.rendezvous_bytes(bytes);
        self
    }

    /// Faults on the software device's link, in the form of `TRUNKLINE_FAULTS`, and in its place.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn faults(mut self, text: &str) -> Result<Self, FaultPlanError> {
        self.faults = Some(text.parse()?);
        Ok(self)
    }

    /// Starts the node.
    ///
    /// # Errors
    /// The cause and what to do about it.
    pub fn start(self) -> Result<Node, StartError> {
        let mut options = self.options.pollers(self.pollers).or_from_env()?;
        for address in self.listen.map_err(|(address, cause)| StartError::BadAddress { address, cause })? {
            options = options.listen(address);
        }
        let mut device = SoftOptions::from_env()?;
        device.faults = self.faults.or(device.faults);
        let services = self.services;
        for (at, service) in services.iter().enumerate() {
            if services[..at].iter().any(|other| other.name.hash == service.name.hash) {
                return Err(StartError::DuplicateService(service.name.name));
            }
        }
        let inboxes: Arc<[_]> = (0..self.pollers).map(|_| Arc::new(Inbox::new())).collect();
        let of_pollers = Arc::clone(&inboxes);
        let node = trunkline_transport::Node::start(options.device(device), move |index: PollerIndex| {
            RpcPoller::new(index, Arc::clone(&of_pollers[usize::from(index.0)]), &services)
        })?;
        for (inbox, handle) in inboxes.iter().zip(node.poller_handles()) {
            inbox.attach(handle);
        }
        Ok(Node { local_address: node.local_address(), inboxes, state: Mutex::new(State::Running(node)) })
    }
}

/// A running node. Dropping it shuts it down.
pub struct Node {
    local_address: SocketAddr,
    inboxes: Arc<[Arc<Inbox>]>,
    state: Mutex<State>,
}

enum State {
    Running(trunkline_transport::Node),
    /// The last report.
    Ended(Box<NodeReport>),
}

impl Node {
    /// Settings of a node to be.
    pub fn builder() -> NodeBuilder {
        NodeBuilder::new()
    }

    /// Where it listens: the first of its addresses, with the port that it got.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// How it is and what it has done; after a shutdown, how it was then.
    #[must_use]
    pub fn report(&self) -> NodeReport {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Running(node) => node.report(),
            State::Ended(report) => (**report).clone(),
        }
    }

    /// Runs a task on a poller, where it may use local clients and need not be `Send`; answers its
    /// output.
    ///
    /// # Errors
    /// `InvalidArgument` when there is no such poller, `ResourceExhausted` when too much waits for
    /// it, `Unavailable` when the node has shut down, `Internal` when the task panicked.
    pub fn run_on<F, R>(
        &self,
        poller: PollerIndex,
        task: impl FnOnce(PollerContext) -> F + Send + 'static,
    ) -> RunOn<R>
    where
        F: Future<Output = R> + 'static,
        R: Send + 'static,
    {
        let (setter, getter) = cell::pair();
        let spawn = Work::Spawn(Box::new(move |context| {
            // The making of the task is part of the task: where it panics, the task ends.
            let context = context.clone();
            Box::pin(async move {
                let output = task(context).await;
                // Nobody may be waiting any more.
                let _ = setter.set(output);
            })
        }));
        let inbox = self.inboxes.get(usize::from(poller.0));
        let refusal = match inbox {
            None => Some(Status::not_run(Code::InvalidArgument, format!("there is no poller {}", poller.0))),
            Some(inbox) => inbox
                .push(spawn)
                .err()
                .map(|_| Status::not_run(Code::ResourceExhausted, "too much waits for this poller")),
        };
        RunOn { refusal, getter, inbox: inbox.cloned() }
    }

    /// Shuts it down: new calls are refused, those that run get a second to finish, peers are told.
    pub fn shutdown(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State::Running(node) = &*state else { return };
        let ended = State::Ended(Box::new(node.report()));
        if let State::Running(node) = std::mem::replace(&mut *state, ended) {
            node.shutdown(GRACE);
        }
    }

    pub(crate) fn inboxes(&self) -> Arc<[Arc<Inbox>]> {
        Arc::clone(&self.inboxes)
    }
}

/// The output of a task of [`Node::run_on`]. The task goes on when this is dropped.
#[derive(Debug)]
pub struct RunOn<R> {
    refusal: Option<Status>,
    getter: Getter<R>,
    inbox: Option<Arc<Inbox>>,
}

impl<R> Future for RunOn<R> {
    type Output = Result<R, Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(status) = self.refusal.take() {
            return Poll::Ready(Err(status));
        }
        let ended = std::task::ready!(Pin::new(&mut self.getter).poll(context));
        Poll::Ready(ended.map_err(|_| match &self.inbox {
            Some(inbox) if inbox.is_closed() => Status::unavailable("this node has shut down"),
            _ => Status::internal("the task panicked"),
        }))
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("local_address", &self.local_address).finish_non_exhaustive()
    }
}
