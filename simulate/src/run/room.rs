//! Calls that lack room on their own node, in a queue with large calls, or on a stopped server.
//!
//! Two additional nodes have small limits. First, the programs of one node use up their share of calls in flight. Further
//! programs wait until there is room, whereas a handler's call does not wait. Then 64 programs make calls whose handlers
//! call each other, eight deep across both nodes. These calls must not deadlock: some of them fail for lack of room, and
//! succeed when they are repeated after a random pause.
//!
//! Small calls pass large ones: a queue has room for one large call, several large calls are sent at the same time, and
//! other programs send small calls until the large calls have ended. Then the programs request more bytes than fit in the
//! other node's queue, so that replies wait.
//! other node's queue, so that replies wait.

use super::{Checked, QUIET, Run, Tally};
use crate::coverage::EventKind;
use crate::plan::NodePlan;
use crate::scheduler::Stopped;
use crate::workload::client::Ask;
use crate::workload::service::{CHAINED, ChainClient};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use trunkline::{Bytes, Code, Limit, Status};

/// Limit on calls in flight per node.
const FEW_CALLS: Limit = Limit { per_peer: 8, in_all: 8 };
/// Limit on running handlers per node.
const HANDLERS: Limit = Limit { per_peer: 64, in_all: 64 };
/// Number of concurrent calls that wait on their server.
const HOLDS: usize = 16;
/// Time for which each of these calls waits.
const HOLD: Duration = Duration::from_millis(20);
/// Maximum duration of all these calls. Further calls wait for the calls in flight.
const HELD_BY: Duration = Duration::from_millis(100);
/// Number of programs that make nested calls.
const CALLERS: usize = 64;
/// Depth of nested calls.
const DEPTH: u8 = 8;
/// Longest pause before a nested call is repeated, in microseconds.
const CHAIN_PAUSE_US: u64 = 200_000;
/// Maximum time until all programs have succeeded.
const ALL_BY: Duration = Duration::from_secs(20);

/// Limit on queued bytes, with room for one large call and some small calls.
const FEW_BYTES: Limit = Limit { per_peer: 512 << 10, in_all: 2 << 20 };
const LARGE: usize = 300 << 10;
const SMALL: usize = 64;
/// Number of programs that send one large call each.
const LARGE_CALLS: usize = 12;
/// Number of programs that send small calls.
const SMALL_CALLERS: usize = 3;
/// Longest pause between two small calls, in microseconds.
const PAUSE_US: u64 = 500;
/// Time limit of a small call, in units of large calls, each of which is READ in two pieces. The delay of late rings is
/// excluded, because one late ring can take longer than several large calls.
const SMALL_WITHIN: u32 = 2;
/// Number of concurrent replies. Together they exceed both a single burst and the room in the queue.
const REPLIES: usize = 9;
/// Size of each of these replies, in bytes.
const REPLY: u32 = 90 << 10;
const LARGE_WITHIN: Duration = Duration::from_millis(200);

const STOPPED: Duration = Duration::from_millis(300);
/// Time limit of the calls to the stopped server.
const LIMIT: Duration = Duration::from_millis(50);
/// Number of calls beyond the receives of a server.
const BEYOND: usize = 16;
/// Maximum number of calls. Runs that need more calls skip this phase.
const MOST: usize = 256;

/// One of two nodes: its process, its address as text, and a client for the other node.
struct End {
    process: u64,
    address: String,
    client: Rc<ChainClient>,
}

impl Run {
    /// Starts two additional nodes with the limits that `set` sets.
    fn two_ends(&mut self, set: impl Fn(NodePlan) -> NodePlan) -> Checked<[End; 2]> {
        let ends = [self.start_extra(&set)?, self.start_extra(&set)?];
        let end = |own: usize, other: usize| {
            let (process, node) = self.extra[own].running().ok_or("a node is not running")?;
            let (address, server) = (self.extra[own].address, self.extra[other].address);
            let client = ChainClient::connect(node, server).map_err(|status| status.to_string())?;
            let client = Rc::new(client.with_timeout(CHAINED));
            Ok::<_, String>(End { process, address: address.to_string(), client })
        };
        Ok([end(ends[0], ends[1])?, end(ends[1], ends[0])?])
    }

