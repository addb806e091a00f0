//! Calls of methods that run in the worker pool, on a poller whose pool has no worker.

use super::{frame, number, request, sent, server};
use crate::executor::pool::SharedPool;
use crate::executor::runtime_guard::RuntimeGuard;
use crate::node::budgets::Limits;
use crate::node::lifecycle::Lifecycle;
use crate::status::Code;
use crate::status::reason::Reason;
use crate::upper::fake::{OFFLOADED, Rig};
use crate::wire::frame::{By, Header, RequestHeader};
use crate::wire::metadata::MetadataBytes;
use std::sync::Arc;
use std::time::Duration;
use trunkline_transport::{Limit, Upper as _};
use trunkline_verbs::Clock;

fn rig() -> (Rig, Arc<SharedPool>, Arc<Lifecycle>) {
    let lifecycle = Lifecycle::new(1);
    let queued = Limit { per_peer: 2, in_all: 4 };
    let guard = RuntimeGuard::default();
    let pool = SharedPool::new(queued, 1, &lifecycle, Clock::monotonic(), guard, &Arc::default());
    (Rig::with(Limits::default(), Some(Arc::clone(&pool))), pool, lifecycle)
}

/// Makes a call of the peer with this time limit.
fn ask(rig: &mut Rig, call: u64, time_left_us: u32) {
    let header = RequestHeader { time_left_us, ..request(OFFLOADED, call) };
    let _here = rig.poller.enter();
    rig.message(server(), frame(Header::Request(header), &[], &[]));
}

/// Returns the reply to a call that a node has not run.
fn not_run(call: u64, code: Code, reason: Reason) -> Header {
    let by = By::Node { reason: Some(reason), ran: false };
    Header::Reply {
        call,
        code: code.number(),
        by,
        number: number(OFFLOADED),
        metadata: MetadataBytes::default(),
    }
}

fn run(rig: &mut Rig) -> Vec<Header> {
    let _here = rig.poller.enter();
    rig.run();
    sent(rig).into_iter().map(|(_, header)| header).collect()
}

#[test]
fn a_call_whose_time_passes_in_the_queue_has_not_run() {
    let (mut rig, pool, lifecycle) = rig();
    ask(&mut rig, 1, 5_000);
    assert_eq!((run(&mut rig), lifecycle.jobs()), (vec![], 1));
    rig.carrier.wait(Duration::from_millis(6));
    assert_eq!(run(&mut rig), [not_run(1, Code::DeadlineExceeded, Reason::Expired)]);
    assert_eq!((lifecycle.jobs(), pool.report().used, rig.poller.is_drained()), (0, 0, true));
}

#[test]
fn a_call_that_is_cancelled_in_the_queue_leaves_nothing() {
    let (mut rig, pool, lifecycle) = rig();
    ask(&mut rig, 1, 0);
    ask(&mut rig, 2, 0);
    assert_eq!((run(&mut rig), lifecycle.jobs(), pool.report().used), (vec![], 2, 2));
    rig.message(server(), frame(Header::Cancel { call: 1 }, &[], &[]));
    assert_eq!((run(&mut rig), lifecycle.jobs(), pool.report().used), (vec![], 1, 1));
    // There is room again, and then no more.
    ask(&mut rig, 3, 0);
    ask(&mut rig, 4, 0);
    assert_eq!(run(&mut rig), [not_run(4, Code::ResourceExhausted, Reason::Overloaded)]);
    pool.drain();
    let refused = [2, 3].map(|call| not_run(call, Code::Unavailable, Reason::Draining));
    assert_eq!((run(&mut rig), lifecycle.jobs()), (refused.to_vec(), 0));
}
