//! A node: what a program starts once, and everything it serves and calls through.
//!
//! Owns the pollers' inboxes and the transport's node. Applications and [`Channel`]s call it from any thread.

use crate::budgets::{Budgets, Limits};
use crate::client::Channel;
use crate::context::PollerContext;
use crate::inbox::{Inbox, Work};
use crate::server::Service;
use crate::start_error::StartError;
use crate::status::{Code, Status};
use crate::upper::RpcPoller;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use trunkline_rings::cell::{self, Getter};
use trunkline_transport::{
    Connections, Limit, NicOptions, NodeOptions, NodeReport, Pinning, PollerIndex, ProviderChoice,
};
use trunkline_verbs::Clock;

/// How long a shutdown waits for handlers that still run.
const GRACE: Duration = Duration::from_secs(1);

/// The settings of a node to start. The defaults suit one service on one machine.
#[derive(Debug)]
#[must_use]
pub struct NodeBuilder {
    options: NodeOptions,
    listen: Result<Vec<SocketAddr>, (String, std::io::Error)>,
    pollers: u16,
    limits: Limits,
    services: Vec<Service>,
}

impl NodeBuilder {
    fn new() -> Self {
        Self {
            options: NodeOptions::new(),
            listen: Ok(Vec::new()),
            pollers: 1,
            limits: Limits::default(),
            services: Vec::new(),
        }
    }

    /// Adds an address to listen on; port 0 takes a free port. A node that only calls needs none: it uses
    /// its NIC's address, or on the software device a loopback address of its own.
    pub fn listen(mut self, address: impl ToSocketAddrs + fmt::Debug) -> Self {
        if let Ok(all) = &mut self.listen {
            match address.to_socket_addrs() {
                Ok(more) => all.extend(more),
                Err(cause) => self.listen = Err((format!("{address:?}"), cause)),
            }
        }
        self
    }

    /// Adds a service, such as a generated server.
    pub fn serve(mut self, service: impl Into<Service>) -> Self {
        self.services.push(service.into());
        self
    }

    /// Number of pollers, 1 (the default) to 32. Each is a thread with its own handler of every service.
    pub fn pollers(mut self, pollers: u16) -> Self {
        self.pollers = pollers;
        self
    }

    /// Which provider to use. By default `TRUNKLINE_PROVIDER` decides, and without it `Auto`.
    pub fn provider(mut self, provider: ProviderChoice) -> Self {
        self.options = self.options.provider(provider);
        self
    }

    /// XRC or RC connections. By default `TRUNKLINE_CONNECTIONS` decides, and without it XRC is used if the
    /// device has it. Nodes that communicate with each other need the same kind.
    pub fn connections(mut self, connections: Connections) -> Self {
        self.options = self.options.connections(connections);
        self
    }

    /// Which NIC to use. By default `TRUNKLINE_DEVICE` and `TRUNKLINE_GID_INDEX` decide, and without them the
    /// first NIC that can serve is used.
    pub fn nic(mut self, nic: NicOptions) -> Self {
        self.options = self.options.nic(nic);
        self
    }

    /// Which CPUs the pollers run on; `Off` by default.
    pub fn pinning(mut self, pinning: Pinning) -> Self {
        self.options = self.options.pinning(pinning);
        self
    }

    /// Whether the node may listen on addresses other than loopback although peers are not authenticated;
    /// `false` by default.
    pub fn allow_unauthenticated(mut self, allow: bool) -> Self {
        self.options = self.options.allow_unauthenticated(allow);
        self
    }

