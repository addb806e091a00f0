//! An idle device does not wake up.
//!
//! The test runs in a separate process because it inspects all threads of the process. It runs in real time,
//! since it counts the context switches of threads.

#![expect(clippy::disallowed_methods, reason = "in real time, see above")]

use crate::common;
use crate::common::node::{Node, connect, post};
use std::fs;
use std::time::Duration;
use trunkline_testkit::{runs_alone, wait_until};
use trunkline_verbs::{CompletionStatus, Notify, SendOperation};

/// Returns the number of times that the background threads of all devices have gone to sleep.
fn sleeps() -> u64 {
    let mut total = 0;
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        // A joined thread is still listed for a moment, and may have disappeared when its files are read.
        let read = |file: &str| fs::read_to_string(task.join(file));
        let (Ok(name), Ok(status)) = (read("comm"), read("status")) else { continue };
        if name.trim() != "trunkline-card" {
            continue;
        }
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        total += line.trim().parse::<u64>().unwrap();
    }
    total
}

#[test]
fn idle_device_does_not_wake_up() {
    if !runs_alone(module_path!(), "idle_device_does_not_wake_up") {
        return;
    }
    for options in [common::in_process(), [(); 2].map(|()| common::udp()), [(); 2].map(|()| common::memory())]
    {
        let [near, far] = options.map(|options| Node::open(options, 4096));
        let (ini, _tgt) = connect(&near, &far);
        for _ in 0..100 {
            post(&*ini, SendOperation::RdmaWrite(far.remote(0)), &[near.sge(0, 64)], &*far.srq);
            assert_eq!(near.completion().status, CompletionStatus::Success);
        }
        near.cq.request_notify(Notify::Any).unwrap();
        // Timers set by the traffic expire during this time, such as probes after some milliseconds and the
        // ACK timeout after 67 ms. A thread with a tick of 1 ms would wake 400 times in each period.
        wait_until("a period in which the devices sleep", Duration::from_secs(60), || {
            let before = sleeps();
            std::thread::sleep(Duration::from_millis(400));
            // The sum is smaller than before if a thread of a closed device has ended.
            sleeps().checked_sub(before).is_some_and(|more| more <= 4).then_some(())
        });
    }
}
