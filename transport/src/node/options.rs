//! Options for starting a node.
#![forbid(unsafe_code)]

use crate::budget::{NodeLimits, part_of};
#[cfg(feature = "identity")]
use crate::identity::{Credentials, Level};
use crate::session::machine::Levels;
use crate::wire::HEAD_ROOM;
use crate::{
    Connections, DeviceError, InProcessNetwork, Limit, MethodStatus, NodeEvents, PeerHosts, RecordedEvent,
    StartError,
};
use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use trunkline_machine::Runtime;
use trunkline_softrdma::device::SoftOptions;
use trunkline_softrdma::link::{FaultPlan, ROCE_PORT};
use trunkline_verbs::{Clock, PathChoice, Time, canonical};

/// The family of RDMA devices to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProviderChoice {
    /// A NIC if a usable one exists, otherwise the software device.
    #[default]
    Auto,
    /// A NIC. A node does not start without one.
    Require,
    /// The software device.
    Soft,
}

/// An observer of a node. The CM machine calls it, so it must not block.
pub trait Watch: Send + Sync + fmt::Debug {
    /// Observes the node. Returns the time at which it must be called again.
    fn look(&self, now: Time) -> Time;

    /// Returns the methods that the node serves and calls, for `trunkctl top`.
    fn methods(&self) -> Vec<MethodStatus>;

    /// Returns the last events of the node, sorted by time, for `trunkctl record`.
    fn record(&self) -> Vec<RecordedEvent>;

    /// Returns true if the node drains, for `trunkctl nodes` and `trunkctl top`.
    fn is_draining(&self) -> bool;
}

/// Choice of the NIC. The default is the first device that has the node's addresses, with its first RoCE v2 GID that is
/// not link-local.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NicOptions {
    /// Name of the NIC, as `ibv_devices` lists it.
    pub device: Option<String>,
    /// Index in the NIC's GID table. The node must use the address of that GID.
    pub gid_index: Option<u16>,
}

impl std::str::FromStr for ProviderChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "require" => Ok(Self::Require),
            "soft" => Ok(Self::Soft),
            other => Err(format!("invalid provider {other:?}: expected `auto`, `require` or `soft`")),
        }
    }
}

/// The CPUs that the pollers run on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Pinning {
    /// Pollers are not pinned. They yield and sleep after a short time of polling.
    #[default]
    Off,
    /// One of the process's CPUs per poller, if there are more CPUs than pollers. Otherwise the same as `Off`.
    Auto,
    /// The CPU of each poller, by the poller's index.
    List(Vec<usize>),
}

