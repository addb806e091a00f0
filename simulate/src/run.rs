//! One run: nodes start, clients call and faults happen. Then all faults end, and everything must be as if
//! nothing had happened. Then all nodes shut down, and nothing may be left.

use crate::budgets;
use crate::client::Client;
use crate::coverage::{Coverage, Kind};
use crate::credits;
use crate::heading;
use crate::node::SimNode;
use crate::plan::{Plan, Pollers};
use crate::scheduler::Scheduler;
use crate::sessions;
use crate::trace::Trace;
use chaos::Due;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use trunkline_verbs::Time;

mod admission;
mod away;
mod calm;
mod chaos;
mod crowding;
mod deaths;
mod draining;
mod endings;
mod fairness;
mod greed;
mod hostility;
mod moving;
mod paths;
mod replicas;
mod shutdown;
mod unsent;

/// Time limit of each attempt to reach a node.
const TRY: Duration = Duration::from_millis(500);
/// Time after the last call in which all credit granted for a burst decays.
const QUIET: Duration = Duration::from_millis(300);

/// Outcome of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The violation, if there was one.
    pub(crate) broken: Option<String>,
    pub(crate) coverage: Arc<Coverage>,
    pub(crate) nodes: usize,
    pub(crate) turns: u64,
    /// Virtual time that passed in the run.
    pub(crate) simulated: Duration,
    /// Checksum, equal in two runs of one seed.
    pub(crate) checksum: u32,
}

