//! The node of a program and its settings. A [`Node`] is created by a [`NodeBuilder`], owns the transport's node and the
//! pollers' inboxes, and can be used from any thread. Shutdown is implemented in `ending`.

use crate::call::context::{Peer, PollerContext};
use crate::client::Channel;
use crate::client::routes::{Link, Routes, Target};
use crate::executor::inbox::Inboxes;
use crate::executor::inbox::{Inbox, Work};
use crate::executor::on_poller;
use crate::executor::pool::{PoolSettings, PoolThreads};
use crate::executor::runtime_guard::RuntimeGuard;
use crate::executor::watchdog::{HOLD_LIMIT, Watchdog};
#[cfg(feature = "identity")]
use crate::identity::{Identity, Level, Trust};
use crate::node::budgets::{Budgets, Limits};
#[cfg(feature = "identity")]
use crate::node::files::{Files, FilesThread, Settings, Source};
use crate::node::fork_lock::Lock;
use crate::node::lifecycle::{Lifecycle, lost_in_child, refused_in_child};
use crate::node::start_error::StartError;
use crate::observe::counted;
use crate::observe::health::{HealthReporter, HealthServer};
use crate::poller::RpcPoller;
use crate::server::{AddRows, Authorize, Authorizers, LimitReports, MethodNumbers, Service};
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
#[cfg(feature = "identity")]
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use trunkline_machine::Runtime;
use trunkline_machine::rings::cell::{self, Getter};
use trunkline_transport::footprint::Footprint;
use trunkline_transport::{
    Connections, EventCounter, InProcessNetwork, Limit, NicOptions, NodeEvents, NodeOptions, NodeReport,
    Pinning, PollerIndex, ProviderChoice, RecordedEvent, RegisteredBuffer, host_has,
};
use trunkline_verbs::{Clock, PathChoice};

pub(crate) mod budgets;
mod elsewhere;
mod ending;
#[cfg(feature = "identity")]
pub(crate) mod files;
#[cfg(feature = "clap")]
pub(crate) mod flags;
pub(crate) mod fork_lock;
pub(crate) mod lifecycle;
pub(crate) mod start_error;

/// Default limit on jobs that wait for a worker.
const QUEUED_JOBS: Limit = Limit { per_peer: 1024, in_all: 4096 };

/// Removes loopback addresses that this host lacks, unless no addresses would remain.
fn on_this_host(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let is_here =
        |address: &SocketAddr| addresses.len() < 2 || !address.ip().is_loopback() || host_has(address.ip());
    let here: Vec<_> = addresses.iter().copied().filter(is_here).collect();
    if here.is_empty() { addresses } else { here }
}

/// Settings of a node, created by [`Node::builder`].
///
/// The defaults suit one service on one machine.
///
/// | settings | methods |
/// |---|---|
/// | services | [`serve`](Self::serve), [`health`](Self::health), [`authorize`](Self::authorize) |
/// | addresses, device | [`listen`](Self::listen), [`provider`](Self::provider), [`nic`](Self::nic), [`link`](Self::link), [`connections`](Self::connections), [`in_process`](Self::in_process) |
/// | threads | [`pollers`](Self::pollers), [`workers`](Self::workers), [`pinning`](Self::pinning), [`poll_for`](Self::poll_for), [`hold_limit`](Self::hold_limit), `tokio` |
/// | identity | `identity_files`, `trust_files`, `policy_file`, `accept`, [`allow_unauthenticated`](Self::allow_unauthenticated) |
/// | calls | [`handler_limit`](Self::handler_limit), [`call_limit`](Self::call_limit), [`queued_jobs`](Self::queued_jobs) |
/// | memory, in bytes | [`memory_limit`](Self::memory_limit), [`max_message_bytes`](Self::max_message_bytes), [`decoded_bytes`](Self::decoded_bytes) |
/// | times | [`grace`](Self::grace), [`session_loss_time`](Self::session_loss_time), [`idle_keepalive`](Self::idle_keepalive) |
///
/// ```
/// use std::time::Duration;
/// use trunkline::{InProcessNetwork, Limit, Node};
///
/// let node = Node::builder()
///     .in_process(&InProcessNetwork::new()) // in a program: .listen("127.0.0.1:7000")
///     .pollers(2)
///     .handler_limit(Limit { per_peer: 1_000, in_all: 10_000 })
///     .grace(Duration::from_secs(5))
///     .start()?;
/// # Ok::<(), trunkline::StartError>(())
/// ```
///
/// [`start`](Self::start) checks all settings. `docs/book/src/reference/budgets.md` describes the limits.
#[derive(Debug)]
#[must_use]
pub struct NodeBuilder {
    options: NodeOptions,
    listen: Result<Vec<SocketAddr>, (String, std::io::Error)>,
    #[cfg(feature = "identity")]
    identity: Settings,
    /// Files that were read when the settings were checked.
    #[cfg(feature = "identity")]
    files: Files,
    pollers: u16,
    limits: Limits,
    /// Maximum sum of all budgets, in bytes.
    memory_limit: Option<usize>,
    /// Names of the limits that the program has set, in addition to the names in `options`. The memory limit does not lower
    /// these limits.
    kept: Vec<&'static str>,
    services: Vec<Service>,
    authorizers: Authorizers,
    health: Option<HealthReporter>,
    grace: Duration,
    runtime_guard: RuntimeGuard,
    pool: PoolSettings,
    hold_limit: Duration,
    /// Inboxes of the pollers, shared with channels that were created before the start.
    inboxes: Arc<Inboxes>,
    routes: Arc<Routes>,
}

impl NodeBuilder {
    fn new() -> Self {
        let inboxes = Arc::<Inboxes>::default();
        let options = NodeOptions::new();
        let routes = Routes::new(Arc::<Inboxes>::clone(&inboxes), options.udp_port());
        Self {
            options,
            listen: Ok(Vec::new()),
            #[cfg(feature = "identity")]
            identity: Settings::default(),
            #[cfg(feature = "identity")]
            files: Files::default(),
            pollers: 1,
            limits: Limits::default(),
            memory_limit: None,
            kept: Vec::new(),
            services: Vec::new(),
            authorizers: Authorizers::NONE,
            health: None,
            grace: ending::DEFAULT_GRACE,
            runtime_guard: RuntimeGuard::default(),
            pool: PoolSettings { workers: None, queued: QUEUED_JOBS },
            hold_limit: HOLD_LIMIT,
            inboxes,
            routes,
        }
    }

