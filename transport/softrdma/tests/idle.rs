//! An idle device uses no processor time.
//!
//! This is a separate test binary because it inspects all threads of the process.
//!
//! In real time: the processor time that threads use is what is measured.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]
#![expect(clippy::disallowed_methods, reason = "in real time, see above")]

mod common;

use common::node::{Node, connect, post};
use std::fs;
use std::time::Duration;
use trunkline_verbs::{CompletionStatus, Notify, SendOperation};

/// Number of times that the background threads of all devices have gone to sleep so far.
fn sleeps() -> u64 {
    let mut total = 0;
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        if fs::read_to_string(task.join("comm")).unwrap().trim() != "trunkline-card" {
            continue;
        }
        let status = fs::read_to_string(task.join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        total += line.trim().parse::<u64>().unwrap();
    }
    total
}

#[test]
fn an_idle_device_does_not_wake_up() {
    for options in [common::in_process(), [(); 2].map(|()| common::udp()), [(); 2].map(|()| common::memory())]
    {
        let [near, far] = options.map(|options| Node::open(options, 4096));
        let (ini, _tgt) = connect(&near, &far);
        for _ in 0..100 {
            post(&*ini, SendOperation::RdmaWrite(far.remote(0)), &[near.sge(0, 64)], &*far.srq);
            assert_eq!(near.completion().status, CompletionStatus::Success);
        }
        near.cq.request_notify(Notify::Any).unwrap();
        // Timers set by the traffic expire within this time: probes after some
        // milliseconds, the ACK timeout of 67 ms.
        std::thread::sleep(Duration::from_millis(400));
        let before = sleeps();
        std::thread::sleep(Duration::from_millis(400));
        let woken = sleeps() - before;
        // A thread with a periodic tick would have woken 400 times.
        assert!(woken <= 4, "idle devices woke up {woken} times in 400 ms");
    }
}
