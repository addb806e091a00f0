//! A node: what a program starts once, and everything it serves and calls through.
//!
//! Owns the pollers' inboxes and the transport's node; how it ends is in `ending`. Applications and [`Channel`]s call it from any thread.

use crate::budgets::{Budgets, Limits};
use crate::client::Channel;
use crate::context::{Peer, PollerContext};
use crate::foreign::Foreign;
use crate::inbox::{Inbox, Work};
use crate::inboxes::Inboxes;
use crate::lifecycle::Lifecycle;
use crate::on_poller;
use crate::pool::{PoolSettings, PoolThreads};
use crate::reason::Reason;
use crate::routes::{Link, Routes, Target};
use crate::server::{LimitReports, MethodNumbers, Service};
use crate::start_error::StartError;
use crate::status::{Code, Status};
use crate::upper::RpcPoller;
use crate::watchdog::{HOLD_LIMIT, Watchdog};
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use trunkline_rings::cell::{self, Getter};
use trunkline_transport::{
    Connections, DeviceCounter, InProcessNetwork, Limit, NicOptions, NodeOptions, NodeReport, Pinning,
    PollerIndex, ProviderChoice, RegisteredBuffer,
};
use trunkline_verbs::{Clock, headroom};

mod elsewhere;
mod ending;

