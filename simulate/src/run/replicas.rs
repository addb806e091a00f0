//! Replicas of a service behind a balanced channel, which drain, die and come back under load.
//!
//! Four more nodes are three servers and their caller. One server at a time is away. Programs call all the
//! time, and each fault meets calls with enough time left to survive it. While a server drains, further
//! programs call it directly, and through channels that do not know yet that it drains.

use super::{QUIET, Run};
use crate::client::Client;
use crate::coverage::Kind;
use crate::node::SimNode;
use crate::oracle::ANY_SERVER;
use crate::plan::NodePlan;
use crate::scheduler::Scheduler;
use crate::service::WorkClient;
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use trunkline::{CallOptions, Channel, Connect, Limit, Policy, Status};

const SERVERS: usize = 3;
/// Limit of calls under way and of running handlers, at each of the nodes: more than the phase makes.
const ROOM: Limit = Limit { per_peer: 256, in_all: 256 };
/// Grace period of a shutdown. No handler needs as long.
const GRACE: Duration = Duration::from_millis(300);
/// Calls under way before a fault. One in two may run twice.
const CALLS: usize = 12;
/// Time limit of calls that must succeed: the end of a session is noticed within 3 s.
const LONG: Duration = Duration::from_secs(20);
/// Programs that call all the time, and their longest pause.
const PROGRAMS: usize = 3;
const PAUSE_US: u64 = 100_000;
/// Programs that call a draining server, their longest pause, and the time for which they do. A server whose
/// handlers take [`BRIEF_US`] at most has drained before that.
const PROBES: usize = 4;
const PROBE_PAUSE_US: u64 = 80;
const PROBED: Duration = Duration::from_millis(4);
const BRIEF_US: u64 = 1_500;
/// Running time of handlers that a fault interrupts.
const HELD_US: u64 = 10_000;

/// The servers, their caller and its channel.
struct Replicas {
    servers: Vec<SimNode>,
    caller: SimNode,
    process: u64,
    calls: Calls,
    /// Set to end the programs that call all the time.
    is_over: Rc<Cell<bool>>,
}

/// Calls on balanced channels.
#[derive(Clone)]
struct Calls {
    client: Client,
    policy: Policy,
    channel: Channel,
}

/// Running time of a call's handler, and true if the call may run twice.
#[derive(Debug, Clone, Copy)]
struct Job {
    wait_us: u64,
    idempotent: bool,
}

impl Run {
    /// Makes servers of one balanced channel leave and come back.
    pub(super) fn replicas_leave(&mut self) -> bool {
        if !self.plan.has_replicas {
            return true;
        }
        self.scheduler.trace.line(self.scheduler.now(), "phase", format_args!("replicas leave"));
        let Some(mut replicas) = self.start_replicas() else { return self.fail("a node does not start") };
        let are_reached = self.replicas_come_and_go(&mut replicas);
        for node in replicas.servers.iter_mut().chain([&mut replicas.caller]) {
            node.kill(&mut self.scheduler);
        }
        are_reached && self.is_unbroken()
    }

    fn start_replicas(&mut self) -> Option<Replicas> {
        // The next number may be the hostile peer's.
        let first = self.nodes.len() + 1;
        let mut nodes = Vec::new();
        for host in first..=first + SERVERS {
            let plan = NodePlan::extra(host, self.random.u16(1..=2));
            let mut node = SimNode::new(host, plan, self.plan.rc).with_limits(ROOM, ROOM);
            node.start(&mut self.scheduler, None);
            nodes.push(node);
        }
        let caller = nodes.pop()?;
        let addresses = nodes.iter().map(|node| node.address).collect();
        let policy = if self.random.bool() { Policy::PowerOfTwo } else { Policy::RoundRobin };
        let client = self.client_of(&caller, addresses)?;
        let calls = Calls { channel: channel(&client, policy), client, policy };
        let (process, is_over) = (caller.process()?, Rc::default());
        Some(Replicas { servers: nodes, caller, process, calls, is_over })
    }

