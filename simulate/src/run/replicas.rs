//! Replicas of a service on a balanced channel, which drain, die, fail calls and return under load.
//!
//! Four additional nodes are three servers and their caller. One server at a time is absent. Programs make calls
//! continuously. Calls in flight at a fault have enough time left to survive it. While a server drains, further programs
//! call it directly, and through channels that have not been notified of the drain.
//! call it directly, and through channels that have not been notified of the drain.

use super::{Checked, QUIET, Run, Tally};
use crate::coverage::EventKind;
use crate::oracle::ANY_SERVER;
use crate::plan::NodePlan;
use crate::scheduler::Scheduler;
use crate::workload::client::{Ask, Client};
use crate::workload::service::WorkClient;
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use trunkline::{CallOptions, Channel, Connect, Limit, Policy, Status};

const SERVERS: usize = 3;
/// Limit on calls in flight and on running handlers per node. It is higher than the phase needs.
const ROOM: Limit = Limit { per_peer: 256, in_all: 256 };
/// Grace period of a shutdown, which is longer than any handler runs.
const GRACE: Duration = Duration::from_millis(300);
/// Number of calls in flight before a fault. Every second call may run twice.
const CALLS: usize = 12;
/// Time limit of calls that must succeed. The end of a session is detected within 3 s.
const LONG: Duration = Duration::from_secs(20);
/// Number of programs that make calls continuously.
const PROGRAMS: usize = 3;
/// Longest pause of these programs, in microseconds.
const PAUSE_US: u64 = 100_000;
/// Number of programs that call a draining server.
const PROBES: usize = 4;
/// Longest pause of these programs, in microseconds.
const PROBE_PAUSE_US: u64 = 80;
/// Time for which these programs make calls.
const PROBED: Duration = Duration::from_millis(4);
/// Maximum running time of handlers, in microseconds, with which a server drains quickly.
const BRIEF_US: u64 = 1_500;
/// Running time of handlers that are interrupted by a fault, in microseconds.
const HELD_US: u64 = 10_000;

/// Way in which a server leaves.
#[derive(Debug, Clone, Copy)]
enum Departure {
    Drains,
    Dies,
    DiesWhileItDrains,
    /// The server fails each call that may run twice, and then drains.
    Fails,
}

/// The caller of the servers, and its channel.
#[derive(Clone)]
struct Calls {
    client: Client,
    policy: Policy,
    channel: Channel,
}

/// Running time of a call's handler, and whether the call may run twice.
#[derive(Debug, Clone, Copy)]
struct Job {
    wait_us: u64,
    idempotent: bool,
}

impl Run {
    /// Stops and restarts the servers on one balanced channel.
    pub(super) fn replicas_leave(&mut self) -> Checked {
        for _ in 0..=SERVERS {
            self.start_extra(|node| NodePlan { handlers: ROOM, calls: Some(ROOM), ..node })?;
        }
        let addresses = self.extra[..SERVERS].iter().map(|node| node.address).collect();
        let policy = if self.random.bool() { Policy::PowerOfTwo } else { Policy::RoundRobin };
        let client = self.client_of(&self.extra[SERVERS], addresses)?;
        let process = client.process;
        let calls = Calls { channel: channel(&client, policy), client, policy };
        // Reach every server before the first one leaves.
        self.scheduler.tasks.add(process, reach(calls.client.clone()));
        self.programs_end(QUIET, "a server is not reached although nothing is wrong")?;
        let is_over = Rc::new(Cell::new(false));
        for _ in 0..PROGRAMS {
            let program = calls.clone().go_on(self.random.fork(), Rc::clone(&is_over));
            self.scheduler.tasks.add(process, program);
        }
        for departure in [Departure::Drains, Departure::Dies, Departure::Fails, Departure::DiesWhileItDrains]
        {
            let at = self.random.usize(..SERVERS);
            match departure {
                Departure::Drains => self.replica_drains(&calls, at)?,
                Departure::Fails => self.replica_fails(&calls, at)?,
                Departure::Dies | Departure::DiesWhileItDrains => self.replica_dies(&calls, at, departure)?,
            }
            self.extra[at].kill(&mut self.scheduler);
            self.scheduler.coverage.count(EventKind::NodeRestarted);
            self.extra[at].start(&mut self.scheduler, None);
            self.pass(QUIET);
            self.count_credits()?;
        }
        is_over.set(true);
        self.programs_end(LONG, "calls to replicas do not end although all are back")
    }