/// Jobs that wait for a worker at most, if the program does not choose.
const QUEUED_JOBS: Limit = Limit { per_peer: 1024, in_all: 4096 };

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
    foreign: Foreign,
    pool: PoolSettings,
    hold_limit: Duration,
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
            foreign: Foreign::default(),
            pool: PoolSettings { workers: None, queued: QUEUED_JOBS },
            hold_limit: HOLD_LIMIT,
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

    /// Number of pollers, 1 (the default) to 32. Each is a thread. They share the handlers of services, but for those
    /// that are made per poller.
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

    /// Threads of the worker pool, in which `#[offload]` and `#[blocking]` methods run: 1 to 1,024, by default one for each
    /// CPU that the process may use, and 2 at least. A node without such methods has no pool.
    ///
    /// ```
    /// use trunkline::{InProcessNetwork, Node, Status, block_on};
    ///
    /// #[trunkline::service]
    /// trait Digests {
    ///     /// Computes for long.
    ///     #[offload]
    ///     async fn digest(&self, text: String) -> u64;
    ///     /// Reads a file, which blocks.
    ///     #[blocking]
    ///     async fn digest_file(&self, path: String) -> Result<u64, Status>;
    /// }
    ///
    /// struct Handler;
    ///
    /// fn digest(bytes: &[u8]) -> u64 {
    ///     bytes.iter().fold(7, |sum, byte| sum * 31 % 1_000_003 + u64::from(*byte))
    /// }
    ///
    /// impl Digests for Handler {
    ///     async fn digest(&self, text: String) -> u64 {
    ///         digest(text.as_bytes())
    ///     }
    ///     async fn digest_file(&self, path: String) -> Result<u64, Status> {
    ///         Ok(digest(&std::fs::read(path)?))
    ///     }
    /// }
    ///
    /// let network = InProcessNetwork::new();
    /// let server = Node::builder().in_process(&network).workers(4).serve(DigestsServer::new(Handler)).start()?;
    /// let node = Node::builder().in_process(&network).start()?;
    /// let client = DigestsClient::connect(&node, server.local_address())?;
    /// assert_eq!(block_on(client.digest("a".into()))?, 7 * 31 + 97);
    /// assert!(block_on(client.digest_file("/nowhere/at/all".into())).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn workers(mut self, workers: u16) -> Self {
        self.pool.workers = Some(workers);
        self
    }

    /// Calls of `#[offload]` and `#[blocking]` methods that may wait for a worker, of one peer and of all: 1,024 and
    /// 4,096 by default. A call beyond that is refused with `ResourceExhausted` and has not run. Those that a worker has begun do not count;
    /// [`NodeBuilder::handler_limit`] counts both.
    pub fn queued_jobs(mut self, limit: Limit) -> Self {
        self.pool.queued = limit;
        self
    }

    /// How long a handler or task may keep its poller from going on before the log warns of it and names it; 1 s by
    /// default, at least 1 ms. The report's counter `pollers_held` counts such times.
    pub fn hold_limit(mut self, limit: Duration) -> Self {
        self.hold_limit = limit;
        self
    }

    /// Lets handlers and tasks use tokio: they run in this runtime's context, so `tokio::time::sleep`, `tokio::spawn` and
    /// tokio's sockets work in them. They are still polled by this node's pollers; the runtime has to live as long.
    #[cfg(feature = "tokio")]
    pub fn tokio(mut self, handle: tokio::runtime::Handle) -> Self {
        self.foreign = Foreign::tokio(handle);
        self
    }

    /// Runs on a network inside this process, for tests: the node reaches the others on the network, and nobody else does.
    /// It needs no port, no socket and no directory, so it starts next to anything. It has an address of its own there,
    /// [`Node::local_address`], with the ports of [`NodeBuilder::listen`] whatever addresses those name; without any it has
    /// a free port.
    pub fn in_process(mut self, network: &InProcessNetwork) -> Self {
        self.options = self.options.in_process(network);
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

    /// The part of `rendezvous_bytes` that one peer may use; half of it by default. At least 64 KiB more than
    /// the largest message. A message for which there is no memory waits, and fails after 30 s.
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

    /// Starts the node, for async code: [`NodeBuilder::start`] on a thread of its own, so that nothing blocks the caller's runtime.
    /// If the future is dropped the node is, as soon as it has started.
    ///
    /// ```
    /// use trunkline::{InProcessNetwork, Node};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let node = Node::builder().in_process(&InProcessNetwork::new()).start_async().await?;
    /// println!("{}", node.local_address());
    /// node.shutdown_async().await;
    /// # Ok::<(), trunkline::StartError>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`NodeBuilder::start`].
    pub fn start_async(self) -> impl Future<Output = Result<Node, StartError>> + Send + use<> {
        let start = elsewhere::run("trunkline-start", move || self.start());
        async move { start.await.unwrap_or_else(|error| Err(StartError::os("start a thread", error))) }
    }

    /// Starts the node. This waits for the operating system, for some milliseconds.
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
        PoolThreads::check(self.pool)?;
        if self.hold_limit < Duration::from_millis(1) {
            return Err(StartError::bad_option("hold_limit (ms)", 0, "choose 1 ms or more"));
        }
        headroom::check(usize::from(self.pollers).saturating_mul(Inbox::BYTES))
            .map_err(StartError::no_room)?;
        let budgets = Budgets::new(self.limits, self.pollers);
        let lifecycle = Lifecycle::new(self.pollers);
        let inbox = |_| Arc::new(Inbox::new(Arc::clone(&lifecycle)));
        let inboxes = Inboxes::new((0..self.pollers).map(inbox));
        let routes = Routes::new(Arc::<Inboxes>::clone(&inboxes), clock.clone());
        let (numbers, foreign) = (MethodNumbers::default(), self.foreign);
        let runtime = options.machines().clone();
        let pool = services
            .iter()
            .any(Service::is_pooled)
            .then(|| PoolThreads::new(self.pool, self.pollers, &lifecycle, (&runtime, foreign.clone())));
        let pool = pool.transpose()?.map(Box::new);
        let shared_pool = pool.as_ref().map(|pool| Arc::clone(pool.pool()));
        let watchdog = Watchdog::new(Arc::clone(&inboxes), self.hold_limit);
        // In a simulation a handler keeps its poller for no time that anybody else could see.
        if !runtime.is_simulated() {
            options = options.watch(Arc::clone(&watchdog) as _);
        }
        let (of_pollers, to_routes) = (Arc::clone(&inboxes), Arc::clone(&routes));
        let (of_node, shared) = (clock.clone(), budgets.clone());
        let node = trunkline_transport::Node::start(options, move |index: PollerIndex| {
            let inbox = Arc::clone(&of_pollers[usize::from(index.0)]);
            let around = (clock.clone(), foreign.clone(), shared_pool.clone(), Arc::clone(&to_routes));
            Ok(RpcPoller::new(index, inbox, (&services, &numbers), around, &shared)?)
        })
        .map_err(StartError::from_transport)?;
        for (inbox, handle) in inboxes.iter().zip(node.poller_handles()) {
            inbox.attach(handle);
        }
        if let Some(pool) = &pool {
            pool.start(&runtime)?;
        }
        Ok(Node(Arc::new(Shared {
            local_address: node.local_address(),
            clock: of_node,
            inboxes,
            routes,
            budgets,
            limits,
            grace: self.grace,
            lifecycle,
            pool,
            watchdog,
            state: Mutex::new(State::Running(Arc::new(node))),
        })))
    }
}

