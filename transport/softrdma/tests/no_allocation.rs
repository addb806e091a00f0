//! The hot path takes nothing from the heap.
//!
//! A test binary of its own: the counting allocator sees everything that the process does.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

mod common;

use common::node::{Node, connect};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use trunkline_verbs::{
    Completion, CompletionStatus, QueuePair, ReceiveRequest, SendData, SendFlags, SendOperation, SendRequest,
};

/// Counts what is asked of the heap, by any thread.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, new_size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// One message of each kind, and everything that follows from it, on one thread.
fn round(near: &Node, far: &Node, ini: &dyn QueuePair) {
    let scatter = [far.sge(0, 4096)];
    far.srq.post_receive(&[ReceiveRequest { wr_id: 1, scatter: &scatter }]).unwrap();
    let gather = [near.sge(0, 4096)];
    let word = [near.sge(8192, 8)];
    let remote = far.remote(8192);
    let requests = [
        (SendOperation::Send, SendData::Gather(&gather)),
        (SendOperation::RdmaWrite(remote), SendData::Inline(b"inline")),
        (SendOperation::RdmaRead(remote), SendData::Gather(&gather)),
        (SendOperation::FetchAdd { remote, add: 1 }, SendData::Gather(&word)),
    ]
    .map(|(operation, data)| SendRequest {
        wr_id: 2,
        operation,
        data,
        flags: SendFlags::SIGNALED,
        remote_srq: far.srq.number().unwrap(),
    });
    ini.post_send(&requests).unwrap();
    let mut completions = [Completion::default(); 8];
    let (mut sent, mut received) = (0, 0);
    let mut polls = 0;
    while sent < requests.len() || received < 1 {
        received += far.cq.poll(&mut completions);
        let count = near.cq.poll(&mut completions);
        assert!(completions[..count].iter().all(|one| one.status == CompletionStatus::Success));
        sent += count;
        polls += 1;
        assert!(polls < 100_000_000, "nothing comes");
    }
}

#[test]
fn a_message_costs_no_allocation() {
    for options in [common::in_process(), [common::udp(), common::udp()]] {
        let [near, far] = options.map(|options| Node::open(options, 16_384));
        let (ini, _tgt) = connect(&near, &far);
        // Buffers find their size.
        for _ in 0..200 {
            round(&near, &far, &*ini);
        }
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        const ROUNDS: u64 = 1000;
        for _ in 0..ROUNDS {
            round(&near, &far, &*ini);
        }
        let count = ALLOCATIONS.load(Ordering::Relaxed) - before;
        // A late retransmission may still stretch a queue once.
        assert!(count <= ROUNDS / 100, "{count} allocations in {ROUNDS} rounds of four requests");
    }
}