    /// Adds programs that send one call each. Each call must succeed, and is then counted.
    fn add_calls<F>(
        &self,
        end: &End,
        calls: usize,
        what: &'static str,
        call: fn(Rc<ChainClient>) -> F,
    ) -> Tally
    where
        F: Future<Output = Result<(), Status>> + 'static,
    {
        let ended = Tally::default();
        for _ in 0..calls {
            let (call, ended) = (call(Rc::clone(&end.client)), ended.clone());
            let oracle = self.scheduler.oracle.clone();
            self.scheduler.tasks.add(end.process, async move {
                match call.await {
                    Ok(()) => ended.add(),
                    Err(status) => oracle.fail(format!("{what}: {status}")),
                }
            });
        }
        ended
    }

    /// Checks that calls from programs and handlers succeed on two nodes with small limits.
    pub(super) fn callers_find_room(&mut self) -> Checked {
        let ends = self.two_ends(|node| NodePlan { handlers: HANDLERS, calls: Some(FEW_CALLS), ..node })?;
        self.handlers_have_a_share(&ends)?;
        self.chains_get_through(&ends)
    }

    /// Lets programs use up a node's call limit, except the reserved share. A handler then uses this share.
    fn handlers_have_a_share(&mut self, [near, far]: &[End; 2]) -> Checked {
        let held = self.add_calls(near, HOLDS, "a call that waits for room fails", |client| async move {
            client.hold(HOLD.as_micros().try_into().unwrap_or(u64::MAX)).await
        });
        let began = self.scheduler.now();
        self.pass(HOLD / 2);
        let (client, oracle) = (Rc::clone(&far.client), self.scheduler.oracle.clone());
        let (to, back) = (far.address.clone(), near.address.clone());
        let done = self.program(far.process, async move {
            if let Err(status) = client.chain(1, to, back).await {
                oracle.fail(format!("a handler has no room for a call: {status}"));
            }
        });
        self.by(began + HOLD, "a handler waits for room that is left to it", |_| done.get() == 1)?;
        let why = "calls still wait for room long after there was some";
        self.by(began + HELD_BY, why, |_| held.get() == HOLDS)?;
        self.scheduler.coverage.add(EventKind::CallFoundRoom, HOLDS as u64);
        self.count_credits()
    }

    /// Sends calls from programs on both nodes, which together exceed the limits.
    fn chains_get_through(&mut self, ends: &[End; 2]) -> Checked {
        let through = Tally::default();
        for caller in 0..CALLERS {
            let (end, other) = (&ends[caller % 2], &ends[1 - caller % 2]);
            let (client, here, there) = (Rc::clone(&end.client), end.address.clone(), other.address.clone());
            let (timers, coverage) = (self.scheduler.timers.clone(), Arc::clone(&self.scheduler.coverage));
            let (oracle, mut random) = (self.scheduler.oracle.clone(), self.random.fork());
            let through = through.clone();
            self.scheduler.tasks.add(end.process, async move {
                loop {
                    match client.chain(DEPTH, here.clone(), there.clone()).await {
                        Ok(()) => return through.add(),
                        Err(status) if is_lack_of_room(&status) => {
                            coverage.count(EventKind::ChainRefused);
                            timers.sleep(Duration::from_micros(random.u64(..CHAIN_PAUSE_US))).await;
                        }
                        Err(status) => return oracle.fail(format!("a chain of calls fails: {status}")),
                    }
                }
            });
        }
        let why = format!("not all of {CALLERS} callers of nested calls get through");
        self.within(ALL_BY, &why, |_| through.get() == CALLERS)
    }

    /// Checks that a node's small calls do not wait for room together with its large calls. The large calls succeed too.
    pub(super) fn small_calls_pass_large_ones(&mut self) -> Checked {
        let ends = self.two_ends(|node| NodePlan { queued_bytes: Some(FEW_BYTES), ..node })?;
        self.small_calls_pass(&ends[0])?;
        let given = self.add_calls(&ends[0], REPLIES, "a large reply fails", |client| async move {
            client.give(REPLY).await.map(drop)
        });
        let why = format!("not all of {REPLIES} large replies come");
        self.within(LARGE_WITHIN, &why, |_| given.get() == REPLIES)
    }

