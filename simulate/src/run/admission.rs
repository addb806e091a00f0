//! Callers that find no room at their own node: programs wait, and handlers have a reserved share.
//!
//! Two more nodes each have room for eight calls under way. First, the programs of one node use up their
//! share: further programs wait until there is room, and a call made by a handler does not. Then 64 programs
//! make calls whose handlers call each other, eight deep across both nodes. No call waits for itself. Instead
//! it fails for lack of room, and every caller succeeds that repeats such a call after a random pause.

use super::Run;
use crate::chain::{ChainClient, TIMEOUT};
use crate::coverage::Kind;
use crate::node::SimNode;
use crate::plan::NodePlan;
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use trunkline::{Code, Limit, Status};

/// Limit of calls under way and of running handlers, at each of the nodes.
const ROOM: Limit = Limit { per_peer: 8, in_all: 8 };
const HANDLERS: Limit = Limit { per_peer: 64, in_all: 64 };

/// Concurrent calls that wait at their server, and the time for which each waits.
const HOLDS: usize = 16;
const HOLD: Duration = Duration::from_millis(20);
/// Maximum time of all of them: a call that is not under way waits for those that are.
const HELD_BY: Duration = Duration::from_millis(100);

/// Programs that make nested calls, the depth of those, and the longest pause between two.
const CALLERS: usize = 64;
const DEPTH: u8 = 8;
const PAUSE_US: u64 = 200_000;
/// Maximum time until all of them have succeeded.
const ALL_BY: Duration = Duration::from_secs(20);

/// A node with little room, its process, and a client of the other node.
pub(super) struct End {
    pub(super) node: SimNode,
    pub(super) process: u64,
    pub(super) client: Rc<ChainClient>,
}

impl Run {
    /// Checks that programs and handlers of two nodes with little room get through.
    pub(super) fn callers_find_room(&mut self) -> bool {
        if !self.plan.has_chains {
            return true;
        }
        self.scheduler.trace.line(self.scheduler.now(), "phase", format_args!("little room"));
        let Some(mut ends) = self.two_ends(|node| node.with_limits(HANDLERS, ROOM)) else {
            return self.fail("a node does not start");
        };
        let found = self.handlers_have_a_share(&ends) && self.chains_get_through(&ends);
        for end in &mut ends {
            end.node.kill(&mut self.scheduler);
        }
        found && self.is_unbroken()
    }

    /// Starts two more nodes, with limits that `set` gives to each.
    pub(super) fn two_ends(&mut self, set: impl Fn(SimNode) -> SimNode) -> Option<[End; 2]> {
        // The next number may be the hostile peer's.
        let host = self.nodes.len() + 1;
        let pollers = [self.random.u16(1..=2), self.random.u16(1..=2)];
        let node = |host, pollers| {
            let plan = NodePlan::extra(host, pollers);
            set(SimNode::new(host, plan, self.plan.rc))
        };
        let mut nodes = [node(host, pollers[0]), node(host + 1, pollers[1])];
        for node in &mut nodes {
            node.start(&mut self.scheduler, None);
        }
        let addresses = [nodes[1].address, nodes[0].address];
        let mut clients = Vec::new();
        for (node, server) in nodes.iter().zip(addresses) {
            let (process, running) = node.running()?;
            let client = ChainClient::connect(running, server).ok()?.with_timeout(TIMEOUT);
            clients.push((process, Rc::new(client)));
        }
        let mut ends = nodes.into_iter().zip(clients);
        let mut end = || ends.next().map(|(node, (process, client))| End { node, process, client });
        Some([end()?, end()?])
    }

    /// Uses up a node's room by its programs, except for the handlers' share, which a handler then finds.
    fn handlers_have_a_share(&mut self, ends: &[End; 2]) -> bool {
        let [near, far] = ends;
        let held = Rc::new(Cell::new(0));
        let wait = HOLD.as_micros().try_into().unwrap_or(u64::MAX);
        for _ in 0..HOLDS {
            let (client, held, oracle) =
                (Rc::clone(&near.client), Rc::clone(&held), self.scheduler.oracle.clone());
            self.scheduler.tasks.add(near.process, async move {
                match client.hold(wait).await {
                    Ok(()) => held.set(held.get() + 1),
                    Err(status) => oracle.fail(format!("a call that waits for room fails: {status}")),
                }
            });
        }
        let began = self.scheduler.now();
        self.scheduler.run_until(began + HOLD / 2, |_| false);
        let (nested, done) = (Rc::clone(&far.client), Rc::new(Cell::new(false)));
        let (noted, oracle) = (Rc::clone(&done), self.scheduler.oracle.clone());
        let (to, back) = (far.node.address.to_string(), near.node.address.to_string());
        self.scheduler.tasks.add(far.process, async move {
            match nested.chain(1, to, back).await {
                Ok(()) => noted.set(true),
                Err(status) => oracle.fail(format!("a handler has no room for a call: {status}")),
            }
        });
        if !self.scheduler.run_until(began + HOLD, |_| done.get()) {
            return self.fail("a handler waits for room that is left to it");
        }
        if !self.scheduler.run_until(began + HELD_BY, |_| held.get() == HOLDS) {
            return self.fail("calls still wait for room long after there was some");
        }
        self.scheduler.coverage.add(Kind::CallFoundRoom, HOLDS as u64);
        self.count_credits();
        self.is_unbroken()
    }

    /// Makes calls from programs of both nodes that need more room than there is for all at once.
    fn chains_get_through(&mut self, ends: &[End; 2]) -> bool {
        let through = Rc::new(Cell::new(0));
        for caller in 0..CALLERS {
            let (end, other) = (&ends[caller % 2], &ends[1 - caller % 2]);
            self.add_caller(end, (end.node.address, other.node.address), &through);
        }
        let limit = self.scheduler.now() + ALL_BY;
        if !self.scheduler.run_until(limit, |_| through.get() == CALLERS) {
            let text = format!("{} of {CALLERS} callers of nested calls get through", through.get());
            return self.fail(&text);
        }
        self.count_credits();
        self.is_unbroken()
    }

    fn add_caller(&mut self, end: &End, (here, there): (SocketAddr, SocketAddr), through: &Rc<Cell<usize>>) {
        let (client, through) = (Rc::clone(&end.client), Rc::clone(through));
        let (timers, coverage) = (self.scheduler.timers.clone(), Arc::clone(&self.scheduler.coverage));
        let (oracle, mut random) = (self.scheduler.oracle.clone(), self.random.fork());
        self.scheduler.tasks.add(end.process, async move {
            loop {
                match client.chain(DEPTH, here.to_string(), there.to_string()).await {
                    Ok(()) => return through.set(through.get() + 1),
                    Err(status) if is_lack_of_room(&status) => {
                        coverage.count(Kind::ChainRefused);
                        timers.sleep(Duration::from_micros(random.u64(..PAUSE_US))).await;
                    }
                    Err(status) => return oracle.fail(format!("a chain of calls fails: {status}")),
                }
            }
        });
    }
}

/// Returns true if a handler of a chain was refused a call by its own node. Handlers forward that status
/// without its reason, so the text is compared, which names the budget.
fn is_lack_of_room(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted && status.to_string().contains("budget of calls under way")
}
