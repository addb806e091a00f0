//! Rules that hold after all faults have ended. Nodes reach each other again, and calls succeed in time. Without calls,
//! machines sleep and all resources are returned. After a shutdown, all resources are released.

use super::{Checked, Run, TRY, Tally};
use crate::network::Conditions;
use crate::node::SimNode;
use crate::oracle::CALM_LIMIT;
use crate::oracle::credits;
use crate::plan::{FORGED, Forgery};
use crate::scheduler::Scheduler;
use crate::workload::client::{Ask, Client};
use std::net::SocketAddr;
use std::time::Duration;
use trunkline::Code;
use trunkline_testkit::Hostility;

/// Maximum time from the last fault until every node reaches every other node. A session that was cut off is abandoned
/// after some seconds, and a handshake is repeated with increasing pauses.
const HEALING: Duration = Duration::from_secs(40);
/// Number of calls between each pair of nodes in the calm phase.
const CALM_CALLS: usize = 3;
/// Number of packets that an attacker sends in the calm phase.
const CALM_FORGERIES: usize = 40;
/// Time in which an attacker sends these packets.
const CALM_FORGING_NS: u64 = 20_000_000;
/// Time within which unused credit is returned.
const CREDIT_DECAYS: Duration = Duration::from_millis(110);
/// Maximum number of checks that all resources have been returned.
const LOOKS: u32 = 5;
/// Maximum number of turns of one machine per idle second. Keepalives and timer checks need turns.
const IDLE_TURNS_PER_S: u64 = 2_000;
/// Maximum time in which nodes shut down if there are no calls.
const ENDING: Duration = Duration::from_secs(10);

impl Run {
    /// Ends all faults, lets clients finish, and checks that every node reaches every other node.
    pub(super) fn heal(&mut self) -> Checked {
        self.unbroken()?;
        self.scheduler.trace.line(self.scheduler.now(), "phase", format_args!("faults end"));
        let quiet = Conditions {
            least_delay: self.plan.conditions.least_delay,
            jitter: self.plan.conditions.jitter,
            ..Conditions::default()
        };
        self.scheduler.network.set(quiet);
        for (_, fault) in std::mem::take(&mut self.due) {
            if fault.is_end() {
                self.happen(fault);
            }
        }
        self.scheduler.resume_all();
        self.lose_hostile()?;
        for index in 0..self.nodes.len() {
            self.kill_doomed(index);
            self.nodes[index].start(&mut self.scheduler, None);
        }
        self.programs_end(HEALING, "clients have not finished long after the last fault")?;
        self.settle();
        let (reached, mut pairs) = (Tally::default(), 0);
        for index in 0..self.nodes.len() {
            let client = self.client(index)?;
            for server in client.servers.clone() {
                pairs += 1;
                self.add(&reached, client.process, client.clone().until_reached(server));
            }
        }
        let why = "a node does not reach another long after the last fault";
        self.within(HEALING, why, |_| reached.get() == pairs)?;
        self.count_credits()
    }

    /// Checks that calls succeed within [`CALM_LIMIT`], even while an attacker forges packets.
    pub(super) fn calm(&mut self) -> Checked {
        let forgeries = if self.plan.forgeries.is_empty() { 0 } else { CALM_FORGERIES };
        for _ in 0..forgeries {
            let at = self.scheduler.now().plus_ns(self.random.u64(..CALM_FORGING_NS));
            let forgery = *self.random.choice(&FORGED).unwrap_or(&Forgery::Packet);
            self.forge_one(at, forgery);
        }
        self.calm_calls(HEALING, "calls do not end although nothing is wrong")
    }

    /// Sends calls between all nodes. Each call must end as planned within [`CALM_LIMIT`], or [`CREDIT_DECAYS`] later if
    /// an SRQ is small. All calls must end within `time`.
    pub(super) fn calm_calls(&mut self, time: Duration, why: &str) -> Checked {
        let (ended, nodes) = (Tally::default(), self.nodes.len());
        let has_room = self.plan.has_room();
        let limit = if has_room { CALM_LIMIT } else { CALM_LIMIT + CREDIT_DECAYS };
        for index in 0..nodes {
            let client = self.client(index)?;
            let random = self.random.fork();
            self.add(&ended, client.process, calm_calls(client, random, limit));
        }
        self.within(time, why, |_| ended.get() == nodes)?;
        self.count_credits()
    }

    /// Returns an error if calls, jobs or credit are still in use. Called when there are no calls.
    pub(super) fn rest(&self) -> Checked {
        if let Some(node) = self.nodes.iter().find(|node| node.limited_calls() > 0) {
            return Err(format!("{} calls count in limits at {}", node.limited_calls(), node.address));
        }
        if let Some(node) = self.nodes.iter().find(|node| node.jobs() > 0) {
            return Err(format!("{} jobs are left in the worker pool of {}", node.jobs(), node.address));
        }
        let ledgers = self.ledgers();
        credits::at_rest(&ledgers)?;
        for node in &self.nodes {
            credits::receives_are_posted(&ledgers, node.address, node.slot.posted_receives())?;
        }
        Ok(())
    }

