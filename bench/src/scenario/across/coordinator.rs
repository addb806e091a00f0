//! Coordinator, which makes nodes call each other, monitors them, and collects their measurements.

use super::outcome::{Outcome, Settings};
use super::pattern::Pattern;
use super::service::{ControlClient, Load, Losses, Measured};
use super::{address, own_address};
use crate::meter::failure::Failure;
use crate::scenario::{Output, Scenario, seconds};
use crate::sizes::Sizes;
use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use trunkline::{CallOptions, Code, Node, Status, block_on};

/// Interval at which the coordinator queries the progress of nodes. It is much shorter than the lease.
const ASK: Duration = Duration::from_millis(200);
/// Time without an answer after which a node is considered lost.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time limit for a node to reach all of its targets.
const CONNECTING: Duration = Duration::from_secs(20);

const EXAMPLE: &str = "\
Each repetition is followed by one over the kernel's TCP: a stream from each caller to each of its targets, of payloads of the
same size. Each row has a verdict: goodput at least 0.95 of TCP's, Jain's index over the callers at least 0.95, and with
--small-beside-bulk a p99 of at most 4 times p50. --strict makes a failed verdict exit code 4.

Example, as root: a link of 200 Mbit/s between two network namespaces
  ip link add bridge type bridge && ip link set bridge up
  for n in 1 2; do
    ip netns add n$n && ip link add v$n type veth peer name eth0 netns n$n && ip link set v$n master bridge up
    ip -n n$n address add 10.99.0.$n/24 dev eth0 && ip -n n$n link set eth0 up && ip -n n$n link set lo up
    tc -n n$n qdisc add dev eth0 root tbf rate 200mbit burst 256kb latency 50ms
    export TRUNKLINE_RUNTIME_DIR=$(mktemp -d) # programs of different namespaces share no memory
    ip netns exec n$n trunkline-bench node --address 10.99.0.$n --allow-unauthenticated &
  done
  sleep 1 && ip netns exec n2 trunkline-bench run --nodes 10.99.0.1,10.99.0.2 --pattern ring --size 64K --small-beside-bulk --allow-unauthenticated
  kill $(jobs -p); ip netns delete n1; ip netns delete n2; ip link delete bridge";

/// The nodes and their workload.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Orders {
    /// Hosts where `trunkline-bench node` runs, with or without a port.
    #[arg(long, value_name = "HOSTS", value_delimiter = ',', required = true)]
    nodes: Vec<String>,
    /// Pattern of callers and targets.
    #[arg(long, value_enum)]
    pattern: Pattern,
    /// Payload size in bytes, the same in both directions: 0 to 64M.
    #[arg(long, value_name = "SIZE", default_value = "64")]
    size: Sizes,
    /// Outstanding calls from each caller to each of its targets.
    #[arg(long, value_name = "CALLS", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    outstanding: u32,
    /// Measured time of each repetition. Calls before and after it keep up the load, usually for a quarter of that time.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
    /// Number of repetitions of all measurements.
    #[arg(long, value_name = "TIMES", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// One-way calls: a call ends when its payload is in the target's memory.
    #[arg(long)]
    one_way: bool,
    /// Also make 64-byte calls, one at a time from each caller to each of its targets, while the other calls are in flight.
    #[arg(long)]
    small_beside_bulk: bool,
    /// Measure only calls, without TCP after each repetition.
    #[arg(long)]
    no_tcp: bool,
    /// Exit with 4 if a verdict failed.
    #[arg(long)]
    strict: bool,
    /// Address of the coordinator [default: the local address on the route to the first node].
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// Allow an address other than loopback although peers are not authenticated.
    #[arg(long)]
    allow_unauthenticated: bool,
    #[command(flatten)]
    output: Output,
    /// Also write the results to this file, as a page with plots.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// A node that the coordinator controls.
struct Host {
    name: String,
    address: SocketAddr,
    client: ControlClient,
}

struct Coordinator<'a> {
    orders: &'a Orders,
    hosts: Vec<Host>,
    outcome: Outcome,
    scenario: &'a Scenario<'a>,
    is_interrupted: Arc<AtomicBool>,
}