    fn replicas_come_and_go(&mut self, replicas: &mut Replicas) -> bool {
        // Every server is reached before the first one leaves.
        self.scheduler.tasks.add(replicas.process, reach(replicas.calls.client.clone()));
        let limit = self.scheduler.now() + QUIET;
        if !self.scheduler.run_until(limit, |scheduler| scheduler.tasks.len() == 0) {
            return self.fail("a server is not reached although nothing is wrong");
        }
        for _ in 0..PROGRAMS {
            let (calls, is_over) = (replicas.calls.clone(), Rc::clone(&replicas.is_over));
            self.scheduler.tasks.add(replicas.process, calls.go_on(self.random.fork(), is_over));
        }
        let mut at = || self.random.usize(..SERVERS);
        let victims = [at(), at(), at(), at()];
        self.replica_drains(replicas, victims[0])
            && self.replica_dies(replicas, victims[1], false)
            && self.replica_drains(replicas, victims[2])
            && self.replica_dies(replicas, victims[3], true)
            && self.programs_end(replicas)
    }

    /// Shuts a server down while calls are under way, all of which succeed.
    fn replica_drains(&mut self, replicas: &mut Replicas, at: usize) -> bool {
        let Some(victim) = replicas.servers[at].process() else { return self.fail("a node is not running") };
        let address = replicas.servers[at].address;
        let left = self.call_at_once(replicas, BRIEF_US, |_| true);
        self.scheduler.run_until(self.scheduler.now() + Duration::from_micros(BRIEF_US / 4), |_| false);
        self.scheduler.coverage.count(Kind::ReplicaDrained);
        replicas.servers[at].begin_shutdown_within(&self.scheduler, GRACE);
        let limit = self.scheduler.now() + PROBED;
        for _ in 0..PROBES {
            let probe = replicas.calls.clone().probe(self.random.fork(), PROBED);
            self.scheduler.tasks.add(replicas.process, probe);
            let call = call_directly(replicas.calls.client.clone(), address, self.random.fork(), PROBED);
            self.scheduler.tasks.add(replicas.process, call);
        }
        let process = replicas.process;
        let sends = |scheduler: &Scheduler| scheduler.sent_to_drained(process) > 0;
        if self.scheduler.run_until(limit, sends) {
            return self.fail("a server gets a call after its caller has seen that it has drained");
        }
        let is_over = |name: &&str| name.ends_with("card");
        let limit = self.scheduler.now() + GRACE;
        let ended = self.scheduler.run_until(limit, |scheduler| {
            left.get() == 0 && scheduler.machines_of(victim).iter().all(is_over)
        });
        if !ended {
            return self.fail("a server that drains, or calls to its replicas, do not end within the grace");
        }
        self.replica_returns(replicas, at)
    }

    /// Kills a server, perhaps while it drains: calls that may run twice succeed.
    fn replica_dies(&mut self, replicas: &mut Replicas, at: usize, drains: bool) -> bool {
        let left = self.call_at_once(replicas, HELD_US, |job| job.idempotent);
        let held = Duration::from_micros(HELD_US);
        self.scheduler.run_until(self.scheduler.now() + held / 4, |_| false);
        if drains {
            self.scheduler.coverage.count(Kind::ReplicaDrained);
            replicas.servers[at].begin_shutdown_within(&self.scheduler, GRACE);
            self.scheduler.run_until(self.scheduler.now() + held / 8, |_| false);
        }
        self.scheduler.coverage.count(Kind::ReplicaKilled);
        replicas.servers[at].kill(&mut self.scheduler);
        let limit = self.scheduler.now() + LONG;
        if !self.scheduler.run_until(limit, |_| left.get() == 0) {
            return self.fail("calls to a server that was killed do not end");
        }
        self.replica_returns(replicas, at)
    }

    fn replica_returns(&mut self, replicas: &mut Replicas, at: usize) -> bool {
        replicas.servers[at].kill(&mut self.scheduler);
        self.scheduler.coverage.count(Kind::NodeRestarted);
        replicas.servers[at].start(&mut self.scheduler, None);
        self.scheduler.run_until(self.scheduler.now() + QUIET, |_| false);
        self.count_credits();
        self.is_unbroken()
    }

    fn programs_end(&mut self, replicas: &Replicas) -> bool {
        replicas.is_over.set(true);
        let limit = self.scheduler.now() + LONG;
        if !self.scheduler.run_until(limit, |scheduler| scheduler.tasks.len() == 0) {
            return self.fail("calls to replicas do not end although all are back");
        }
        self.is_unbroken()
    }

