//! One run: nodes come up, clients call and faults happen; then all faults end, and everything must
//! be as if nothing had happened; then all nodes shut down, and nothing may be left.

use crate::attacker::Forgery;
use crate::budgets;
use crate::client::Client;
use crate::coverage::{Coverage, Kind};
use crate::credits;
use crate::heading::{self, Described};
use crate::network::Conditions;
use crate::node::SimNode;
use crate::oracle::CALM_LIMIT;
use crate::plan::{FORGED, Fault, Plan};
use crate::scheduler::Scheduler;
use crate::strangers::{Forged, Sender};
use crate::trace::Trace;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use trunkline::{Code, Status};
use trunkline_verbs::Time;

mod endings;
mod greed;

/// Once faults have ended, every node must reach every other within so long: a session that was cut
/// off is given up after seconds, and a handshake is repeated with growing pauses.
const HEALING: Duration = Duration::from_secs(40);
/// Time limit of each try meanwhile.
const TRY: Duration = Duration::from_millis(500);
/// So long after the last call all credit that was granted for a burst has decayed.
const QUIET: Duration = Duration::from_millis(300);
/// Calls between each two nodes while nothing is wrong.
const CALM_CALLS: usize = 3;
/// What an attacker forges meanwhile, and within which time.
const CALM_FORGERIES: usize = 40;
const CALM_FORGING_NS: u64 = 20_000_000;
/// Credit that its holder does not use comes back within so long.
const CREDIT_DECAYS: Duration = Duration::from_millis(110);
/// The death of a node that somebody waits for is reported within so long.
const DEATH_IS_REPORTED: Duration = Duration::from_secs(3);
/// A successor reaches the others within so long, although they have not noticed the death.
const SUCCESSOR_REACHES: Duration = Duration::from_millis(600);
/// How long nodes may take to end when nothing is under way.
const ENDING: Duration = Duration::from_secs(10);
/// How often more it is examined whether everything has come back.
const LOOKS: u32 = 5;
/// Turns that one machine may take in a second of idleness: keepalives, and looks at timers.
const IDLE_TURNS_PER_S: u64 = 2_000;

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The rule that was broken.
    pub(crate) broken: Option<String>,
    pub(crate) coverage: Arc<Coverage>,
    pub(crate) nodes: usize,
    pub(crate) turns: u64,
    /// Time that passed in the run.
    pub(crate) simulated: Duration,
    /// Equal in two runs of one seed.
    pub(crate) checksum: u32,
}

/// Runs a seed.
pub(crate) fn run(seed: u64, trace: Trace) -> Outcome {
    let coverage = Arc::new(Coverage::default());
    let plan = Plan::new(seed);
    let mut run = Run::new(seed, plan, trace, Arc::clone(&coverage));
    let addresses = run.nodes.iter().map(|node| node.address).collect::<Vec<_>>();
    heading::write(&run.scheduler.trace, seed, &run.plan, &addresses);
    let log = run.scheduler.trace.capture_log();
    run.chaos();
    let mut healthy = run.is_unbroken() && run.heal();
    healthy = healthy
        && run.calm()
        && run.idle()
        && run.one_is_greedy()
        && run.handlers_end()
        && run.one_dies()
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

/// What is to be done at a time.
#[derive(Debug, Clone, Copy)]
enum Due {
    Begin(Fault),
    Forge(Forgery),
    Restart(usize),
    Join(usize, usize),
    Restore(usize),
}

impl fmt::Display for Due {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin(fault) => Described(*fault).fmt(f),
            Self::Forge(forgery) => write!(f, "the attacker forges a {forgery:?}"),
            Self::Restart(node) => write!(f, "node {node} is to start again"),
            Self::Join(a, b) => write!(f, "nodes {a} and {b} can reach each other again"),
            Self::Restore(node) => write!(f, "the device of node {node} is back"),
        }
    }
}

