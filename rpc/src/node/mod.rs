//! The node: owner of a program's pollers, services and connections. A [`Node`] is built by a [`NodeBuilder`], owns the
//! transport's node and the pollers' inboxes, and is called from any thread. Shutdown is in `ending`.

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

/// Default limit of jobs that wait for a worker.
const QUEUED_JOBS: Limit = Limit { per_peer: 1024, in_all: 4096 };

/// Returns the addresses of a name. Loopback addresses that this host lacks are removed, unless all would be.
fn on_this_host(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let is_here =
        |address: &SocketAddr| addresses.len() < 2 || !address.ip().is_loopback() || host_has(address.ip());
    let here: Vec<_> = addresses.iter().copied().filter(is_here).collect();
    if here.is_empty() { addresses } else { here }
}

/// Settings of a node, from [`Node::builder`].
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
/// [`start`](Self::start) checks all settings. `docs/book/src/reference/budgets.md` explains the limits.
#[derive(Debug)]
#[must_use]
pub struct NodeBuilder {
    options: NodeOptions,
    listen: Result<Vec<SocketAddr>, (String, std::io::Error)>,
    #[cfg(feature = "identity")]
    identity: Settings,
    /// The files read while the settings were checked.
    #[cfg(feature = "identity")]
    files: Files,
    pollers: u16,
    limits: Limits,
    /// Limit on the memory ceiling, in bytes.
    memory_limit: Option<usize>,
    /// Names of limits set by the program, in addition to the names in `options`. The memory limit does not change these
    /// limits.
    kept: Vec<&'static str>,
    services: Vec<Service>,
    authorizers: Authorizers,
    health: Option<HealthReporter>,
    grace: Duration,
    runtime_guard: RuntimeGuard,
    pool: PoolSettings,
    hold_limit: Duration,
    /// Inboxes of the pollers, shared with channels that are created before the start.
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

    /// Adds an address to listen on. Port 0 takes a free port.
    ///
    /// A node that only makes calls needs no address. It uses the address of its NIC, or a loopback address on the software
    /// device. The maximum is 1,024 addresses. `::ffff:127.0.0.1` is treated as 127.0.0.1. A name may have loopback addresses
    /// of both families: addresses of a family that the host lacks are left out.
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

    /// Adds the [health service](crate::health) with the statuses of this reporter. The node's services are `Serving` from its
    /// start on, unless the reporter has another status for them.
    pub fn health(mut self, reporter: &HealthReporter) -> Self {
        self.health = Some(reporter.clone());
        self.serve(HealthServer::new(reporter.clone()))
    }

    /// Adds code that decides which calls of peers may run, by caller, method and metadata, before anything is decoded. If
    /// several are added, all must allow a call; they run in the order in which they were added.
    ///
    /// A refused call has not run, and has the reason [`Unauthorised`](Reason::Unauthorised) if its code is
    /// `PermissionDenied` or `Unauthenticated`. Large arguments of a refused call are not fetched, if its metadata takes
    /// less than 3 KiB. The counter `requests_unauthorised` in the report counts refused calls, and the log has one line
    /// per peer and second at most.
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

    /// Returns a channel of the node before it starts, for handlers that call other services. After the start it behaves
    /// like a channel from [`Node::channel`].
    ///
    /// Until the node starts, calls and [`Channel::ready`] fail with `FailedPrecondition` and have not run. If the start fails,
    /// they continue to fail.
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

    /// Sets the number of pollers, from 1 (the default) to 32. Each is a thread.
    ///
    /// Pollers share the handlers of services, except handlers that are created per poller.
    pub fn pollers(mut self, pollers: u16) -> Self {
        self.pollers = pollers;
        self
    }

    /// Sets how long [`Node::drain`] and [`Node::shutdown`] wait for running handlers. The default is 10 s, which
    /// is also the default time limit of a call.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Sets the number of threads in the worker pool, from 1 to 1,024. `#[offload]` and `#[blocking]` methods run
    /// there.
    ///
    /// The default is one thread per CPU that the process may use, and at least 2. A node without such methods has
    /// no pool.
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

    /// Limits how many calls of `#[offload]` and `#[blocking]` methods wait for a worker. The default is 1,024 per
    /// peer and 4,096 in all, the range 1 to 4,294,967,295.
    ///
    /// A call beyond the limit is refused with `ResourceExhausted` and has not run. Calls that a worker has begun
    /// do not count here. [`NodeBuilder::handler_limit`] counts both.
    pub fn queued_jobs(mut self, limit: Limit) -> Self {
        self.pool.queued = limit;
        self
    }

