//! One run. Nodes start, clients make calls and faults occur. Then all faults end, and their effects must disappear.
//!
//! After the faults, the [`PHASES`] are executed in order. A phase uses the nodes of the plan and may add further nodes,
//! which end with the phase. It begins without calls in flight, and fails on the first violation. The last phase shuts
//! down all nodes.

use crate::coverage::{Coverage, EventKind};
use crate::identity::Authority;
use crate::node::SimNode;
use crate::oracle::credits;
use crate::plan::{Fault, NodePlan, Plan, Pollers};
use crate::scheduler::Scheduler;
use crate::trace::Trace;
use crate::workload::client::{Ask, Client, MINUTE};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use trunkline_transport::ledger::PollerLedger;
use trunkline_verbs::Time;

mod absence;
mod bottleneck;
mod calm;
mod chaos;
mod crowding;
mod draining;
mod firewall;
mod greed;
mod hostility;
mod narrow;
mod newcomers;
mod paths;
mod renamed;
mod replicas;
mod rings;
mod room;
mod tampering;

/// Time limit for each attempt to reach a node.
const TRY: Duration = Duration::from_millis(500);
/// Time after the last call within which all credit granted for a burst decays.
const QUIET: Duration = Duration::from_millis(300);
/// Interval at which running handlers are counted.
const LOOK: Duration = Duration::from_millis(2);

/// Result of a check. The error describes a violation.
type Checked<T = ()> = Result<T, String>;

struct Phase {
    name: &'static str,
    /// Returns true if runs with this plan include the phase.
    belongs_to: fn(&Plan) -> bool,
    check: fn(&mut Run) -> Checked,
}

impl Phase {
    const fn of_all(name: &'static str, check: fn(&mut Run) -> Checked) -> Self {
        Self { name, belongs_to: |_| true, check }
    }

    const fn of_some(
        name: &'static str,
        belongs_to: fn(&Plan) -> bool,
        check: fn(&mut Run) -> Checked,
    ) -> Self {
        Self { name, belongs_to, check }
    }
}

/// All phases after the faults, in their order.
const PHASES: &[Phase] = &[
    Phase::of_all("calm", Run::calm),
    Phase::of_all("nobody calls", Run::idle),
    Phase::of_some("packets change their path", Plan::shares_memory, Run::paths_change),
    Phase::of_some("little room", |plan| plan.has_chains, Run::callers_find_room),
    Phase::of_some(
        "small calls next to large ones",
        |plan| plan.has_chains,
        Run::small_calls_pass_large_ones,
    ),
    Phase::of_some("a peer breaks the rules", |plan| plan.hostility.is_some(), Run::one_is_hostile),
    Phase::of_all("one node is greedy", Run::one_is_greedy),
    Phase::of_all("a host is greedy", Run::a_host_is_greedy),
    Phase::of_some("a host has its share", |plan| plan.has_crowded_host, Run::a_host_has_its_share),
    Phase::of_all("handlers end with their deadline", Run::handlers_end),
    Phase::of_some(
        "a neighbour claims a restart",
        |plan| plan.has_identities,
        Run::a_neighbour_claims_a_restart,
    ),
    Phase::of_some("a host on the path tampers", |plan| plan.has_identities, Run::one_tampers),
    Phase::of_some("a server is renamed", |plan| plan.has_identities, Run::a_server_is_renamed),
    Phase::of_some(
        "a client behind a firewall",
        |plan| plan.has_firewall,
        Run::a_client_is_behind_a_firewall,
    ),
    Phase::of_some("a bottleneck", |plan| plan.has_bottleneck, Run::a_link_is_shared),
    Phase::of_some("a narrow path", |plan| plan.has_narrow_path, Run::a_path_is_narrow),
    Phase::of_all("requests to a stopped node", Run::some_never_leave),
    Phase::of_all("one node dies", Run::one_dies),
    Phase::of_all("one node is away", Run::one_is_away),
    Phase::of_all("one node is called by a name", Run::one_moves),
    Phase::of_some("replicas leave", |plan| plan.has_replicas, Run::replicas_leave),
    Phase::of_all("one node drains", Run::one_drains),
    Phase::of_all("one node is stuck", Run::one_is_stuck),
    Phase::of_all("one node leaves", Run::one_leaves),
    Phase::of_all("shut down", Run::end),
];

