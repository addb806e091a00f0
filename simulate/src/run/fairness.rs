//! Small calls beside large ones without room: no kind waits for all of the other.
//!
//! The run has two more nodes. One has room in its queue for one large call to the other. Its programs make
//! several at once; others make small calls, one after another, until the large ones have ended. Then they
//! request more bytes at once than the other node has room for in its queue, so those replies wait.

use super::Run;
use super::admission::End;
use crate::coverage::Kind;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use trunkline::{Bytes, Limit};

/// Room for one large call, and beside it for small ones.
const ROOM: Limit = Limit { per_peer: 512 << 10, in_all: 2 << 20 };
const LARGE: usize = 300 << 10;
const SMALL: usize = 64;
/// Programs that make one large call each, programs that make small ones, and the longest pause of the
/// latter.
const LARGE_CALLS: u32 = 12;
const SMALL_CALLERS: usize = 3;
const PAUSE_US: u64 = 500;
/// Time limit of a small call, in large calls, each of which is READ in two pieces. Time in which a ring is late
/// does not count: one late ring can take longer than several large calls.
const SMALL_WITHIN: u32 = 2;
/// Concurrent replies, and the bytes of each. They neither leave all at once, nor fit into the queue all at once.
const REPLIES: u32 = 9;
const REPLY: u32 = 90 << 10;
/// Maximum time of all large calls.
const LARGE_WITHIN: Duration = Duration::from_millis(200);

impl Run {
    /// Checks that a node's small calls do not wait until its large ones have found room, which they do.
    pub(super) fn small_calls_pass_large_ones(&mut self) -> bool {
        if !self.plan.has_chains {
            return true;
        }
        self.scheduler.trace.line(
            self.scheduler.now(),
            "phase",
            format_args!("small calls next to large ones"),
        );
        let Some(mut ends) = self.two_ends(|node| node.with_queued_bytes(ROOM)) else {
            return self.fail("a node does not start");
        };
        let passed = self.pass(&ends) && self.replies_wait(&ends);
        for end in &mut ends {
            end.node.kill(&mut self.scheduler);
        }
        passed && self.is_unbroken()
    }

    fn pass(&mut self, [near, _]: &[End; 2]) -> bool {
        let large = Rc::new(Cell::new(0_u32));
        let (began, bytes) = (self.scheduler.now(), Bytes::from(vec![0x5a; LARGE]));
        for _ in 0..LARGE_CALLS {
            let (client, large, bytes) = (Rc::clone(&near.client), Rc::clone(&large), bytes.clone());
            let oracle = self.scheduler.oracle.clone();
            self.scheduler.tasks.add(near.process, async move {
                match client.take(bytes).await {
                    Ok(()) => large.set(large.get() + 1),
                    Err(status) => oracle.fail(format!("a large call that waits for room fails: {status}")),
                }
            });
        }
        // The first calls wait for the session.
        if !self.scheduler.run_until(began + LARGE_WITHIN, |_| large.get() > 0) {
            return self.fail("no large call ends");
        }
        let (slowest, small) = (Rc::new(Cell::new(Duration::ZERO)), bytes.slice(..SMALL));
        for _ in 0..SMALL_CALLERS {
            self.add_small_caller(near, small.clone(), (&large, &slowest));
        }
        if !self.scheduler.run_until(began + LARGE_WITHIN, |_| large.get() == LARGE_CALLS) {
            let text = format!("{} of {LARGE_CALLS} large calls end next to small ones", large.get());
            return self.fail(&text);
        }
        let most = (self.scheduler.now() - began) * SMALL_WITHIN / LARGE_CALLS;
        if slowest.get() > most {
            let text = format!(
                "a small call next to large ones takes {:?} without late rings, not {most:?}",
                slowest.get()
            );
            return self.fail(&text);
        }
        self.count_credits();
        self.is_unbroken()
    }

    /// Checks that replies without room wait for it.
    fn replies_wait(&mut self, [near, _]: &[End; 2]) -> bool {
        let given = Rc::new(Cell::new(0_u32));
        for _ in 0..REPLIES {
            let (client, given) = (Rc::clone(&near.client), Rc::clone(&given));
            let oracle = self.scheduler.oracle.clone();
            self.scheduler.tasks.add(near.process, async move {
                match client.give(REPLY).await {
                    Ok(_) => given.set(given.get() + 1),
                    Err(status) => oracle.fail(format!("a large reply does not wait for room: {status}")),
                }
            });
        }
        let limit = self.scheduler.now() + LARGE_WITHIN;
        if !self.scheduler.run_until(limit, |_| given.get() == REPLIES) {
            return self.fail(&format!("{} of {REPLIES} large replies come", given.get()));
        }
        self.count_credits();
        self.is_unbroken()
    }

    fn add_small_caller(
        &mut self,
        end: &End,
        bytes: Bytes,
        (large, slowest): (&Rc<Cell<u32>>, &Rc<Cell<Duration>>),
    ) {
        let (client, large, slowest) = (Rc::clone(&end.client), Rc::clone(large), Rc::clone(slowest));
        let (timers, coverage) = (self.scheduler.timers.clone(), Arc::clone(&self.scheduler.coverage));
        let (oracle, mut random) = (self.scheduler.oracle.clone(), self.random.fork());
        let late_rings = Rc::clone(&self.scheduler.late_rings);
        self.scheduler.tasks.add(end.process, async move {
            while large.get() < LARGE_CALLS {
                let (began, late_before) = (timers.now(), late_rings.total_until(timers.now()));
                if let Err(status) = client.take(bytes.clone()).await {
                    return oracle.fail(format!("a small call next to large ones fails: {status}"));
                }
                let now = timers.now();
                let took = (now - began) - (late_rings.total_until(now) - late_before);
                slowest.set(slowest.get().max(took));
                coverage.count(Kind::SmallCallPassed);
                timers.sleep(Duration::from_micros(random.u64(..PAUSE_US))).await;
            }
        });
    }
}
