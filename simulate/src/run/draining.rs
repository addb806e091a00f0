//! Ends of handlers and of nodes without other activity.
//!
//! A handler ends at its deadline while its caller is stopped. A node drains or shuts down while its handlers run and
//! make calls. These calls end as usual, new calls are refused within [`REFUSED_WITHIN`], and a busy poller does not
//! delay peers. A shutdown keeps its grace period, and peers detect it.

use super::{Checked, QUIET, Run, TRY, Tally};
use crate::coverage::EventKind;
use crate::node::GRACE;
use crate::plan::HANDLERS;
use crate::scheduler::Stopped;
use crate::workload::client::{Ask, Client};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use trunkline::{Code, Reason, Status};

/// Node that ends.
const LEAVER: usize = 0;
/// Node that calls the ending node.
const WITNESS: usize = 1;

/// Maximum time until a draining server refuses a call.
const REFUSED_WITHIN: Duration = Duration::from_millis(50);
/// Maximum time until a draining node detects the end of its last handler.
const SEEN: Duration = Duration::from_millis(1);
/// Maximum time from the end of the handlers, or of the grace period, until a node has ended and its peers have detected
/// this. The CM exchanges two messages per session, and every machine checks its timers within 20 ms.
const LEAVING: Duration = Duration::from_millis(100);
/// Time after the grace period at which sessions are closed even if a poller does not respond.
const WITHOUT_A_POLLER: Duration = Duration::from_millis(50);
/// Time for which a handler blocks its poller.
const STUCK: Duration = Duration::from_secs(2);
/// Duration of the first call made by a handler on a draining node. The call is in flight when the node begins to drain
/// or shut down.
const NESTED: Duration = Duration::from_millis(40);
/// Grace period in which these handlers must end. Unused credit of other senders is returned within 110 ms.
const HANDLERS_END: Duration = Duration::from_millis(300);
/// Number of forwarding handlers on a draining node. One handler is left for the call from the node's program.
const FORWARDING: usize = HANDLERS.per_peer - 1;
/// Time limit of a call whose handler must end without a cancellation.
const DEADLINE: Duration = Duration::from_millis(300);
/// Time for which the caller is stopped, which is longer than the deadline.
const STOPPED: Duration = Duration::from_millis(700);
/// Maximum time from a deadline until its handler ends. Pollers check deadlines every few milliseconds.
const HANDLER_ENDS: Duration = Duration::from_millis(50);
/// Running time of a handler whose caller must get the reply despite a shutdown.
const WORK_US: u64 = 50_000;

/// Violation that is reported if calls are not delivered although there is no fault.
const NOT_ENTERED: &str = "a call does not reach its handler although nothing is wrong";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The node drains, refuses calls, and shuts down once it has drained.
    Drain,
    ShutDown,
}

impl Run {
    /// Stops a caller, so that it cannot cancel its call. The handler ends at its deadline.
    pub(super) fn handlers_end(&mut self) -> Checked {
        let address = self.nodes[LEAVER].address;
        let client = self.client(WITNESS)?;
        let (process, limit) = (client.process, self.scheduler.now() + DEADLINE);
        let hangs = async move { drop(client.call(address, DEADLINE, Ask::Hang).await) };
        self.scheduler.tasks.add(process, hangs);
        self.has_handlers_by(limit, LEAVER, 1, NOT_ENTERED)?;
        self.scheduler.stop(process, Stopped::Process, STOPPED);
        // On the server's clock, the call began when the request arrived.
        let limit = self.scheduler.now() + DEADLINE + HANDLER_ENDS;
        self.has_handlers_by(limit, LEAVER, 0, "a handler runs on although its deadline has passed")?;
        self.programs_end(STOPPED + QUIET, "a call does not end although its deadline has passed")
    }

    /// Ends a node while its handlers call two other nodes. The node has just started, and has a session with at most one
    /// of the two nodes.
    pub(super) fn one_drains(&mut self) -> Checked {
        let end = if self.random.bool() { End::ShutDown } else { End::Drain };
        let other = self.nodes.len() - 1;
        let [address, near, far] = [LEAVER, WITNESS, other].map(|node| self.nodes[node].address);
        self.restart()?;
        self.nodes[LEAVER].share_clients(&[near, far]);
        let (client, own) = (self.client(WITNESS)?, self.client(LEAVER)?);
        let wait_us = u64::try_from(NESTED.as_micros()).unwrap_or(0);
        let replied = Tally::default();
        for _ in 0..FORWARDING {
            let client = client.clone();
            self.add(&replied, client.process, async move {
                let ask = Ask::Forward { wait_us, near, far };
                match client.call(address, NESTED + HANDLERS_END, ask).await {
                    None => client.coverage.count(EventKind::HandlerForwarded),
                    Some(status) => {
                        client.oracle.fail(format!("a call failed while its server drains: {status}"));
                    }
                }
            });
        }
        let limit = self.scheduler.now() + NESTED / 2;
        for node in [LEAVER, WITNESS] {
            self.has_handlers_by(limit, node, FORWARDING, NOT_ENTERED)?;
        }
        let (process, node) = self.nodes[LEAVER].running().ok_or("a node is not running")?;
        let node = Rc::clone(node);
        let began = self.scheduler.now();
        match end {
            End::ShutDown => self.nodes[LEAVER].begin_shutdown_within(&self.scheduler, HANDLERS_END),
            End::Drain => self.nodes[LEAVER].begin_drain(&self.scheduler),
        }
        self.scheduler.tasks.add(client.process, refused(client.clone(), address));
        self.scheduler.tasks.add(own.process, called_from_outside(own, near, end));
        let why = "handlers of a node that drains do not end within the grace";
        self.by(began + HANDLERS_END, why, |_| replied.get() == FORWARDING)?;
        let why = "a node does not notice that it has drained";
        self.within(SEEN + LEAVING, why, |_| node.is_drained())?;
        self.programs_end(SEEN + LEAVING, "a call to a node that drains does not end")?;
        drop(node);
        if end == End::Drain {
            // Sessions stay up while calls are refused.
            self.scheduler.tasks.add(client.process, refused(client, address));
            let why = "a call to a node that has drained does not end";
            self.programs_end(REFUSED_WITHIN + QUIET, why)?;
            self.nodes[LEAVER].begin_shutdown(&self.scheduler);
        }
        // All handlers have ended before the end of the grace period.
        self.has_ended_by(self.scheduler.now() + LEAVING, process)?;
        self.restart()
    }

