//! Rules once all faults have ended: nodes reach each other again, calls succeed soon, and without calls
//! machines sleep and everything comes back.

use super::chaos::Due;
use super::{QUIET, Run, TRY};
use crate::client::Client;
use crate::credits;
use crate::network::Conditions;
use crate::node::SimNode;
use crate::oracle::CALM_LIMIT;
use crate::plan::{FORGED, Forgery};
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use trunkline::{Code, Status};

/// Time from the last fault in which every node must reach every other. A session that was cut off is given
/// up after seconds, and a handshake is repeated with growing pauses.
const HEALING: Duration = Duration::from_secs(40);
/// Calls between each two nodes in the calm.
const CALM_CALLS: usize = 3;
/// Packets that an attacker sends in the calm, and the time in which it sends them.
const CALM_FORGERIES: usize = 40;
const CALM_FORGING_NS: u64 = 20_000_000;
/// Time in which unused credit returns.
const CREDIT_DECAYS: Duration = Duration::from_millis(110);
/// Further checks that everything has come back, before one fails.
const LOOKS: u32 = 5;
/// Maximum turns of one machine in an idle second: keepalives, and checks of timers.
const IDLE_TURNS_PER_S: u64 = 2_000;

impl Run {
    /// Ends all faults, lets clients finish, and checks that every node reaches every other.
    pub(super) fn heal(&mut self) -> bool {
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
        if !self.lose_hostile() {
            return false;
        }
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

    /// Checks that calls succeed soon in the calm.
    pub(super) fn calm(&mut self) -> bool {
        self.scheduler.trace.line(self.scheduler.now(), "phase", format_args!("calm"));
        self.scheduler.run_until(self.scheduler.now() + QUIET, |_| false);
        for index in 0..self.nodes.len() {
            let Some(client) = self.client(index) else { return self.fail("a node is not running") };
            let random = self.random.fork();
            self.scheduler.tasks.add(client.process, calm_calls(client, random, self.calm_limit()));
        }
        self.forge_in_the_calm();
        let limit = self.scheduler.now() + HEALING;
        if !self.scheduler.run_until(limit, |scheduler| scheduler.tasks.len() == 0) {
            return self.fail("calls do not end although nothing is wrong");
        }
        self.count_credits();
        self.is_unbroken()
    }

    /// Returns the maximum time of a call between nodes that are connected.
    pub(super) fn calm_limit(&self) -> Duration {
        if self.plan.has_room() { CALM_LIMIT } else { CALM_LIMIT + CREDIT_DECAYS }
    }

    /// Returns an error if something is not back although nobody has called for long.
    pub(super) fn rest(&self) -> Result<(), String> {
        if let Some(node) = self.nodes.iter().find(|node| node.limited_calls() > 0) {
            return Err(format!("{} calls count in limits at {}", node.limited_calls(), node.address));
        }
        if let Some(node) = self.nodes.iter().find(|node| node.jobs() > 0) {
            return Err(format!("{} jobs are left in the worker pool of {}", node.jobs(), node.address));
        }
        let ledgers = self.ledgers();
        credits::at_rest(&ledgers)?;
        for node in &self.nodes {
            credits::receives_are_posted(&ledgers, node.address, node.posted_receives())?;
        }
        Ok(())
    }

    /// Forges packets during the calm. Calls must still succeed, and soon.
    fn forge_in_the_calm(&mut self) {
        if self.plan.forgeries.is_empty() {
            return;
        }
        for _ in 0..CALM_FORGERIES {
            let at = self.scheduler.now().plus_ns(self.random.u64(..CALM_FORGING_NS));
            let forgery = *self.random.choice(&FORGED).unwrap_or(&Forgery::Packet);
            self.forge_one(at, forgery);
        }
    }

    /// Checks that machines sleep while nobody calls.
    pub(super) fn idle(&mut self) -> bool {
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
        let mut rest = self.rest();
        for _ in 0..LOOKS {
            // A keepalive may be in transit. A leak is still there when it has arrived.
            if rest.is_ok() {
                break;
            }
            self.scheduler.run_until(self.scheduler.now() + Duration::from_millis(1), |_| false);
            rest = self.rest();
        }
        if let Err(why) = rest {
            return self.fail(&why);
        }
        self.scheduler.oracle.judge_one_ways(|server| {
            let node = self.nodes.iter().find(|node| node.address == server);
            node.map_or(0, SimNode::refused_calls)
        });
        self.is_unbroken()
    }
}

pub(super) async fn calm_calls(client: Client, mut random: fastrand::Rng, limit: Duration) {
    for _ in 0..CALM_CALLS {
        for server in client.servers.clone() {
            // Long enough that machines are mostly asleep.
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
                6 => failed_as(
                    Code::FailedPrecondition,
                    client.refuse_at(server, TRY, random.u64(..2000)).await,
                ),
                7 => failed_as(Code::Internal, client.panic_at(server, TRY).await),
                8 => client.ponder_at(server, TRY, random.u64(..2000)).await,
                9 => client.grind_at(server, TRY, random.u64(..1000), random.u64(..1000)).await,
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

/// Streams items, which takes several round trips. Only success is judged, not the time.
async fn calm_stream(client: &Client, server: SocketAddr, random: &mut fastrand::Rng, limit: Duration) {
    if random.u8(..6) == 0 {
        return client.drop_stream(server, TRY, limit).await;
    }
    if let Some(status) = client.calm_stream(server, random, (TRY, limit)).await {
        client.oracle.fail(format!("a stream failed although nothing is wrong: {status}"));
    }
}

/// Returns the failure, unless it is the handler's.
fn failed_as(code: Code, failure: Option<Status>) -> Option<Status> {
    failure.filter(|status| status.code() != code)
}