/// Runs a seed, with these numbers of pollers if they are given.
pub(crate) fn run(seed: u64, pollers: Option<Pollers>, trace: Trace) -> Outcome {
    let coverage = Arc::new(Coverage::default());
    let plan = Plan::new(seed).with_pollers(pollers);
    let mut run = Run::new(seed, plan, trace, Arc::clone(&coverage));
    let addresses = run.nodes.iter().map(|node| node.address).collect::<Vec<_>>();
    heading::write(&run.scheduler.trace, seed, &run.plan, &addresses);
    let log = run.scheduler.trace.capture_log();
    run.chaos();
    let mut healthy = run.is_unbroken() && run.heal();
    healthy = healthy
        && run.calm()
        && run.idle()
        && run.paths_change()
        && run.callers_find_room()
        && run.small_calls_pass_large_ones()
        && run.one_is_hostile()
        && run.one_is_greedy()
        && run.a_host_is_greedy()
        && run.a_host_has_its_share()
        && run.handlers_end()
        && run.some_never_leave()
        && run.one_dies()
        && run.one_is_away()
        && run.one_moves()
        && run.replicas_leave()
        && run.one_drains()
        && run.one_is_stuck()
        && run.one_leaves();
    if healthy {
        run.end();
    }
    run.show_end();
    run.clear();
    drop(log);
    run.scheduler.trace.mix(run.scheduler.network.checksum());
    let broken = run.scheduler.oracle.verdict(run.scheduler.now()).map(|broken| broken.0);
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

struct Run {
    plan: Plan,
    scheduler: Scheduler,
    nodes: Vec<SimNode>,
    /// The hostile peer, in a run that has one.
    hostile: Option<SimNode>,
    random: fastrand::Rng,
    due: BTreeMap<(Time, u64), Due>,
    dues: u64,
    began: Time,
}

impl Run {
    fn new(seed: u64, plan: Plan, trace: Trace, coverage: Arc<Coverage>) -> Self {
        let scheduler = Scheduler::new(seed, trace, coverage);
        let nodes = plan.nodes.iter().enumerate().map(|(index, node)| SimNode::new(index, *node, plan.rc));
        let began = scheduler.now();
        let hostile = || SimNode::new(plan.nodes.len(), hostility::plan(&plan.nodes), plan.rc);
        Self {
            hostile: plan.hostility.is_some().then(hostile),
            nodes: nodes.collect(),
            random: fastrand::Rng::with_seed(seed ^ 0x7275_6e00),
            due: BTreeMap::new(),
            dues: 0,
            began,
            plan,
            scheduler,
        }
    }

    fn is_unbroken(&self) -> bool {
        self.scheduler.oracle.verdict(self.scheduler.now()).is_none()
    }

    fn settle(&mut self) {
        for node in &mut self.nodes {
            node.settle(&mut self.scheduler);
        }
    }

    /// Starts a node and its clients.
    fn start(&mut self, index: usize) {
        self.start_with(index, None);
    }

    /// Starts a node and its clients. The process dies after a number of stores, if one is given.
    fn start_with(&mut self, index: usize, stores: Option<u64>) {
        self.nodes[index].start(&mut self.scheduler, stores);
        for _ in 0..self.plan.nodes[index].clients {
            let Some(client) = self.client(index) else { return };
            let process = client.process;
            self.scheduler.tasks.add(process, client.run(self.plan.calls_per_client, self.plan.think));
        }
    }

    fn client(&mut self, index: usize) -> Option<Client> {
        let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != index);
        let others = others.map(|(_, node)| node.address).collect();
        let random = self.random.fork();
        Some(Client { random, ..self.client_of(&self.nodes[index], others)? })
    }

    /// Returns a client of a node that calls these servers.
    fn client_of(&self, node: &SimNode, servers: Vec<SocketAddr>) -> Option<Client> {
        let (process, running) = node.running()?;
        Some(Client {
            process,
            oracle: self.scheduler.oracle.clone(),
            timers: self.scheduler.timers.clone(),
            coverage: Arc::clone(&self.scheduler.coverage),
            node: Rc::clone(running),
            pollers: node.pollers(),
            servers,
            random: fastrand::Rng::with_seed(process),
        })
    }

    fn kill(&mut self, node: usize) {
        let others = self.nodes.iter().enumerate().filter(|(index, _)| *index != node);
        let mut living = others.filter(|(_, other)| other.process().is_some());
        let shares = living.any(|(_, other)| other.address.ip() == self.nodes[node].address.ip());
        if shares && self.nodes[node].process().is_some() {
            self.scheduler.coverage.count(Kind::MemberKilled);
        }
        self.nodes[node].kill(&mut self.scheduler);
    }

    /// Kills a process that was to die between two stores, but made too few stores.
    fn kill_doomed(&mut self, node: usize) {
        if self.nodes[node].process().is_some_and(|process| self.scheduler.is_doomed(process)) {
            self.kill(node);
        }
    }

    /// Writes the state in which a failed run stopped into the trace.
    fn show_end(&self) {
        if let Some(broken) = self.scheduler.oracle.verdict(self.scheduler.now()) {
            let scheduler = &self.scheduler;
            scheduler.trace.line(scheduler.now(), "phase", format_args!("stopped: {}", broken.0));
            scheduler.show_machines();
        }
    }

    /// Drops the rest of a failed run, so that the next one starts clean.
    fn clear(&mut self) {
        for node in self.nodes.iter_mut().chain(&mut self.hostile) {
            node.kill(&mut self.scheduler);
        }
    }

    /// Checks at any time that credits are conserved, that budgets are kept, and that nobody has sent
    /// anything to the attacker.
    fn count_credits(&self) {
        if let Some(why) = self.scheduler.network.broken() {
            self.scheduler.oracle.fail(why);
        }
        let ledgers = self.ledgers();
        if let Err(why) = budgets::kept(&ledgers) {
            self.scheduler.oracle.fail(why);
        }
        if let Err(why) = sessions::bounded(&self.scheduler.sessions(), &ledgers) {
            self.scheduler.oracle.fail(why);
        }
        match credits::conserved(&ledgers) {
            Ok(pairs) => self.scheduler.coverage.add(Kind::CreditsCounted, pairs as u64),
            Err(why) => self.scheduler.oracle.fail(why),
        }
    }

    fn fail(&self, why: &str) -> bool {
        self.scheduler.oracle.fail(why.to_owned());
        false
    }
}

#[cfg(test)]
mod tests;