    /// Blocks a poller with a handler for longer than the grace period. The callers are notified, and the node ends when the
    /// handler returns.
    pub(super) fn one_is_stuck(&mut self) -> Checked {
        let address = self.nodes[LEAVER].address;
        let (client, process) = (self.client(WITNESS)?, self.process(LEAVER)?);
        let limit = self.scheduler.now() + TRY;
        let told = self.hang(WITNESS, address)?;
        self.has_handlers_by(limit, LEAVER, 1, NOT_ENTERED)?;
        let blocked = self.scheduler.coverage.of(EventKind::HandlerBlocked);
        self.add(&told, client.process, async move {
            let stuck_us = u64::try_from(STUCK.as_micros()).unwrap_or(0);
            if client.call(address, STUCK * 30, Ask::Block(stuck_us)).await.is_none() {
                client.oracle.fail("a call succeeded that outlasts its server's grace".to_owned());
            }
        });
        self.by(limit, NOT_ENTERED, |scheduler| scheduler.coverage.of(EventKind::HandlerBlocked) > blocked)?;
        // The blocked poller stops the virtual clock until the handler returns.
        self.pass(SEEN);
        self.nodes[LEAVER].begin_shutdown(&self.scheduler);
        let why = "the callers of a node that a handler keeps from ending are not told soon";
        self.within(GRACE + WITHOUT_A_POLLER + LEAVING, why, |_| told.get() == 2)?;
        self.has_ended_by(self.scheduler.now() + STUCK + LEAVING, process)?;
        self.restart()
    }

    /// Shuts down a node while another node waits for its replies. A call that ends within the grace period succeeds. The
    /// callers of all other calls are notified within [`LEAVING`] after the grace period.
    pub(super) fn one_leaves(&mut self) -> Checked {
        let address = self.nodes[LEAVER].address;
        let (client, process) = (self.client(WITNESS)?, self.process(LEAVER)?);
        let limit = self.scheduler.now() + DEADLINE;
        let told = self.hang(WITNESS, address)?;
        self.has_handlers_by(limit, LEAVER, 1, NOT_ENTERED)?;
        let replied = self.program(client.process, async move {
            let ask = Ask::Echo { there: 100, back: 150 << 10, wait_us: WORK_US };
            if let Some(status) = client.call(address, TRY, ask).await {
                client.oracle.fail(format!("a call failed within the grace of a shutdown: {status}"));
            }
        });
        self.has_handlers_by(limit, LEAVER, 2, NOT_ENTERED)?;
        self.nodes[LEAVER].begin_shutdown(&self.scheduler);
        let limit = self.scheduler.now() + GRACE + LEAVING;
        let why = "the callers of a node that was shut down are not told soon";
        self.by(limit, why, |_| told.get() + replied.get() == 2)?;
        self.has_ended_by(limit, process)
    }

    /// Kills the remaining process of the node and starts a successor. Returns when the calling node has a session with
    /// the successor.
    fn restart(&mut self) -> Checked {
        self.replace(LEAVER);
        let address = self.nodes[LEAVER].address;
        let client = self.client(WITNESS)?;
        let reached = self.program(client.process, client.until_reached(address));
        let why = "a node that was started again is not reached";
        self.within(Duration::from_secs(5), why, |_| reached.get() == 1)?;
        self.pass(QUIET);
        self.unbroken()
    }
}

/// Sends a call to a draining node. The call must be refused within [`REFUSED_WITHIN`], either by the node or by the
/// caller's poller after it was notified of the drain.
async fn refused(client: Client, server: SocketAddr) {
    let began = client.timers.now();
    let outcome = client.call(server, TRY, Ask::Number).await;
    let took = client.timers.now() - began;
    let is_refusal = |status: &Status| status.reason() == Some(Reason::Draining) && !status.may_have_run();
    if !outcome.as_ref().is_some_and(is_refusal) {
        client.oracle.fail(format!("a call to a node that drains ended with {outcome:?}"));
    } else if took > REFUSED_WITHIN {
        client.oracle.fail(format!("a node that drains took {took:?} to refuse a call"));
    }
}

/// Makes a call from a node's program. The call succeeds while the node drains, and is refused after the node begins to
/// shut down.
async fn called_from_outside(client: Client, server: SocketAddr, end: End) {
    let began = client.timers.now();
    let outcome = client.call(server, TRY, Ask::Number).await;
    let is_refusal = |status: &Status| status.code() == Code::Unavailable && !status.may_have_run();
    match (&outcome, end) {
        (None, End::Drain) => {}
        (Some(status), End::ShutDown) if is_refusal(status) && client.timers.now() == began => {}
        _ => client.oracle.fail(format!("a call from a node that ends ended with {outcome:?}")),
    }
}