/// A running node. Dropping it shuts it down, with a grace period of at most 200 ms; see [`Node::shutdown`].
///
/// Dropping waits for the end of that. In a task of a tokio runtime, whose other tasks would wait too, it does so for at most 50 ms,
/// and the rest goes on on a thread of its own; there [`Node::shutdown_async`] waits for all of it. Runtimes of other kinds are not noticed.
pub struct Node(Arc<Shared>);

/// A node, for its handle and for threads that wait for its end.
struct Shared {
    local_address: SocketAddr,
    clock: Clock,
    inboxes: Arc<Inboxes>,
    routes: Arc<Routes>,
    budgets: Budgets,
    /// Of its services.
    limits: LimitReports,
    grace: Duration,
    lifecycle: Arc<Lifecycle>,
    /// If any of its services needs one.
    pool: Option<Box<PoolThreads>>,
    watchdog: Arc<Watchdog>,
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

    /// Where others reach the node: the first address that it listens on, with the port that it was given. If that is an
    /// unspecified address, such as 0.0.0.0, this is the first of the device's addresses that the node is reached at.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.0.local_address
    }

    /// The node's state and counters; after a shutdown, those from before it.
    #[must_use]
    pub fn report(&self) -> NodeReport {
        let node = match &*self.0.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Running(node) => Arc::clone(node),
            State::Ended(report) => return (**report).clone(),
        };
        self.0.complete(node.report())
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
        let node = match &*self.0.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Running(node) => Arc::clone(node),
            State::Ended(_) => return None,
        };
        node.buffer(bytes)
    }

    /// A channel to a server: at one address, at the first of several that answers, by a name, or as a resolver finds it
    /// ([`Target`]). It does nothing yet: names are resolved, and connections made, when they are needed, and what goes
    /// wrong then is reported by [`Channel::ready`] and by calls.
    ///
    /// ```
    /// use trunkline::{InProcessNetwork, Node, block_on};
    ///
    /// let node = Node::builder().in_process(&InProcessNetwork::new()).start()?;
    /// let channel = node.channel("no-such-host.invalid:7000");
    /// let status = block_on(channel.ready()).unwrap_err();
    /// assert!(status.message().contains("its addresses cannot be found"), "{status}");
    /// # Ok::<(), trunkline::StartError>(())
    /// ```
    #[must_use]
    pub fn channel(&self, to: impl Into<Target>) -> Channel {
        Channel::new(&self.0.inboxes, Link::new(&self.0.routes, to.into()))
    }

    /// A channel to the node that makes a call ([`Context::peer`](crate::Context::peer)), so that a server calls its client: over the session that
    /// the client has made, and if that is over, over one that this node makes.
    #[must_use]
    pub fn channel_to(&self, peer: &Peer) -> Channel {
        self.channel(peer.address())
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
        let inbox = self.0.inboxes.get(usize::from(poller.0));
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

impl Shared {
    /// The transport's report with what this layer adds.
    fn complete(&self, mut report: NodeReport) -> NodeReport {
        let jobs = self.pool.iter().map(|pool| pool.pool().report());
        report.budgets.splice(0..0, self.budgets.report().into_iter().chain(jobs));
        report.limits.extend(self.limits.report());
        let unknown = self.lifecycle.unknown_extensions();
        report.counters.extend([
            DeviceCounter { name: "requests_refused_draining", value: self.lifecycle.refused() },
            DeviceCounter { name: "requests_of_unknown_extension", value: unknown },
            DeviceCounter { name: "pollers_held", value: self.watchdog.held() },
        ]);
        report
    }
}

impl Channel {
    /// A channel of `node` to the node that listens at `server`. A host name is resolved now, which may
    /// block, and its first address is used from then on; [`Node::channel`] does neither.
    ///
    /// # Errors
    /// `InvalidArgument` when `server` is neither an address nor a name that resolves to one.
    pub fn connect(node: &Node, server: impl ToSocketAddrs) -> Result<Self, Status> {
        Self::resolved(&node.0.inboxes, &node.0.routes, server)
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
        f.debug_struct("Node").field("local_address", &self.0.local_address).finish_non_exhaustive()
    }
}