    fn small_calls_pass(&mut self, end: &End) -> Checked {
        let began = self.scheduler.now();
        let large =
            self.add_calls(end, LARGE_CALLS, "a large call that waits for room fails", |client| async move {
                client.take(vec![0x5a; LARGE].into()).await
            });
        // The first calls wait for the session.
        self.by(began + LARGE_WITHIN, "no large call ends", |_| large.get() > 0)?;
        let slowest = Rc::new(Cell::new(Duration::ZERO));
        for _ in 0..SMALL_CALLERS {
            let (client, large, slowest) = (Rc::clone(&end.client), large.clone(), Rc::clone(&slowest));
            let (timers, coverage) = (self.scheduler.timers.clone(), Arc::clone(&self.scheduler.coverage));
            let (oracle, mut random) = (self.scheduler.oracle.clone(), self.random.fork());
            let late_rings = Rc::clone(&self.scheduler.late_rings);
            self.scheduler.tasks.add(end.process, async move {
                while large.get() < LARGE_CALLS {
                    let (began, late_before) = (timers.now(), late_rings.total_until(timers.now()));
                    if let Err(status) = client.take(Bytes::from(vec![0x5a; SMALL])).await {
                        return oracle.fail(format!("a small call next to large ones fails: {status}"));
                    }
                    let now = timers.now();
                    let took = (now - began) - (late_rings.total_until(now) - late_before);
                    slowest.set(slowest.get().max(took));
                    coverage.count(EventKind::SmallCallPassed);
                    timers.sleep(Duration::from_micros(random.u64(..PAUSE_US))).await;
                }
            });
        }
        let why = format!("not all of {LARGE_CALLS} large calls end next to small ones");
        self.by(began + LARGE_WITHIN, &why, |_| large.get() == LARGE_CALLS)?;
        let each = (self.scheduler.now() - began) / u32::try_from(LARGE_CALLS).unwrap_or(1);
        let (slowest, most) = (slowest.get(), each * SMALL_WITHIN);
        if slowest > most {
            return Err(format!(
                "a small call next to large ones takes {slowest:?} without late rings, not {most:?}"
            ));
        }
        self.count_credits()
    }

    /// Stops a server, and sends more calls than its credit allows. The excess requests are not sent, and the status of
    /// their calls states this.
    pub(super) fn some_never_leave(&mut self) -> Checked {
        let receives = |node: &NodePlan| {
            usize::try_from(node.srq_depth).unwrap_or(usize::MAX).saturating_mul(node.pollers.into())
        };
        let plans = self.plan.nodes.iter().map(receives).enumerate();
        let Some((server, receives)) = plans.min_by_key(|(_, receives)| *receives) else { return Ok(()) };
        if receives > MOST {
            return Ok(());
        }
        let address = self.nodes[server].address;
        let client = self.client((server + 1) % self.nodes.len())?;
        let process = self.process(server)?;
        self.scheduler.stop(process, Stopped::Process, STOPPED);
        let may_have_run = Tally::default();
        for _ in 0..receives + BEYOND {
            let (client, may_have_run) = (client.clone(), may_have_run.clone());
            self.scheduler.tasks.add(client.process, async move {
                // The arguments are too large to share a frame, and thus a receive, with another call.
                let failed = client.call(address, LIMIT, Ask::echo(2048, 8)).await;
                if failed.as_ref().is_some_and(Status::may_have_run) {
                    may_have_run.add();
                }
            });
        }
        self.programs_end(STOPPED + QUIET, "calls to a node that is stopped do not end")?;
        let may_have_run = may_have_run.get();
        if may_have_run > receives {
            return Err(format!(
                "{may_have_run} calls may have run at a node that has {receives} receives and was stopped"
            ));
        }
        Ok(())
    }
}

/// Returns true if a handler in a chain was refused a call by its own node. Handlers forward this status without its
/// reason, so the test compares the text, which contains the name of the budget.
fn is_lack_of_room(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted && status.to_string().contains("budget of calls under way")
}