struct Run {
    plan: Plan,
    scheduler: Scheduler,
    nodes: Vec<SimNode>,
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
        Self {
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

    fn at(&mut self, when: Time, due: Due) {
        self.dues += 1;
        self.due.insert((when, self.dues), due);
    }

    /// Clients call, and faults happen.
    fn chaos(&mut self) {
        let coverage = Arc::clone(&self.scheduler.coverage);
        coverage.count(if self.plan.rc { Kind::OverRc } else { Kind::OverXrc });
        if self.plan.nodes.iter().any(|node| node.pollers > 1) {
            coverage.count(Kind::SeveralPollers);
        }
        if self.plan.shares_hosts() {
            coverage.count(Kind::SharedHost);
        }
        for index in 0..self.nodes.len() {
            self.start(index);
        }
        self.scheduler.network.set(self.plan.conditions);
        for (after, fault) in self.plan.faults.clone() {
            self.at(self.began + after, Due::Begin(fault));
        }
        for (after, forgery) in self.plan.forgeries.clone() {
            self.at(self.began + after, Due::Forge(forgery));
        }
        let end = self.began + self.plan.lasts;
        while self.is_unbroken() {
            let next = self.due.keys().next().map_or(end, |(at, _)| (*at).min(end));
            let interrupted = self.scheduler.run_until(next, Scheduler::has_death);
            self.settle();
            if interrupted {
                continue;
            }
            if self.scheduler.now() >= end || !self.is_unbroken() {
                return;
            }
            self.count_credits();
            if let Some((_, due)) = self.due.pop_first() {
                self.happen(due);
            }
        }
    }

    fn settle(&mut self) {
        for node in &mut self.nodes {
            node.settle(&mut self.scheduler);
        }
    }

    /// Strangers send connection requests to a node, see [`Fault::Forge`].
    fn forge(&mut self, node: usize, other: usize, requests: u8) {
        let (victim, named) = (self.nodes[node].address, self.nodes[other].address);
        let pollers = self.plan.nodes[other].pollers;
        let nowhere = std::iter::repeat_n(Sender::Nowhere, requests.into());
        for sender in nowhere.chain([Sender::InTheNameOf(named), Sender::Present]) {
            self.scheduler.coverage.count(Kind::RequestForged);
            let forged = Forged { sender, victim, pollers, is_rc: self.plan.rc };
            self.scheduler.network.forge_request(self.scheduler.now(), forged);
        }
    }

    /// Starts a node, with its clients.
    fn start(&mut self, index: usize) {
        self.start_with(index, None);
    }

    /// The same; its process dies after so many stores, if a number is given.
    fn start_with(&mut self, index: usize, stores: Option<u64>) {
        self.nodes[index].start(&mut self.scheduler, stores);
        for _ in 0..self.plan.nodes[index].clients {
            let Some(client) = self.client(index) else { return };
            let process = client.process;
            self.scheduler.tasks.add(process, client.run(self.plan.calls_per_client, self.plan.think));
        }
    }

    fn client(&mut self, index: usize) -> Option<Client> {
        let (process, node) = self.nodes[index].running()?;
        let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != index);
        Some(Client {
            process,
            oracle: self.scheduler.oracle.clone(),
            timers: self.scheduler.timers.clone(),
            coverage: Arc::clone(&self.scheduler.coverage),
            node: Rc::clone(node),
            pollers: self.plan.nodes[index].pollers,
            servers: others.map(|(_, node)| node.address).collect(),
            random: self.random.fork(),
        })
    }