    /// Makes calls whose handlers take up to this time, of which the chosen ones must succeed. Returns the
    /// number of calls that have not ended.
    fn call_at_once(
        &mut self,
        replicas: &Replicas,
        most_us: u64,
        must_succeed: impl Fn(Job) -> bool,
    ) -> Rc<Cell<usize>> {
        let left = Rc::new(Cell::new(CALLS));
        for number in 0..CALLS {
            let wait_us = self.random.u64(most_us / 2..most_us);
            let job = Job { wait_us, idempotent: number % 2 == 0 };
            let (calls, left, must_succeed) = (replicas.calls.clone(), Rc::clone(&left), must_succeed(job));
            self.scheduler.tasks.add(replicas.process, async move {
                let failed = calls.make(&calls.channel, job, CallOptions::new(), LONG).await;
                if let Some(status) = failed.filter(|_| must_succeed) {
                    let text = format!("a call to replicas failed while one was away: {job:?}: {status}");
                    calls.client.oracle.fail(text);
                }
                left.set(left.get() - 1);
            });
        }
        left
    }
}

impl Calls {
    /// Makes a call. Returns the error, if it failed.
    async fn make(
        &self,
        channel: &Channel,
        job: Job,
        options: CallOptions,
        timeout: Duration,
    ) -> Option<Status> {
        let Job { wait_us, idempotent } = job;
        let (client, options) = (WorkClient::new(channel.clone()), options.timeout(timeout));
        let client = client.with(&options);
        let oracle = &self.client.oracle;
        let what = if idempotent { "repeat, balanced" } else { "slow, balanced" };
        let call = |id| async move {
            if idempotent {
                oracle.is_idempotent(id);
                return client.repeat(id, wait_us).await;
            }
            client.slow(id, wait_us).await
        };
        self.client.judge_call(ANY_SERVER, what, timeout, call).await
    }

    /// Calls all the time, and ignores the outcomes.
    async fn go_on(self, mut random: fastrand::Rng, is_over: Rc<Cell<bool>>) {
        while !is_over.get() {
            self.client.timers.sleep(Duration::from_micros(random.u64(..PAUSE_US))).await;
            let job = Job { wait_us: random.u64(..BRIEF_US), idempotent: random.bool() };
            let timeout = if random.u8(..4) == 0 { Duration::from_millis(random.u64(1..20)) } else { LONG };
            let connect = if random.bool() { Connect::Wait } else { Connect::FailFast };
            let _ended = self.make(&self.channel, job, CallOptions::new().connect(connect), timeout).await;
        }
    }

    /// Calls through new channels, which do not know that a server drains.
    async fn probe(self, mut random: fastrand::Rng, lasts: Duration) {
        let until = self.client.timers.now() + lasts;
        while self.client.timers.now() < until {
            self.client.timers.sleep(Duration::from_micros(random.u64(..PROBE_PAUSE_US))).await;
            let job = Job { wait_us: 0, idempotent: false };
            // Each channel begins with a random server.
            let channel = channel(&self.client, self.policy);
            if let Some(status) = self.make(&channel, job, CallOptions::new(), LONG).await {
                let text = format!("a call to replicas failed while one drains: {status}");
                self.client.oracle.fail(text);
            }
        }
    }
}

fn channel(client: &Client, policy: Policy) -> Channel {
    client.node.channel(client.servers.clone()).balanced(policy)
}

/// Calls one server without a balanced channel, which would avoid a draining server. Such a call may fail.
async fn call_directly(client: Client, server: SocketAddr, mut random: fastrand::Rng, lasts: Duration) {
    let until = client.timers.now() + lasts;
    while client.timers.now() < until {
        client.timers.sleep(Duration::from_micros(random.u64(..PROBE_PAUSE_US))).await;
        let _refused = client.number_of(server, LONG).await;
    }
}

/// Calls every server.
async fn reach(client: Client) {
    for server in client.servers.clone() {
        if let Some(status) = client.number_waiting(server, LONG).await {
            client.oracle.fail(format!("a server is not reached: {status}"));
        }
    }
}