    /// Adds an address to listen on. With port 0, the system chooses a free port.
    ///
    /// A node that only makes calls needs no address. It uses the address of its NIC, or a loopback address on the software
    /// device. The maximum is 1,024 addresses. `::ffff:127.0.0.1` is treated as 127.0.0.1. If a host name resolves to IPv4
    /// and IPv6 loopback addresses, the addresses that this host lacks are ignored.
    pub fn listen(mut self, address: impl ToSocketAddrs + fmt::Debug) -> Self {
        if let Ok(all) = &mut self.listen {
            match address.to_socket_addrs() {
                Ok(more) => all.extend(on_this_host(more.collect())),
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

    /// Adds the [health service](crate::health), which reports the statuses in `reporter`. When the node starts, each of its
    /// services without a status is set to `Serving`.
    pub fn health(mut self, reporter: &HealthReporter) -> Self {
        self.health = Some(reporter.clone());
        self.serve(HealthServer::new(reporter.clone()))
    }

    /// Adds an authorizer, which decides by caller, method and metadata whether a call from a peer may run. Authorizers run
    /// before the arguments are decoded, in the order in which they were added. All of them must allow the call.
    ///
    /// A refused call has not run. Its reason is [`Unauthorised`](Reason::Unauthorised) if its code is `PermissionDenied` or
    /// `Unauthenticated`. Large arguments of a refused call are not fetched if its metadata is smaller than 3 KiB. The
    /// counter `requests_unauthorised` in the report counts refused calls. Refusals are logged at most once per second and
    /// peer.
    ///
    /// ```
    /// use trunkline::{IncomingCall, InProcessNetwork, Node, Status, block_on};
    ///
    /// #[trunkline::service]
    /// trait Store {
    ///     async fn get(&self, key: String) -> String;
    ///     async fn put(&self, key: String, value: String);
    /// }
    /// # struct Nothing;
    /// # impl Store for Nothing {
    /// #     async fn get(&self, _: String) -> String {
    /// #         String::new()
    /// #     }
    /// #     async fn put(&self, _: String, _: String) {}
    /// # }
    ///
    /// let network = InProcessNetwork::new();
    /// let server = Node::builder()
    ///     .in_process(&network)
    ///     .serve(StoreServer::new(Nothing))
    ///     .authorize(|call: &IncomingCall<'_>| match (call.method(), call.metadata().get("role")) {
    ///         ("get", _) | (_, Some("writer")) => Ok(()),
    ///         _ => Err(Status::permission_denied("writers only")),
    ///     })
    ///     .start()?;
    /// let node = Node::builder().in_process(&network).start()?;
    /// let client = StoreClient::new(node.channel(server.local_address()));
    /// assert!(block_on(client.get("a".into())).is_ok());
    /// assert!(block_on(client.put("a".into(), "b".into())).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn authorize(mut self, authorize: impl Authorize) -> Self {
        self.authorizers = self.authorizers.with(Arc::new(authorize));
        self
    }

    /// Creates a channel before the node starts, for handlers that call other services. After the start, the channel behaves
    /// like a channel from [`Node::channel`].
    ///
    /// Until the node has started, calls and [`Channel::ready`] fail with `FailedPrecondition`, and the calls have not run.
    /// If the node fails to start, later calls fail in the same way.
    ///
    /// ```
    /// use trunkline::{Node, Status, block_on};
    ///
    /// #[trunkline::service]
    /// trait Adder {
    ///     async fn add(&self, a: u32, b: u32) -> Result<u32, Status>;
    /// }
    ///
    /// struct Sum;
    ///
    /// impl Adder for Sum {
    ///     async fn add(&self, a: u32, b: u32) -> Result<u32, Status> {
    ///         Ok(a + b)
    ///     }
    /// }
    ///
    /// #[trunkline::service]
    /// trait Doubler {
    ///     async fn double(&self, a: u32) -> Result<u32, Status>;
    /// }
    ///
    /// struct BySum {
    ///     adder: AdderClient,
    /// }
    ///
    /// impl Doubler for BySum {
    ///     async fn double(&self, a: u32) -> Result<u32, Status> {
    ///         self.adder.add(a, a).await
    ///     }
    /// }
    ///
    /// let network = trunkline::InProcessNetwork::new();
    /// let adder = Node::builder().in_process(&network).serve(AdderServer::new(Sum)).start()?;
    /// let builder = Node::builder().in_process(&network);
    /// let handler = BySum { adder: AdderClient::new(builder.channel(adder.local_address())) };
    /// let doubler = builder.serve(DoublerServer::new(handler)).start()?;
    /// let client = DoublerClient::new(adder.channel(doubler.local_address()));
    /// assert_eq!(block_on(client.double(21))?, 42);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn channel(&self, to: impl Into<Target>) -> Channel {
        Channel::new(&self.inboxes, Link::new(&self.routes, to.into()))
    }

    /// Sets the number of pollers, from 1 (the default) to 32. Each poller is a thread.
    ///
    /// Pollers share the handlers of services, except for handlers that are created per poller.
    pub fn pollers(mut self, pollers: u16) -> Self {
        self.pollers = pollers;
        self
    }

    /// Sets the maximum time that [`Node::drain`] and [`Node::shutdown`] wait for running handlers. The default is 10 s,
    /// which is also the default time limit of a call.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Sets the number of threads in the worker pool, from 1 to 1,024. The pool runs `#[offload]` and `#[blocking]` methods.
    ///
    /// The default is one thread per CPU available to the process, but at least 2. A node without such methods has no pool.
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

    /// Limits how many calls to `#[offload]` and `#[blocking]` methods wait for a worker. The default is 1,024 per peer and
    /// 4,096 in total. The range is 1 to 4,294,967,295.
    ///
    /// A call beyond the limit is refused with `ResourceExhausted` and has not run. Calls that a worker has started do not
    /// count towards this limit. [`NodeBuilder::handler_limit`] counts both waiting and started calls.
    pub fn queued_jobs(mut self, limit: Limit) -> Self {
        self.pool.queued = limit;
        self
    }

    /// Sets how long a handler or task may occupy its poller before the node logs a warning with its name. The default is
    /// 100 ms, and the minimum is 1 ms. The counter `pollers_held` in the report counts such stalls.
    ///
    /// The time during which the poller's thread waits for a CPU or is stopped does not count.
    pub fn hold_limit(mut self, limit: Duration) -> Self {
        self.hold_limit = limit;
        self
    }

    /// Runs handlers and tasks in the context of a tokio runtime, so that they can use `tokio::time::sleep`, `tokio::spawn`
    /// and tokio's sockets. They are still polled by the node's pollers. The runtime must outlive the node.
    ///
    /// Clients do not need this setting, because their calls can be awaited in any task.
    #[cfg(feature = "tokio")]
    pub fn tokio(mut self, handle: tokio::runtime::Handle) -> Self {
        self.runtime_guard = RuntimeGuard::tokio(handle);
        self
    }

    /// Runs the node on a network inside this process, for tests. The node can reach only other nodes on this network.
    ///
    /// The node needs no port, socket or directory. Its address, [`Node::local_address`], belongs to this network and has
    /// the port passed to [`NodeBuilder::listen`], or a free port if none was passed. IP addresses passed to
    /// [`NodeBuilder::listen`] are ignored.
    ///
    /// Call this method before [`NodeBuilder::channel`], because existing channels keep the UDP port of the replaced device.
    pub fn in_process(mut self, network: &InProcessNetwork) -> Self {
        self.options = self.options.in_process(network);
        self.routes.set_udp_port(self.options.udp_port());
        self
    }

    /// Sets the provider. The default is the value of `TRUNKLINE_PROVIDER`, or `Auto` if the variable is not set.
    pub fn provider(mut self, provider: ProviderChoice) -> Self {
        self.options = self.options.provider(provider);
        self
    }

    /// Sets the path to other processes on the host. The default is the value of `TRUNKLINE_LINK`, or `Auto` if the variable
    /// is not set. `Auto` uses shared memory to processes that support it, and UDP to all others.
    ///
    /// `Shm` is for measurements and tests. It requires the software device, without faults or a capture. A session with a
    /// peer that cannot share memory with this process is refused, and the error states the reason.
    ///
    /// ```
    /// use trunkline::Node;
    /// use trunkline::device::PathChoice;
    ///
    /// let node = Node::builder().link(PathChoice::Udp).start()?;
    /// assert!(node.report().paths.iter().all(|path| path.path == "udp"));
    /// # Ok::<(), trunkline::StartError>(())
    /// ```
    pub fn link(mut self, path: PathChoice) -> Self {
        self.options = self.options.path(path);
        self
    }

    /// Sets the kind of connections, XRC or RC. The default is the value of `TRUNKLINE_CONNECTIONS`. If the variable is not
    /// set, the default is XRC if the device supports it, and RC otherwise. Nodes that communicate must use the same kind.
    pub fn connections(mut self, connections: Connections) -> Self {
        self.options = self.options.connections(connections);
        self
    }

    /// Sets the NIC. The default is the NIC in `TRUNKLINE_DEVICE` and `TRUNKLINE_GID_INDEX`, or the first usable NIC if they
    /// are not set.
    pub fn nic(mut self, nic: NicOptions) -> Self {
        self.options = self.options.nic(nic);
        self
    }

    /// Sets the CPUs on which the pollers run. The default is `Off`.
    pub fn pinning(mut self, pinning: Pinning) -> Self {
        self.options = self.options.pinning(pinning);
        self
    }

    /// Sets the maximum time that a poller polls after an event before it sleeps. The default is 400 µs, and the maximum is
    /// 1 s. A poller polls only if the most recent gaps between events were shorter than `longest`, and if no other thread
    /// competes for its core. With zero, the poller sleeps after each event, and the system wakes it for the next one.
    pub fn poll_for(mut self, longest: Duration) -> Self {
        self.options = self.options.poll_for(longest);
        self
    }

    /// Sets the node's identity. The node then has sessions only with peers that prove their names, and proves its own name
    /// to these peers. [`NodeBuilder::exempt_local_user`] describes an exception. Requires [`NodeBuilder::trust`]. See
    /// [`identity`](crate::identity) for an example.
    ///
    /// A node with an identity may listen on any address. If it accepts [`Level::None`](crate::identity::Level::None), it
    /// needs [`NodeBuilder::allow_unauthenticated`] to listen on addresses other than loopback.
    #[cfg(feature = "identity")]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity.identity = Some(Source::Given(identity));
        self
    }

