//! Plan of a run, with all decisions drawn from its seed in advance.

use crate::network::Conditions;
use crate::trace::{START, Since, Trace};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;
use trunkline::Limit;
use trunkline_testkit::Hostility;

/// Limit on running handlers. It is higher than calls need in the phases without faults, even from a single host, and
/// lower than clients need while handlers hang.
pub(crate) const HANDLERS: Limit = Limit { per_peer: 4, in_all: 16 };
/// Interval at which names are proved again.
const RENEW_AFTER: Duration = Duration::from_secs(2);

/// Kind of forged packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forgery {
    /// A packet for a connection with a different PSN.
    Packet,
    /// A connection request in the name of a node that claims that this node was restarted.
    Request,
    /// Another connection manager message with guessed IDs.
    Message,
}

/// Kinds of forged packets. Repeated entries are more likely.
pub(crate) const FORGED: [Forgery; 4] =
    [Forgery::Packet, Forgery::Packet, Forgery::Request, Forgery::Message];

/// An event that affects nodes. The trace shows its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Stops one machine of a node.
    StopMachine { node: usize, pause: Duration },
    /// Stops all machines of a node.
    StopProcess { node: usize, pause: Duration },
    /// Kills a node's process, and restarts the node after a delay.
    Kill { node: usize, restart_after: Duration },
    /// Kills a node's process. The first successor dies after a number of stores to shared memory on its host, and the
    /// next successor is started after a delay.
    KillTwice { node: usize, stores: u64, restart_after: Duration },
    /// Shuts a node down, and restarts it after a delay.
    ShutDown { node: usize, restart_after: Duration },
    /// Drains a node, shuts it down after a delay, and restarts it after another delay.
    Drain { node: usize, shut_down_after: Duration, restart_after: Duration },
    /// Partitions two nodes for a while.
    Partition { a: usize, b: usize, lasts: Duration },
    /// Sends connection requests from strangers to a node: some from an unused address, one in the name of another node,
    /// and one from the stranger's own address, where the stranger receives the answer.
    Forge { node: usize, other: usize, requests: u8 },
    /// Sends requests in the name of many nodes from a host that proves its address. The sessions stay half-open.
    Crowd { node: usize },
    /// Removes a node's device for a while.
    RemoveDevice { node: usize, lasts: Duration },
    /// Overwrites words in the memory that a node's process shares with others.
    Scribble { node: usize },
    /// Kills a node's process after a number of further stores to shared memory, and restarts the node after a delay.
    Tear { node: usize, stores: u64, restart_after: Duration },
    /// Sends a forged packet.
    ForgeOne(Forgery),
    /// Shuts down a draining node, and restarts it after a delay.
    Leave { node: usize, restart_after: Duration },
    /// Starts a node again.
    Restart { node: usize },
    /// Ends a partition.
    Join { a: usize, b: usize },
    /// Restores a node's device.
    Restore { node: usize },
}

impl Fault {
    /// Returns true if the event ends a fault.
    pub(crate) fn is_end(self) -> bool {
        matches!(self, Self::Leave { .. } | Self::Restart { .. } | Self::Join { .. } | Self::Restore { .. })
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct NodePlan {
    /// Number of the host. Nodes on one host are processes that share the host's address.
    pub(crate) host: usize,
    pub(crate) pollers: u16,
    pub(crate) srq_depth: u32,
    /// Memory for large messages, in bytes per direction.
    pub(crate) rendezvous_bytes: usize,
    /// Maximum number of shards of the device; `None` for one per poller.
    pub(crate) shards: Option<usize>,
    /// True if the node uses shared memory to other processes on its host.
    pub(crate) shares_memory: bool,
    pub(crate) clients: usize,
    /// True if each process of the node listens on a free port, as programs do that only make calls.
    pub(crate) is_client: bool,
    /// Limit on running handlers.
    pub(crate) handlers: Limit,
    /// Limit on calls in flight; `None` for the default.
    pub(crate) calls: Option<Limit>,
    /// Limit on queued bytes; `None` for the default.
    pub(crate) queued_bytes: Option<Limit>,
    /// Limit on the SRQ depth; `None` for the default.
    pub(crate) srq_depth_limit: Option<u32>,
    /// True if the node has an identity and exempts processes on its host from the handshake.
    pub(crate) exempts_local_user: bool,
    /// Time for which a handshake occupies the CM machine of the node.
    pub(crate) handshake: Duration,
    /// Interval at which names are proved again.
    pub(crate) renew_after: Duration,
    /// Time without an acknowledgement after which a peer loses its session.
    pub(crate) session_loss_time: Duration,
}

impl NodePlan {
    /// Returns a node with large limits and without shared memory. The planned clients do not call it.
    pub(crate) fn extra(host: usize, pollers: u16) -> Self {
        Self {
            host,
            pollers,
            srq_depth: 256,
            rendezvous_bytes: 2 << 20,
            shards: None,
            shares_memory: false,
            clients: 0,
            is_client: false,
            handlers: HANDLERS,
            calls: None,
            queued_bytes: None,
            srq_depth_limit: None,
            exempts_local_user: false,
            handshake: Duration::ZERO,
            renew_after: RENEW_AFTER,
            session_loss_time: Duration::from_secs(1),
        }
    }
}

/// Numbers of pollers of the first node and of the second node. Further nodes alternate between the two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pollers(u16, u16);

impl Pollers {
    /// Returns true if any node has several pollers.
    pub(crate) fn are_several(self) -> bool {
        self.0.max(self.1) > 1
    }

    fn of(self, node: usize) -> u16 {
        if node.is_multiple_of(2) { self.0 } else { self.1 }
    }
}

impl FromStr for Pollers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().ok().filter(|number| (1..=32).contains(number));
        let numbers = text.split_once('/').and_then(|(one, other)| number(one).zip(number(other)));
        let (one, other) = numbers.ok_or("two numbers from 1 to 32 are needed, as in 4/1")?;
        Ok(Self(one, other))
    }
}