/// Options for starting a node. The defaults suit one service on one machine.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// Requested addresses. [`NodeOptions::listens_on`] returns the actual ones.
    pub(crate) listen: Vec<SocketAddr>,
    /// Address of the node on a network within this process.
    pub(crate) in_process: Option<IpAddr>,
    pub(crate) pollers: u16,
    pub(crate) provider: Option<ProviderChoice>,
    pub(crate) nic: NicOptions,
    pub(crate) connections: Option<Connections>,
    /// Options of the software device; `None` for the options from the environment or the defaults.
    pub(crate) device: Option<SoftOptions>,
    /// Faults that replace the ones in `device`.
    pub(crate) faults: Option<FaultPlan>,
    /// Path that replaces the path in `device`.
    pub(crate) path: Option<PathChoice>,
    pub(crate) runtime: Runtime,
    pub(crate) watch: Option<Arc<dyn Watch>>,
    pub(crate) peer_hosts: Option<Arc<PeerHosts>>,
    pub(crate) events: Option<Arc<NodeEvents>>,
    pub(crate) max_message_bytes: usize,
    pub(crate) rendezvous_bytes: usize,
    /// `None` for the default, which is half of `rendezvous_bytes`, or the largest message if that is more.
    pub(crate) rendezvous_bytes_per_peer: Option<usize>,
    pub(crate) budgets: NodeLimits,
    /// Names of the settings that the program set. A memory limit does not change them.
    pub(crate) kept: Vec<&'static str>,
    pub(crate) stall_limit: Duration,
    pub(crate) srq_depth: u32,
    /// `None` for the default, which is 8192, or `srq_depth` if that is more.
    pub(crate) srq_depth_limit: Option<u32>,
    pub(crate) pinning: Pinning,
    pub(crate) session_loss_time: Duration,
    pub(crate) poll_for: Duration,
    pub(crate) idle_keepalive: Duration,
    pub(crate) allow_unauthenticated: bool,
    /// True if processes of this user on this host are exempt from the handshake.
    pub(crate) exempts_local_user: bool,
    /// Identity and trust of the node.
    #[cfg(feature = "identity")]
    pub(crate) credentials: Option<Arc<Credentials>>,
    /// Time after which the names of a session are proved again.
    #[cfg(feature = "identity")]
    pub(crate) renew_after: Duration,
    /// True if a node with an identity opens sessions with peers that have none.
    #[cfg(feature = "identity")]
    pub(crate) accepts_unproven: bool,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            in_process: None,
            pollers: 1,
            provider: None,
            nic: NicOptions::default(),
            connections: None,
            device: None,
            faults: None,
            path: None,
            runtime: Runtime::threads(),
            watch: None,
            peer_hosts: None,
            events: None,
            max_message_bytes: (64 << 20) + (64 << 10),
            rendezvous_bytes: 256 << 20,
            rendezvous_bytes_per_peer: None,
            budgets: NodeLimits::default(),
            kept: Vec::new(),
            stall_limit: Duration::from_secs(60),
            srq_depth: 512,
            srq_depth_limit: None,
            pinning: Pinning::Off,
            session_loss_time: Duration::from_secs(1),
            poll_for: Duration::from_micros(400),
            idle_keepalive: Duration::from_secs(10),
            allow_unauthenticated: false,
            exempts_local_user: true,
            #[cfg(feature = "identity")]
            credentials: None,
            #[cfg(feature = "identity")]
            renew_after: Duration::from_secs(3600),
            #[cfg(feature = "identity")]
            accepts_unproven: false,
        }
    }
}

impl NodeOptions {
    /// Creates the default options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives the node an identity. It then opens sessions only with peers that prove a name in a handshake.
    #[cfg(feature = "identity")]
    #[must_use]
    pub fn credentials(mut self, credentials: Arc<Credentials>) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// Sets the lowest accepted level of sessions. [`Level::None`] lets a node with an identity also open sessions
    /// with peers that have none.
    #[cfg(feature = "identity")]
    #[must_use]
    pub fn accept(mut self, lowest: Level) -> Self {
        self.accepts_unproven = lowest == Level::None;
        self
    }

    /// Sets whether processes of this user on this host are exempt from the handshake. By default, they are exempt if
    /// the software device proves their user.
    #[cfg(feature = "identity")]
    #[must_use]
    pub fn exempt_local_user(mut self, exempts: bool) -> Self {
        self.exempts_local_user = exempts;
        self
    }

    /// Sets the time after which the names of a session are proved again. For tests and simulations.
    #[cfg(feature = "identity")]
    #[doc(hidden)]
    #[must_use]
    pub fn renew_after(mut self, time: Duration) -> Self {
        self.renew_after = time;
        self
    }

    /// Returns true if sessions may begin with a handshake.
    pub(crate) fn has_handshakes(&self) -> bool {
        self.levels() != Levels::None
    }

    /// Returns the levels of the node's sessions.
    pub(crate) fn levels(&self) -> Levels {
        #[cfg(feature = "identity")]
        if self.credentials.is_some() {
            return if self.accepts_unproven { Levels::Either } else { Levels::Encrypted };
        }
        Levels::None
    }