    /// Sets the trusted roots, to which the certificates of peers must chain. Requires [`NodeBuilder::identity`].
    #[cfg(feature = "identity")]
    pub fn trust(mut self, trust: Trust) -> Self {
        self.identity.trust = Some(Source::Given(trust));
        self
    }

    /// Sets the node's identity, like [`Self::identity`], from two PEM files. `certificates` contains the certificate chain,
    /// which starts with the node's own certificate, and `key` contains the private key. Replaces an earlier identity.
    ///
    /// The node checks its files for changes every 5 s. New sessions use the changed files, and live sessions are renewed
    /// with them. Replace files with `rename`, or change a symbolic link that leads to them. If the certificate and the key
    /// do not match, or if a file is malformed or expired, the node keeps using the earlier files. It logs the cause once
    /// per change and tries again at the next check. When the node starts, such files cause a [`StartError`]. Files larger
    /// than 1 MiB are refused.
    ///
    /// ```no_run
    /// use trunkline::Node;
    ///
    /// let node = Node::builder()
    ///     .listen("127.0.0.1:0")
    ///     .identity_files("/etc/web/web.pem", "/etc/web/web.key")
    ///     .trust_files("/etc/web/root.pem")
    ///     .policy_file("/etc/web/policy.toml")
    ///     .start()?;
    /// # Ok::<(), trunkline::StartError>(())
    /// ```
    #[cfg(feature = "identity")]
    pub fn identity_files(mut self, certificates: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.identity.identity = Some(Source::Files([certificates.into(), key.into()]));
        self
    }