#[derive(Debug)]
pub(crate) struct Outcome {
    /// Violation of a rule, if any.
    pub(crate) broken: Option<String>,
    pub(crate) coverage: Arc<Coverage>,
    pub(crate) nodes: usize,
    pub(crate) turns: u64,
    /// Virtual time that passed during the run.
    pub(crate) simulated: Duration,
    /// Checksum of the run. It is equal in all runs with the same seed.
    pub(crate) checksum: u32,
}

/// Runs a seed. If `pollers` is given, it overrides the numbers of pollers.
pub(crate) fn run(seed: u64, pollers: Option<Pollers>, trace: Trace) -> Outcome {
    let coverage = Arc::new(Coverage::default());
    let plan = Plan::new(seed).with_pollers(pollers);
    let mut run = Run::new(seed, plan, trace, Arc::clone(&coverage));
    let addresses = run.nodes.iter().map(|node| node.address).collect::<Vec<_>>();
    run.plan.write(&run.scheduler.trace, seed, &addresses);
    let log = run.scheduler.trace.capture_log();
    run.chaos();
    if let Err(why) = run.heal().and_then(|()| run.phases()) {
        run.scheduler.oracle.fail(why);
    }
    run.show_end();
    run.clear();
    drop(log);
    run.scheduler.trace.mix(run.scheduler.network.checksum());
    let broken = run.unbroken().err();
    match &broken {
        Some(why) => run.scheduler.trace.verdict(format_args!("seed {seed} FAILED: {why}")),
        None => run.scheduler.trace.verdict(format_args!("seed {seed} passed: no rule was broken")),
    }
    Outcome {
        broken,
        coverage,
        nodes: run.nodes.len(),
        turns: run.scheduler.turns,
        simulated: run.scheduler.now() - run.began,
        checksum: run.scheduler.trace.checksum(),
    }
}

/// Number of programs that have ended. Clones share the number.
#[derive(Debug, Clone, Default)]
struct Tally(Rc<Cell<usize>>);

impl Tally {
    fn add(&self) {
        self.0.set(self.0.get() + 1);
    }

    fn get(&self) -> usize {
        self.0.get()
    }
}

struct Run {
    plan: Plan,
    scheduler: Scheduler,
    nodes: Vec<SimNode>,
    /// Additional nodes of the current phase.
    extra: Vec<SimNode>,
    /// The hostile peer, if the run includes one.
    hostile: Option<SimNode>,
    /// Authority for the nodes' certificates, if the nodes have identities.
    authority: Option<Authority>,
    random: fastrand::Rng,
    /// Pending faults, by time and sequence number.
    due: BTreeMap<(Time, u64), Fault>,
    dues: u64,
    began: Time,
}

impl Run {
    fn new(seed: u64, plan: Plan, trace: Trace, coverage: Arc<Coverage>) -> Self {
        let scheduler = Scheduler::new(seed, trace, coverage);
        let mut authority = plan.has_identities.then(|| Authority::new(seed));
        let mut node = |index, node| SimNode::new(index, node, plan.rc, authority.as_mut());
        let nodes = plan.nodes.iter().enumerate().map(|(index, plan)| node(index, *plan)).collect::<Vec<_>>();
        let hostile = plan.hostility.map(|_| node(nodes.len(), hostility::plan(&plan.nodes)));
        let began = scheduler.now();
        Self {
            hostile,
            nodes,
            authority,
            extra: Vec::new(),
            random: fastrand::Rng::with_seed(seed ^ 0x7275_6e00),
            due: BTreeMap::new(),
            dues: 0,
            began,
            plan,
            scheduler,
        }
    }