impl fmt::Display for Pollers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0, self.1)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) nodes: Vec<NodePlan>,
    /// True if the nodes use RC connections instead of XRC.
    pub(crate) rc: bool,
    pub(crate) calls_per_client: usize,
    /// Longest pause of a client between two calls.
    pub(crate) think: Duration,
    pub(crate) conditions: Conditions,
    /// Faults, by time since the start.
    pub(crate) faults: Vec<(Duration, Fault)>,
    /// Forgeries by the attacker, by time since the start.
    pub(crate) forgeries: Vec<(Duration, Forgery)>,
    /// Misbehaviour of the hostile peer, if the run includes one.
    pub(crate) hostility: Option<Hostility>,
    /// True if two additional nodes with small limits call each other. One run in eight includes them, because they take
    /// as long as many faults.
    pub(crate) has_chains: bool,
    /// True if four additional nodes are the servers on a balanced channel and their caller. One run in eight includes
    /// them.
    pub(crate) has_replicas: bool,
    /// True if four additional nodes are a server with a shallow SRQ and its callers, two of which share a host. One run
    /// in eight includes them.
    pub(crate) has_crowded_host: bool,
    /// True if one or two additional nodes make calls from behind a firewall. Every second run includes them.
    pub(crate) has_firewall: bool,
    /// True if an additional node makes calls over a path with a smaller MTU than the interfaces at its ends. Every
    /// second run includes it.
    pub(crate) has_narrow_path: bool,
    /// True if several nodes call one node through a low-bandwidth link.
    pub(crate) has_bottleneck: bool,
    /// True if the nodes have identities, so that sessions begin with a handshake. This is the case in one run in three.
    pub(crate) has_identities: bool,
    /// Duration of the phase with faults.
    pub(crate) lasts: Duration,
}

impl Plan {
    /// Returns true if every node has enough receives that senders need not wait for the decay of other senders' unused
    /// credit, which takes 100 ms.
    pub(crate) fn has_room(&self) -> bool {
        self.nodes.iter().all(|node| node.srq_depth >= 256)
    }

    /// Returns true if any host has several nodes.
    pub(crate) fn shares_hosts(&self) -> bool {
        (1..self.nodes.len()).any(|at| self.nodes[..at].iter().any(|node| node.host == self.nodes[at].host))
    }

    /// Returns true if any two nodes can exchange packets through shared memory.
    pub(crate) fn shares_memory(&self) -> bool {
        (1..self.nodes.len()).any(|at| {
            let node = &self.nodes[at];
            let before = &self.nodes[..at];
            node.shares_memory && before.iter().any(|other| other.host == node.host && other.shares_memory)
        })
    }