    /// Sets the roots for peers' certificates, like [`Self::trust`], from a PEM file. The node reads the file again when it
    /// changes, as described for [`Self::identity_files`]. Replaces earlier trust.
    #[cfg(feature = "identity")]
    pub fn trust_files(mut self, roots: impl Into<PathBuf>) -> Self {
        self.identity.trust = Some(Source::Files(roots.into()));
        self
    }

    /// Sets PEM files that contain revocation lists. The node reads them again when they change, as described for
    /// [`Self::identity_files`]. They replace earlier lists, including the lists in [`Trust`].
    #[cfg(feature = "identity")]
    pub fn revocation_files(mut self, paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        self.identity.revocation_lists = paths.into_iter().map(Into::into).collect();
        self
    }

    /// Sets a file of rules that decide which calls from peers may run, as described in [`policy`](crate::policy). The node
    /// reads the file again when it changes. Calls must also be allowed by each authorizer added with [`Self::authorize`].
    /// Replaces an earlier file.
    #[cfg(feature = "identity")]
    pub fn policy_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.identity.policy = Some(path.into());
        self
    }

    /// Sets the time between two checks for changed files, for tests.
    #[cfg(feature = "identity")]
    #[doc(hidden)]
    pub fn look_at_files_every(mut self, time: Duration) -> Self {
        self.identity.look_every = Some(time);
        self
    }

    /// Sets the minimum security level of sessions on a node with an identity. The default is [`Level::Encrypted`].
    ///
    /// With [`Level::None`], the node also accepts sessions with peers that have no identity. Handlers see such a peer
    /// without a name, and the node logs a warning when it starts.
    #[cfg(feature = "identity")]
    pub fn accept(mut self, lowest: Level) -> Self {
        self.identity.accept = Some(lowest);
        self
    }

    /// Sets whether a node with an identity skips the handshake with processes of the same user on this host. Handlers see
    /// such a peer as [`PeerIdentity::LocalUser`](crate::identity::PeerIdentity::LocalUser). The default is `true`, because
    /// processes of one user can read each other's memory and keys. Use `false` to test certificates on one host. The
    /// software device proves the user of a process. On a NIC, no peer is exempt.
    #[cfg(feature = "identity")]
    pub fn exempt_local_user(mut self, exempt: bool) -> Self {
        self.options = self.options.exempt_local_user(exempt);
        self
    }

    /// Sets whether the node may listen on addresses other than loopback although peers are not authenticated. The default
    /// is `false`. A node with an identity needs this only if it accepts sessions with peers that have no identity.
    pub fn allow_unauthenticated(mut self, allow: bool) -> Self {
        self.options = self.options.allow_unauthenticated(allow);
        self
    }

    /// Sets the maximum size of a message, in bytes. A message consists of the arguments or the result of a call, and its
    /// headers. The default is 64 MiB + 64 KiB, and the range is 64 KiB to 128 TiB.
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.options = self.options.max_message_bytes(bytes);
        self
    }

    /// Sets the memory, in bytes, for large messages that are being received or are still held by the program. The default
    /// is 256 MiB. The minimum is the size of the largest message + 64 KiB, and the maximum is 128 TiB.
    pub fn rendezvous_bytes(mut self, bytes: usize) -> Self {
        self.options = self.options.rendezvous_bytes(bytes);
        self
    }

    /// Sets the initial and the maximum number of receives that each poller keeps posted. The defaults are 512 and 8,192,
    /// and the range is 16 to 16,384. Each poller of each peer reserves one receive, and the depth grows with the number of
    /// these pollers.
    pub fn srq_depth(mut self, first: u32, limit: u32) -> Self {
        self.options = self.options.srq_depth(first).srq_depth_limit(limit);
        self
    }

    /// Sets how much of `rendezvous_bytes` one peer may use, in bytes. The default is half of `rendezvous_bytes`. The
    /// minimum is the size of the largest message + 64 KiB. A message waits up to 30 s for memory, and then fails.
    pub fn rendezvous_bytes_per_peer(mut self, bytes: usize) -> Self {
        self.options = self.options.rendezvous_bytes_per_peer(bytes);
        self
    }

    /// Limits how many messages wait to be sent. The default is 65,536 per peer and 262,144 in total. The range is 1 to
    /// 4,294,967,295.
    ///
    /// Calls beyond the limit wait or are refused, depending on [`CallOptions::admission`](crate::CallOptions::admission).
    /// Requests from a peer are also refused if its queue has little room left for replies.
    pub fn queued_messages(mut self, limit: Limit) -> Self {
        self.options = self.options.queued_messages(limit);
        self
    }

    /// Limits the total size, in bytes, of messages that wait to be sent and of large messages that the receiver has not yet
    /// fetched by RDMA READ. The default is 128 MiB per peer and 512 MiB in total. The minimum is the size of the largest
    /// message, and the maximum is 128 TiB. The same limit applies separately to large replies that wait for queue space.
    pub fn queued_bytes(mut self, limit: Limit) -> Self {
        self.limits.waiting_replies = limit;
        self.options = self.options.queued_bytes(limit);
        self
    }

    /// Limits, in each direction, how many large messages are announced but not yet fetched by RDMA READ. The default is
    /// 4,096 per peer and 16,384 in total. The range is 1 to 4,294,967,295. Further messages of this node wait. Further
    /// messages announced by peers fail at their senders.
    pub fn large_messages(mut self, limit: Limit) -> Self {
        self.options = self.options.large_messages(limit);
        self
    }

    /// Sets the time after which a peer loses its session if it accepts none of the messages queued for it. The default is
    /// 60 s, and the minimum is 1 s.
    pub fn stall_limit(mut self, limit: Duration) -> Self {
        self.options = self.options.stall_limit(limit);
        self
    }

    /// Sets how long a session may be silent before the node that accepted it probes the peer. The default is 10 s, and the
    /// range is 500 ms to 20 s.
    ///
    /// A server frees its state for a client that vanished [`session_loss_time`](Self::session_loss_time) after the probe. A
    /// client detects the death of an idle server at its next call.
    pub fn idle_keepalive(mut self, silence: Duration) -> Self {
        self.options = self.options.idle_keepalive(silence);
        self
    }

    /// Sets the time after which a session ends if the peer does not acknowledge packets. The default is 1 s, and the range
    /// is 500 ms to 60 s.
    ///
    /// A call to a peer that vanished fails within `time`. A call that is already waiting when the peer vanishes fails
    /// within `time` of the next probe. The probe follows after half of `time`, but at most 10 s and
    /// [`idle_keepalive`](Self::idle_keepalive). A peer that is stopped for longer than `time` loses its session. The ACK
    /// timeout and the retry count of the device are discrete, so the actual time is between 75% and 100% of `time`. With
    /// the default, it is 0.94 s. A NIC may take up to four times as long, which the InfiniBand specification allows.
    /// `docs/book/src/operate/memory.md` contains a table. Each node applies its own setting.
    pub fn session_loss_time(mut self, time: Duration) -> Self {
        self.options = self.options.session_loss_time(time);
        self
    }

    /// Limits how many handlers run concurrently. The default is 16,384 per peer and 65,536 in total. The range is 1 to
    /// 4,294,967,295. A call beyond the limit is refused with `ResourceExhausted` and has not run.
    pub fn handler_limit(mut self, limit: Limit) -> Self {
        self.limits.handlers = limit;
        self.kept.push("handler_limit");
        self
    }

    /// Limits how many calls from this node are in flight. The default is 65,536 per peer and 262,144 in total. The range is
    /// 1 to 4,294,967,295.
    ///
    /// A call beyond the limit waits or is refused, depending on [`CallOptions::admission`](crate::CallOptions::admission).
    /// An eighth of each limit, and at least 1, is reserved for calls from handlers, unless the limit is 1.
    pub fn call_limit(mut self, limit: Limit) -> Self {
        self.limits.calls = limit;
        self.kept.push("call_limit");
        self
    }

    /// Limits the memory, in bytes, for decoded arguments of running handlers. The default is 256 MiB per peer and 1 GiB in
    /// total. The range is 64 KiB to 128 TiB.
    ///
    /// A call beyond the limit is refused with `ResourceExhausted` and has not run. The limit per peer also applies to each
    /// reply while it is decoded. `Bytes` are not decoded and do not count.
    pub fn decoded_bytes(mut self, limit: Limit) -> Self {
        self.limits.decoded = limit;
        self.kept.push(budgets::DECODED_BYTES);
        self
    }

    /// Limits the memory, in bytes, that the node uses for itself and for its peers. The program's own allocations do not
    /// count. The default is the sum of all budgets, which is 4.7 GB with one poller. `docs/book/src/reference/budgets.md`
    /// lists the budgets.
    ///
    /// All budgets are lowered by the same factor, so that their sum is at most `bytes`. Budgets that the program sets,
    /// before or after this call, keep their values. A limit above the sum has no effect. The minimum is about 520 MB with
    /// one poller, most of it for messages of the maximum size. A smaller [`Self::max_message_bytes`] lowers the minimum. If
    /// `bytes` is below the minimum, the error states the minimum. Lower budgets also lower the limits per peer and the
    /// number of peers that can have sessions, as described for [`Self::srq_depth`].
    ///
    /// ```
    /// use trunkline::{InProcessNetwork, Node};
    ///
    /// let network = InProcessNetwork::new();
    /// let node = Node::builder().in_process(&network).memory_limit(512 << 20).start()?;
    /// let error = Node::builder().in_process(&network).memory_limit(1 << 20).start().unwrap_err();
    /// assert!(error.to_string().starts_with("memory_limit = 1048576 is too small"));
    /// # Ok::<(), trunkline::StartError>(())
    /// ```
    pub fn memory_limit(mut self, bytes: usize) -> Self {
        self.memory_limit = Some(bytes);
        self
    }

    /// Limits the size of a call's metadata, in bytes, separately for the request and the reply. The limit applies to
    /// requests and replies that this node sends or receives. The default is 8 KiB, and the range is 0 to 1 MiB.
    /// [`Metadata::size`](crate::Metadata::size) returns the size that counts.
    ///
    /// A call with metadata beyond the limit fails with `ResourceExhausted` and has not run. If the metadata of its reply
    /// exceeds the limit, the call may have run. The metadata of running handlers counts towards
    /// [`NodeBuilder::decoded_bytes`].
    pub fn metadata_bytes(mut self, bytes: usize) -> Self {
        self.limits.metadata = bytes;
        self
    }

    /// Injects faults on the software device's link. An example of `text` is `drop=0.01,reorder=0.01,seed=7`. Overrides
    /// `TRUNKLINE_FAULTS`, which uses the same format.
    ///
    /// # Errors
    /// Returns [`StartError::BadSetting`] if the text cannot be parsed.
    pub fn faults(mut self, text: &str) -> Result<Self, StartError> {
        self.options = self.options.faults(text).map_err(StartError::from_transport)?;
        Ok(self)
    }

    /// Replaces all settings except pollers, addresses and services with the transport's options. Simulations use this to
    /// set a simulated runtime and a software device. Like [`NodeBuilder::in_process`], call it before
    /// [`NodeBuilder::channel`].
    #[doc(hidden)]
    pub fn transport(mut self, options: NodeOptions) -> Self {
        self.routes.set_udp_port(options.udp_port());
        self.options = options;
        self
    }

    /// Starts the node as [`NodeBuilder::start`] does, but on a separate thread, so that the caller's runtime is not
    /// blocked.
    ///
    /// If the future is dropped, the node is dropped as soon as it has started.
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
    /// Returns the errors of [`NodeBuilder::start`].
    pub fn start_async(self) -> impl Future<Output = Result<Node, StartError>> + Send + use<> {
        // Check the settings before the thread starts.
        let checked = self.checked();
        let start = checked.map(|node| elsewhere::run("trunkline-start", move || node.start_checked()));
        async move { start?.await.unwrap_or_else(|error| Err(StartError::os("start a thread", error))) }
    }

    /// Starts the node. Blocks for a few milliseconds.
    ///
    /// All settings, and the memory that they require, are checked before anything is created.
    ///
    /// # Errors
    /// Returns a [`StartError`] that names the cause and the remedy.
    pub fn start(self) -> Result<Node, StartError> {
        self.checked()?.start_checked()
    }

    /// Fills in missing settings from the environment and checks all settings, without side effects.
    fn checked(mut self) -> Result<Self, StartError> {
        let mut options = std::mem::take(&mut self.options).pollers(self.pollers);
        // A simulation must not depend on the environment, because the same seed must give the same run.
        if options.clock().as_virtual().is_none() {
            options = options.or_from_env().map_err(StartError::from_transport)?;
        }
        let listen = std::mem::replace(&mut self.listen, Ok(Vec::new()));
        for address in listen.map_err(|(address, cause)| StartError::BadAddress { address, cause })? {
            options = options.listen(address);
        }
        for (at, service) in self.services.iter().enumerate() {
            if self.services[..at].iter().any(|other| other.name.hash == service.name.hash) {
                return Err(StartError::DuplicateService(service.name.name));
            }
            service.check()?;
        }
        #[cfg(feature = "identity")]
        {
            (options, self.files) = std::mem::take(&mut self.identity).apply(options)?;
            if let Some(policy) = &self.files.policy {
                self.authorizers = self.authorizers.with(Arc::new(policy.clone()));
            }
        }
        if let Some(memory) = self.memory_limit {
            (options, self.limits) = budgets::divide(memory, options, self.limits, &self.kept, self.pollers)?;
        }
        options.check().map_err(StartError::from_transport)?;
        self.limits.check()?;
        PoolThreads::check(self.pool)?;
        if self.hold_limit < Duration::from_millis(1) {
            return Err(StartError::bad_option("hold_limit (ms)", 0, "choose 1 ms or more"));
        }
        let (at_start, raised) = self.memory(options.machines());
        options.check_memory(at_start, raised).map_err(StartError::from_transport)?;
        options.warn_of_small_group(&budgets::ceiling(&options, &self.limits, self.pollers));
        self.options = options;
        Ok(self)
    }

    /// Returns the memory of this layer when the node starts, and its maximum under the limits that the program has set.
    fn memory(&self, runtime: &Runtime) -> (Footprint, Footprint) {
        let mut at_start = Footprint::default();
        at_start.add("queues of pollers", "pollers", &[usize::from(self.pollers), Inbox::BYTES]);
        if self.services.iter().any(Service::is_pooled) {
            at_start.add_threads("workers", PoolThreads::workers(self.pool, runtime));
        }
        #[cfg(feature = "identity")]
        if !self.files.are_none() {
            at_start.add_threads("files", 1);
        }
        (at_start, self.limits.at_most().raised_from(&Limits::default().at_most()))
    }

    /// Starts a node whose settings have been checked.
    fn start_checked(self) -> Result<Node, StartError> {
        let (inboxes, routes) = (Arc::clone(&self.inboxes), Arc::clone(&self.routes));
        // Calls and tasks must not wait for pollers that never run.
        self.start_pollers().inspect_err(|_| {
            inboxes.close();
            routes.close();
        })
    }

    fn start_pollers(self) -> Result<Node, StartError> {
        let mut options = self.options;
        let (services, clock) = (self.services, options.clock().clone());
        if let Some(health) = &self.health {
            health.add(services.iter().map(|service| service.name.name));
        }
        let mut limits = LimitReports::default();
        for service in &services {
            service.report_limits(&mut limits);
        }
        let rows = services.iter().flat_map(Service::rows).collect();
        let (hosts, authorizers) = (Arc::default(), self.authorizers);
        let budgets = Budgets::new(self.limits, self.pollers, &hosts);
        options = options.peer_hosts(&hosts);
        let lifecycle = Lifecycle::new(self.pollers);
        let events = Arc::new(NodeEvents::new(clock.clone()));
        options = options.events(&events);
        let inbox = |_| Arc::new(Inbox::new(Arc::clone(&lifecycle), clock.clone()));
        let (inboxes, routes) = (self.inboxes, self.routes);
        inboxes.open((0..self.pollers).map(inbox));
        let runtime = options.machines().clone();
        routes.open(runtime.clone(), clock.clone(), self.limits.metadata);
        let (numbers, runtime_guard) = (MethodNumbers::default(), self.runtime_guard.of_this_process());
        let pool = services.iter().any(Service::is_pooled).then(|| {
            PoolThreads::new(self.pool, self.pollers, &lifecycle, &runtime, runtime_guard.clone(), &hosts)
        });
        let pool = pool.transpose()?.map(Box::new);
        let shared_pool = pool.as_ref().map(|pool| Arc::clone(pool.pool()));
        let watchdog = Watchdog::new(Arc::clone(&inboxes), events, self.hold_limit);
        // In a simulation no time passes while a handler runs, so handlers cannot hold a poller.
        if !runtime.is_simulated() {
            options = options.watch(Arc::clone(&watchdog) as _);
        }
        let (of_pollers, to_routes) = (Arc::clone(&inboxes), Arc::clone(&routes));
        let (of_node, shared) = (clock.clone(), budgets.clone());
        let node = trunkline_transport::Node::start(options, move |transport| {
            let inbox = Arc::clone(&of_pollers[usize::from(transport.poller().0)]);
            let (clock, guard, pool) = (clock.clone(), runtime_guard.clone(), shared_pool.clone());
            let routes = Arc::clone(&to_routes);
            let poller = RpcPoller::new(
                transport,
                inbox,
                &services,
                &numbers,
                clock,
                guard,
                pool,
                routes,
                &shared,
                &authorizers,
            );
            Ok(poller?)
        })
        .map_err(StartError::from_transport)?;
        for (inbox, handle) in inboxes.iter().zip(node.poller_handles()) {
            inbox.attach(handle);
        }
        if let Some(pool) = &pool {
            pool.start(&runtime)?;
        }
        let node = Arc::new(node);
        #[cfg(feature = "identity")]
        let files = self.files.watch(Arc::downgrade(&node), &runtime)?;
        Ok(Node(Arc::new(NodeInner {
            local_address: node.local_address(),
            clock: of_node,
            inboxes,
            routes,
            budgets,
            limits,
            rows,
            grace: self.grace,
            lifecycle,
            pool,
            #[cfg(feature = "identity")]
            files,
            watchdog,
            state: Lock::new(NodeState::Running(node)),
        })))
    }
}