    /// Sets how long a handler or task may occupy its poller before the log warns and names it. The default is 100 ms,
    /// the minimum 1 ms. The counter `pollers_held` in the report counts such stalls.
    ///
    /// Time for which the poller's thread waits for a CPU, or is stopped, does not count.
    pub fn hold_limit(mut self, limit: Duration) -> Self {
        self.hold_limit = limit;
        self
    }

    /// Runs handlers and tasks in the context of a tokio runtime, so that `tokio::time::sleep`, `tokio::spawn` and
    /// tokio's sockets work in them. The node's pollers still poll them. The runtime must outlive the node.
    ///
    /// Clients do not need it: their calls can be awaited in any task.
    #[cfg(feature = "tokio")]
    pub fn tokio(mut self, handle: tokio::runtime::Handle) -> Self {
        self.runtime_guard = RuntimeGuard::tokio(handle);
        self
    }

    /// Runs the node on a network inside this process, for tests. The node reaches only other nodes on that network.
    ///
    /// The node needs no port, socket or directory. It gets an address of that network, [`Node::local_address`], with the ports
    /// given to [`NodeBuilder::listen`]; the IP addresses given there are ignored. Without a given port the node gets a free
    /// port.
    ///
    /// Call it before [`NodeBuilder::channel`]: existing channels keep the UDP port of the replaced device.
    pub fn in_process(mut self, network: &InProcessNetwork) -> Self {
        self.options = self.options.in_process(network);
        self.routes.set_udp_port(self.options.udp_port());
        self
    }

    /// Sets the provider. The default is `TRUNKLINE_PROVIDER`, or else `Auto`.
    pub fn provider(mut self, provider: ProviderChoice) -> Self {
        self.options = self.options.provider(provider);
        self
    }

    /// Sets the path to other processes of the host. The default is `TRUNKLINE_LINK`, or else `Auto`: shared memory with each
    /// process that can share it, UDP to all others.
    ///
    /// `Shm` is for measurements and tests. Only the software device has it. A peer that shares no memory with this process
    /// is refused with the reason, and with faults or a capture the node does not start. Errors name
    /// the variable and this setting.
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

    /// Sets the kind of connections, XRC or RC. The default is `TRUNKLINE_CONNECTIONS`, or else XRC if the device
    /// supports it. Nodes that communicate need the same kind.
    pub fn connections(mut self, connections: Connections) -> Self {
        self.options = self.options.connections(connections);
        self
    }

    /// Sets the NIC. The default is `TRUNKLINE_DEVICE` and `TRUNKLINE_GID_INDEX`, or else the first usable NIC.
    pub fn nic(mut self, nic: NicOptions) -> Self {
        self.options = self.options.nic(nic);
        self
    }

    /// Sets the CPUs that the pollers run on. The default is `Off`.
    pub fn pinning(mut self, pinning: Pinning) -> Self {
        self.options = self.options.pinning(pinning);
        self
    }

    /// Sets the longest time that a poller polls after an event before it sleeps. The default is 400 µs, the maximum 1 s. A
    /// poller polls only if the last gaps between events were shorter than `longest`, and no other thread competes for its
    /// core. With zero the poller always sleeps, so that each event costs a wake-up by the system.
    pub fn poll_for(mut self, longest: Duration) -> Self {
        self.options = self.options.poll_for(longest);
        self
    }

