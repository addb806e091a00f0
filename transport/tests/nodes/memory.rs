//! Memory that a peer can make a node hold, measured beside an honest peer.
//!
//! Runs in its own process, because the counting allocator counts for the whole process.

use crate::common::{ECHO, Happened, Job, LIMIT, TestNode, fresh_address};
use bytes::Bytes;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use trunkline_softrdma::device::SoftOptions;
use trunkline_testkit::{CountingAllocator, runs_alone};
use trunkline_transport::{BudgetReport, Limit, NodeOptions, PeerDown, ProviderChoice};

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

const MESSAGE: usize = 15 << 10;
const LARGE: usize = 200 << 10;
const QUEUED: Limit = Limit { per_peer: 8 << 20, in_all: 32 << 20 };
const MEMORY: usize = 4 << 20;
/// Number of messages per size, which far exceeds the budgets.
const REPLIES: [(usize, u64); 2] = [(LARGE, 300), (MESSAGE, 2000)];
/// Maximum amount of other memory that the nodes, their devices and this test allocate during the test, in bytes.
const SLACK: usize = 4 << 20;
/// Number of jobs in a batch. The test creates the jobs, so their memory does not count as the node's.
const BATCH: u64 = 64;

fn options() -> NodeOptions {
    let address = fresh_address();
    let device = SoftOptions { addresses: vec![address.ip()], ..SoftOptions::default() };
    NodeOptions::new()
        .listen(address)
        .provider(ProviderChoice::Soft)
        .device(device)
        .max_message_bytes(1 << 20)
        .rendezvous_bytes(MEMORY)
        .queued_messages(Limit { per_peer: 1000, in_all: 4000 })
        .queued_bytes(QUEUED)
        .stall_limit(Duration::from_secs(3))
}

fn budget(node: &TestNode, name: &str) -> BudgetReport {
    let report = node.report();
    report.budgets.into_iter().find(|budget| budget.name == name).expect("it is reported")
}

/// A peer whose poller never runs grants no credit and READs no messages, while its device acknowledges all
/// packets.
#[test]
fn peer_taking_no_replies_is_held_to_budget_and_loses_session() {
    if !runs_alone(module_path!(), "peer_taking_no_replies_is_held_to_budget_and_loses_session") {
        return;
    }
    let mut server = TestNode::start(options(), 1);
    let [mut hostile, mut honest] = [(); 2].map(|()| TestNode::start(options(), 1));
    let [its_server, same_server] = [&mut hostile, &mut honest].map(|node| node.connect(0, server.address));
    hostile.send(0, its_server, b"hello", Bytes::new(), 1);
    let (origin, _) = server.message();
    let (release, wait) = mpsc::channel();
    hostile.job(0, Job::Wait(wait));
    let before = HEAP.in_use_bytes();
    let mut refused = 0;
    for (size, count) in REPLIES {
        for token in 0..count {
            if token % BATCH == 0 {
                // The server has handled the earlier jobs, and serves other peers meanwhile.
                honest.send(0, same_server, &[ECHO], Bytes::from_static(b"served"), 1);
                assert_eq!(&honest.message().1[..], b"!served");
                server.take_passed(|event| refused += u64::from(matches!(event, Happened::Refused(..))));
                let used = HEAP.in_use_bytes().saturating_sub(before);
                assert!(
                    used < QUEUED.per_peer + SLACK,
                    "{used} bytes are held after {token} of {size} bytes"
                );
            }
            server.job(0, Job::Answer { to: origin, head: vec![7; size], token });
        }
    }
    assert!(refused > 2000, "only {refused} are refused");
    let queued = budget(&server, "queued bytes");
    assert!(queued.used <= QUEUED.per_peer as u64 && queued.refused_to_peer > 0, "{queued:?}");
    let copies = budget(&server, "bytes of large messages copied to be READ");
    assert!(copies.used <= copies.limit.per_peer as u64, "{copies:?}");
    let cause = server.down(origin.peer);
    assert_eq!(cause, PeerDown::Misbehaved("it takes no replies"));
    // The peer's memory is freed, and other peers continue.
    let until = Instant::now() + LIMIT;
    let names = ["queued messages", "queued bytes", "large messages to READ"];
    while names.iter().any(|name| budget(&server, name).used > 0) {
        assert!(Instant::now() < until, "{:?}", server.report().budgets);
        std::thread::yield_now();
    }
    let used = HEAP.in_use_bytes().saturating_sub(before);
    assert!(used < SLACK, "{used} bytes are still held");
    honest.send(0, same_server, &[ECHO], Bytes::from_static(b"served"), 1);
    assert_eq!(&honest.message().1[..], b"!served");
    drop(release);
}