    /// Writes the start of a trace: the legend, the nodes with their addresses, and the plan.
    pub(crate) fn write(&self, trace: &Trace, seed: u64, addresses: &[SocketAddr]) {
        if !trace.is_kept() {
            return;
        }
        let line = |who: &str, what: fmt::Arguments<'_>| trace.line(START, who, what);
        line("about", format_args!("seed {seed}; each line is: virtual seconds since the start, who, what"));
        line(
            "about",
            format_args!("3@127.7.7.1:7471 is process 3, an incarnation of the node with that address"),
        );
        line(
            "about",
            format_args!("`turns: N quiet` counts turns of a machine of which nothing was written"),
        );
        let transport = if self.rc { "RC" } else { "XRC" };
        let identities = if self.has_identities { ", with identities" } else { "" };
        line("plan", format_args!("{} nodes over {transport}{identities}", self.nodes.len()));
        for (index, (node, address)) in self.nodes.iter().zip(addresses).enumerate() {
            let (host, pollers, depth) = (node.host, node.pollers, node.srq_depth);
            let shards = node.shards.unwrap_or(pollers.into());
            let path = if node.shares_memory { "shares memory" } else { "shares no memory" };
            line(
                "plan",
                format_args!(
                    "node {index} is {address} on host {host}: {pollers} pollers, {shards} shards, SRQ depth {depth}, {} \
                     clients, {path}",
                    node.clients
                ),
            );
        }
        if let Some(hostility) = self.hostility {
            line(
                "plan",
                format_args!("one more node, on a host of its own, breaks the rules: it is {hostility}"),
            );
        }
        let (calls, think) = (self.calls_per_client, self.think);
        line(
            "plan",
            format_args!("each client makes {calls} calls, with pauses of up to {think:?} between them"),
        );
        let wire = self.conditions;
        line(
            "plan",
            format_args!(
                "packets: {:.2} % lost, {:.2} % doubled, {:.2} % delayed, {:.2} % corrupted; {:?} on the way, and up to {:?} more",
                wire.lost * 100.0,
                wire.doubled * 100.0,
                wire.overtaken * 100.0,
                wire.corrupted * 100.0,
                wire.least_delay,
                wire.jitter
            ),
        );
        for (after, fault) in &self.faults {
            line("plan", format_args!("at {}: {fault:?}", Since(START + *after)));
        }
        line("plan", format_args!("at {}: faults end", Since(START + self.lasts)));
    }

    pub(crate) fn with_pollers(mut self, pollers: Option<Pollers>) -> Self {
        for (at, node) in self.nodes.iter_mut().enumerate() {
            node.pollers = pollers.map_or(node.pollers, |pollers| pollers.of(at));
        }
        self
    }

    pub(crate) fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x706c_616e);
        let count = random.usize(2..=4);
        let hosts = hosts(&mut random, count);
        let mut nodes = hosts
            .iter()
            .map(|host| NodePlan {
                srq_depth: *random.choice(&[64, 256, 256]).unwrap_or(&256),
                clients: random.usize(2..=4),
                rendezvous_bytes: *random.choice(&[768 << 10, 2 << 20]).unwrap_or(&(2 << 20)),
                exempts_local_user: seed % 2 == 1,
                ..NodePlan::extra(*host, random.u16(1..=3))
            })
            .collect::<Vec<_>>();
        let clients = nodes.iter().map(|node| node.clients).sum::<usize>().max(1);
        let lasts = Duration::from_millis(random.u64(1000..4000));
        let faults = (0..random.usize(6..16))
            .map(|_| (Duration::from_micros(random.u64(..as_us(lasts))), fault(&mut random, &hosts)))
            .collect::<Vec<_>>();
        let mut faults = faults;
        faults.extend(crowd(seed, lasts, count));
        divide(seed, &mut nodes);
        faults.extend(share_memory(seed, lasts, &mut nodes));
        faults.sort_by_key(|(at, _)| *at);
        Self {
            rc: random.u8(..10) < 3,
            calls_per_client: (random.usize(150..300) / clients).max(10),
            think: lasts * u32::try_from(clients).unwrap_or(1) / 400,
            conditions: conditions(&mut random),
            faults,
            forgeries: forgeries(seed, lasts),
            hostility: hostility(seed),
            has_chains: seed.is_multiple_of(8),
            has_replicas: seed % 8 == 2,
            has_crowded_host: seed % 8 == 4,
            has_firewall: seed % 2 == 1,
            has_narrow_path: seed.is_multiple_of(2),
            has_bottleneck: seed % 4 == 2,
            has_identities: seed % 3 == 1,
            lasts,
            nodes,
        }
    }
}

/// Draws the packets that an attacker forges during the faults. Four runs in five include an attacker.
fn forgeries(seed: u64, lasts: Duration) -> Vec<(Duration, Forgery)> {
    // A separate random number generator for forgeries keeps the rest of the plan unchanged.
    let mut random = fastrand::Rng::with_seed(seed ^ 0x6174_7461);
    let count = if random.u8(..5) > 0 { random.usize(10..60) } else { 0 };
    let all = (0..count).map(|_| {
        let forgery = *random.choice(&FORGED).unwrap_or(&Forgery::Packet);
        (Duration::from_micros(random.u64(..as_us(lasts))), forgery)
    });
    all.collect()
}