    fn happen(&mut self, due: Due) {
        let now = self.scheduler.now();
        let coverage = Arc::clone(&self.scheduler.coverage);
        self.scheduler.trace.line(now, "fault", format_args!("{due}"));
        match due {
            Due::Forge(forgery) => self.scheduler.network.forge(now, forgery),
            Due::Begin(Fault::StopMachine { node, pause }) => self.stop(node, true, pause),
            Due::Begin(Fault::StopProcess { node, pause }) => self.stop(node, false, pause),
            Due::Begin(Fault::Kill { node, restart_after }) => {
                self.kill(node);
                self.at(now + restart_after, Due::Restart(node));
            }
            Due::Begin(Fault::KillTwice { node, stores, restart_after }) => {
                self.kill(node);
                self.start_with(node, Some(stores));
                self.at(now + restart_after, Due::Restart(node));
            }
            Due::Begin(Fault::ShutDown { node, restart_after }) => {
                if self.nodes[node].running().is_some() {
                    coverage.count(Kind::NodeShutDown);
                    self.nodes[node].begin_shutdown(&self.scheduler);
                    self.at(now + restart_after, Due::Restart(node));
                }
            }
            Due::Begin(Fault::Partition { a, b, lasts }) => {
                coverage.count(Kind::Partition);
                self.scheduler.network.cut(self.nodes[a].address.ip(), self.nodes[b].address.ip());
                self.at(now + lasts, Due::Join(a, b));
            }
            Due::Begin(Fault::Forge { node, other, requests }) => self.forge(node, other, requests),
            Due::Begin(Fault::RemoveDevice { node, lasts }) => {
                coverage.count(Kind::DeviceRemoved);
                self.nodes[node].remove_device();
                self.scheduler.oracle.disturbed(self.nodes[node].address);
                self.at(now + lasts, Due::Restore(node));
            }
            Due::Restart(node) => {
                self.kill_doomed(node);
                if self.nodes[node].running().is_none() {
                    coverage.count(Kind::NodeRestarted);
                    self.start(node);
                }
            }
            Due::Join(a, b) => {
                self.scheduler.network.join(self.nodes[a].address.ip(), self.nodes[b].address.ip());
            }
            Due::Restore(node) => {
                coverage.count(Kind::DeviceRestored);
                self.nodes[node].restore_device();
                self.scheduler.oracle.disturbed(self.nodes[node].address);
            }
        }
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

    /// Kills a process that was to die between two stores, and has not stored so much.
    fn kill_doomed(&mut self, node: usize) {
        if self.nodes[node].process().is_some_and(|process| self.scheduler.is_doomed(process)) {
            self.kill(node);
        }
    }

    fn stop(&mut self, node: usize, one: bool, pause: Duration) {
        if let Some(process) = self.nodes[node].process() {
            self.scheduler.stop(process, one, pause);
        }
    }

    /// All faults end, and clients finish what they began; then every node reaches every other.
    fn heal(&mut self) -> bool {
        self.scheduler.trace.line(self.scheduler.now(), "phase", format_args!("faults end"));
        let quiet = Conditions {
            least_delay: self.plan.conditions.least_delay,
            jitter: self.plan.conditions.jitter,
            ..Conditions::default()
        };
        self.scheduler.network.set(quiet);
        for (_, due) in std::mem::take(&mut self.due) {
            if !matches!(due, Due::Begin(_) | Due::Forge(_)) {
                self.happen(due);
            }
        }
        self.scheduler.resume_all();
        for index in 0..self.nodes.len() {
            self.kill_doomed(index);
            self.nodes[index].start(&mut self.scheduler, None);
        }
        let limit = self.scheduler.now() + HEALING;
        if !self.scheduler.run_until(limit, |scheduler| scheduler.tasks.len() == 0) {
            return self.fail("clients have not finished long after the last fault");
        }
        self.settle();
        let reached = Rc::new(Cell::new(0));
        let mut pairs = 0;
        for index in 0..self.nodes.len() {
            let Some(client) = self.client(index) else { return self.fail("a node is not running") };
            for server in client.servers.clone() {
                pairs += 1;
                let (client, reached) = (client.clone(), Rc::clone(&reached));
                self.scheduler.tasks.add(client.process, async move {
                    while client.number_of(server, TRY).await.is_some() {
                        client.timers.sleep(Duration::from_millis(5)).await;
                    }
                    reached.set(reached.get() + 1);
                });
            }
        }
        let limit = self.scheduler.now() + HEALING;
        if !self.scheduler.run_until(limit, |_| reached.get() == pairs) {
            return self.fail("a node does not reach another long after the last fault");
        }
        self.count_credits();
        self.is_unbroken()
    }

    /// Nothing is wrong: calls succeed, and soon.
    fn calm(&mut self) -> bool {
        self.scheduler.trace.line(self.scheduler.now(), "phase", format_args!("calm"));
        self.scheduler.run_until(self.scheduler.now() + QUIET, |_| false);
        for index in 0..self.nodes.len() {
            let Some(client) = self.client(index) else { return self.fail("a node is not running") };
            let random = self.random.fork();
            let limit = if self.plan.has_room() { CALM_LIMIT } else { CALM_LIMIT + CREDIT_DECAYS };
            self.scheduler.tasks.add(client.process, calm_calls(client, random, limit));
        }
        self.forge_in_the_calm();
        let limit = self.scheduler.now() + HEALING;
        if !self.scheduler.run_until(limit, |scheduler| scheduler.tasks.len() == 0) {
            return self.fail("calls do not end although nothing is wrong");
        }
        self.count_credits();
        self.is_unbroken()
    }

    /// An attacker is nothing that may be noticed: it forges while calls must succeed, and soon.
    fn forge_in_the_calm(&mut self) {
        if self.plan.forgeries.is_empty() {
            return;
        }
        for _ in 0..CALM_FORGERIES {
            let at = self.scheduler.now().plus_ns(self.random.u64(..CALM_FORGING_NS));
            let forgery = *self.random.choice(&FORGED).unwrap_or(&Forgery::Packet);
            self.scheduler.network.forge(at, forgery);
        }
    }

    /// Nobody calls: machines sleep.
    fn idle(&mut self) -> bool {
        let machines = self.nodes.iter().filter_map(SimNode::process);
        let machines = machines.map(|process| self.scheduler.machines_of(process).len()).sum::<usize>();
        self.scheduler.run_until(self.scheduler.now() + Duration::from_millis(50), |_| false);
        let before = self.scheduler.turns;
        self.scheduler.run_until(self.scheduler.now() + Duration::from_millis(500), |_| false);
        let turns = self.scheduler.turns - before;
        if turns > IDLE_TURNS_PER_S / 2 * machines as u64 {
            return self.fail(&format!("{machines} idle machines took {turns} turns in half a second"));
        }
        self.count_credits();
        let mut rest = credits::at_rest(&self.scheduler.ledgers());
        for _ in 0..LOOKS {
            // A keepalive may be on its way; what has leaked is still there when it has arrived.
            if rest.is_ok() {
                break;
            }
            self.scheduler.run_until(self.scheduler.now() + Duration::from_millis(1), |_| false);
            rest = credits::at_rest(&self.scheduler.ledgers());
        }
        if let Err(why) = rest {
            return self.fail(&why);
        }
        self.scheduler.oracle.judge_one_ways(|server| {
            let node = self.nodes.iter().find(|node| node.address == server);
            node.map_or(0, SimNode::refused_handlers)
        });
        self.is_unbroken()
    }

    /// A node is killed while another waits for it and nobody else does anything: the caller is told
    /// soon. The node's successor reaches the others at once.
    fn one_dies(&mut self) -> bool {
        let (victim, witness) = (0, 1);
        let address = self.nodes[victim].address;
        let Some(client) = self.client(witness) else { return self.fail("a node is not running") };
        let told = Rc::new(Cell::new(false));
        let noted = Rc::clone(&told);
        self.scheduler.tasks.add(client.process, async move {
            client.hang_at(address, Duration::from_secs(60)).await;
            noted.set(true);
        });
        if let Some(client) = self.client(victim) {
            let address = self.nodes[witness].address;
            let hangs = async move { client.hang_at(address, Duration::from_secs(60)).await };
            self.scheduler.tasks.add(self.nodes[victim].process().unwrap_or(0), hangs);
        }
        self.scheduler.run_until(self.scheduler.now() + QUIET, |_| false);
        self.kill(victim);
        let limit = self.scheduler.now() + DEATH_IS_REPORTED;
        if !self.scheduler.run_until(limit, |_| told.get()) {
            return self.fail("the caller of a node that was killed is not told");
        }
        if !self.has_handlers_by(witness, 0, limit) {
            return self.fail("a handler runs on for a caller that was killed");
        }
        // Once more, with a successor that nobody waits for: the others still know the one before.
        self.nodes[victim].start(&mut self.scheduler, None);
        if !self.reach_from(victim) {
            return self.fail("a node that was started again does not reach another at once");
        }
        self.kill(victim);
        self.nodes[victim].start(&mut self.scheduler, None);
        if !self.reach_from(victim) {
            return self.fail("a node that was restarted at once does not reach another at once");
        }
        self.stale_session(victim, witness)
    }

    /// A node is restarted while another has a session with it: at most the first call that follows
    /// meets the session with the predecessor.
    fn stale_session(&mut self, victim: usize, witness: usize) -> bool {
        let address = self.nodes[victim].address;
        let Some(client) = self.client(witness) else { return self.fail("a node is not running") };
        self.scheduler.run_until(self.scheduler.now() + QUIET, |_| false);
        self.kill(victim);
        self.nodes[victim].start(&mut self.scheduler, None);
        let ended = Rc::new(Cell::new(false));
        let noted = Rc::clone(&ended);
        self.scheduler.tasks.add(client.process, async move {
            let _may_fail = client.number_of(address, DEATH_IS_REPORTED).await;
            if let Some(status) = client.number_of(address, SUCCESSOR_REACHES).await {
                client.oracle.fail(format!("the second call to a node's successor failed: {status}"));
            }
            noted.set(true);
        });
        let limit = self.scheduler.now() + DEATH_IS_REPORTED + SUCCESSOR_REACHES;
        if !self.scheduler.run_until(limit, |_| ended.get()) {
            return self.fail("calls to a node's successor do not end");
        }
        self.is_unbroken()
    }

    /// Whether a node reaches all others soon, each by its first call.
    fn reach_from(&mut self, index: usize) -> bool {
        let Some(client) = self.client(index) else { return false };
        let reached = Rc::new(Cell::new(0));
        let servers = client.servers.clone();
        for server in servers.clone() {
            let (client, reached) = (client.clone(), Rc::clone(&reached));
            self.scheduler.tasks.add(client.process, async move {
                let failure = client.number_of(server, SUCCESSOR_REACHES).await;
                if let Some(status) = failure {
                    client.oracle.fail(format!("the first call of a node's successor failed: {status}"));
                }
                reached.set(reached.get() + 1);
            });
        }
        self.scheduler.run_until(self.scheduler.now() + SUCCESSOR_REACHES, |_| reached.get() == servers.len())
    }

    /// All nodes shut down, and nothing of them is left.
    fn end(&mut self) {
        self.scheduler.trace.line(self.scheduler.now(), "phase", format_args!("shut down"));
        for node in &self.nodes {
            let Some((_, running)) = node.running() else { continue };
            let report = running.report();
            if report.rnr > 0 {
                self.fail(&format!("{} RNR NAKs at {}", report.rnr, node.address));
                return;
            }
        }
        for node in &mut self.nodes {
            node.begin_shutdown(&self.scheduler);
        }
        let processes = self.nodes.iter().filter_map(SimNode::process).collect::<Vec<_>>();
        let limit = self.scheduler.now() + ENDING;
        let ended = self.scheduler.run_until(limit, |scheduler| {
            processes
                .iter()
                .all(|process| scheduler.machines_of(*process).iter().all(|name| name.ends_with("card")))
        });
        if !ended {
            let left = processes.iter().flat_map(|process| self.scheduler.machines_of(*process));
            let left = left.collect::<Vec<_>>().join(", ");
            self.fail(&format!("nodes have not ended long after they were shut down: {left}"));
            return;
        }
        for node in &mut self.nodes {
            if let Some(left) = node.forget(&self.scheduler) {
                self.scheduler.oracle.fail(left);
            }
        }
        let limit = self.scheduler.now() + ENDING;
        let gone = |scheduler: &Scheduler| {
            processes.iter().all(|process| scheduler.machines_of(*process).is_empty())
        };
        if !self.scheduler.run_until(limit, gone) {
            self.fail("the device of a node that has ended goes on");
            return;
        }
        for node in &self.nodes {
            if node.devices() > 0 {
                self.fail(&format!("an object of the device at {} is left", node.address));
            }
        }
        if self.scheduler.oracle.open() > 0 {
            self.fail("a call is open although all nodes have ended");
        }
    }

    /// Writes into the trace where a broken run stopped.
    fn show_end(&self) {
        if let Some(broken) = self.scheduler.oracle.verdict(self.scheduler.now()) {
            let scheduler = &self.scheduler;
            scheduler.trace.line(scheduler.now(), "phase", format_args!("stopped: {}", broken.0));
            scheduler.show_machines();
        }
    }

    /// Ends what a broken run has left, so that the next begins with nothing.
    fn clear(&mut self) {
        for node in &mut self.nodes {
            node.kill(&mut self.scheduler);
        }
    }

    /// Credits are conserved and budgets kept, whatever is going on, and nobody has sent anything to the
    /// attacker.
    fn count_credits(&self) {
        if let Some(why) = self.scheduler.network.broken() {
            self.scheduler.oracle.fail(why);
        }
        let ledgers = self.scheduler.ledgers();
        if let Err(why) = budgets::kept(&ledgers) {
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

async fn calm_calls(client: Client, mut random: fastrand::Rng, limit: Duration) {
    for _ in 0..CALM_CALLS {
        for server in client.servers.clone() {
            // Long enough that everybody is asleep, mostly.
            client.timers.sleep(Duration::from_micros(random.u64(..4000))).await;
            let began = client.timers.now();
            let failure = match random.u8(..8) {
                4 => client.give_up_beside(server).await,
                5 => {
                    client.give_up_hanging(server).await;
                    None
                }
                6 => failed_as(
                    Code::FailedPrecondition,
                    client.refuse_at(server, TRY, random.u64(..2000)).await,
                ),
                7 => failed_as(Code::Internal, client.panic_at(server, TRY).await),
                0 => client.echo_of(server, TRY, 40 << 10, 40 << 10).await,
                1 => client.echo_of(server, TRY, 4 << 10, 4 << 10).await,
                _ => client.number_of(server, TRY).await,
            };
            let took = client.timers.now() - began;
            if let Some(status) = failure {
                client.oracle.fail(format!("a call failed although nothing is wrong: {status}"));
            } else if took > limit {
                client.oracle.fail(format!("a call took {took:?} although nothing is wrong"));
            }
        }
    }
}

/// Passes on a failure unless it is the one that the handler returned.
fn failed_as(code: Code, failure: Option<Status>) -> Option<Status> {
    failure.filter(|status| status.code() != code)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file for a trace, gone at the end.
    struct TraceFile(std::path::PathBuf);

    impl TraceFile {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("trunkline-simulate-{}-{name}", std::process::id())))
        }

        fn run(&self, seed: u64) -> (Outcome, Vec<u8>) {
            let trace = Trace::to_file(&self.0).unwrap();
            let outcome = run(seed, trace.clone());
            trace.close().unwrap();
            (outcome, std::fs::read(&self.0).unwrap())
        }
    }

    impl Drop for TraceFile {
        fn drop(&mut self) {
            let _gone = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_trace_and_another_does_not() {
        let (first, second) = (TraceFile::new("a"), TraceFile::new("b"));
        let (one, trace) = first.run(7);
        let (same, again) = second.run(7);
        assert!(trace == again, "the traces of one seed differ");
        assert_eq!(one.checksum, same.checksum);
        assert_eq!(run(7, Trace::checksum_only()).checksum, one.checksum, "tracing changes the run");
        assert_ne!(run(8, Trace::checksum_only()).checksum, one.checksum);
    }

    #[test]
    fn a_trace_tells_what_happened_to_each_call() {
        let (outcome, trace) = TraceFile::new("calls").run(7);
        let trace = String::from_utf8(trace).unwrap();
        let made = outcome.coverage.of(Kind::CallMade);
        for id in 1..=made {
            let made = trace.find(&format!(" call {id} (")).expect("the call is made");
            let ended = trace.find(&format!(" call {id} ends: ")).expect("the call ends");
            assert!(made < ended, "call {id} ends before it is made");
        }
        assert!(trace.contains(": its handler starts in process "));
        assert!(trace.contains("127.7.7.1:7471") && trace.contains("RC SEND_ONLY"));
        assert!(!trace.contains("Opcode("), "an opcode is a number");
        assert!(trace.trim_end().ends_with("verdict                  seed 7 passed: no rule was broken"));
        let has_time =
            |line: &str| line.split_whitespace().next().is_some_and(|time| time.parse::<f64>().is_ok());
        assert!(trace.lines().all(has_time), "a line has no time");
    }

    #[test]
    fn a_few_runs_break_no_rule() {
        for seed in 1..=20 {
            let outcome = run(seed, Trace::checksum_only());
            assert_eq!(outcome.broken, None, "seed {seed}: cargo simulate --seed {seed} --trace FILE");
        }
    }
}