    /// Checks that machines sleep while there are no calls.
    pub(super) fn idle(&mut self) -> Checked {
        let machines = self.nodes.iter().filter_map(SimNode::process);
        let machines = machines.map(|process| self.scheduler.machines_of(process).len()).sum::<usize>();
        let before = self.scheduler.turns;
        self.pass(Duration::from_millis(500));
        let turns = self.scheduler.turns - before;
        if turns > IDLE_TURNS_PER_S / 2 * machines as u64 {
            return Err(format!("{machines} idle machines took {turns} turns in half a second"));
        }
        self.count_credits()?;
        for _ in 0..LOOKS {
            // A keepalive in transit may hold resources. A leak remains after its arrival.
            if self.rest().is_ok() {
                break;
            }
            self.pass(Duration::from_millis(1));
        }
        self.rest()?;
        self.scheduler.oracle.judge_one_ways(|server| {
            let node = self.nodes.iter().find(|node| node.address == server);
            node.map_or(0, SimNode::refused_calls)
        });
        self.unbroken()
    }

    /// Shuts down all nodes, and checks that all their resources are released.
    pub(super) fn end(&mut self) -> Checked {
        for node in &self.nodes {
            let rnr = node.running().map_or(0, |(_, running)| running.report().rnr);
            // A peer that sends beyond its credit may exhaust an SRQ, which then lacks a receive for the message of
            // another peer.
            if rnr > 0 && self.plan.hostility != Some(Hostility::Beyond) {
                return Err(format!("{rnr} RNR NAKs at {}", node.address));
            }
        }
        let processes = self.nodes.iter().filter_map(SimNode::process).collect::<Vec<_>>();
        for node in &mut self.nodes {
            node.begin_shutdown(&self.scheduler);
        }
        let limit = self.scheduler.now() + ENDING;
        for process in &processes {
            self.has_ended_by(limit, *process)?;
        }
        for node in &mut self.nodes {
            node.forget(&self.scheduler).map_or(Ok(()), Err)?;
        }
        let gone = |scheduler: &Scheduler| {
            processes.iter().all(|process| scheduler.machines_of(*process).is_empty())
        };
        self.within(ENDING, "the device of a node that has ended goes on", gone)?;
        if let Some(node) = self.nodes.iter().find(|node| node.slot.devices() > 0) {
            return Err(format!("an object of the device at {} is left", node.address));
        }
        if self.scheduler.oracle.open() > 0 {
            return Err("a call is open although all nodes have ended".to_owned());
        }
        Ok(())
    }
}

impl Client {
    /// Calls a server until a call succeeds. The first calls may use a session with a process that has ended.
    pub(super) async fn until_reached(self, server: SocketAddr) {
        while self.call(server, TRY, Ask::Number).await.is_some() {
            self.timers.sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn calm_calls(client: Client, mut random: fastrand::Rng, limit: Duration) {
    for _ in 0..CALM_CALLS {
        for server in client.servers.clone() {
            // With these pauses, machines are usually asleep.
            client.timers.sleep(Duration::from_micros(random.u64(..4000))).await;
            if random.u8(..4) == 0 {
                calm_stream(&client, server, &mut random, limit).await;
                continue;
            }
            let began = client.timers.now();
            let failure = match random.u8(..10) {
                4 => client.give_up_beside(server).await,
                5 => {
                    client.give_up_hanging(server).await;
                    None
                }
                6 => {
                    let refused = client.call(server, TRY, Ask::Refuse(random.u64(..2000))).await;
                    refused.filter(|status| status.code() != Code::FailedPrecondition)
                }
                7 => {
                    let panicked = client.call(server, TRY, Ask::Panic).await;
                    panicked.filter(|status| status.code() != Code::Internal)
                }
                roll => {
                    let ask = match roll {
                        0 => Ask::echo(40 << 10, 40 << 10),
                        1 => Ask::echo(4 << 10, 4 << 10),
                        8 => Ask::Ponder(random.u64(..2000)),
                        9 => Ask::Grind { block_us: random.u64(..1000), wait_us: random.u64(..1000) },
                        _ => Ask::Number,
                    };
                    client.call(server, TRY, ask).await
                }
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

/// Streams items over several round trips. The duration is not checked.
async fn calm_stream(client: &Client, server: SocketAddr, random: &mut fastrand::Rng, limit: Duration) {
    if random.u8(..6) == 0 {
        return client.drop_stream(server, TRY, limit).await;
    }
    if let Some(status) = client.calm_stream(server, random, TRY, limit).await {
        client.oracle.fail(format!("a stream failed although nothing is wrong: {status}"));
    }
}