    /// Returns true if other hosts may reach the node, because its sessions are all encrypted or the program allows
    /// this.
    pub(crate) fn may_leave_host(&self) -> bool {
        self.allow_unauthenticated || self.levels() == Levels::Encrypted
    }

    /// Adds an address to listen on; port 0 selects a free port. A node without a listening address is a client. It
    /// listens for the dial-back on a free port, at its NIC's address or, on the software device, at a separate
    /// loopback address.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.listen.push(canonical(address));
        self
    }

    /// Sets the number of pollers, from 1 (the default) to 32. Each poller is a thread.
    #[must_use]
    pub fn pollers(mut self, pollers: u16) -> Self {
        self.pollers = pollers;
        self
    }

    /// Chooses the provider; `Auto` by default.
    #[must_use]
    pub fn provider(mut self, provider: ProviderChoice) -> Self {
        self.provider = Some(provider);
        self
    }

    /// Chooses the NIC; by default the first usable one.
    #[must_use]
    pub fn nic(mut self, nic: NicOptions) -> Self {
        self.nic = nic;
        self
    }

    /// Chooses XRC or RC connections; by default XRC if the device supports it. Nodes that communicate must use the
    /// same kind.
    #[must_use]
    pub fn connections(mut self, connections: Connections) -> Self {
        self.connections = Some(connections);
        self
    }

    /// Reads the environment for options that were not set: `TRUNKLINE_PROVIDER` (`auto`, `require`, `soft`),
    /// `TRUNKLINE_DEVICE` (name of a NIC), `TRUNKLINE_GID_INDEX`, `TRUNKLINE_CONNECTIONS` (`auto`, `xrc`,
    /// `rc`), and the variables of the software device ([`SoftOptions::from_env`]) unless
    /// [`NodeOptions::device`] was called. In a simulation, the environment is ignored.
    ///
    /// # Errors
    /// [`StartError::BadEnvironment`] or [`StartError::BadDeviceSetting`] for a variable that cannot be parsed.
    pub fn or_from_env(self) -> Result<Self, StartError> {
        if self.runtime.is_simulated() {
            return Ok(self);
        }
        let mut options = self.or_from(|name| std::env::var_os(name))?;
        if options.device.is_none() {
            let device = SoftOptions::from_env().map_err(DeviceError::new);
            options.device = Some(device.map_err(StartError::BadDeviceSetting)?);
        }
        Ok(options)
    }

    fn or_from(mut self, value: impl Fn(&str) -> Option<OsString>) -> Result<Self, StartError> {
        let bad = |variable, value: &str, remedy| StartError::BadEnvironment {
            variable,
            value: value.to_owned(),
            remedy,
        };
        let text = |variable| {
            let value = value(variable).filter(|value| !value.is_empty());
            let not_text =
                |value: OsString| bad(variable, &value.to_string_lossy(), "expected text in UTF-8");
            value.map(|value| value.into_string().map_err(not_text)).transpose()
        };
        if let Some(text) = text("TRUNKLINE_PROVIDER")? {
            let read = text
                .parse()
                .map_err(|_| bad("TRUNKLINE_PROVIDER", &text, "expected `auto`, `require` or `soft`"))?;
            self.provider = self.provider.or(Some(read));
        }
        let device = text("TRUNKLINE_DEVICE")?;
        self.nic.device = self.nic.device.or(device);
        if let Some(text) = text("TRUNKLINE_GID_INDEX")? {
            let read =
                text.parse().map_err(|_| bad("TRUNKLINE_GID_INDEX", &text, "expected a number from 0"))?;
            self.nic.gid_index = self.nic.gid_index.or(Some(read));
        }
        if let Some(text) = text("TRUNKLINE_CONNECTIONS")? {
            let read = text
                .parse()
                .map_err(|_| bad("TRUNKLINE_CONNECTIONS", &text, "expected `auto`, `xrc` or `rc`"))?;
            self.connections = self.connections.or(Some(read));
        }
        Ok(self)
    }

    /// Sets the options of the software device, such as addresses, link, faults and capture.
    #[must_use]
    pub fn device(mut self, device: SoftOptions) -> Self {
        self.device = Some(device);
        self
    }

    /// Runs the node on the software device, at a separate address in a network within this process. Of the addresses
    /// passed to [`NodeOptions::listen`], only the ports are used. Without such an address, the node gets a free port.
    #[must_use]
    pub fn in_process(mut self, network: &InProcessNetwork) -> Self {
        let address = network.address();
        self.provider = Some(ProviderChoice::Soft);
        self.device = Some(network.device(address));
        self.in_process = Some(address);
        self
    }

    /// Returns the UDP port of the node's software device, by default the port from the environment. The name of a peer
    /// omits the port if it is the same; see [`PeerKey::seen_from`](crate::PeerKey::seen_from).
    #[must_use]
    pub fn udp_port(&self) -> u16 {
        let port = SoftOptions::receiving_port;
        // An invalid environment is reported when the node starts.
        self.device.as_ref().map_or_else(|| SoftOptions::from_env().as_ref().map_or(ROCE_PORT, port), port)
    }

    /// Returns the addresses that the node listens on.
    pub(crate) fn listens_on(&self) -> Vec<SocketAddr> {
        let Some(own) = self.in_process else { return self.listen.clone() };
        let ports = self.listen.iter().map(SocketAddr::port).collect::<Vec<_>>();
        let ports = if ports.is_empty() { vec![0] } else { ports };
        ports.into_iter().map(|port| SocketAddr::new(own, port)).collect()
    }

    /// Sets the runtime of the node's machines. By default, each machine is a thread.
    #[must_use]
    pub fn runtime(mut self, runtime: Runtime) -> Self {
        self.runtime = runtime;
        self
    }

    /// Returns the clock of the node's runtime.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        self.runtime.clock()
    }

    /// Returns the runtime of the node's machines.
    #[must_use]
    pub fn machines(&self) -> &Runtime {
        &self.runtime
    }

    /// Sets an observer of the node. The CM machine calls it at the times that [`Watch::look`] returns.
    #[must_use]
    pub fn watch(mut self, watch: Arc<dyn Watch>) -> Self {
        self.watch = Some(watch);
        self
    }

    /// Sets the table of the hosts of the node's peers, which a driver uses for its budgets. The node fills the table,
    /// so nodes must not share it.
    #[must_use]
    pub fn peer_hosts(mut self, hosts: &Arc<PeerHosts>) -> Self {
        self.peer_hosts = Some(Arc::clone(hosts));
        self
    }

    /// Sets the record of the node's events. Nodes must not share a record.
    #[must_use]
    pub fn events(mut self, events: &Arc<NodeEvents>) -> Self {
        self.events = Some(Arc::clone(events));
        self
    }

    /// Injects faults on the software device's link, in place of the faults from [`NodeOptions::device`] or the
    /// environment. The format is the same as in `TRUNKLINE_FAULTS`, for example `drop=0.01,reorder=0.01,seed=7`.
    ///
    /// # Errors
    /// [`StartError::BadFaults`] if the text cannot be parsed.
    pub fn faults(mut self, text: &str) -> Result<Self, StartError> {
        let plan = text.parse::<FaultPlan>();
        self.faults = Some(plan.map_err(|error| StartError::BadFaults(error.to_string()))?);
        Ok(self)
    }

    /// Sets the path of the software device's packets to other processes on the host. Overrides
    /// [`NodeOptions::device`] and the environment.
    #[must_use]
    pub fn path(mut self, path: PathChoice) -> Self {
        self.path = Some(path);
        self
    }

    /// Returns the software device's options, with the node's faults, path and runtime.
    pub(crate) fn software(&self) -> SoftOptions {
        let mut device = self.device.clone().unwrap_or_default();
        device.faults = self.faults.or(device.faults);
        device.path = self.path.unwrap_or(device.path);
        device.runtime = self.runtime.clone();
        device
    }

    /// Sets the maximum size of a message, head and body together. The default is 64 MiB + 64 KiB.
    #[must_use]
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// Limits the memory for large messages that are being received or are still held, over all peers. The default is
    /// 256 MiB, and the minimum is the largest message plus 64 KiB. The memory is allocated on demand. A separate limit
    /// of the same size applies to copies that peers READ.
    #[must_use]
    pub fn rendezvous_bytes(mut self, bytes: usize) -> Self {
        self.rendezvous_bytes = bytes;
        self.kept.push("rendezvous_bytes");
        self
    }

    /// Limits the part of `rendezvous_bytes` that one peer may use in each direction. The default is half of it, and
    /// the minimum is the largest message plus 64 KiB. A message that exceeds the limit waits for memory, and fails
    /// after 30 s.
    #[must_use]
    pub fn rendezvous_bytes_per_peer(mut self, bytes: usize) -> Self {
        self.rendezvous_bytes_per_peer = Some(bytes);
        self
    }

    /// Limits the number of messages that wait to be sent. The default is 65,536 per peer and 262,144 in total. Further
    /// messages are refused, and so are requests from a peer that leaves little room for replies.
    #[must_use]
    pub fn queued_messages(mut self, limit: Limit) -> Self {
        self.budgets.queued_messages = limit;
        self.kept.push("queued_messages");
        self
    }

    /// Limits the total size of the messages that wait to be sent and of the large messages that the peer has not READ.
    /// The default is 128 MiB per peer and 512 MiB in total. The largest message must fit. Further messages are
    /// refused.
    #[must_use]
    pub fn queued_bytes(mut self, limit: Limit) -> Self {
        self.budgets.queued_bytes = limit;
        self.kept.push("queued_bytes");
        self
    }

    /// Limits the number of large messages that are announced but not yet READ, in each direction. The default is 4,096
    /// per peer and 16,384 in total. Further messages of this node wait. Further messages announced by peers fail at
    /// their senders.
    #[must_use]
    pub fn large_messages(mut self, limit: Limit) -> Self {
        self.budgets.large_messages = limit;
        self.kept.push("large_messages");
        self
    }

    /// Multiplies by `part` / [`PARTS`](crate::budget::PARTS) the memory limits that the program has not set, but
    /// leaves room for the largest message.
    #[doc(hidden)]
    #[must_use]
    pub fn with_part_of_memory(mut self, part: usize) -> Self {
        let defaults = Self::new();
        let is_kept = |name| self.kept.contains(&name);
        if !is_kept("queued_bytes") {
            self.budgets.queued_bytes = part_of(defaults.budgets.queued_bytes, part, self.max_message_bytes);
        }
        if !is_kept("queued_messages") {
            self.budgets.queued_messages = part_of(defaults.budgets.queued_messages, part, 1);
        }
        if !is_kept("large_messages") {
            self.budgets.large_messages = part_of(defaults.budgets.large_messages, part, 1);
        }
        if !is_kept("rendezvous_bytes") {
            let least = self.least_rendezvous().max(self.rendezvous_bytes_per_peer.unwrap_or(0));
            let whole = Limit { per_peer: 0, in_all: defaults.rendezvous_bytes };
            self.rendezvous_bytes = part_of(whole, part, least).in_all;
        }
        if self.srq_depth_limit.is_none() {
            let whole =
                Limit { per_peer: 0, in_all: usize::try_from(self.deepest_srq()).unwrap_or(usize::MAX) };
            let least = usize::try_from(self.srq_depth).unwrap_or(usize::MAX);
            self.srq_depth_limit = u32::try_from(part_of(whole, part, least).in_all).ok();
        }
        self
    }

    /// Returns the names of the settings that a memory limit does not change.
    #[doc(hidden)]
    #[must_use]
    pub fn kept(&self) -> &[&'static str] {
        &self.kept
    }

    /// Returns the limit on queued bytes.
    #[must_use]
    pub fn queued_bytes_limit(&self) -> Limit {
        self.budgets.queued_bytes
    }

    /// Sets the time after which a peer's session ends if the peer accepts none of the messages queued for it. The
    /// default is 60 s, and the minimum is 1 s.
    #[must_use]
    pub fn stall_limit(mut self, limit: Duration) -> Self {
        self.stall_limit = limit;
        self
    }

    /// Returns the memory that the largest message takes, including its tags if it is sealed.
    pub(crate) fn least_rendezvous(&self) -> usize {
        let tags = if self.has_handshakes() { self.max_message_bytes / 4096 + 16 } else { 0 };
        self.max_message_bytes.saturating_add(HEAD_ROOM + tags)
    }

    /// Returns the limit on memory for large messages.
    pub(crate) fn rendezvous(&self) -> Limit {
        let least = self.least_rendezvous();
        let per_peer = self.rendezvous_bytes_per_peer.unwrap_or((self.rendezvous_bytes / 2).max(least));
        Limit { per_peer, in_all: self.rendezvous_bytes }
    }

    /// Sets the initial number of receives that each poller keeps posted: 512 by default, 16 to 16,384. The number
    /// grows with the number of remote pollers, up to [`NodeOptions::srq_depth_limit`].
    #[must_use]
    pub fn srq_depth(mut self, depth: u32) -> Self {
        self.srq_depth = depth;
        self
    }

    /// Sets the maximum number of receives that each poller keeps posted, at most 16,384. The default is 8,192, or
    /// `srq_depth` if that is more. Each remote poller holds one receive, so this limits the number of peers that can
    /// have sessions with the node. Over RC with several pollers the depth does not grow, so `srq_depth` must be set to
    /// this value.
    #[must_use]
    pub fn srq_depth_limit(mut self, depth: u32) -> Self {
        self.srq_depth_limit = Some(depth);
        self
    }

    /// Returns the maximum number of receives that each poller keeps posted.
    pub(crate) fn deepest_srq(&self) -> u32 {
        self.srq_depth_limit.unwrap_or(self.srq_depth.max(8192))
    }

    /// Sets the CPUs that the pollers run on; `Off` by default.
    #[must_use]
    pub fn pinning(mut self, pinning: Pinning) -> Self {
        self.pinning = pinning;
        self
    }

    /// Sets the longest time that a poller polls after an event before it sleeps. The default is 400 µs, and the
    /// maximum is 1 s. The poller polls only if recent gaps between events were shorter and the core is otherwise idle.
    /// With zero, it always sleeps, and each event costs a wake-up by the kernel.
    #[must_use]
    pub fn poll_for(mut self, longest: Duration) -> Self {
        self.poll_for = longest;
        self
    }

    /// Sets the time without an acknowledgement after which a peer's session ends: 1 s by default, 0.5 s to 60 s. While
    /// work waits for a silent peer, the peer is probed after half of this time, or after
    /// [`NodeOptions::idle_keepalive`] if that is shorter. While only a stream item is awaited, the peer is probed
    /// after 2 s.
    #[must_use]
    pub fn session_loss_time(mut self, time: Duration) -> Self {
        self.session_loss_time = time;
        self
    }

    /// Returns the time of silence after which a peer is probed while work waits for it.
    pub(crate) fn keepalive(&self) -> Duration {
        (self.session_loss_time / 2).min(self.idle_keepalive)
    }

    /// Sets the time of silence after which an idle session is probed by the node that accepted it: 10 s by
    /// default, 500 ms to 20 s. State held for a peer that vanished is freed [`NodeOptions::session_loss_time`] later.
    #[must_use]
    pub fn idle_keepalive(mut self, silence: Duration) -> Self {
        self.idle_keepalive = silence;
        self
    }

    /// Allows listening on non-loopback addresses although peers are not authenticated. A node whose sessions are all
    /// encrypted does not need it.
    #[must_use]
    pub fn allow_unauthenticated(mut self, allow: bool) -> Self {
        self.allow_unauthenticated = allow;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(options: NodeOptions, pairs: &[(&str, &str)]) -> Result<NodeOptions, StartError> {
        options.or_from(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into()))
    }

    #[test]
    fn environment_sets_unset_options() {
        let all = [
            ("TRUNKLINE_PROVIDER", "require"),
            ("TRUNKLINE_DEVICE", "rxe0"),
            ("TRUNKLINE_GID_INDEX", "3"),
            ("TRUNKLINE_CONNECTIONS", "rc"),
        ];
        let options = read(NodeOptions::new(), &all).unwrap();
        assert_eq!(options.provider, Some(ProviderChoice::Require));
        assert_eq!(options.nic, NicOptions { device: Some("rxe0".to_owned()), gid_index: Some(3) });
        assert_eq!(options.connections, Some(Connections::Rc));
        let set = NodeOptions::new()
            .connections(Connections::Xrc)
            .provider(ProviderChoice::Soft)
            .nic(NicOptions { device: Some("rxe1".to_owned()), gid_index: None });
        let options = read(set, &all).unwrap();
        assert_eq!(options.provider, Some(ProviderChoice::Soft), "what a program says goes first");
        assert_eq!(options.connections, Some(Connections::Xrc));
        assert_eq!(options.nic, NicOptions { device: Some("rxe1".to_owned()), gid_index: Some(3) });
    }

    #[test]
    fn invalid_environment_variable_is_refused_with_its_name() {
        for pair in [
            ("TRUNKLINE_PROVIDER", "hardware"),
            ("TRUNKLINE_GID_INDEX", "-1"),
            ("TRUNKLINE_CONNECTIONS", "ud"),
        ] {
            let error = read(NodeOptions::new(), &[pair]).unwrap_err().to_string();
            assert!(error.contains(pair.0) && error.contains(pair.1), "{error}");
        }
    }

    #[test]
    fn invalid_setting_is_named_by_its_source() {
        let of_builder = NodeOptions::new().faults("drop=2").unwrap_err().to_string();
        assert!(of_builder.contains("setting faults: `2` does not fit drop"), "{of_builder}");
        assert!(!of_builder.contains("TRUNKLINE_"), "{of_builder}");
        let texts = [
            ("fast".parse::<ProviderChoice>().unwrap_err(), "\"fast\": expected `auto`, `require` or `soft`"),
            ("ud".parse::<Connections>().unwrap_err(), "\"ud\": expected `auto`, `xrc` or `rc`"),
        ];
        for (text, expected) in texts {
            assert!(text.ends_with(expected) && !text.contains("TRUNKLINE_"), "{text}");
        }
        for (variable, value, expected) in [
            ("TRUNKLINE_PROVIDER", "fast", "expected `auto`, `require` or `soft`"),
            ("TRUNKLINE_CONNECTIONS", "ud", "expected `auto`, `xrc` or `rc`"),
        ] {
            let text = read(NodeOptions::new(), &[(variable, value)]).unwrap_err().to_string();
            assert_eq!(text, format!("invalid {variable}={value:?}: {expected}"));
        }
    }

    #[test]
    fn non_utf8_value_is_refused_with_its_name() {
        use std::os::unix::ffi::OsStringExt as _;
        for variable in
            ["TRUNKLINE_PROVIDER", "TRUNKLINE_DEVICE", "TRUNKLINE_GID_INDEX", "TRUNKLINE_CONNECTIONS"]
        {
            let value = |name: &str| (name == variable).then(|| OsString::from_vec(b"so\xfft".to_vec()));
            let error = NodeOptions::new().or_from(value).unwrap_err();
            assert!(
                matches!(&error, StartError::BadEnvironment { variable: named, .. } if *named == variable)
            );
            assert!(error.to_string().contains("UTF-8"), "{error}");
        }
    }
}