/// Measures and prints the results.
///
/// # Errors
/// Returns an error if nothing can be measured, or an error that lists the missing results.
pub(crate) fn run(orders: &Orders) -> Result<(), Failure> {
    let &[bytes] = &orders.size.0[..] else { return Err("--size: one size, please".to_owned().into()) };
    let mut scenario = Scenario::begin("run", &orders.output, orders.html.as_ref())?;
    // Nodes on this host are not descendants of this process.
    scenario.others = None;
    scenario.bar.inc_length(orders.repetitions.into());
    let targets = orders.pattern.targets(orders.nodes.len())?;
    let addresses = orders.nodes.iter().map(|name| address(name)).collect::<Result<Vec<_>, _>>()?;
    if let Some(at) = (1..addresses.len()).find(|at| addresses[..*at].contains(&addresses[*at])) {
        return Err(format!("--nodes names {} twice", addresses[at]).into());
    }
    let own = orders.address.map_or_else(|| own_address(addresses[0]), Ok);
    let own = own.map_err(|error| format!("there is no way to {}: {error}", addresses[0]))?;
    let node = Node::builder()
        .listen(SocketAddr::new(own, 0))
        .allow_unauthenticated(orders.allow_unauthenticated)
        .start()
        .map_err(|error| error.to_string())?;
    let is_interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&is_interrupted))
            .map_err(|error| format!("cannot wait for signals: {error}"))?;
    }
    let mut coordinator = Coordinator {
        orders,
        hosts: hosts(&node, orders, &addresses)?,
        outcome: Outcome::new(orders.nodes.clone(), bytes as u64, orders.one_way),
        scenario: &scenario,
        is_interrupted,
    };
    let measured = coordinator.measure(&targets);
    let measured = measured.and(coordinator.check());
    let Coordinator { outcome, .. } = coordinator;
    node.shutdown();
    let settings = Settings {
        pattern: orders.pattern.name(),
        size_bytes: bytes as u64,
        outstanding: orders.outstanding,
        seconds: orders.seconds,
        one_way: orders.one_way,
    };
    let table = if outcome.is_empty() { String::new() } else { outcome.table() };
    let what = format!("{} nodes, {} repetitions", orders.nodes.len(), orders.repetitions);
    scenario.end(measured, &table, &outcome.json(settings), &what)
}

/// Queries the program and the version of all nodes.
fn hosts(node: &Node, orders: &Orders, addresses: &[SocketAddr]) -> Result<Vec<Host>, Failure> {
    let mut hosts = Vec::new();
    for (name, address) in orders.nodes.iter().zip(addresses) {
        let client = ControlClient::connect(node, *address).map_err(|status| status.to_string())?;
        hosts.push(Host { name: name.clone(), address: *address, client });
    }
    let asked = hosts.iter().map(|host| (host, &host.client));
    let mut wrong = Vec::new();
    for (host, answer) in at_once(asked, PATIENCE, |client, within| block_on(client.with(within).hello())) {
        match answer {
            Ok(hello) => wrong.extend(hello.check().err().map(|why| format!("the node {}: {why}", host.name))),
            Err(status) => wrong.push(format!(
                "the node {} cannot be reached: {status}; does `trunkline-bench node` run there, and is UDP port 4791 open?",
                host.name
            )),
        }
    }
    if wrong.is_empty() { Ok(hosts) } else { Err(wrong.join("\n").into()) }
}

/// Sends a request to each node on a separate thread, and waits for all answers.
fn at_once<K: Send, T: Send, R: Send>(
    asked: impl Iterator<Item = (K, T)>,
    patience: Duration,
    question: impl Fn(T, &CallOptions) -> Result<R, Status> + Sync,
) -> Vec<(K, Result<R, Status>)> {
    let within = CallOptions::new().timeout(patience);
    let (question, within) = (&question, &within);
    thread::scope(|scope| {
        let threads = asked.map(|(key, of)| (key, scope.spawn(move || question(of, within))));
        let panicked = |_| Err(Status::new(Code::Internal, "the thread that asked has panicked"));
        let threads = threads.collect::<Vec<_>>().into_iter();
        threads.map(|(key, thread)| (key, thread.join().unwrap_or_else(panicked))).collect()
    })
}

