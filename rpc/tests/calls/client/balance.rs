//! Balanced channels. Calls are spread over servers, avoid draining and lost servers, and return to restored servers.

use crate::common::{LIMIT, fresh_address, node, until};
use crate::gate::Gate;
use crate::logged::Logged;
use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};
use tracing::Level;
use trunkline::health::{HealthReporter, ServingStatus};
use trunkline::report::PeerKey;
use trunkline::{
    AddressWatcher, Balance, CallOptions, Channel, Code, Connect, Node, Policy, Reason, Resolve, Resolving,
    ServerList, Status, Target, block_on,
};

#[trunkline::service]
trait Work {
    /// Records a job. Each job may run only once.
    async fn add(&self, job: u64) -> Result<u64, Status>;
    /// Records a job that may be repeated. The job waits at the gate if its server holds jobs.
    #[idempotent]
    async fn set(&self, job: u64) -> Result<u64, Status>;
    /// Waits at the gate if its server holds jobs.
    async fn wait(&self, job: u64) -> Result<u64, Status>;
}

/// The handlers of one server. All servers of a test share the record of jobs.
#[derive(Clone)]
struct Worker {
    number: u64,
    runs: Arc<Mutex<HashMap<u64, u64>>>,
    holds: Arc<AtomicBool>,
    gate: Gate,
}

impl Worker {
    fn record(&self, job: u64) {
        *self.runs.lock().unwrap().entry(job).or_default() += 1;
    }
}

impl Work for Worker {
    async fn add(&self, job: u64) -> Result<u64, Status> {
        self.record(job);
        Ok(self.number)
    }
    async fn set(&self, job: u64) -> Result<u64, Status> {
        self.wait(job).await
    }
    async fn wait(&self, job: u64) -> Result<u64, Status> {
        self.record(job);
        if self.holds.load(Ordering::SeqCst) {
            self.gate.pass().await;
        }
        Ok(self.number)
    }
}

#[test]
fn servers_beyond_bound_are_logged_and_reported() {
    let caller = node().start().unwrap();
    let servers = (1..=1500).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect::<Vec<_>>();
    let logged = Logged::at(Level::WARN);
    let make = || caller.channel(servers).balanced(Policy::RoundRobin);
    let channel = tracing::subscriber::with_default(logged.clone(), make);
    let report = caller.report().servers;
    assert_eq!((report.len(), report[0].omitted), (1024, 476));
    assert_eq!(logged.count("omitted=476"), 1, "{:?}", logged.lines());
    drop(channel);
}

/// Replicas of a service, and a node that calls them.
struct Replicas {
    workers: Vec<Worker>,
    servers: Vec<Option<Node>>,
    addresses: Vec<SocketAddr>,
    caller: Node,
}

impl Replicas {
    fn new(count: u64) -> Self {
        Self::limited(count, 1000)
    }

    /// Starts replicas that have a health service.
    fn with_health<const N: usize>() -> (Self, [HealthReporter; N]) {
        let health = [(); N].map(|()| HealthReporter::new());
        (Self::started(N as u64, 1000, &health), health)
    }

    /// Starts replicas that run at most `limit` calls concurrently.
    fn limited(count: u64, limit: u32) -> Self {
        Self::started(count, limit, &[])
    }

    /// Starts replicas. The first replicas have a health service, one per reporter.
    fn started(count: u64, limit: u32, health: &[HealthReporter]) -> Self {
        let runs = Arc::default();
        let workers: Vec<_> = (0..count)
            .map(|number| Worker {
                number,
                runs: Arc::clone(&runs),
                holds: Arc::default(),
                gate: Gate::default(),
            })
            .collect();
        let start = |worker: &Worker| {
            let server = node().grace(LIMIT);
            let health = usize::try_from(worker.number).ok().and_then(|at| health.get(at));
            let server = match health {
                Some(health) => server.health(health),
                None => server,
            };
            server.serve(WorkServer::new(worker.clone()).limit(limit)).start().unwrap()
        };
        let servers = workers.iter().map(start).collect::<Vec<_>>();
        let addresses = servers.iter().map(Node::local_address).collect();
        let caller = node().start().unwrap();
        Self { workers, servers: servers.into_iter().map(Some).collect(), addresses, caller }
    }

