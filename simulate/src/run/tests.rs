//! Tests of whole runs, which are repeatable and readable, and of scenarios without other faults: a crowd of pollers
//! joins one node, a peer with unfinished work returns, and a server with identities and many clients restarts.
//!
//! `cargo test -p trunkline-simulate crowd` starts 224 pollers. With `TRUNKLINE_CROWD_NODES=63`, it starts 2,000, which
//! takes a minute. `TRUNKLINE_CLIENTS=1000` gives the restarted server 1,000 clients, which also takes a minute.

use super::*;
use crate::plan::HANDLERS;
use std::ops::RangeInclusive;
use trunkline::Connect;
use trunkline_testkit::Folder;

fn traced() -> (Outcome, String) {
    let folder = Folder::new().unwrap();
    let file = folder.join("trace");
    let trace = Trace::to_file(&file).unwrap();
    let outcome = run(7, None, trace.clone());
    trace.close().unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    (outcome, text)
}

#[test]
fn equal_seeds_give_equal_traces_with_outcome_of_each_call() {
    let (outcome, trace) = traced();
    let (same, again) = traced();
    assert!(trace == again, "the traces of one seed differ");
    assert_eq!(outcome.checksum, same.checksum);
    assert_eq!(run(7, None, Trace::checksum_only()).checksum, outcome.checksum, "tracing changes the run");
    for id in 1..=outcome.coverage.of(EventKind::CallMade) {
        let made = trace.find(&format!(" call {id} (")).expect("the call is made");
        let ended = trace.find(&format!(" call {id} ends: ")).expect("the call ends");
        assert!(made < ended, "call {id} ends before it is made");
    }
    assert!(trace.contains(": its handler starts in process "));
    assert!(trace.contains("127.7.7.1:7471") && trace.contains("RC_SEND_ONLY"));
    assert!(!trace.contains("Opcode("), "an opcode is a number");
    assert!(trace.trim_end().ends_with("verdict                  seed 7 passed: no rule was broken"));
    let has_time =
        |line: &str| line.split_whitespace().next().is_some_and(|time| time.parse::<f64>().is_ok());
    assert!(trace.lines().all(has_time), "a line has no time");
}

const POLLERS: u16 = 32;
/// Number of nodes that call the hub, unless `TRUNKLINE_CROWD_NODES` is set.
const NODES: usize = 7;
/// Maximum time until all pollers are connected, in virtual time.
const JOINING: Duration = Duration::from_secs(20);

/// Time limit of calls whose handlers outlast a session.
const HOUR: Duration = Duration::from_secs(3600);
/// Time after which a lost peer has been forgotten.
const FORGOTTEN: Duration = Duration::from_secs(40);

fn small_node(host: usize, pollers: u16) -> NodePlan {
    NodePlan { srq_depth: 64, rendezvous_bytes: 768 << 10, ..NodePlan::extra(host, pollers) }
}

/// Returns a run with these nodes and without faults.
fn run_of(nodes: Vec<NodePlan>) -> Run {
    let plan = Plan { nodes, rc: false, ..Plan::new(1) };
    Run::new(1, plan, Trace::checksum_only(), Arc::default())
}

/// Makes a call from each poller of a node. The calls of a client are assigned to the pollers of its node in turn.
fn call_from_each(run: &mut Run, node: usize, server: SocketAddr, pollers: u16, replied: &Tally) {
    let client = run.client(node).unwrap();
    let work = client.connect(server).unwrap();
    for _ in 0..pollers {
        let (client, work) = (client.clone(), work.clone());
        run.add(replied, client.process, async move {
            let what = "number, in a crowd";
            if let Some(status) = client.number_by(work, server, what, JOINING, Connect::FailFast).await {
                client.oracle.fail(format!("a call failed in a crowd: {status}"));
            }
        });
    }
}

