//! A node: what a program starts once, and everything it serves and calls through.
//!
//! Owns the pollers' inboxes and the transport's node; how it ends is in `ending`. Applications and [`Channel`]s call it from any thread.

use crate::budgets::{Budgets, Limits};
use crate::client::Channel;
use crate::context::PollerContext;
use crate::inbox::{Inbox, Work};
use crate::inboxes::Inboxes;
use crate::lifecycle::Lifecycle;
use crate::on_poller;
use crate::reason::Reason;
use crate::server::{LimitReports, MethodNumbers, Service};
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
    Connections, DeviceCounter, Limit, NicOptions, NodeOptions, NodeReport, Pinning, PollerIndex,
    ProviderChoice, RegisteredBuffer,
};
use trunkline_verbs::{Clock, headroom};

mod ending;

/// The settings of a node to start. The defaults suit one service on one machine.
#[derive(Debug)]
#[must_use]
pub struct NodeBuilder {
    options: NodeOptions,
    listen: Result<Vec<SocketAddr>, (String, std::io::Error)>,
    pollers: u16,
    limits: Limits,
    services: Vec<Service>,
    grace: Duration,
}

impl NodeBuilder {
    fn new() -> Self {
        Self {
            options: NodeOptions::new(),
            listen: Ok(Vec::new()),
            pollers: 1,
            limits: Limits::default(),
            services: Vec::new(),
            grace: ending::DEFAULT_GRACE,
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

    /// How long [`Node::drain`] and [`Node::shutdown`] wait for handlers that run; 10 s by default, which is the time
    /// limit of a call that was not given another: after it nobody waits for such a handler.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
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

    /// Messages that may wait to be sent to one peer, and to all: 65,536 and 262,144 by default. Further calls wait, or
    /// are refused ([`CallOptions::admission`](crate::CallOptions::admission)), and so are requests of a peer that leaves little room
    /// for replies.
    pub fn queued_messages(mut self, limit: Limit) -> Self {
        self.options = self.options.queued_messages(limit);
        self
    }

    /// Bytes of messages that wait to be sent, and of large ones that their peer has not READ: 128 MiB to one peer
    /// and 512 MiB to all by default. At least the largest message. As many bytes of large replies may wait for room among these.
    pub fn queued_bytes(mut self, limit: Limit) -> Self {
        self.limits.waiting_replies = limit;
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

    /// Calls from this node that may be under way at once to one peer, and to all. A call beyond that waits, or is
    /// refused ([`CallOptions::admission`](crate::CallOptions::admission)). An eighth of each, at least 1 unless it is 1, is reserved for
    /// calls that handlers make. 65,536 per peer and 262,144 in all by default.
    pub fn call_limit(mut self, limit: Limit) -> Self {
        self.limits.calls = limit;
        self
    }

    /// Bytes of memory that the decoded arguments of handlers that run may take for one peer, and for all: 256 MiB
    /// and 1 GiB by default, at least 64 KiB. A call beyond that is refused with `ResourceExhausted` and has not
    /// run. A reply may take as much as one peer's arguments while it is decoded; then it is the caller's. `Bytes`
    /// are not decoded.
    pub fn decoded_bytes(mut self, limit: Limit) -> Self {
        self.limits.decoded = limit;
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
        let mut limits = LimitReports::default();
        for service in &services {
            service.check()?;
            service.report_limits(&mut limits);
        }
        self.limits.check()?;
        headroom::check(usize::from(self.pollers).saturating_mul(Inbox::BYTES))
            .map_err(StartError::no_room)?;
        let budgets = Budgets::new(self.limits, self.pollers);
        let lifecycle = Lifecycle::new(self.pollers);
        let inbox = |_| Arc::new(Inbox::new(Arc::clone(&lifecycle)));
        let inboxes = Inboxes::new((0..self.pollers).map(inbox));
        let numbers = MethodNumbers::default();
        let (of_pollers, of_node, shared) = (Arc::clone(&inboxes), clock.clone(), budgets.clone());
        let node = trunkline_transport::Node::start(options, move |index: PollerIndex| {
            let inbox = Arc::clone(&of_pollers[usize::from(index.0)]);
            RpcPoller::new(index, inbox, (&services, &numbers), clock.clone(), &shared)
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
            limits,
            grace: self.grace,
            lifecycle,
            state: Mutex::new(State::Running(Arc::new(node))),
        })
    }
}

/// A running node. Dropping it shuts it down, with a grace period of at most 200 ms; see [`Node::shutdown`].
pub struct Node {
    local_address: SocketAddr,
    clock: Clock,
    inboxes: Arc<Inboxes>,
    budgets: Budgets,
    /// Of its services.
    limits: LimitReports,
    grace: Duration,
    lifecycle: Arc<Lifecycle>,
    state: Mutex<State>,
}

enum State {
    /// Whoever does more than a look clones it, so that nobody waits for the lock.
    Running(Arc<trunkline_transport::Node>),
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
        let node = match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Running(node) => Arc::clone(node),
            State::Ended(report) => return (**report).clone(),
        };
        self.complete(node.report())
    }

    /// Registered memory of so many bytes, zeros or left over from earlier buffers of this node, to fill and to freeze:
    /// an argument or a reply of type [`Bytes`](crate::Bytes) of more than 8 KiB that is all of it, or a slice of it, is
    /// sent without a copy when the other arguments are few. The peer can read the bytes that it is sent, and no
    /// others of the buffer. A slice is registered for each message, which a NIC may need long for: send whole
    /// buffers where that matters.
    ///
    /// `None` when the machine has no memory left, when it cannot be registered, as while the device is away, and when
    /// the node has shut down.
    #[must_use]
    pub fn buffer(&self, bytes: usize) -> Option<RegisteredBuffer> {
        let node = match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Running(node) => Arc::clone(node),
            State::Ended(_) => return None,
        };
        node.buffer(bytes)
    }