    fn channel(&self, balance: impl Into<Balance>) -> Channel {
        self.caller.channel(self.addresses.clone()).balanced(balance)
    }

    fn client(&self, balance: impl Into<Balance>) -> WorkClient {
        WorkClient::new(self.channel(balance)).with_timeout(LIMIT)
    }

    fn stop(&mut self, at: usize) {
        self.servers[at].take().unwrap().shutdown();
    }

    fn states(&self) -> Vec<&'static str> {
        self.caller.report().servers.iter().map(|server| server.state).collect()
    }

    /// Connects to all servers.
    fn connect(&self, client: &WorkClient) {
        until("all servers are up", || {
            block_on(client.add(u64::MAX)).unwrap();
            self.states().iter().all(|state| *state == "up").then_some(())
        });
    }

    /// Returns the number of handlers running on a server.
    fn running(&self, at: usize) -> u64 {
        let report = self.servers[at].as_ref().unwrap().report();
        report.budgets.iter().find(|budget| budget.name == "running handlers").unwrap().used
    }

    fn refused(&self, at: usize) -> u64 {
        let report = self.servers[at].as_ref().unwrap().report();
        report.counter("requests_refused_draining").unwrap()
    }
}

#[test]
fn hedged_call_is_answered_by_another_server_while_first_is_silent() {
    let replicas = Replicas::new(2);
    let balance = Balance::from(Policy::RoundRobin).hedge_after(Duration::from_millis(1));
    let client = replicas.client(balance);
    replicas.connect(&client);
    replicas.workers[0].holds.store(true, Ordering::SeqCst);
    let hedged = || replicas.caller.report().counter("hedges_won").unwrap();
    // The other server may be slow as well, but it answers.
    until("a hedge wins", || {
        assert_eq!(block_on(client.set(0)), Ok(1));
        (hedged() > 0).then_some(())
    });
}

#[test]
fn round_robin_uses_all_20_servers_equally() {
    let replicas = Replicas::new(20);
    let list = Target::resolver(ServerList::new("workers", replicas.addresses.iter().copied()));
    let channel = replicas.caller.channel(list).balanced(Policy::RoundRobin);
    let client = WorkClient::new(channel).with_timeout(LIMIT);
    replicas.connect(&client);
    let mut calls = [0; 20];
    for job in 0..60 {
        calls[usize::try_from(block_on(client.add(job)).unwrap()).unwrap()] += 1;
    }
    assert_eq!(calls, [3; 20]);
}

#[test]
fn power_of_two_choices_avoids_blocked_server() {
    let replicas = Replicas::new(2);
    let client = replicas.client(Policy::PowerOfTwo);
    replicas.connect(&client);
    replicas.workers[0].holds.store(true, Ordering::SeqCst);
    let mut context = Context::from_waker(Waker::noop());
    let mut held = Vec::new();
    until("a call is held", || {
        let mut call = Box::pin(client.wait(0));
        let is_pending = call.as_mut().poll(&mut context).is_pending();
        held.extend(is_pending.then_some(call));
        (replicas.workers[0].gate.arrived() > 0).then_some(())
    });
    // Calls in the other server's queue end without help.
    let ended = until("other calls end", || {
        held.retain_mut(|call| call.as_mut().poll(&mut context).is_pending());
        (held.len() == replicas.workers[0].gate.arrived()).then_some(held.len())
    });
    assert!((1..=50).all(|job| block_on(client.add(job)) == Ok(1)));
    assert_eq!(replicas.workers[0].gate.arrived(), ended);
    replicas.workers[0].gate.open();
}

#[test]
fn calls_not_taken_by_draining_server_do_not_use_retry_budget() {
    let replicas = Replicas::new(2);
    let client = replicas.client(Balance::from(Policy::PickFirst).retry_budget(0, 0));
    assert_eq!(block_on(client.add(u64::MAX)), Ok(0));
    let server = replicas.servers[0].as_ref().unwrap();
    server.begin_drain();
    let calls = (0..500).map(|job| client.add(job)).collect::<Vec<_>>();
    for call in calls {
        assert_eq!(block_on(call), Ok(1));
    }
    // The server reports its drain once to each of the caller's pollers that has calls in flight.
    let refused = replicas.refused(0);
    assert!(refused > 0);
    assert!((500..1000).all(|job| block_on(client.add(job)) == Ok(1)));
    assert_eq!(replicas.refused(0), refused);
}