/// A running node, which owns a program's pollers, services and connections.
///
/// A process needs one node for all its services and clients.
///
/// ```no_run
/// use trunkline::Node;
/// # use trunkline::Status;
/// # #[trunkline::service]
/// # trait Greeter {
/// #     async fn greet(&self, name: String) -> Result<String, Status>;
/// # }
/// # struct Polite;
/// # impl Greeter for Polite {
/// #     async fn greet(&self, name: String) -> Result<String, Status> {
/// #         Ok(name)
/// #     }
/// # }
///
/// let node = Node::builder().listen("127.0.0.1:7000").serve(GreeterServer::new(Polite)).start()?;
/// let other = GreeterClient::new(node.channel("greeter.example:7000"));
/// println!("{:?}", trunkline::block_on(other.greet("trunk".into())));
/// node.shutdown(); // waits for running handlers
/// # Ok::<(), trunkline::StartError>(())
/// ```
///
/// Dropping the node shuts it down with a grace period of at most 200 ms, and blocks until the shutdown ends. In a task of a
/// tokio runtime, it blocks for at most 50 ms and completes the shutdown on a separate thread. Await
/// [`Node::shutdown_async`] there instead. Other runtimes are not detected.
pub struct Node(Arc<NodeInner>);

/// State of a node, shared by its handle and the threads that wait for it to end.
struct NodeInner {
    local_address: SocketAddr,
    clock: Clock,
    inboxes: Arc<Inboxes>,
    routes: Arc<Routes>,
    budgets: Budgets,
    /// Limits of the node's services, for the report.
    limits: LimitReports,
    /// Functions that add the services' rows to the report.
    rows: Vec<AddRows>,
    grace: Duration,
    lifecycle: Arc<Lifecycle>,
    /// The worker pool, if a service needs it.
    pool: Option<Box<PoolThreads>>,
    /// Thread that reloads files, if the node reloads any.
    #[cfg(feature = "identity")]
    files: Option<FilesThread>,
    watchdog: Arc<Watchdog>,
    state: Lock<NodeState>,
}

