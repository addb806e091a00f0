//! A program that forks after it has opened the device. The child uses the device with a separate background thread. The
//! test does not use the test harness, because the harness's threads do not exist in a child.
//!
//! It runs in real time, because it tests processes and threads.

#[allow(dead_code, reason = "the tests of single functions use all of it")]
#[path = "common/mod.rs"]
mod common;
#[allow(dead_code, unused_imports, reason = "the tests of single functions use all of it")]
#[path = "verbs/lab.rs"]
mod lab;

use lab::{Lab, Region, completions, post, post_receive, send};
use std::ffi::c_int;
use std::process::ExitCode;
use std::ptr::null_mut;
use std::time::{Duration, Instant};
use trunkline_dropin::abi::*;
use trunkline_dropin::verbs::*;

/// Environment variable that selects the path between QPs.
const LINK: &str = "TRUNKLINE_LINK";

/// Returns the number of threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map(Iterator::count).unwrap_or(0)
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// Moves a QP to ERR, which flushes a receive, and waits for the event. This requires no address.
fn flush_and_wait(lab: Lab) {
    // SAFETY: the steps of a verbs program, on an opened context.
    unsafe {
        let channel = ibv_create_comp_channel(lab.context);
        let cq = lab.cq(channel);
        let qp = lab.qp(&mut lab::request(IBV_QPT_RC, lab.pd, cq));
        assert!(!channel.is_null() && !qp.is_null());
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, ..ibv_qp_attr::default() };
        lab::modify(qp, &mut attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
        let block = Region::new(lab.pd, &[0; 64]);
        assert_eq!(post_receive(qp, 5, block.sge(0, 64)), 0);
        assert_eq!(lab.table().context.ops.req_notify_cq.unwrap()(cq, 0), 0);
        attr.qp_state = IBV_QPS_ERR;
        lab::modify(qp, &mut attr, IBV_QP_STATE);
        let (mut fired, mut fired_context) = (null_mut(), null_mut());
        assert_eq!(ibv_get_cq_event(channel, &raw mut fired, &raw mut fired_context), 0);
        ibv_ack_cq_events(fired, 1);
        assert_eq!(completions(cq, 1)[0].wr_id, 5);
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
        assert_eq!(ibv_destroy_comp_channel(channel), 0);
        drop(block);
    }
}

/// Exchanges messages between two QPs, which requires an address.
fn exchange(lab: Lab) {
    let cq = lab.cq(null_mut());
    let [from, to] = lab.rc_pair(cq);
    let block = Region::new(lab.pd, &[0; 4096]);
    for wr_id in 0..100 {
        assert_eq!(post_receive(to, wr_id, block.sge(0, 2048)), 0);
        assert_eq!(post(from, &mut [send(wr_id, &mut [block.sge(2048, 2048)])]).0, 0);
        assert!(completions(cq, 2).iter().all(|wc| wc.status == IBV_WC_SUCCESS));
    }
    // SAFETY: the lab's own objects, for the last time.
    unsafe {
        assert_eq!([from, to].map(|qp| ibv_destroy_qp(qp)), [0, 0]);
        assert_eq!(ibv_destroy_cq(cq), 0);
    }
    drop(block);
}

/// Forks, runs `work` in the child, and returns the child's wait status.
fn in_child(work: impl FnOnce()) -> c_int {
    // SAFETY: this program has one thread besides the device's thread, which the library stops during the
    // fork.
    match unsafe { libc::fork() } {
        -1 => panic!("fork failed"),
        0 => {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // SAFETY: it exits without running the parent's exit handlers.
            unsafe { libc::_exit(c_int::from(ended.is_err())) }
        }
        child => {
            let mut status = -1;
            // SAFETY: the child that was just created.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status
        }
    }
}

fn main() -> ExitCode {
    let lab = Lab::open();
    eventually("the device's thread runs", || threads() == 2);
    a_blocked_signal_is_the_programs();
    let exchanged = in_child(|| {
        exchange(lab);
        lab.close();
    });
    assert_eq!(exchanged, 0, "the child uses the address first");
    // Fork many times, so that the device's thread is sometimes active during a fork.
    for round in 0..50 {
        let flushed = in_child(|| {
            assert_eq!(threads(), 1, "a fork copies one thread");
            flush_and_wait(lab);
            eventually("the device's thread is back", || threads() == 2);
            lab.close();
        });
        assert_eq!(flushed, 0, "round {round}");
        flush_and_wait(lab);
    }
    connected_at_the_fork(lab);
    exchange(lab);
    lab.close();
    match std::env::var_os(LINK) {
        Some(_) => ExitCode::SUCCESS,
        None => through_memory(),
    }
}

/// Runs this program again with QPs that share memory where possible.
fn through_memory() -> ExitCode {
    let program = std::env::current_exe().expect("this program");
    let ended = std::process::Command::new(program).env(LINK, "auto").status().expect("it starts");
    if ended.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Programs block a signal after they have opened the device, and read it through `signalfd`. If the device's thread
/// received the signal, the process would end.
fn a_blocked_signal_is_the_programs() {
    use nix::sys::signal::{SigSet, Signal, kill};
    let mut read = SigSet::empty();
    read.add(Signal::SIGUSR2);
    read.thread_block().expect("a valid set");
    kill(nix::unistd::getpid(), Signal::SIGUSR2).expect("this process");
    assert_eq!(read.wait(), Ok(Signal::SIGUSR2));
    read.thread_unblock().expect("a valid set");
}

/// The QPs have exchanged messages before the fork. The child does not have the memory that they may share. It may send or
/// destroy a QP before its device's thread runs again.
fn connected_at_the_fork(lab: Lab) {
    let cq = lab.cq(null_mut());
    let [from, to] = lab.rc_pair(cq);
    let block = Region::new(lab.pd, &[0; 4096]);
    let exchange = |times| {
        for wr_id in 0..times {
            assert_eq!(post_receive(to, wr_id, block.sge(0, 2048)), 0);
            assert_eq!(post(from, &mut [send(wr_id, &mut [block.sge(2048, 2048)])]).0, 0);
            assert!(completions(cq, 2).iter().all(|wc| wc.status == IBV_WC_SUCCESS));
        }
    };
    exchange(200);
    for round in 0..20 {
        let ended = in_child(|| {
            if round % 2 == 0 {
                assert_eq!(post(from, &mut [send(1, &mut [block.sge(2048, 64)])]).0, 0);
            } else {
                // SAFETY: the child's own copy of the QP, for the last time.
                assert_eq!(unsafe { ibv_destroy_qp(to) }, 0);
            }
        });
        assert_eq!(ended, 0, "round {round}");
    }
    // SAFETY: the lab's own objects, for the last time.
    unsafe {
        assert_eq!([from, to].map(|qp| ibv_destroy_qp(qp)), [0, 0]);
        assert_eq!(ibv_destroy_cq(cq), 0);
    }
    drop(block);
}