/// Makes a call for job 7 whose server drops its handlers while the call runs. Returns the call's outcome and how often the
/// job ran.
fn lose_a_call<F>(call: impl FnOnce(WorkClient) -> F) -> (Result<u64, Status>, u64)
where
    F: Future<Output = Result<u64, Status>> + Send + 'static,
{
    let mut replicas = Replicas::new(2);
    let worker = replicas.workers[0].clone();
    let hasty = node().grace(Duration::ZERO);
    let hasty = hasty.serve(WorkServer::new(worker)).start().unwrap();
    replicas.addresses[0] = hasty.local_address();
    let client = replicas.client(Policy::PickFirst);
    assert_eq!(block_on(client.add(0)), Ok(0));
    replicas.workers[0].holds.store(true, Ordering::SeqCst);
    let mut call = Box::pin(call(client));
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    until("the call runs", || (replicas.workers[0].gate.arrived() > 0).then_some(()));
    hasty.shutdown();
    let outcome = block_on(call);
    let runs = replicas.workers[0].runs.lock().unwrap()[&7];
    (outcome, runs)
}

#[test]
fn lost_call_is_retried_only_if_safe() {
    let (outcome, runs) = lose_a_call(|client| async move { client.set(7).await });
    assert_eq!((outcome, runs), (Ok(1), 2));
    let (outcome, runs) = lose_a_call(|client| async move { client.wait(7).await });
    let status = outcome.unwrap_err();
    assert_eq!((status.may_have_run(), runs), (true, 1), "{status}");
    let rule = "only #[idempotent] methods are repeated (the call may have run)";
    assert!(status.to_string().ends_with(rule), "{status}");
}

#[test]
fn retry_budget_limits_retries() {
    let replicas = Replicas::limited(3, 1);
    let client = replicas.client(Balance::from(Policy::RoundRobin).retry_budget(5, 0));
    replicas.connect(&client);
    let clients = replicas.addresses.iter().zip(&replicas.workers).map(|(address, worker)| {
        worker.holds.store(true, Ordering::SeqCst);
        WorkClient::connect(&replicas.caller, *address).unwrap().with_timeout(LIMIT)
    });
    let clients = clients.collect::<Vec<_>>();
    let held = clients.iter().map(|client| client.wait(1000)).collect::<Vec<_>>();
    for worker in &replicas.workers {
        until("the call is held", || (worker.gate.arrived() == 1).then_some(()));
    }
    for job in 0..100 {
        let status = block_on(client.add(job)).unwrap_err();
        assert_eq!((status.code(), status.may_have_run()), (Code::ResourceExhausted, false), "{status}");
        assert_eq!(status.reason(), Some(Reason::Overloaded), "{status}");
        let text =
            "the channel's retry budget (5 calls, then 0 % of those that succeed) is used up; raise it";
        assert!(job < 3 || status.to_string().contains(text), "{status}");
    }
    let servers = replicas.caller.report().servers;
    assert!(servers.iter().all(|server| (97..=99).contains(&server.unretried)), "{servers:?}");
    let refused = |node: &Node| node.report().limits.iter().map(|limit| limit.refused).sum::<u64>();
    assert_eq!(replicas.servers.iter().flatten().map(refused).sum::<u64>(), 105);
    replicas.workers.iter().for_each(|worker| worker.gate.open());
    assert!(held.into_iter().all(|call| block_on(call).is_ok()));
}