/// Many pollers on other nodes connect to one node whose SRQ has 64 receives. All of them make calls.
#[test]
fn crowd_of_pollers_joins_one_node() {
    let nodes = std::env::var("TRUNKLINE_CROWD_NODES");
    let nodes = nodes.map_or(NODES, |nodes| nodes.parse().expect("a number of nodes"));
    // Callers have one shard each. The load on the hub is the same, with half as many machines.
    let caller = |index| NodePlan { shards: Some(1), ..small_node(index, POLLERS) };
    let mut run = run_of(std::iter::once(small_node(0, 1)).chain((1..=nodes).map(caller)).collect());
    for node in &mut run.nodes {
        node.start(&mut run.scheduler, None);
    }
    let pollers = nodes * usize::from(POLLERS);
    let replied = Tally::default();
    // Each poller makes one call while it connects, and another when all are connected.
    for round in 1..=2 {
        for caller in 1..=nodes {
            let (hub, address) = (run.nodes[0].address, run.nodes[caller].address);
            call_from_each(&mut run, caller, hub, POLLERS, &replied);
            call_from_each(&mut run, 0, address, 1, &replied);
        }
        let all = round * (pollers + nodes);
        run.within(JOINING, "not all calls have ended", |_| replied.get() == all).unwrap();
    }
    run.count_credits().unwrap();
    assert!(run.scheduler.coverage.of(EventKind::CreditsCounted) >= pollers as u64);
    let report = run.nodes[0].running().expect("it runs").1.report();
    assert_eq!((report.tgt, report.rnr), (u32::try_from(pollers).unwrap(), 0));
    run.clear();
}

/// A peer that leaves unfinished work, is forgotten and returns at the same address still has only one budget.
#[test]
fn handlers_outliving_session_count_for_returning_caller() {
    let mut run = run_of(vec![small_node(0, 2), small_node(1, 2)]);
    run.nodes[0].start(&mut run.scheduler, None);
    let server = run.nodes[0].address;
    for _ in 0..2 {
        run.nodes[1].start(&mut run.scheduler, None);
        let client = run.client(1).unwrap();
        let work = client.connect(server).unwrap().with_timeout(HOUR);
        for _ in 0..2 * HANDLERS.per_peer {
            let work = work.clone();
            run.scheduler.tasks.add(client.process, async move { assert_eq!(work.linger().await, Ok(())) });
        }
        drop((client, work));
        run.programs_end(FORGOTTEN, "a one-way call does not end").unwrap();
        run.pass(Duration::from_millis(100));
        run.count_credits().unwrap();
        let limit = run.scheduler.now();
        run.has_handlers_by(limit, 0, HANDLERS.per_peer, "the budget allows other than its limit").unwrap();
        run.nodes[1].begin_shutdown(&run.scheduler);
        run.pass(FORGOTTEN);
        run.settle();
        let known = run.scheduler.sessions().iter().map(|ledger| ledger.sessions.len()).sum::<usize>();
        assert_eq!(known, 0, "the session has ended");
    }
    run.clear();
}

/// Number of clients of the restarted server, unless `TRUNKLINE_CLIENTS` is set.
const CLIENTS: usize = 150;
/// Duration of a handshake on the server, which limits it to 200 handshakes per second.
const HANDSHAKE: Duration = Duration::from_millis(5);
/// Maximum time until all clients have returned, without the time per client. It covers the detection of the server's
/// death.
const NOTICED: Duration = Duration::from_secs(3);
/// Additional time per client, which is longer than a handshake.
const OF_CLIENT: Duration = Duration::from_millis(7);

/// A server is killed and restarted. In time, each client proves its name again and makes a call.
#[test]
fn clients_with_identities_return_to_restarted_server() {
    let clients = std::env::var("TRUNKLINE_CLIENTS");
    let clients = clients.map_or(CLIENTS, |clients| clients.parse().expect("a number of clients"));
    // With renewals every 2 s, 1,000 clients would exceed the server's capacity.
    let renew_after = Duration::from_secs(60);
    let server = NodePlan { handshake: HANDSHAKE, renew_after, ..small_node(0, 1) };
    let client = |host| NodePlan { shards: Some(1), renew_after, ..small_node(host, 1) };
    let mut run = run_of(std::iter::once(server).chain((1..=clients).map(client)).collect());
    assert!(run.plan.has_identities);
    for node in &mut run.nodes {
        node.start(&mut run.scheduler, None);
    }
    let server = run.nodes[0].address;
    let callers = run.nodes[1..].iter().map(|node| run.client_of(node, vec![server]).unwrap());
    let callers = callers.collect::<Vec<_>>();
    let limit = NOTICED + OF_CLIENT * u32::try_from(clients).unwrap();
    for round in 0..2 {
        if round > 0 {
            run.replace(0);
        }
        let back = Tally::default();
        for client in &callers {
            let client = client.clone();
            // Calls in the session with the previous process fail.
            run.add(&back, client.process, async move {
                while client.number_waiting(server, limit).await.is_some() {}
            });
        }
        run.within(limit, "a client is not back in time", |_| back.get() == clients).unwrap();
        assert!(run.nodes[0].counter("sessions_proven") >= clients as u64);
        run.pass(QUIET);
    }
    run.clear();
}