/// Returns the misbehaviour of the hostile peer. Every sixth seed has a hostile peer, and the kinds of misbehaviour
/// rotate.
fn hostility(seed: u64) -> Option<Hostility> {
    let kinds = Hostility::HOSTILE.into_iter().chain([Hostility::Hoarding]).collect::<Vec<_>>();
    let turn = usize::try_from(seed / 6 % kinds.len() as u64).unwrap_or(0);
    seed.is_multiple_of(6).then(|| kinds[turn])
}

/// Draws the time at which a crowd of strangers arrives. One run in four includes a crowd.
fn crowd(seed: u64, lasts: Duration, nodes: usize) -> Option<(Duration, Fault)> {
    let mut random = fastrand::Rng::with_seed(seed ^ 0x6372_6f77);
    let at = Duration::from_micros(random.u64(..as_us(lasts)));
    (random.u8(..4) == 0).then(|| (at, Fault::Crowd { node: random.usize(..nodes) }))
}

/// Draws the numbers of shards, usually one per poller. In one run in 20, a node has many shards.
fn divide(seed: u64, nodes: &mut [NodePlan]) {
    let mut random = fastrand::Rng::with_seed(seed ^ 0x7368_6172);
    if random.u8(..20) == 0 {
        nodes[0].pollers = random.u16(4..=16);
    }
    for node in nodes {
        let most = usize::from(node.pollers);
        node.shards = (random.u8(..4) == 0).then(|| random.usize(1..=most));
    }
}

/// Draws the nodes that share memory, and the faults in this memory. Two runs in three use shared memory.
fn share_memory(seed: u64, lasts: Duration, nodes: &mut [NodePlan]) -> Vec<(Duration, Fault)> {
    let mut random = fastrand::Rng::with_seed(seed ^ 0x6d65_6d6f);
    if random.u8(..3) == 0 {
        return Vec::new();
    }
    nodes.iter_mut().for_each(|node| node.shares_memory = random.u8(..8) > 0);
    let count = nodes.len();
    let mut faults = Vec::new();
    for _ in 0..random.usize(..6) {
        let at = Duration::from_micros(random.u64(..as_us(lasts)));
        faults.push((at, Fault::Scribble { node: random.usize(..count) }));
    }
    for _ in 0..random.usize(..3) {
        let at = Duration::from_micros(random.u64(..as_us(lasts)));
        let restart_after = Duration::from_micros(random.u64(20_000..800_000));
        let node = random.usize(..count);
        faults.push((at, Fault::Tear { node, stores: random.u64(..3000), restart_after }));
    }
    faults
}

fn as_us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn conditions(random: &mut fastrand::Rng) -> Conditions {
    let mut likely = |most: f64| if random.bool() { random.f64() * most } else { 0.0 };
    Conditions {
        lost: likely(0.05),
        doubled: likely(0.05),
        overtaken: likely(0.1),
        corrupted: likely(0.02),
        least_delay: Duration::from_nanos(random.u64(1_000..20_000)),
        jitter: Duration::from_nanos(random.u64(100..50_000)),
    }
}

/// Draws the hosts of the nodes. In half of the runs, each node has a separate host.
fn hosts(random: &mut fastrand::Rng, nodes: usize) -> Vec<usize> {
    let are_shared = random.bool();
    let mut all = vec![0];
    let mut next = 1;
    while all.len() < nodes {
        if are_shared && random.u8(..5) < 3 {
            all.push(all[random.usize(..all.len())]);
        } else {
            all.push(next);
            next += 1;
        }
    }
    all
}

fn fault(random: &mut fastrand::Rng, hosts: &[usize]) -> Fault {
    let nodes = hosts.len();
    let node = random.usize(..nodes);
    let mut ms = |least: u64, most: u64| Duration::from_micros(random.u64(least * 1000..most * 1000));
    let (short, long) = (ms(0, 40), ms(20, 800));
    match random.u8(..23) {
        0..=6 => Fault::StopMachine { node, pause: if random.bool() { short } else { long } },
        7..=9 => Fault::StopProcess { node, pause: long },
        10..=11 => Fault::Kill { node, restart_after: short },
        12 => Fault::KillTwice { node, stores: random.u64(..60), restart_after: long },
        13 => Fault::ShutDown { node, restart_after: long },
        14 => Fault::Drain { node, shut_down_after: short, restart_after: long },
        15..=17 => {
            let b = (node + random.usize(1..nodes)) % nodes;
            if hosts[node] == hosts[b] {
                Fault::StopProcess { node, pause: long }
            } else {
                Fault::Partition { a: node, b, lasts: long * 2 }
            }
        }
        18..=19 => Fault::RemoveDevice { node, lasts: long },
        _ => {
            Fault::Forge { node, other: (node + random.usize(1..nodes)) % nodes, requests: random.u8(1..20) }
        }
    }
}