enum NodeState {
    /// Cloned before longer uses, so that the lock is held only briefly.
    Running(Arc<trunkline_transport::Node>),
    /// The node has ended. This is its last report.
    Ended(Box<NodeReport>),
}

impl Node {
    /// Returns a builder with default settings.
    pub fn builder() -> NodeBuilder {
        NodeBuilder::new()
    }

    /// Starts a node that serves `service` and a node that calls it, on a network inside this process, for tests. Returns
    /// the server first.
    ///
    /// The nodes need no port, socket or directory, and can reach only each other. Use [`NodeBuilder::in_process`] for other
    /// settings, several services or more nodes.
    ///
    /// ```
    /// use trunkline::{Node, block_on};
    ///
    /// #[trunkline::service]
    /// trait Greeter {
    ///     async fn greet(&self, name: String) -> String;
    /// }
    ///
    /// struct Polite;
    ///
    /// impl Greeter for Polite {
    ///     async fn greet(&self, name: String) -> String {
    ///         format!("Good day, {name}!")
    ///     }
    /// }
    ///
    /// let (server, node) = Node::in_process(GreeterServer::new(Polite))?;
    /// let client = GreeterClient::new(node.channel(server.local_address()));
    /// assert_eq!(block_on(client.greet("trunk".into()))?, "Good day, trunk!");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`NodeBuilder::start`].
    pub fn in_process(service: impl Into<Service>) -> Result<(Self, Self), StartError> {
        let network = InProcessNetwork::new();
        let server = Self::builder().in_process(&network).serve(service).start()?;
        let node = Self::builder().in_process(&network).start()?;
        Ok((server, node))
    }

