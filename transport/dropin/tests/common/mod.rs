//! Registered memory, work requests and completions, for the tests of libibverbs and librdmacm.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};
use trunkline_dropin::abi::*;
use trunkline_dropin::verbs::*;

/// Time limit of every wait. It allows for a loaded machine.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// Registered memory, which is deregistered on drop.
pub(crate) struct Region {
    pub(crate) bytes: Vec<u8>,
    pub(crate) mr: *mut ibv_mr,
}

impl Region {
    pub(crate) fn new(pd: *mut ibv_pd, content: &[u8]) -> Self {
        let mut bytes = content.to_vec();
        let rights = IBV_ACCESS_LOCAL_WRITE
            | IBV_ACCESS_REMOTE_WRITE
            | IBV_ACCESS_REMOTE_READ
            | IBV_ACCESS_REMOTE_ATOMIC;
        // SAFETY: the vector keeps its bytes at one address until the region is deregistered.
        let mr = unsafe { ibv_reg_mr(pd, bytes.as_mut_ptr().cast(), bytes.len(), rights.cast_signed()) };
        assert!(!mr.is_null());
        Self { bytes, mr }
    }

    pub(crate) fn address(&self) -> u64 {
        self.bytes.as_ptr().expose_provenance() as u64
    }

    pub(crate) fn key(&self) -> u32 {
        // SAFETY: the region is not deregistered yet.
        unsafe { (*self.mr).lkey }
    }

    pub(crate) fn sge(&self, offset: usize, length: u32) -> ibv_sge {
        ibv_sge { addr: self.address() + offset as u64, length, lkey: self.key() }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: it is not used after this.
        assert_eq!(unsafe { ibv_dereg_mr(self.mr) }, 0);
    }
}

/// Returns a send request with a gather list.
pub(crate) fn send(wr_id: u64, list: &mut [ibv_sge]) -> ibv_send_wr {
    ibv_send_wr {
        wr_id,
        next: null_mut(),
        sg_list: list.as_mut_ptr(),
        num_sge: c_int::try_from(list.len()).unwrap(),
        opcode: IBV_WR_SEND,
        send_flags: IBV_SEND_SIGNALED,
        imm_data: 0,
        wr: ibv_send_wr_target { rdma: ibv_wr_rdma { remote_addr: 0, rkey: 0 } },
        remote_srqn: 0,
        extra: ibv_send_wr_extra { tso: ibv_wr_tso { hdr: null_mut::<c_void>(), hdr_sz: 0, mss: 0 } },
    }
}

/// Posts a list. Returns the error number and the index of the refused request.
pub(crate) fn post(qp: *mut ibv_qp, list: &mut [ibv_send_wr]) -> (c_int, usize) {
    link(list);
    let mut bad = null_mut();
    // SAFETY: the test's own objects, which it destroys at its end.
    let status = unsafe { (*(*qp).context).ops.post_send.unwrap()(qp, list.as_mut_ptr(), &raw mut bad) };
    let at = list.iter().position(|wr| std::ptr::eq(wr, bad)).unwrap_or(list.len());
    (status, at)
}

fn link(list: &mut [ibv_send_wr]) {
    let start = list.as_mut_ptr();
    for at in 1..list.len() {
        // SAFETY: both positions are in the list.
        unsafe { (*start.add(at - 1)).next = start.add(at) };
    }
}

pub(crate) fn receive(wr_id: u64, list: &mut [ibv_sge]) -> ibv_recv_wr {
    let num_sge = c_int::try_from(list.len()).unwrap();
    ibv_recv_wr { wr_id, next: null_mut(), sg_list: list.as_mut_ptr(), num_sge }
}

pub(crate) fn post_receive(qp: *mut ibv_qp, wr_id: u64, sge: ibv_sge) -> c_int {
    let mut list = [sge];
    let mut wr = receive(wr_id, &mut list);
    let mut bad = null_mut();
    // SAFETY: the test's own objects, which it destroys at its end.
    unsafe { (*(*qp).context).ops.post_recv.unwrap()(qp, &raw mut wr, &raw mut bad) }
}

/// Returns the next `count` completions.
pub(crate) fn completions(cq: *mut ibv_cq, count: usize) -> Vec<ibv_wc> {
    let deadline = Instant::now() + BOUND;
    let mut got = Vec::new();
    while got.len() < count {
        let mut batch = [ibv_wc::default(); 8];
        let room = batch.len().min(count - got.len());
        // SAFETY: the CQ is not destroyed yet, and the array has room for that number of completions.
        let found = unsafe {
            (*(*cq).context).ops.poll_cq.unwrap()(cq, c_int::try_from(room).unwrap(), batch.as_mut_ptr())
        };
        got.extend_from_slice(&batch[..usize::try_from(found).unwrap()]);
        assert!(Instant::now() < deadline, "{} of {count} completions came", got.len());
        if found == 0 {
            std::thread::yield_now();
        }
    }
    got
}