#[test]
fn calls_succeed_while_servers_are_added_and_removed() {
    for policy in [Policy::PickFirst, Policy::RoundRobin, Policy::PowerOfTwo] {
        let mut replicas = Replicas::new(4);
        let list = ServerList::new("replicas", replicas.addresses[..1].iter().copied());
        let channel = replicas.caller.channel(Target::resolver(list.clone()));
        let client = WorkClient::new(channel.balanced(policy)).with_timeout(LIMIT);
        let (next, stop) = (AtomicU64::new(1_000_000), AtomicBool::new(false));
        let failed = thread::scope(|scope| {
            let callers: Vec<_> = (0..4)
                .map(|_| {
                    let (client, next, stop) = (client.clone(), &next, &stop);
                    scope.spawn(move || {
                        let mut failed = Vec::new();
                        while !stop.load(Ordering::SeqCst) {
                            let job = |_| client.add(next.fetch_add(1, Ordering::SeqCst));
                            let calls = (0..16).map(job).collect::<Vec<_>>();
                            failed.extend(calls.into_iter().filter_map(|call| block_on(call).err()));
                        }
                        failed
                    })
                })
                .collect();
            let is_called = |at: u64| {
                until("a server of the list is called", || (block_on(client.add(0)) == Ok(at)).then_some(()));
            };
            for at in 1..4_usize {
                let (old, new) = (replicas.addresses[at - 1], replicas.addresses[at]);
                if policy != Policy::PickFirst {
                    list.set([old, new]);
                    is_called(at as u64);
                }
                list.set([new]);
                is_called(at as u64);
                until("the old server is left", || {
                    let servers = replicas.caller.report().servers;
                    servers.iter().all(|server| server.address == new.into()).then_some(())
                });
                assert!((0..50).all(|_| block_on(client.add(0)) == Ok(at as u64)), "{policy:?}");
                replicas.stop(at - 1);
            }
            stop.store(true, Ordering::SeqCst);
            callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(failed.is_empty(), "{policy:?}: {} of {next:?}: {failed:?}", failed.len());
        let runs = replicas.workers[0].runs.lock().unwrap();
        assert!(runs.iter().all(|(job, runs)| *job == 0 || *runs == 1), "{policy:?}");
    }
}

#[test]
fn list_of_servers_is_used_from_its_first_change_on() {
    let replicas = Replicas::new(1);
    let list = ServerList::new("replicas", [] as [PeerKey; 0]);
    let channel = replicas.caller.channel(Target::resolver(list.clone())).balanced(Policy::RoundRobin);
    let client = WorkClient::new(channel).with_timeout(LIMIT);
    let status = block_on(client.add(1)).unwrap_err();
    assert!(!status.may_have_run() && status.to_string().contains("replicas"), "{status}");
    let patient = CallOptions::new().timeout(Duration::MAX).connect(Connect::Wait);
    let mut call = pin!(client.with(&patient).add(2));
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    list.set(replicas.addresses.iter().copied());
    assert_eq!(block_on(call), Ok(0));
    list.set([] as [PeerKey; 0]);
    assert_eq!(block_on(client.add(3)), Ok(0));
}

#[test]
fn moves_before_sending_do_not_use_retry_budget() {
    let caller = node().start().unwrap();
    let dead = [fresh_address(), fresh_address()];
    for policy in [Policy::PickFirst, Policy::RoundRobin] {
        let balance = Balance::from(policy).retry_budget(0, 0);
        let client = WorkClient::new(caller.channel(dead).balanced(balance)).with_timeout(LIMIT);
        for job in 0..20 {
            let status = block_on(client.add(job)).unwrap_err();
            assert_eq!((status.reason(), status.may_have_run()), (Some(Reason::Unreachable), false));
            assert!(!status.to_string().contains("retry budget"), "{status}");
        }
    }
    let servers = caller.report().servers;
    assert!(servers.iter().all(|server| server.unretried == 0), "{servers:?}");
}

/// A server list whose lookups fail, except the first.
#[derive(Debug)]
struct Failing {
    servers: Vec<PeerKey>,
    lookups: AtomicU64,
    channel: Mutex<Option<AddressWatcher>>,
}

impl Resolve for Failing {
    fn resolve(&self) -> Resolving<'_> {
        let fails = self.lookups.fetch_add(1, Ordering::SeqCst) > 0;
        Box::pin(
            async move { if fails { Err("the directory is away".into()) } else { Ok(self.servers.clone()) } },
        )
    }

    fn watch(&self, watcher: AddressWatcher) {
        *self.channel.lock().unwrap() = Some(watcher);
    }

    fn name(&self) -> String {
        "failing-lookups".to_owned()
    }
}

#[test]
fn failed_lookups_keep_servers_and_are_logged_at_limited_rate() {
    let (logged, replicas) = (Logged::by_all(), Replicas::new(2));
    let (servers, lookups) =
        (replicas.addresses.iter().copied().map(PeerKey::new).collect(), AtomicU64::new(0));
    let failing = Arc::new(Failing { servers, lookups, channel: Mutex::default() });
    let channel = replicas.caller.channel(Target::resolver(Arc::clone(&failing)));
    let client = WorkClient::new(channel.balanced(Policy::RoundRobin)).with_timeout(LIMIT);
    replicas.connect(&client);
    let begun = Instant::now();
    until("lookups fail", || {
        failing.channel.lock().unwrap().as_ref().unwrap().notify();
        (failing.lookups.load(Ordering::SeqCst) > 20).then_some(())
    });
    let most = 9 + usize::try_from(begun.elapsed().as_secs()).unwrap();
    let lines = logged.count("failing-lookups");
    assert!((1..=most).contains(&lines), "{lines} of at most {most}");
    let used = (0..10).map(|job| block_on(client.add(job)).unwrap()).collect::<BTreeSet<_>>();
    assert_eq!(used.len(), 2, "calls go to the servers of the first lookup");
}

#[test]
fn not_serving_server_gets_no_calls_while_another_serves() {
    let (replicas, health) = Replicas::with_health::<2>();
    let client = replicas.client(Policy::RoundRobin);
    replicas.connect(&client);
    let is = |states: [&str; 2]| {
        until("the health is known", || (replicas.states() == states).then_some(()));
    };
    let called = || (0..20).map(|_| block_on(client.add(0)).unwrap()).collect::<BTreeSet<_>>();
    health[0].set("Work", ServingStatus::NotServing);
    is(["not serving", "up"]);
    assert_eq!(called(), BTreeSet::from([1]));
    health[1].set("Work", ServingStatus::NotServing);
    is(["not serving"; 2]);
    assert_eq!(called(), BTreeSet::from([0, 1]));
    health[0].set("Work", ServingStatus::Serving);
    is(["up", "not serving"]);
    assert_eq!(called(), BTreeSet::from([0]));
    health[1].set("Work", ServingStatus::ServiceUnknown);
    is(["up"; 2]);
    assert_eq!(called(), BTreeSet::from([0, 1]));
}

#[test]
fn channels_share_server_watch_until_last_channel_is_dropped() {
    let (replicas, _health) = Replicas::with_health::<2>();
    let is = |running: u64| {
        until("the streams are open", || {
            [0, 1].iter().all(|at| replicas.running(*at) == running).then_some(())
        });
    };
    let unwatched = replicas.client(Balance::from(Policy::RoundRobin).watch_health(false));
    replicas.connect(&unwatched);
    let first = replicas.client(Policy::RoundRobin);
    assert!(block_on(first.add(0)).is_ok());
    is(1);
    let second = replicas.client(Policy::PowerOfTwo);
    assert!((0..20).all(|_| block_on(second.add(0)).is_ok() && block_on(unwatched.add(0)).is_ok()));
    is(1);
    drop(first);
    assert!((0..20).all(|_| block_on(second.add(0)).is_ok()));
    is(1);
    drop(second);
    is(0);
    assert!(block_on(unwatched.add(0)).is_ok());
    is(0);
}

#[test]
fn watch_does_not_delay_drain_and_restarts_with_next_session() {
    let (mut replicas, health) = Replicas::with_health::<2>();
    let client = replicas.client(Policy::RoundRobin);
    replicas.connect(&client);
    until("the watch runs", || (replicas.running(0) == 1).then_some(()));
    assert!(replicas.servers[0].as_ref().unwrap().drain());
    replicas.stop(0);
    health[0].set("Work", ServingStatus::NotServing);
    let again = Node::builder().listen(replicas.addresses[0]).health(&health[0]);
    let again = again.serve(WorkServer::new(replicas.workers[0].clone())).start().unwrap();
    until("the health is known", || {
        assert!(block_on(client.add(0)).is_ok());
        (replicas.states() == ["not serving", "up"]).then_some(())
    });
    assert!((0..20).all(|_| block_on(client.add(0)) == Ok(1)));
    drop(again);
}