impl Coordinator<'_> {
    fn measure(&mut self, targets: &[Vec<usize>]) -> Result<(), Failure> {
        // The first number is random, because coordinators in different containers may have the same process ID.
        let first = RandomState::new().hash_one(std::process::id());
        // With empty payloads, there is no goodput to compare.
        let has_tcp = !self.orders.no_tcp && self.orders.size.0[0] > 0;
        let steps = (0..self.orders.repetitions).flat_map(|_| [false, true]).filter(|tcp| has_tcp || !tcp);
        for (step, tcp) in (0_u64..).zip(steps) {
            let loads = self.loads(targets, tcp);
            if loads.is_empty() || self.is_interrupted.load(Ordering::Relaxed) {
                break;
            }
            let what = if tcp { "stream over TCP" } else { "call" };
            self.scenario.bar.set_message(format!("{} nodes {what}", loads.len()));
            let run = first.wrapping_add(step);
            let callers = self.prepare(run, &loads, step == 0)?;
            if !tcp {
                self.outcome.begin();
            }
            let before = self.losses();
            let begun =
                self.ask(&callers, PATIENCE, |client, within| block_on(client.with(within).begin(run)));
            self.collect(run, begun, targets, tcp);
            if !tcp {
                let after = self.losses();
                self.outcome.end(&before, &after);
                self.scenario.bar.inc(1);
            }
        }
        Ok(())
    }

    /// Queries the losses that each node has detected, except nodes that are lost.
    fn losses(&mut self) -> BTreeMap<usize, Losses> {
        let all = (0..self.hosts.len()).filter(|node| !self.outcome.is_lost(*node)).collect::<Vec<_>>();
        let losses = self.ask(&all, PATIENCE, |client, within| block_on(client.with(within).losses()));
        losses.into_iter().collect()
    }

    /// Returns the load of each node, except nodes that are lost.
    fn loads(&self, targets: &[Vec<usize>], tcp: bool) -> Vec<(usize, Load)> {
        let is_there = |node: &usize| !self.outcome.is_lost(*node);
        let callers = (0..targets.len()).filter(is_there);
        let loads = callers.map(|node| {
            let theirs = targets[node].iter().copied().filter(is_there);
            let load = Load {
                targets: theirs.map(|target| self.hosts[target].address.to_string()).collect(),
                bytes: self.orders.size.0[0] as u64,
                outstanding: self.orders.outstanding,
                seconds: self.orders.seconds,
                one_way: self.orders.one_way,
                small_beside_bulk: self.orders.small_beside_bulk,
                tcp,
            };
            (node, load)
        });
        loads.filter(|(_, load)| !load.targets.is_empty()).collect()
    }

    /// Makes nodes connect to their targets. A failure before the first repetition fails the whole run.
    fn prepare(&mut self, run: u64, loads: &[(usize, Load)], is_first: bool) -> Result<Vec<usize>, Failure> {
        let asked = loads.iter().map(|(node, load)| (*node, (&self.hosts[*node].client, load)));
        let prepare = |(client, load): (&ControlClient, &Load), within: &CallOptions| {
            block_on(client.with(within).prepare(run, load.clone()))
        };
        let (mut callers, mut wrong) = (Vec::new(), Vec::new());
        for (node, answer) in at_once(asked, CONNECTING, prepare) {
            match answer {
                Ok(()) => callers.push(node),
                Err(status) if is_first => {
                    wrong.push(format!("the node {}: {status}", self.hosts[node].name))
                }
                Err(status) => self.outcome.lose(node, status.to_string()),
            }
        }
        if wrong.is_empty() {
            return Ok(callers);
        }
        // Release the nodes that have accepted the run.
        self.ask(&callers, PATIENCE, |client, within| block_on(client.with(within).release(run)));
        Err(wrong.join("\n").into())
    }

    /// Sends a request to several nodes concurrently. A node that does not answer is considered lost.
    fn ask<R: Send>(
        &mut self,
        nodes: &[usize],
        patience: Duration,
        question: impl Fn(&ControlClient, &CallOptions) -> Result<R, Status> + Sync,
    ) -> Vec<(usize, R)> {
        let asked = nodes.iter().map(|node| (*node, &self.hosts[*node].client));
        let mut answers = Vec::new();
        for (node, answer) in at_once(asked, patience, |client, within| question(client, within)) {
            match answer {
                Ok(answer) => answers.push((node, answer)),
                Err(status) => self.outcome.lose(node, status.to_string()),
            }
        }
        answers
    }

    /// Waits until these nodes are done, and collects their results.
    fn collect(&mut self, run: u64, begun: Vec<(usize, ())>, targets: &[Vec<usize>], tcp: bool) {
        let mut busy = begun.into_iter().map(|(node, ())| node).collect::<Vec<_>>();
        while !busy.is_empty() && !self.is_interrupted.load(Ordering::Relaxed) {
            thread::sleep(ASK);
            let asked =
                self.ask(&busy, PATIENCE, |client, within| block_on(client.with(within).is_over(run)));
            let over =
                asked.iter().filter(|(_, is_over)| *is_over).map(|(node, _)| *node).collect::<Vec<_>>();
            busy.retain(|node| !over.contains(node) && !self.outcome.is_lost(*node));
            for (node, results) in
                self.ask(&over, CONNECTING, |client, within| block_on(client.with(within).results(run)))
            {
                self.add(node, &results, &targets[node], tcp);
            }
            // Include nodes that only serve, so that their death is also detected.
            let all = (0..self.hosts.len()).filter(|node| !self.outcome.is_lost(*node)).collect::<Vec<_>>();
            self.ask(&all, PATIENCE, |client, within| block_on(client.with(within).hello()));
        }
    }

    fn add(&mut self, node: usize, results: &[Measured], targets: &[usize], tcp: bool) {
        for measured in results {
            let is_target = |target: &&usize| self.hosts[**target].address.to_string() == measured.target;
            if let Some(target) = targets.iter().find(is_target) {
                self.outcome.add(node, *target, measured, tcp);
            }
        }
    }

    /// Returns a failure if results are missing or, with `--strict`, if a verdict failed.
    fn check(&self) -> Result<(), Failure> {
        if self.is_interrupted.load(Ordering::Relaxed) {
            let why = format!("interrupted: {} repetitions were begun", self.outcome.repetitions());
            return Err(Failure::Partial(why));
        }
        if let Some(missing) = self.outcome.missing() {
            return Err(Failure::Partial(missing));
        }
        let failed = self.outcome.failed_verdicts().filter(|_| self.orders.strict);
        failed.map_or(Ok(()), |failed| Err(Failure::Worse(failed)))
    }
}