    /// Shuts down a server during calls, all of which succeed.
    fn replica_drains(&mut self, calls: &Calls, at: usize) -> Checked {
        let victim = self.extra[at].process().ok_or("a node is not running")?;
        let address = self.extra[at].address;
        let ended = self.call_at_once(calls, BRIEF_US, |_| true);
        self.pass(Duration::from_micros(BRIEF_US / 4));
        self.scheduler.coverage.count(EventKind::ReplicaDrained);
        self.extra[at].begin_shutdown_within(&self.scheduler, GRACE);
        let process = calls.client.process;
        for _ in 0..PROBES {
            self.scheduler.tasks.add(process, calls.clone().probe(self.random.fork(), PROBED));
            let call = call_directly(calls.client.clone(), address, self.random.fork(), PROBED);
            self.scheduler.tasks.add(process, call);
        }
        let limit = self.scheduler.now() + PROBED;
        let sends = |scheduler: &Scheduler| scheduler.sent_to_drained(process) > 0;
        if self.scheduler.run_until(limit, sends) {
            return Err("a server gets a call after its caller has seen that it has drained".to_owned());
        }
        let limit = self.scheduler.now() + GRACE;
        let why = "calls to the replicas of a server that drains do not end within the grace";
        self.by(limit, why, |_| ended.get() == CALLS)?;
        self.has_ended_by(limit, victim)
    }

    /// Kills a server, in some cases while it drains. Calls that may run twice succeed.
    fn replica_dies(&mut self, calls: &Calls, at: usize, departure: Departure) -> Checked {
        let ended = self.call_at_once(calls, HELD_US, |job| job.idempotent);
        let held = Duration::from_micros(HELD_US);
        self.pass(held / 4);
        if let Departure::DiesWhileItDrains = departure {
            self.scheduler.coverage.count(EventKind::ReplicaDrained);
            self.extra[at].begin_shutdown_within(&self.scheduler, GRACE);
            self.pass(held / 8);
        }
        self.scheduler.coverage.count(EventKind::ReplicaKilled);
        self.extra[at].kill(&mut self.scheduler);
        self.within(LONG, "calls to a server that was killed do not end", |_| ended.get() == CALLS)
    }

    /// Makes a server fail calls. Calls that may run twice succeed on other servers.
    fn replica_fails(&mut self, calls: &Calls, at: usize) -> Checked {
        let faulty = self.extra[at].process().ok_or("a node is not running")?;
        self.scheduler.coverage.count(EventKind::ReplicaFailed);
        self.scheduler.oracle.fails_repeats(faulty);
        let ended = self.call_at_once(calls, BRIEF_US, |_| true);
        self.within(LONG, "calls to a server that fails them do not end", |_| ended.get() == CALLS)?;
        self.replica_drains(calls, at)
    }

    /// Sends concurrent calls whose handlers run for up to `most_us`. The calls selected by `must_succeed` must succeed.
    /// Each call is counted when it ends.
    fn call_at_once(&mut self, calls: &Calls, most_us: u64, must_succeed: fn(Job) -> bool) -> Tally {
        let ended = Tally::default();
        for number in 0..CALLS {
            let wait_us = self.random.u64(most_us / 2..most_us);
            let job = Job { wait_us, idempotent: number % 2 == 0 };
            let calls = calls.clone();
            self.add(&ended, calls.client.process, async move {
                let failed = calls.make(&calls.channel, job, CallOptions::new(), LONG).await;
                if let Some(status) = failed.filter(|_| must_succeed(job)) {
                    let text =
                        format!("a call to replicas failed while one was away or faulty: {job:?}: {status}");
                    calls.client.oracle.fail(text);
                }
            });
        }
        ended
    }
}

impl Calls {
    /// Sends a call. Returns the error if the call failed.
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
        let made = |what| self.client.oracle.made(self.client.process, ANY_SERVER, what, timeout);
        if idempotent {
            let open = made("repeat, balanced").idempotent();
            let outcome = client.repeat(open.id(), wait_us).await;
            return open.end(outcome);
        }
        let open = made("slow, balanced");
        let outcome = client.slow(open.id(), wait_us).await;
        open.end(outcome)
    }

    /// Makes calls continuously and ignores their outcomes.
    async fn go_on(self, mut random: fastrand::Rng, is_over: Rc<Cell<bool>>) {
        while !is_over.get() {
            self.client.timers.sleep(Duration::from_micros(random.u64(..PAUSE_US))).await;
            let job = Job { wait_us: random.u64(..BRIEF_US), idempotent: random.bool() };
            let timeout = if random.u8(..4) == 0 { Duration::from_millis(random.u64(1..20)) } else { LONG };
            let connect = if random.bool() { Connect::Wait } else { Connect::FailFast };
            let _ended = self.make(&self.channel, job, CallOptions::new().connect(connect), timeout).await;
        }
    }

    /// Makes calls through new channels, which have not been notified that a server drains.
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

/// Calls one server directly, because a balanced channel would avoid a draining server. Such calls may fail.
async fn call_directly(client: Client, server: SocketAddr, mut random: fastrand::Rng, lasts: Duration) {
    let until = client.timers.now() + lasts;
    while client.timers.now() < until {
        client.timers.sleep(Duration::from_micros(random.u64(..PROBE_PAUSE_US))).await;
        let _refused = client.call(server, LONG, Ask::Number).await;
    }
}

async fn reach(client: Client) {
    for server in client.servers.clone() {
        if let Some(status) = client.number_waiting(server, LONG).await {
            client.oracle.fail(format!("a server is not reached: {status}"));
        }
    }
}