    /// The transport's report with what this layer adds.
    fn complete(&self, mut report: NodeReport) -> NodeReport {
        report.budgets.splice(0..0, self.budgets.report());
        report.limits.extend(self.limits.report());
        let unknown = self.lifecycle.unknown_extensions();
        report.counters.extend([
            DeviceCounter { name: "requests_refused_draining", value: self.lifecycle.refused() },
            DeviceCounter { name: "requests_of_unknown_extension", value: unknown },
        ]);
        report
    }

    /// Runs a task on a poller, where it may use local clients and need not be `Send`. The returned future
    /// is the task's output.
    ///
    /// # Errors
    /// `InvalidArgument` when there is no such poller, `ResourceExhausted` when its queue is full,
    /// `Unavailable` when the node has shut down, `Internal` when the task panicked, or is waited for by
    /// [`crate::block_on`] on a poller's thread.
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
            None => {
                let text = format!("there is no poller {}", poller.0);
                Some(Status::not_run(Code::InvalidArgument, text).because(Reason::Misuse))
            }
            Some(inbox) => inbox.push(spawn).err().map(|_| {
                let text = "the queue of this poller is full";
                Status::not_run(Code::ResourceExhausted, text).because(Reason::Overloaded)
            }),
        };
        RunOn { refusal, getter, inbox: inbox.cloned() }
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
        let Poll::Ready(ended) = Pin::new(&mut self.getter).poll(context) else {
            return on_poller::interruption().map_or(Poll::Pending, |status| Poll::Ready(Err(status)));
        };
        Poll::Ready(ended.map_err(|_| match &self.inbox {
            Some(inbox) if inbox.is_closed() => {
                Status::ran(Code::Unavailable, "this node has shut down").because(Reason::Draining)
            }
            _ => Status::ran(Code::Internal, "the task panicked").because(Reason::Panicked),
        }))
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("local_address", &self.local_address).finish_non_exhaustive()
    }
}