    fn phases(&mut self) -> Checked {
        for phase in PHASES {
            if (phase.belongs_to)(&self.plan) {
                self.scheduler.trace.line(self.scheduler.now(), "phase", format_args!("{}", phase.name));
                self.pass(QUIET);
                (phase.check)(self)?;
                for mut node in self.extra.drain(..) {
                    node.kill(&mut self.scheduler);
                }
                self.count_credits()?;
            }
        }
        Ok(())
    }

    fn unbroken(&self) -> Checked {
        self.scheduler.oracle.verdict(self.scheduler.now()).map_or(Ok(()), |broken| Err(broken.0))
    }

    /// Advances virtual time.
    fn pass(&mut self, time: Duration) {
        self.scheduler.run_until(self.scheduler.now() + time, |_| false);
    }

    /// Runs until `done` returns true. `why` is the violation if this takes longer than `time`.
    fn within(&mut self, time: Duration, why: &str, done: impl FnMut(&Scheduler) -> bool) -> Checked {
        self.by(self.scheduler.now() + time, why, done)
    }

    /// Like [`Run::within`], but until a point in time.
    fn by(&mut self, limit: Time, why: &str, done: impl FnMut(&Scheduler) -> bool) -> Checked {
        let is_done = self.scheduler.run_until(limit, done);
        self.unbroken()?;
        if is_done { Ok(()) } else { Err(why.to_owned()) }
    }

    /// Runs until all programs have ended.
    fn programs_end(&mut self, time: Duration, why: &str) -> Checked {
        self.within(time, why, |scheduler| scheduler.tasks.len() == 0)
    }

    /// Runs until this number of handlers is running on a node.
    fn has_handlers_by(&mut self, limit: Time, node: usize, handlers: usize, why: &str) -> Checked {
        let address = self.nodes[node].address;
        loop {
            let ledgers = self.scheduler.ledgers();
            let own = ledgers.iter().filter(|ledger| ledger.node == address);
            if own.map(|ledger| ledger.driver.handlers).sum::<usize>() == handlers {
                return Ok(());
            }
            self.unbroken()?;
            if self.scheduler.now() >= limit {
                return Err(why.to_owned());
            }
            self.scheduler.run_until((self.scheduler.now() + LOOK).min(limit), |_| false);
        }
    }

    /// Runs until a process that was shut down has ended. The machine of the card may remain, because it ends with the
    /// last handle to the node.
    fn has_ended_by(&mut self, limit: Time, process: u64) -> Checked {
        let is_over = |name: &&str| name.ends_with("card");
        let ended = |scheduler: &Scheduler| scheduler.machines_of(process).iter().all(is_over);
        self.by(limit, "a node has not ended soon after it was shut down", ended)
            .map_err(|why| format!("{why}: {}", self.scheduler.machines_of(process).join(", ")))
    }

    /// Adds a program that is counted when it ends.
    fn add(&self, tally: &Tally, process: u64, program: impl Future<Output = ()> + 'static) {
        let tally = tally.clone();
        self.scheduler.tasks.add(process, async move {
            program.await;
            tally.add();
        });
    }

    /// Adds a program. The returned count becomes 1 when it ends.
    fn program(&self, process: u64, program: impl Future<Output = ()> + 'static) -> Tally {
        let tally = Tally::default();
        self.add(&tally, process, program);
        tally
    }

    /// Sends a call from a node to a handler that never returns. The call is counted when it fails.
    fn hang(&mut self, caller: usize, server: SocketAddr) -> Checked<Tally> {
        let client = self.client(caller)?;
        let process = client.process;
        Ok(self.program(process, async move { drop(client.call(server, MINUTE, Ask::Hang).await) }))
    }

    /// Starts a node and its clients. If `stores` is given, the process dies after this number of stores to shared memory.
    fn start(&mut self, index: usize, stores: Option<u64>) {
        self.nodes[index].start(&mut self.scheduler, stores);
        for _ in 0..self.plan.nodes[index].clients {
            let Ok(client) = self.client(index) else { return };
            let process = client.process;
            self.scheduler.tasks.add(process, client.run(self.plan.calls_per_client, self.plan.think));
        }
    }

