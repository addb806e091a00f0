//! The hot path does not allocate.
//!
//! The test runs in a separate process because the allocator counts the allocations of the whole process.

use crate::common;
use crate::common::node::{Node, connect};
use trunkline_testkit::{CountingAllocator, runs_alone};
use trunkline_verbs::{
    Completion, CompletionStatus, QueuePair, ReceiveRequest, SendData, SendFlags, SendOperation, SendRequest,
};

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// Sends one message of each kind on one thread, including all packets and completions.
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
fn message_exchange_does_not_allocate() {
    if !runs_alone(module_path!(), "message_exchange_does_not_allocate") {
        return;
    }
    for options in [common::in_process(), [(); 2].map(|()| common::udp()), [(); 2].map(|()| common::memory())]
    {
        let [near, far] = options.map(|options| Node::open(options, 16_384));
        let (ini, _tgt) = connect(&near, &far);
        // Buffers grow to their final size.
        for _ in 0..200 {
            round(&near, &far, &*ini);
        }
        let allocations = || {
            let before = HEAP.allocations();
            (0..200).for_each(|_| round(&near, &far, &*ini));
            HEAP.allocations() - before
        };
        // On a busy machine, a late retransmission may make a queue grow, but not in each of five runs.
        let fewest = (0..5).map(|_| allocations()).min();
        assert_eq!(fewest, Some(0), "in 200 rounds of four requests");
    }
}