    /// Gives the node an identity. The node then has sessions only with peers that prove their names, and proves its own name to
    /// these peers. [`NodeBuilder::exempt_local_user`] describes the exception. Requires [`NodeBuilder::trust`]. See
    /// [`identity`](crate::identity) for an example.
    ///
    /// Such a node may listen on any address. If it accepts [`Level::None`](crate::identity::Level::None), it needs
    /// [`NodeBuilder::allow_unauthenticated`] for addresses other than loopback.
    #[cfg(feature = "identity")]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity.identity = Some(Source::Given(identity));
        self
    }

    /// Sets the roots that the certificates of peers must lead to. Requires [`NodeBuilder::identity`].
    #[cfg(feature = "identity")]
    pub fn trust(mut self, trust: Trust) -> Self {
        self.identity.trust = Some(Source::Given(trust));
        self
    }

    /// Gives the node an identity as [`Self::identity`] does, from a file of certificates, the node's own first, and a file
    /// with its private key, both PEM. Replaces an earlier identity.
    ///
    /// The node checks its files for changes every 5 s. New sessions use the changed files; live sessions are renewed with them.
    /// Replace files by `rename`, or change a symbolic link that leads to them. If certificate and key do not match, or a file is
    /// malformed or expired, the earlier files stay in force. The node logs the cause, once per change, and tries again at the
    /// next check. At the start such files are a [`StartError`]. Files of more than 1 MiB are refused.
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

    /// Sets the roots of peers' certificates as [`Self::trust`] does, from a PEM file that the node reads again when it
    /// changes, see [`Self::identity_files`]. Replaces earlier trust.
    #[cfg(feature = "identity")]
    pub fn trust_files(mut self, roots: impl Into<PathBuf>) -> Self {
        self.identity.trust = Some(Source::Files(roots.into()));
        self
    }

    /// Sets PEM files of revocation lists, which the node reads again when they change, see [`Self::identity_files`]. They
    /// replace earlier lists, and the lists in [`Trust`].
    #[cfg(feature = "identity")]
    pub fn revocation_files(mut self, paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        self.identity.revocation_lists = paths.into_iter().map(Into::into).collect();
        self
    }

    /// Sets a file of rules that decide which calls of peers may run, see [`policy`](crate::policy). The node reads it again
    /// when it changes. Calls must also be allowed by each [`Self::authorize`]. Replaces an earlier file.
    #[cfg(feature = "identity")]
    pub fn policy_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.identity.policy = Some(path.into());
        self
    }

    /// Sets the time between two checks of the node's files, for tests.
    #[cfg(feature = "identity")]
    #[doc(hidden)]
    pub fn look_at_files_every(mut self, time: Duration) -> Self {
        self.identity.look_every = Some(time);
        self
    }

    /// Sets the lowest level of sessions of a node with an identity. The default is [`Level::Encrypted`].
    ///
    /// With [`Level::None`] the node also has sessions with peers that have no identity. Handlers then see a peer without a
    /// name, and the log warns of this at the start.
    #[cfg(feature = "identity")]
    pub fn accept(mut self, lowest: Level) -> Self {
        self.identity.accept = Some(lowest);
        self
    }

    /// Sets whether a node with an identity has sessions without a handshake with processes of this user on this host. Handlers
    /// see such a peer as [`PeerIdentity::LocalUser`](crate::identity::PeerIdentity::LocalUser). The default is `true`, since
    /// processes of one user can read each other's memory and keys. Set `false` to try certificates on one host. The software
    /// device proves the user of a process; on a NIC no peer is exempt.
    #[cfg(feature = "identity")]
    pub fn exempt_local_user(mut self, exempt: bool) -> Self {
        self.options = self.options.exempt_local_user(exempt);
        self
    }

    /// Allows listening on addresses other than loopback, although peers are not authenticated. The default is `false`. A node
    /// with an identity needs this only if it accepts sessions with peers that have none.
    pub fn allow_unauthenticated(mut self, allow: bool) -> Self {
        self.options = self.options.allow_unauthenticated(allow);
        self
    }

    /// Sets the maximum size of a message, in bytes: the arguments or the result of a call, with headers. The default
    /// is 64 MiB + 64 KiB, the range 64 KiB to 128 TiB.
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.options = self.options.max_message_bytes(bytes);
        self
    }

    /// Sets the memory, in bytes, for large messages that are being received or that the program still holds. The default
    /// is 256 MiB. The range is the largest message + 64 KiB, to 128 TiB.
    pub fn rendezvous_bytes(mut self, bytes: usize) -> Self {
        self.options = self.options.rendezvous_bytes(bytes);
        self
    }

    /// Sets how many receives each poller keeps posted, at first and at most. The defaults are 512 and 8,192, the range is 16
    /// to 16,384. Each poller of each peer holds one receive, and the depth grows with the number of these pollers.
    pub fn srq_depth(mut self, first: u32, limit: u32) -> Self {
        self.options = self.options.srq_depth(first).srq_depth_limit(limit);
        self
    }

    /// Sets how much of `rendezvous_bytes` one peer may use, in bytes. The default is half of `rendezvous_bytes`. The minimum
    /// is the largest message + 64 KiB. A message without memory waits, and fails after 30 s.
    pub fn rendezvous_bytes_per_peer(mut self, bytes: usize) -> Self {
        self.options = self.options.rendezvous_bytes_per_peer(bytes);
        self
    }

    /// Limits how many messages wait to be sent. The default is 65,536 per peer and 262,144 in all, the range 1 to
    /// 4,294,967,295.
    ///
    /// Calls beyond the limit wait or are refused, see [`CallOptions::admission`](crate::CallOptions::admission).
    /// Requests of a peer that leaves little room for replies are refused too.
    pub fn queued_messages(mut self, limit: Limit) -> Self {
        self.options = self.options.queued_messages(limit);
        self
    }

    /// Limits the bytes of messages that wait to be sent, and of large messages that their peer has not READ. The
    /// default is 128 MiB per peer and 512 MiB in all. The range is the largest message to 128 TiB. The same limit
    /// applies to large replies that wait for room.
    pub fn queued_bytes(mut self, limit: Limit) -> Self {
        self.limits.waiting_replies = limit;
        self.options = self.options.queued_bytes(limit);
        self
    }

    /// Limits how many announced large messages have not been READ yet, in each direction. The default is 4,096 per
    /// peer and 16,384 in all, the range 1 to 4,294,967,295. Further messages wait.
    pub fn large_messages(mut self, limit: Limit) -> Self {
        self.options = self.options.large_messages(limit);
        self
    }

    /// Sets the time after which a peer loses its session if it accepts none of the messages queued for it. The default is 60
    /// s, the minimum 1 s.
    pub fn stall_limit(mut self, limit: Duration) -> Self {
        self.options = self.options.stall_limit(limit);
        self
    }

    /// Sets the time of silence after which an idle session is probed by the node that accepted it. The default is
    /// 10 s, the range 500 ms to 20 s.
    ///
    /// State that a server holds for a client that vanished is freed [`session_loss_time`](Self::session_loss_time) later. A
    /// client detects the death of an idle server at its next call.
    pub fn idle_keepalive(mut self, silence: Duration) -> Self {
        self.options = self.options.idle_keepalive(silence);
        self
    }

    /// Sets the time after which a session ends if the peer acknowledges nothing that is sent to it. The default is 1 s, the
    /// range 500 ms to 60 s.
    ///
    /// A call to a peer that vanished ends within `time`. If a call already waits, the peer is probed after half of `time`, at
    /// most 10 s or [`idle_keepalive`](Self::idle_keepalive), and the call ends that much later. A peer that is stopped for
    /// longer loses its session. The device has an ACK timeout and a number of retries, which come in steps: the actual time is
    /// between three quarters of `time` and all of it, 0.94 s by default. A NIC may take up to four times as long, which the
    /// InfiniBand specification allows. `docs/book/src/operate/memory.md` has a table. Each node applies its own setting.
    pub fn session_loss_time(mut self, time: Duration) -> Self {
        self.options = self.options.session_loss_time(time);
        self
    }

    /// Limits how many handlers run concurrently. The default is 16,384 per peer and 65,536 in all, the range 1 to
    /// 4,294,967,295. A call beyond the limit is refused with `ResourceExhausted` and has not run.
    pub fn handler_limit(mut self, limit: Limit) -> Self {
        self.limits.handlers = limit;
        self.kept.push("handler_limit");
        self
    }

    /// Limits how many calls of this node are in flight. The default is 65,536 per peer and 262,144 in all, the range
    /// 1 to 4,294,967,295.
    ///
    /// A call beyond the limit waits or is refused, see [`CallOptions::admission`](crate::CallOptions::admission).
    /// An eighth of each limit is reserved for calls that handlers make: at least 1, unless the limit is 1.
    pub fn call_limit(mut self, limit: Limit) -> Self {
        self.limits.calls = limit;
        self.kept.push("call_limit");
        self
    }

    /// Limits the memory, in bytes, that decoded arguments of running handlers take. The default is 256 MiB per
    /// peer and 1 GiB in all, the range 64 KiB to 128 TiB.
    ///
    /// A call beyond the limit is refused with `ResourceExhausted` and has not run. A reply may take as much as one
    /// peer's arguments while it is decoded. `Bytes` are not decoded and do not count.
    pub fn decoded_bytes(mut self, limit: Limit) -> Self {
        self.limits.decoded = limit;
        self.kept.push(budgets::DECODED_BYTES);
        self
    }

    /// Limits the memory, in bytes, that the node and its peers use at most, without the program's own allocations. The default
    /// is the sum of all budgets, 4.7 GB with one poller. `docs/book/src/reference/budgets.md` has its parts.
    ///
    /// The budgets are lowered by one factor until their sum is at most `bytes`. Budgets that the program sets, before or after
    /// this call, keep their values. A limit above the sum changes nothing. The minimum is about 450 MB with one poller, most
    /// of it for messages of the largest size: a smaller [`Self::max_message_bytes`] lowers the minimum. The error for a
    /// smaller limit names the minimum. Peers get lower limits, and fewer peers can have sessions: see [`Self::srq_depth`].
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

    /// Limits the metadata of one call, in bytes, in each direction, for calls and replies that this node sends or accepts.
    /// The default is 8 KiB, the range 0 to 1 MiB. The size is [`Metadata::size`](crate::Metadata::size).
    ///
    /// A call beyond the limit fails with `ResourceExhausted` and has not run. If its reply is beyond the limit, the call
    /// may have run. The metadata of running handlers counts towards [`NodeBuilder::decoded_bytes`].
    pub fn metadata_bytes(mut self, bytes: usize) -> Self {
        self.limits.metadata = bytes;
        self
    }

    /// Injects faults on the software device's link, such as `drop=0.01,reorder=0.01,seed=7`. Overrides
    /// `TRUNKLINE_FAULTS`, which has the same format.
    ///
    /// # Errors
    /// [`StartError::BadSetting`] when the text cannot be parsed.
    pub fn faults(mut self, text: &str) -> Result<Self, StartError> {
        self.options = self.options.faults(text).map_err(StartError::from_transport)?;
        Ok(self)
    }

    /// Replaces all settings except pollers, addresses and services by the transport's options. Simulations use it to
    /// set a simulated runtime and a software device. Call it before [`NodeBuilder::channel`], as [`NodeBuilder::in_process`].
    #[doc(hidden)]
    pub fn transport(mut self, options: NodeOptions) -> Self {
        self.routes.set_udp_port(options.udp_port());
        self.options = options;
        self
    }

    /// Starts the node without blocking the caller's runtime: runs [`NodeBuilder::start`] on a separate thread.
    ///
    /// If the future is dropped, the node is dropped once it has started.
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
    /// Same as [`NodeBuilder::start`].
    pub fn start_async(self) -> impl Future<Output = Result<Node, StartError>> + Send + use<> {
        // Check the settings before the thread starts.
        let checked = self.checked();
        let start = checked.map(|node| elsewhere::run("trunkline-start", move || node.start_checked()));
        async move { start?.await.unwrap_or_else(|error| Err(StartError::os("start a thread", error))) }
    }

    /// Starts the node. Blocks for some milliseconds.
    ///
    /// All settings, and the memory that they need, are checked before anything is created.
    ///
    /// # Errors
    /// Returns a [`StartError`] that names the cause and the remedy.
    pub fn start(self) -> Result<Node, StartError> {
        self.checked()?.start_checked()
    }

    /// Completes the settings from the environment and checks all of them, without side effects.
    fn checked(mut self) -> Result<Self, StartError> {
        let mut options = std::mem::take(&mut self.options).pollers(self.pollers);
        // A simulation does not depend on the environment: the same seed must give the same run.
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

    /// Returns the memory of this layer at the start, and the memory that its raised limits allow.
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

    /// Starts a node with checked settings.
    fn start_checked(self) -> Result<Node, StartError> {
        let (inboxes, routes) = (Arc::clone(&self.inboxes), Arc::clone(&self.routes));
        // Calls and tasks must not wait for pollers that will never run.
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

/// A running node, which owns the pollers, the services and the connections of a program.
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
/// tokio runtime it blocks for at most 50 ms, and a separate thread completes the shutdown; await
/// [`Node::shutdown_async`] there instead. Other runtimes are not detected.
pub struct Node(Arc<NodeInner>);

/// State of a node, shared by its handle and the threads that wait for its end.
struct NodeInner {
    local_address: SocketAddr,
    clock: Clock,
    inboxes: Arc<Inboxes>,
    routes: Arc<Routes>,
    budgets: Budgets,
    /// Limits of the node's services.
    limits: LimitReports,
    /// Additions of the node's services to the report.
    rows: Vec<AddRows>,
    grace: Duration,
    lifecycle: Arc<Lifecycle>,
    /// The worker pool, if a service needs one.
    pool: Option<Box<PoolThreads>>,
    /// Thread that reloads files, if the node has files.
    #[cfg(feature = "identity")]
    files: Option<FilesThread>,
    watchdog: Arc<Watchdog>,
    state: Lock<NodeState>,
}

enum NodeState {
    /// Cloned for longer uses, to hold the lock briefly.
    Running(Arc<trunkline_transport::Node>),
    /// The node has ended; this is its last report.
    Ended(Box<NodeReport>),
}

impl Node {
    /// Returns the settings of a node to start.
    pub fn builder() -> NodeBuilder {
        NodeBuilder::new()
    }

    /// Starts a node that serves `service`, and a node that calls it, on a network inside this process, for tests.
    /// Returns the server first.
    ///
    /// The nodes need no port, socket or directory, and reach only each other. [`NodeBuilder::in_process`] allows settings,
    /// several services and more nodes.
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
    /// Same as [`NodeBuilder::start`].
    pub fn in_process(service: impl Into<Service>) -> Result<(Self, Self), StartError> {
        let network = InProcessNetwork::new();
        let server = Self::builder().in_process(&network).serve(service).start()?;
        let node = Self::builder().in_process(&network).start()?;
        Ok((server, node))
    }

    /// Returns the first address that the node listens on, with the port that it was given.
    ///
    /// If the first address is unspecified, such as 0.0.0.0, returns the first of the device's addresses at which the node is
    /// reached.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.0.local_address
    }

    /// Returns the node's state and counters. After a shutdown, `served`, `called` and the counters of requests are final, and
    /// all other values are from before the shutdown. In a forked child only `address` is set, and `why` says that the process
    /// was forked.
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

    /// Returns the last events of the node in order of time: 512 calls and 512 failures per poller, and 512 other events, such as
    /// the ends of sessions. One in 64 calls of each method is recorded. Recording is always on. Reading the events takes a few
    /// microseconds per poller and does not block pollers. Returns an empty list in a forked child.
    ///
    /// To print the record on a signal, call this in the program's own signal handling:
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

    /// Returns a registered buffer of `bytes` bytes, to fill and to freeze. Returns `None` when no memory is
    /// left, when memory cannot be registered, such as while the device is absent, when the node has shut down, and in a forked child.
    ///
    /// An argument or reply of type [`Bytes`](crate::Bytes) that is a whole buffer or a slice of one is sent
    /// without a copy, if it has more than 8 KiB and the other arguments are small. The peer can read only the
    /// bytes that it is sent. Each message with a slice registers that slice, which can be slow on a NIC; send whole
    /// buffers where that matters. On a node with an identity each message registers whole buffers, too, and messages of
    /// encrypted sessions are copied.
    ///
    /// The buffer holds zeros, or the content of earlier buffers of this node.
    #[must_use]
    pub fn buffer(&self, bytes: usize) -> Option<RegisteredBuffer> {
        if self.0.lifecycle.is_forked() {
            return None;
        }
        self.0.running()?.buffer(bytes)
    }

    /// Returns a channel to a [`Target`]: an address, several addresses, a name or a resolver.
    ///
    /// This does no I/O. Names are resolved and connections opened when they are needed. [`Channel::ready`] and calls report
    /// errors.
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

    /// Returns a channel to the node that makes a call ([`Context::peer`](crate::Context::peer)), so that a server
    /// can call its client.
    ///
    /// The channel uses the session that the client has opened. If that session has ended, this node opens another one. If the
    /// client has proved a name, the channel expects that name.
    #[must_use]
    pub fn channel_to(&self, peer: &Peer) -> Channel {
        #[cfg(feature = "identity")]
        let target = Target::of_peer(peer.key(), peer.name());
        #[cfg(not(feature = "identity"))]
        let target = peer.key();
        self.channel(target)
    }

    /// Runs a task on a poller, where it may use local clients and need not be `Send`. The returned future resolves
    /// to the task's output.
    ///
    /// # Errors
    /// `InvalidArgument` when there is no such poller, `ResourceExhausted` when its queue is full, `Unavailable`
    /// when the node has shut down, `Internal` when the task panicked, or is waited for by [`crate::block_on`] on a
    /// poller's thread. `FailedPrecondition` in a forked child.
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
                // The output is dropped if the future was dropped.
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
    /// Creates a channel of `node` to a server, like [`Node::channel`], and checks the target.
    ///
    /// # Errors
    /// `InvalidArgument` when no server can be at the target.
    pub fn connect(node: &Node, server: impl Into<Target>) -> Result<Self, Status> {
        Self::checked(&node.0.inboxes, &node.0.routes, server)
    }
}

/// A future of a task's output, from [`Node::run_on`]. Dropping it does not stop the task.
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