/// Number of clients that request more renewals than their server can complete.
const RENEWING: usize = 100;
/// Number of clients that connect later.
const NEWCOMERS: usize = 10;
/// Duration of a handshake on this server. The handshakes of all clients take longer than the time limit of one
/// handshake.
const SLOW_HANDSHAKE: Duration = Duration::from_millis(80);
/// Maximum time until all clients, including those that connect later, have a session.
const ALL_JOINED: Duration = Duration::from_secs(20);
const NEWCOMERS_JOINED: Duration = Duration::from_secs(3);

/// A server completes at most 12 handshakes per second, and its clients request 100 renewals. All sessions stay up,
/// newcomers get their share of handshakes, and all clients return after a restart of the server.
#[test]
fn renewals_beyond_capacity_of_server_do_not_block_clients() {
    let renew_after = Duration::from_secs(1);
    let server = NodePlan { handshake: SLOW_HANDSHAKE, renew_after, ..small_node(0, 1) };
    let client = |host| NodePlan { shards: Some(1), renew_after, ..small_node(host, 1) };
    let all = RENEWING + NEWCOMERS;
    let mut run = run_of(std::iter::once(server).chain((1..=all).map(client)).collect());
    let server = run.nodes[0].address;
    let call = |run: &mut Run, nodes: RangeInclusive<usize>, limit| {
        let replied = Tally::default();
        for node in nodes.clone() {
            let client = run.client_of(&run.nodes[node], vec![server]).unwrap();
            run.add(&replied, client.process, async move {
                while client.number_waiting(server, limit).await.is_some() {}
            });
        }
        run.within(limit, "a client is kept away", |_| replied.get() == nodes.clone().count()).unwrap();
    };
    run.nodes[0].start(&mut run.scheduler, None);
    for (nodes, limit) in [(1..=RENEWING, ALL_JOINED), (RENEWING + 1..=all, NEWCOMERS_JOINED)] {
        for node in nodes.clone() {
            run.nodes[node].start(&mut run.scheduler, None);
        }
        let renewed = run.nodes[0].counter("handshakes_renewed");
        call(&mut run, nodes.clone(), limit);
        run.pass(Duration::from_secs(5));
        let renewed = run.nodes[0].counter("handshakes_renewed") - renewed;
        assert!(renewed > 40, "only {renewed} renewals beside handshakes of newcomers");
        assert_eq!(run.nodes[0].counter("sessions_proven"), *nodes.end() as u64, "a session has ended");
    }
    run.replace(0);
    call(&mut run, 1..=all, ALL_JOINED);
    run.clear();
}

/// A call to a server that vanished ends within the configured session loss time, but not before three quarters of it. A
/// waiting call is probed after half of this time, but after at most 10 s.
#[test]
fn session_is_lost_after_configured_time() {
    for time in [500, 1_000, 7_000, 60_000].map(Duration::from_millis) {
        let caller = NodePlan { session_loss_time: time, ..small_node(1, 1) };
        let mut run = run_of(vec![small_node(0, 1), caller]);
        for node in &mut run.nodes {
            node.start(&mut run.scheduler, None);
        }
        let server = run.nodes[0].address;
        let waits = run.hang(1, server).unwrap();
        run.pass(QUIET);
        run.kill(0);
        let killed = run.scheduler.now();
        let called = run.hang(1, server).unwrap();
        run.scheduler.run_until(killed + time * 3 / 4, |_| called.get() == 1);
        assert_eq!((waits.get(), called.get()), (0, 0), "a session of {time:?} ends early");
        let both = |_: &Scheduler| waits.get() + called.get() == 2;
        run.within(time / 4 + Duration::from_millis(5), "a call ends late", both).unwrap();
        // Repeat without a call that detects the lost peer.
        run.nodes[0].start(&mut run.scheduler, None);
        let client = run.client(1).unwrap();
        let reached = Tally::default();
        let caller = client.clone();
        run.add(&reached, client.process, async move { drop(caller.number_waiting(server, MINUTE).await) });
        run.within(MINUTE, "a server that is back is not reached", |_| reached.get() == 1).unwrap();
        let waits = run.hang(1, server).unwrap();
        run.pass(QUIET);
        run.kill(0);
        let probed = (time / 2).min(Duration::from_secs(10));
        let killed = run.scheduler.now();
        run.scheduler.run_until(killed + time * 3 / 4, |_| waits.get() == 1);
        assert_eq!(waits.get(), 0, "a session of {time:?} ends early");
        let limit = killed + time + probed + Duration::from_millis(5);
        run.by(limit, "a call that waits ends late", |_| waits.get() == 1).unwrap();
        run.clear();
    }
}