    /// Returns the first address that the node listens on, with its actual port.
    ///
    /// If this address is unspecified, such as 0.0.0.0, returns the first device address through which the node can be
    /// reached.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.0.local_address
    }

    /// Returns the node's state and counters. After a shutdown, `served`, `called` and the counters of requests are final,
    /// and all other values date from before the shutdown. In a forked child only `address` and `why` are set, and `why`
    /// says that the process was forked.
    #[must_use]
    pub fn report(&self) -> NodeReport {
        if self.0.lifecycle.is_forked() {
            return NodeReport::forked(self.0.local_address);
        }
        let node = match &*self.0.state.lock() {
            NodeState::Running(node) => Arc::clone(node),
            NodeState::Ended(report) => return (**report).clone(),
        };
        self.0.complete(node.report())
    }

    /// Returns the latest events of the node, ordered by time. The record holds 512 calls and 512 failures per poller, 512
    /// starts and ends of sessions, and 256 other events. One in 64 calls of each method is recorded. Recording is always
    /// on. Reading the record takes a few microseconds per poller and does not block pollers. Returns an empty list in a
    /// forked child.
    ///
    /// To print the record on a signal, call this method in the program's own signal handling:
    ///
    /// ```
    /// # let (_server, node) = (trunkline::Node::builder().start()?, trunkline::Node::builder().start()?);
    /// // In the task or thread that the program's signal handler has woken:
    /// for event in node.record() {
    ///     eprintln!("{:?} {event}", event.time);
    /// }
    /// # Ok::<(), trunkline::StartError>(())
    /// ```
    #[must_use]
    pub fn record(&self) -> Vec<RecordedEvent> {
        if self.0.lifecycle.is_forked() {
            return Vec::new();
        }
        self.0.watchdog.events()
    }

    /// Returns a registered buffer of `bytes` bytes, to be filled and frozen. Returns `None` if no memory is left, or if
    /// memory cannot be registered, for example because the device is absent. Also returns `None` after a shutdown and in a
    /// forked child.
    ///
    /// An argument or reply of type [`Bytes`](crate::Bytes) that is a whole buffer, or a slice of one, is sent without a
    /// copy if it is larger than 8 KiB and the other arguments are small. The peer can read only the bytes that are sent to
    /// it. A slice is registered for each message that contains it, which can be slow on a NIC. Send whole buffers where
    /// speed matters. On a node with an identity, whole buffers are also registered for each message, and messages on
    /// encrypted sessions are copied.
    ///
    /// The buffer contains zeros, or data from earlier buffers of this node.
    #[must_use]
    pub fn buffer(&self, bytes: usize) -> Option<RegisteredBuffer> {
        if self.0.lifecycle.is_forked() {
            return None;
        }
        self.0.running()?.buffer(bytes)
    }

    /// Returns a channel to a [`Target`], which is an address, several addresses, a name or a resolver.
    ///
    /// This method does no I/O. Names are resolved and connections are opened when they are needed. [`Channel::ready`] and
    /// calls report errors.
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

    /// Returns a channel to the node that made a call ([`Context::peer`](crate::Context::peer)), so that a server can call
    /// its client.
    ///
    /// The channel uses the session that the client opened. If that session has ended, this node opens another one. If the
    /// client proved a name, the channel expects that name.
    #[must_use]
    pub fn channel_to(&self, peer: &Peer) -> Channel {
        #[cfg(feature = "identity")]
        let target = Target::of_peer(peer.key(), peer.name());
        #[cfg(not(feature = "identity"))]
        let target = peer.key();
        self.channel(target)
    }

    /// Runs a task on a poller, where the task may use local clients and need not be `Send`. The returned future resolves to
    /// the task's output.
    ///
    /// # Errors
    /// Returns `InvalidArgument` if the poller does not exist, `ResourceExhausted` if its queue is full, `Unavailable` if
    /// the node has shut down, and `FailedPrecondition` in a forked child. Returns `Internal` if the task panicked, or if
    /// [`crate::block_on`] waits for it on a poller's thread.
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
            // `task` is called inside the future, so a panic ends only the task.
            let context = context.clone();
            Box::pin(async move {
                let output = task(context).await;
                // Fails if the future was dropped.
                let _ = setter.set(output);
            })
        }));
        let inbox = self.0.inboxes.get(usize::from(poller.0));
        let refusal = match inbox {
            None => {
                let text = format!("there is no poller {}", poller.0);
                Some(Status::not_run(Code::InvalidArgument, text).because(Reason::Misuse))
            }
            Some(inbox) if inbox.lifecycle().is_forked() => Some(refused_in_child()),
            Some(inbox) => inbox.push(spawn).err().map(|_| {
                let text = "the queue of this poller is full";
                Status::not_run(Code::ResourceExhausted, text).because(Reason::Overloaded)
            }),
        };
        RunOn { refusal, getter, inbox: inbox.cloned() }
    }
}