    /// Starts an additional node on a separate host. Returns its index among the additional nodes.
    fn start_extra(&mut self, set: impl FnOnce(NodePlan) -> NodePlan) -> Checked<usize> {
        // The hostile peer may use the next number.
        let host = self.nodes.len() + 1 + self.extra.len();
        let plan = set(NodePlan::extra(host, self.random.u16(1..=2)));
        let mut node = SimNode::new(host, plan, self.plan.rc, self.authority.as_mut());
        node.start(&mut self.scheduler, None);
        self.extra.push(node);
        self.unbroken()?;
        Ok(self.extra.len() - 1)
    }

    /// Returns a client on a node that calls all other nodes.
    fn client(&mut self, index: usize) -> Checked<Client> {
        let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != index);
        let others = others.map(|(_, node)| node.address).collect();
        let random = self.random.fork();
        Ok(Client { random, ..self.client_of(&self.nodes[index], others)? })
    }

    /// Returns a client on a node that calls these servers.
    fn client_of(&self, node: &SimNode, servers: Vec<SocketAddr>) -> Checked<Client> {
        let (process, running) = node.running().ok_or("a node is not running")?;
        Ok(Client {
            process,
            oracle: self.scheduler.oracle.clone(),
            timers: self.scheduler.timers.of(process),
            coverage: Arc::clone(&self.scheduler.coverage),
            node: Rc::clone(running),
            pollers: node.plan.pollers,
            servers,
            random: fastrand::Rng::with_seed(process),
        })
    }

    fn process(&self, node: usize) -> Checked<u64> {
        self.nodes[node].process().ok_or_else(|| "a node is not running".to_owned())
    }

    fn kill(&mut self, node: usize) {
        let others = self.nodes.iter().enumerate().filter(|(index, _)| *index != node);
        let mut living = others.filter(|(_, other)| other.process().is_some());
        let shares = living.any(|(_, other)| other.address.ip() == self.nodes[node].address.ip());
        if shares && self.nodes[node].process().is_some() {
            self.scheduler.coverage.count(EventKind::MemberKilled);
        }
        self.nodes[node].kill(&mut self.scheduler);
    }

    fn replace(&mut self, node: usize) {
        self.kill(node);
        self.nodes[node].start(&mut self.scheduler, None);
    }

    /// Writes the final state of a failed run to the trace.
    fn show_end(&self) {
        if let Err(why) = self.unbroken() {
            let scheduler = &self.scheduler;
            scheduler.trace.line(scheduler.now(), "phase", format_args!("stopped: {why}"));
            scheduler.show_machines();
        }
    }

    /// Drops the remaining nodes and tasks of a failed run, so that the next run starts from a clean state.
    fn clear(&mut self) {
        for node in self.nodes.iter_mut().chain(&mut self.extra).chain(&mut self.hostile) {
            node.kill(&mut self.scheduler);
        }
    }

    fn ledgers(&self) -> Vec<PollerLedger> {
        let hostile = self.hostile.as_ref().map(|node| node.address);
        let mut ledgers = self.scheduler.ledgers();
        ledgers.retain(|ledger| Some(ledger.node) != hostile);
        ledgers
    }

    /// Checks that credits are conserved, that budgets are kept, and that nodes do not send to the attacker. May be
    /// called at any time.
    fn count_credits(&self) -> Checked {
        self.unbroken()?;
        self.scheduler.network.broken().map_or(Ok(()), Err)?;
        let ledgers = self.ledgers();
        credits::budgets_are_kept(&ledgers)?;
        credits::sessions_are_bounded(&self.scheduler.sessions(), &ledgers)?;
        self.scheduler.coverage.add(EventKind::CreditsCounted, credits::conserved(&ledgers)? as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