    /// Largest message in bytes: the arguments or the result of a call, with headers. At least 64 KiB;
    /// 64 MiB + 64 KiB by default.
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.options = self.options.max_message_bytes(bytes);
        self
    }

    /// Bytes of memory for large messages that are being received or still held. At least the largest
    /// message + 64 KiB; 256 MiB by default.
    pub fn rendezvous_bytes(mut self, bytes: usize) -> Self {
        self.options = self.options.rendezvous_bytes(bytes);
        self
    }

    /// Receives that each poller keeps posted at first, and at most: 512 and 8,192 by default, 16 to 16,384. Each
    /// poller of each peer holds one; the depth grows with them.
    pub fn srq_depth(mut self, first: u32, limit: u32) -> Self {
        self.options = self.options.srq_depth(first).srq_depth_limit(limit);
        self
    }

    /// The part of `rendezvous_bytes` that one peer may use; half of it by default. At least the largest message
    /// + 64 KiB. A message for which there is no memory waits, and fails after 30 s.
    pub fn rendezvous_bytes_per_peer(mut self, bytes: usize) -> Self {
        self.options = self.options.rendezvous_bytes_per_peer(bytes);
        self
    }

    /// Messages that may wait to be sent to one peer, and to all: 65,536 and 262,144 by default. Further calls
    /// are refused, and so are requests of a peer that leaves little room for replies.
    pub fn queued_messages(mut self, limit: Limit) -> Self {
        self.options = self.options.queued_messages(limit);
        self
    }

    /// Bytes of messages that wait to be sent, and of large ones that their peer has not READ: 128 MiB to one peer
    /// and 512 MiB to all by default. At least the largest message.
    pub fn queued_bytes(mut self, limit: Limit) -> Self {
        self.options = self.options.queued_bytes(limit);
        self
    }

    /// Large messages that are announced and not READ yet, in each direction: 4,096 of one peer and 16,384 of
    /// all by default. Further ones wait.
    pub fn large_messages(mut self, limit: Limit) -> Self {
        self.options = self.options.large_messages(limit);
        self
    }

    /// A peer that takes none of the messages that wait for it for this long loses its session; 60 s by default.
    pub fn stall_limit(mut self, limit: Duration) -> Self {
        self.options = self.options.stall_limit(limit);
        self
    }

    /// Handlers that may run at once for one peer, and for all. A call beyond that is refused with
    /// `ResourceExhausted` and has not run. 16,384 per peer and 65,536 in all by default.
    pub fn handler_limit(mut self, limit: Limit) -> Self {
        self.limits.handlers = limit;
        self
    }

    /// Calls from this node that may be under way at once to one peer, and to all. A call beyond that is
    /// refused with `ResourceExhausted`. 65,536 per peer and 262,144 in all by default.
    pub fn call_limit(mut self, limit: Limit) -> Self {
        self.limits.calls = limit;
        self
    }

    /// Injects faults on the software device's link, in the format of `TRUNKLINE_FAULTS` and in place of
    /// that variable: `drop=0.01,reorder=0.01,seed=7`.
    ///
    /// # Errors
    /// [`StartError::BadSetting`] when the text cannot be parsed.
    pub fn faults(mut self, text: &str) -> Result<Self, StartError> {
        self.options = self.options.faults(text).map_err(StartError::from_transport)?;
        Ok(self)
    }

    /// For simulations: replaces everything but pollers, addresses and services by the transport's
    /// options, which can name a simulated runtime and a software device.
    #[doc(hidden)]
    pub fn transport(mut self, options: NodeOptions) -> Self {
        self.options = options;
        self
    }

    /// Starts the node.
    ///
    /// # Errors
    /// The cause and the remedy.
    pub fn start(self) -> Result<Node, StartError> {
        let mut options = self.options.pollers(self.pollers);
        // The same seed must give the same run, so a simulation does not depend on the environment.
        if options.clock().as_virtual().is_none() {
            options = options.or_from_env().map_err(StartError::from_transport)?;
        }
        for address in self.listen.map_err(|(address, cause)| StartError::BadAddress { address, cause })? {
            options = options.listen(address);
        }
        let (services, clock) = (self.services, options.clock().clone());
        for (at, service) in services.iter().enumerate() {
            if services[..at].iter().any(|other| other.name.hash == service.name.hash) {
                return Err(StartError::DuplicateService(service.name.name));
            }
        }
        self.limits.check()?;
        let budgets = Budgets::new(self.limits, self.pollers);
        let inboxes: Arc<[_]> = (0..self.pollers).map(|_| Arc::new(Inbox::new())).collect();
        let (of_pollers, of_node, shared) = (Arc::clone(&inboxes), clock.clone(), budgets.clone());
        let node = trunkline_transport::Node::start(options, move |index: PollerIndex| {
            let inbox = Arc::clone(&of_pollers[usize::from(index.0)]);
            RpcPoller::new(index, inbox, &services, clock.clone(), &shared)
        })
        .map_err(StartError::from_transport)?;
        for (inbox, handle) in inboxes.iter().zip(node.poller_handles()) {
            inbox.attach(handle);
        }
        Ok(Node {
            local_address: node.local_address(),
            clock: of_node,
            inboxes,
            budgets,
            state: Mutex::new(State::Running(node)),
        })
    }
}

