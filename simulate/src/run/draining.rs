//! A node drains or shuts down while handlers run there and make calls: those calls end as if nothing had
//! happened, and new calls are refused soon. A busy poller does not keep its peers waiting.

use super::{QUIET, Run, TRY};
use crate::client::Client;
use crate::coverage::Kind;
use crate::node::{GRACE, HANDLERS};
use crate::scheduler::Scheduler;
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use trunkline::{Code, Reason, Status};

/// Maximum time until a draining server refuses a call.
const REFUSED_WITHIN: Duration = Duration::from_millis(50);
/// Maximum time from the end of the last handler until a draining node notices it.
const SEEN: Duration = Duration::from_millis(1);
/// Maximum time from the end of the handlers, or of the grace period, until a node has ended and its peers
/// have noticed. See `endings.rs`.
const LEAVING: Duration = Duration::from_millis(100);
/// Time after the grace period at which sessions are closed even if a poller does not report.
const WITHOUT_A_POLLER: Duration = Duration::from_millis(50);
/// Time for which a handler blocks its poller.
const STUCK: Duration = Duration::from_secs(2);

/// End of a node.
#[derive(Debug, Clone, Copy)]
struct End {
    /// True if the node shuts down at once; otherwise it drains first.
    shuts_down: bool,
    /// Number of running handlers.
    handlers: usize,
    /// Duration of the first call of each handler, which is under way when the node begins to end.
    nested: Duration,
    /// Grace period of the shutdown, within which all handlers must end.
    grace: Duration,
}

impl Run {
    /// Ends a node that has just started, and has a session with at most one node, while its handlers call
    /// that node and another.
    pub(super) fn one_drains(&mut self) -> bool {
        let shuts_down = self.random.bool();
        self.drains(End {
            shuts_down,
            // One handler is left for the program's call.
            handlers: HANDLERS.per_peer - 1,
            nested: Duration::from_millis(40),
            // Unused credit of others comes back within 110 ms.
            grace: Duration::from_millis(300),
        })
    }

    fn drains(&mut self, end: End) -> bool {
        let End { shuts_down, handlers, nested, grace } = end;
        let (leaver, witness, other) = (0, 1, self.nodes.len() - 1);
        let [address, near, far] = [leaver, witness, other].map(|node| self.nodes[node].address);
        if !self.restart(leaver, witness) {
            return false;
        }
        self.nodes[leaver].share_clients(&[near, far]);
        let (Some(client), Some(own)) = (self.client(witness), self.client(leaver)) else {
            return self.fail("a node is not running");
        };
        let wait_us = u64::try_from(nested.as_micros()).unwrap_or(0);
        let replied = Rc::new(Cell::new(0));
        for _ in 0..handlers {
            let (client, replied) = (client.clone(), Rc::clone(&replied));
            self.scheduler.tasks.add(client.process, async move {
                match client.forward_of(address, nested + grace, wait_us, (near, far)).await {
                    None => client.coverage.count(Kind::HandlerForwarded),
                    Some(status) => {
                        client.oracle.fail(format!("a call failed while its server drains: {status}"))
                    }
                }
                replied.set(replied.get() + 1);
            });
        }
        let limit = self.scheduler.now() + nested / 2;
        if !self.has_handlers_by(leaver, handlers, limit) || !self.has_handlers_by(witness, handlers, limit) {
            return self.fail("calls do not reach their handlers although nothing is wrong");
        }
        let Some((process, node)) =
            self.nodes[leaver].running().map(|(process, node)| (process, Rc::clone(node)))
        else {
            return self.fail("a node is not running");
        };
        let began = self.scheduler.now();
        if shuts_down {
            self.nodes[leaver].begin_shutdown_within(&self.scheduler, grace);
        } else {
            self.nodes[leaver].begin_drain(&self.scheduler);
        }
        self.scheduler.tasks.add(client.process, refused(client.clone(), address));
        self.scheduler.tasks.add(own.process, called_from_outside(own, near, shuts_down));
        if !self.scheduler.run_until(began + grace, |_| replied.get() == handlers) {
            return self.fail("handlers of a node that drains do not end within the grace");
        }
        let limit = self.scheduler.now() + SEEN + LEAVING;
        if !self.scheduler.run_until(limit, |_| node.is_drained()) {
            return self.fail("a node does not notice that it has drained");
        }
        if !self.scheduler.run_until(limit, |scheduler| scheduler.tasks.len() == 0) {
            return self.fail("a call to a node that drains does not end");
        }
        drop(node);
        if !shuts_down {
            // Sessions stay up, and calls are refused.
            self.scheduler.tasks.add(client.process, refused(client, address));
            let limit = self.scheduler.now() + REFUSED_WITHIN + QUIET;
            self.scheduler.run_until(limit, |scheduler| scheduler.tasks.len() == 0);
            self.nodes[leaver].begin_shutdown(&self.scheduler);
        }
        // Nothing runs for the rest of the grace period.
        self.has_left(process, LEAVING) && self.restart(leaver, witness)
    }

