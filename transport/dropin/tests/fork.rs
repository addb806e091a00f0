//! A program that forks after it opened the device: the child uses it, with a background thread of
//! its own. Without the test harness, whose threads a child would not have.

use std::ffi::c_int;
use std::mem::offset_of;
use std::process::ExitCode;
use std::ptr::null_mut;
use std::time::{Duration, Instant};
use trunkline_dropin::abi::*;
use trunkline_dropin::verbs::*;

/// Threads of this process.
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

/// An INIT of a QP needs no address; its receive is flushed by ERR and found by an event.
unsafe fn use_the_device(context: *mut ibv_context) {
    // SAFETY: the steps of a verbs program, on an opened context.
    unsafe {
        let table = *context.byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
        let pd = ibv_alloc_pd(context);
        let channel = ibv_create_comp_channel(context);
        let cq = ibv_create_cq(context, 16, null_mut(), channel, 0);
        assert!(!pd.is_null() && !channel.is_null() && !cq.is_null());
        let cap = ibv_qp_cap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut init = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq: null_mut(),
            cap,
            qp_type: IBV_QPT_RC,
            sq_sig_all: 1,
        };
        let qp = ibv_create_qp(pd, &raw mut init);
        assert!(!qp.is_null());
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, ..ibv_qp_attr::default() };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        assert_eq!(ibv_modify_qp(qp, &raw mut attr, mask.cast_signed()), 0);
        let mut wr = ibv_recv_wr { wr_id: 5, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
        assert_eq!(table.context.ops.post_recv.unwrap()(qp, &raw mut wr, &mut null_mut()), 0);
        assert_eq!(table.context.ops.req_notify_cq.unwrap()(cq, 0), 0);
        attr.qp_state = IBV_QPS_ERR;
        assert_eq!(ibv_modify_qp(qp, &raw mut attr, IBV_QP_STATE.cast_signed()), 0);
        let (mut fired, mut fired_context) = (null_mut(), null_mut());
        assert_eq!(ibv_get_cq_event(channel, &raw mut fired, &raw mut fired_context), 0);
        ibv_ack_cq_events(fired, 1);
        let mut wc = ibv_wc::default();
        assert_eq!(table.context.ops.poll_cq.unwrap()(cq, 1, &raw mut wc), 1);
        assert_eq!(wc.wr_id, 5);
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
        assert_eq!(ibv_destroy_comp_channel(channel), 0);
        assert_eq!(ibv_dealloc_pd(pd), 0);
    }
}

/// Forks, lets the child do `work`, and answers how it ended.
fn in_child(work: impl FnOnce()) -> c_int {
    // SAFETY: this program has one thread besides the device's, which is held still meanwhile.
    match unsafe { libc::fork() } {
        -1 => panic!("fork failed"),
        0 => {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // SAFETY: ends the child without the parent's leftovers.
            unsafe { libc::_exit(c_int::from(ended.is_err())) }
        }
        child => {
            let mut status = -1;
            // SAFETY: the child that was just made.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status
        }
    }
}

fn main() -> ExitCode {
    let id = std::process::id();
    let address = format!("127.{}.{}.{}", 64 + id % 60, (id >> 8) % 250 + 1, (id >> 3) % 250 + 1);
    // SAFETY: the only thread.
    unsafe { std::env::set_var("TRUNKLINE_ADDRESS", address) };
    // SAFETY: the steps of a verbs program.
    unsafe {
        let list = ibv_get_device_list(null_mut());
        let context = ibv_open_device(*list);
        assert!(!context.is_null());
        ibv_free_device_list(list);
        eventually("the device's thread runs", || threads() == 2);
        // Many times, so that the device's thread is now and then at work meanwhile.
        for round in 0..50 {
            let ended = in_child(|| {
                assert_eq!(threads(), 1, "a fork copies one thread");
                use_the_device(context);
                eventually("the device's thread is back", || threads() == 2);
                assert_eq!(ibv_close_device(context), 0);
            });
            assert_eq!(ended, 0, "round {round}");
            use_the_device(context);
        }
        assert_eq!(ibv_close_device(context), 0);
    }
    ExitCode::SUCCESS
}