/// A running node. Dropping it shuts it down, with a shorter grace period than [`Node::shutdown`].
pub struct Node {
    local_address: SocketAddr,
    clock: Clock,
    inboxes: Arc<[Arc<Inbox>]>,
    budgets: Budgets,
    state: Mutex<State>,
}

enum State {
    Running(trunkline_transport::Node),
    /// Holds the last report.
    Ended(Box<NodeReport>),
}

impl Node {
    /// The settings of a node to start.
    pub fn builder() -> NodeBuilder {
        NodeBuilder::new()
    }

    /// The first address that the node listens on, with the port that it was given.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// The node's state and counters; after a shutdown, those from before it.
    #[must_use]
    pub fn report(&self) -> NodeReport {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Running(node) => self.complete(node.report()),
            State::Ended(report) => (**report).clone(),
        }
    }

    /// The transport's report with what this layer adds.
    fn complete(&self, mut report: NodeReport) -> NodeReport {
        report.budgets.splice(0..0, self.budgets.report());
        report
    }

    /// Runs a task on a poller, where it may use local clients and need not be `Send`. The returned future
    /// is the task's output.
    ///
    /// # Errors
    /// `InvalidArgument` when there is no such poller, `ResourceExhausted` when its queue is full,
    /// `Unavailable` when the node has shut down, `Internal` when the task panicked.
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
            // `task` is called inside the future, so a panic in it ends the task only.
            let context = context.clone();
            Box::pin(async move {
                let output = task(context).await;
                // If nobody waits any more, the output is dropped.
                let _ = setter.set(output);
            })
        }));
        let inbox = self.inboxes.get(usize::from(poller.0));
        let refusal = match inbox {
            None => Some(Status::not_run(Code::InvalidArgument, format!("there is no poller {}", poller.0))),
            Some(inbox) => inbox
                .push(spawn)
                .err()
                .map(|_| Status::not_run(Code::ResourceExhausted, "the queue of this poller is full")),
        };
        RunOn { refusal, getter, inbox: inbox.cloned() }
    }

    /// Shuts the node down and waits for the end: new calls are refused, handlers that run have 1 s to
    /// finish, and the sessions with peers are closed.
    pub fn shutdown(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State::Running(node) = &*state else { return };
        let ended = State::Ended(Box::new(self.complete(node.report())));
        if let State::Running(node) = std::mem::replace(&mut *state, ended) {
            node.shutdown(GRACE);
        }
    }

    /// For simulations: begins what [`Node::shutdown`] does and does not wait. Has no effect after the
    /// first shutdown.
    #[doc(hidden)]
    pub fn begin_shutdown(&self, grace: Duration) {
        if let State::Running(node) = &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            node.begin_shutdown(grace);
        }
    }

    /// For simulations: whether all machines of the node have ended.
    #[doc(hidden)]
    #[must_use]
    pub fn is_ended(&self) -> bool {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Running(node) => node.is_ended(),
            State::Ended(_) => true,
        }
    }
}

impl Channel {
    /// A channel of `node` to the node that listens at `server`. A host name is resolved now, which may
    /// block.
    ///
    /// # Errors
    /// `InvalidArgument` when `server` is neither an address nor a name that resolves to one.
    pub fn connect(node: &Node, server: impl ToSocketAddrs) -> Result<Self, Status> {
        Self::new(Arc::clone(&node.inboxes), node.clock.clone(), server)
    }
}

/// The future of a task's output, from [`Node::run_on`]. The task continues when this is dropped.
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