    /// Blocks a poller by a handler for longer than the grace period: the callers of its node are told, and
    /// the node ends when the handler returns.
    pub(super) fn one_is_stuck(&mut self) -> bool {
        let (leaver, witness) = (0, 1);
        let address = self.nodes[leaver].address;
        let Some(client) = self.client(witness) else { return self.fail("a node is not running") };
        let Some(process) = self.nodes[leaver].process() else { return self.fail("a node is not running") };
        let told = Rc::new(Cell::new(0));
        let long = Duration::from_secs(60);
        let (hangs, noted) = (client.clone(), Rc::clone(&told));
        self.scheduler.tasks.add(client.process, async move {
            hangs.hang_at(address, long).await;
            noted.set(noted.get() + 1);
        });
        let limit = self.scheduler.now() + TRY;
        let hangs = self.has_handlers_by(leaver, 1, limit);
        let blocked = self.scheduler.coverage.of(Kind::HandlerBlocked);
        let noted = Rc::clone(&told);
        self.scheduler.tasks.add(client.process, async move {
            let stuck_us = u64::try_from(STUCK.as_micros()).unwrap_or(0);
            if client.block_at(address, long, stuck_us).await.is_none() {
                client.oracle.fail("a call succeeded that outlasts its server's grace".to_owned());
            }
            noted.set(noted.get() + 1);
        });
        let blocks = |scheduler: &Scheduler| scheduler.coverage.of(Kind::HandlerBlocked) > blocked;
        if !hangs || !self.scheduler.run_until(limit, blocks) {
            return self.fail("a call does not reach its handler although nothing is wrong");
        }
        // Until then the blocked poller holds the clock.
        self.scheduler.run_until(self.scheduler.now() + SEEN, |_| false);
        self.nodes[leaver].begin_shutdown(&self.scheduler);
        let limit = self.scheduler.now() + GRACE + WITHOUT_A_POLLER + LEAVING;
        if !self.scheduler.run_until(limit, |_| told.get() == 2) {
            return self.fail("the callers of a node that a handler keeps from ending are not told soon");
        }
        self.has_left(process, STUCK + LEAVING) && self.restart(leaver, witness)
    }

    /// Returns true if a process that was shut down ends within a time. The card's machine ends with the last
    /// handle.
    fn has_left(&mut self, process: u64, within: Duration) -> bool {
        let is_over = |name: &&str| name.ends_with("card");
        let ended = |scheduler: &Scheduler| scheduler.machines_of(process).iter().all(is_over);
        let limit = self.scheduler.now() + within;
        if !self.scheduler.run_until(limit, ended) {
            let left = self.scheduler.machines_of(process).join(", ");
            return self.fail(&format!("a node has not ended soon after it was shut down: {left}"));
        }
        self.is_unbroken()
    }

    /// Ends the rest of a node and starts it again. Another node has a session with it afterwards.
    fn restart(&mut self, node: usize, caller: usize) -> bool {
        self.kill(node);
        self.nodes[node].start(&mut self.scheduler, None);
        let address = self.nodes[node].address;
        let Some(client) = self.client(caller) else { return self.fail("a node is not running") };
        let reached = Rc::new(Cell::new(false));
        let noted = Rc::clone(&reached);
        self.scheduler.tasks.add(client.process, async move {
            // The first call may meet the session with the old process.
            while client.number_of(address, TRY).await.is_some() {
                client.timers.sleep(Duration::from_millis(5)).await;
            }
            noted.set(true);
        });
        let limit = self.scheduler.now() + Duration::from_secs(5);
        if !self.scheduler.run_until(limit, |_| reached.get()) {
            return self.fail("a node that was started again is not reached");
        }
        self.scheduler.run_until(self.scheduler.now() + QUIET, |_| false);
        self.is_unbroken()
    }
}

/// Makes a call to a draining node that must be refused soon: by the node, or by the caller's own poller if
/// that has been told.
async fn refused(client: Client, server: SocketAddr) {
    let began = client.timers.now();
    let outcome = client.number_of(server, TRY).await;
    let took = client.timers.now() - began;
    if !outcome
        .as_ref()
        .is_some_and(|status| status.reason() == Some(Reason::Draining) && !status.may_have_run())
    {
        client.oracle.fail(format!("a call to a node that drains ended with {outcome:?}"));
    } else if took > REFUSED_WITHIN {
        client.oracle.fail(format!("a node that drains took {took:?} to refuse a call"));
    }
}

/// Makes a call from the program of a node. It succeeds while the node drains, and is refused once it shuts
/// down.
async fn called_from_outside(client: Client, server: SocketAddr, shuts_down: bool) {
    let began = client.timers.now();
    let outcome = client.number_of(server, TRY).await;
    let is_refusal = |status: &Status| status.code() == Code::Unavailable && !status.may_have_run();
    match &outcome {
        None if !shuts_down => {}
        Some(status) if shuts_down && is_refusal(status) && client.timers.now() == began => {}
        other => client.oracle.fail(format!("a call from a node that ends ended with {other:?}")),
    }
}