impl NodeInner {
    /// Adds this layer's budgets, limits and counters to the transport's report.
    fn complete(&self, mut report: NodeReport) -> NodeReport {
        let jobs = self.pool.iter().map(|pool| pool.pool().report());
        report.budgets.splice(0..0, self.budgets.report().into_iter().chain(jobs));
        report.limits.extend(self.limits.report());
        report.servers = self.routes.report();
        self.count(&mut report);
        self.rows.iter().for_each(|add_rows| add_rows(&mut report));
        report
    }

    /// Sets this layer's counters in a report.
    fn count(&self, report: &mut NodeReport) {
        report.served = counted::report(self.inboxes.iter().map(|inbox| inbox.served()));
        self.pool.iter().for_each(|pool| pool.pool().add_waits(&mut report.served));
        report.called = counted::report(self.inboxes.iter().map(|inbox| inbox.called()));
        let counters = &self.lifecycle.counters;
        let counters = [
            ("requests_refused_draining", counters.refused.count()),
            ("requests_of_unknown_extension", counters.unknown_extensions.count()),
            ("requests_unauthorised", counters.unauthorised.count()),
            ("one_way_requests_not_served", counters.not_served.count()),
            ("one_way_requests_failed", counters.one_way_failed.count()),
            ("one_way_calls_not_served", counters.not_served_by_peers.count()),
            ("hedged_calls", counters.hedged.count()),
            ("hedges_won", counters.hedges_won.count()),
            ("servers_left_out", self.routes.servers_left_out()),
            ("pollers_held", self.watchdog.held()),
        ]
        .map(|(name, value)| EventCounter { name, value });
        report.counters.retain(|counter| counters.iter().all(|own| own.name != counter.name));
        report.counters.extend(counters);
    }
}

impl Channel {
    /// Creates a channel from `node` to a server, like [`Node::channel`], and checks the target.
    ///
    /// # Errors
    /// Returns `InvalidArgument` if no server can exist at the target.
    pub fn connect(node: &Node, server: impl Into<Target>) -> Result<Self, Status> {
        Self::checked(&node.0.inboxes, &node.0.routes, server)
    }
}

/// Future for the output of a task started with [`Node::run_on`]. Dropping it does not stop the task.
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
            let is_lost = self.inbox.as_ref().is_some_and(|inbox| inbox.lifecycle().is_forked());
            let status = if is_lost { Some(lost_in_child()) } else { on_poller::interruption() };
            return status.map_or(Poll::Pending, |status| Poll::Ready(Err(status)));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_hold_limit_is_100_ms() {
        assert_eq!(Node::builder().hold_limit, Duration::from_millis(100));
    }
}
