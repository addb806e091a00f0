//! Posting with `ibv_wr_*`.
//!
//! From `wr_start` to `wr_complete` or `wr_abort`, the QP belongs to the calling thread. The other functions in this file
//! may be called only in this interval (`ibv_wr_post(3)`). Each operation adds a request, the setters complete the request,
//! and `wr_complete` posts all requests or none. Operations and setters cannot return errors, so `wr_complete` returns the
//! first error among them.

use super::batch::{Batch, Bytes, Entry};
use super::post::{copy_in, send_flags, sge, sge_list};
use crate::abi::*;
use crate::border::{Errno, Handle, In, field, guarded, status};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use trunkline_verbs::{IoAddress, QpType, RemoteAddress, Rkey, SendFlags, SendOperation, SrqNumber};

/// The requests that the program has added since `wr_start`.
#[derive(Debug, Default)]
pub(crate) struct Posting {
    batch: Batch,
    /// The first error since `wr_start`.
    error: Option<Errno>,
    /// The QP's `send_ops_flags`. Operations that are not in these flags fail.
    allowed: u64,
}

/// The operations that can be enabled for a QP.
pub(super) const ALL_OPERATIONS: u64 = IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_SEND_WITH_IMM
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

impl Posting {
    pub(super) fn new(allowed: u64) -> Self {
        Self { allowed, ..Self::default() }
    }

    fn fail(&mut self, errno: Errno) {
        self.error.get_or_insert(errno);
    }

    /// Returns the request that a setter completes. A setter without a request is an error.
    fn last(&mut self) -> Option<&mut Entry> {
        if self.batch.entries.is_empty() {
            self.fail(Errno::EINVAL);
        }
        self.batch.entries.last_mut()
    }
}

/// `ibv_qp_to_qp_ex(3)`: returns NULL if the QP was created without `send_ops_flags`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: as `ibv_wr_post(3)` requires, the program passes a live QP.
    let is_extended = unsafe { Handle::optional(qp) }.is_some_and(|qp| qp.is_extended);
    if is_extended { qp.cast() } else { null_mut() }
}

/// Returns a QP's C structure with its table of posting functions.
pub(super) fn operations(base: ibv_qp) -> ibv_qp_ex {
    ibv_qp_ex {
        qp_base: base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp: Some(wr_atomic_cmp_swp),
        wr_atomic_fetch_add: Some(wr_atomic_fetch_add),
        wr_bind_mw: Some(wr_bind_mw),
        wr_local_inv: Some(wr_local_inv),
        wr_rdma_read: Some(wr_rdma_read),
        wr_rdma_write: Some(wr_rdma_write),
        wr_rdma_write_imm: Some(wr_rdma_write_imm),
        wr_send: Some(wr_send),
        wr_send_imm: Some(wr_send_imm),
        wr_send_inv: Some(wr_send_inv),
        wr_send_tso: Some(wr_send_tso),
        wr_set_ud_addr: Some(wr_set_ud_addr),
        wr_set_xrc_srqn: Some(wr_set_xrc_srqn),
        wr_set_inline_data: Some(wr_set_inline_data),
        wr_set_inline_data_list: Some(wr_set_inline_data_list),
        wr_set_sge: Some(wr_set_sge),
        wr_set_sge_list: Some(wr_set_sge_list),
        wr_start: Some(wr_start),
        wr_complete: Some(wr_complete),
        wr_abort: Some(wr_abort),
        wr_atomic_write: Some(wr_atomic_write),
    }
}

/// Calls `action` with the QP and the requests so far.
///
/// # Safety
/// `qp` must be null or a live QP, the calling thread must hold its lock, and `action` must not call a function of this
/// file.
unsafe fn with(qp: *mut ibv_qp_ex, action: impl FnOnce(Handle<'_, ibv_qp_ex>, &mut Posting)) {
    guarded((), || {
        // SAFETY: by this function's contract the QP is null or not destroyed.
        unsafe {
            if let Some(qp) = Handle::optional(qp) {
                qp.turn.with(|posting| action(qp, posting));
            }
        }
    });
}

/// Adds a request.
///
/// # Safety
/// Same as [`with`].
unsafe fn open(qp: *mut ibv_qp_ex, needs: u64, operation: SendOperation) {
    // SAFETY: by this function's contract the QP is null or not destroyed.
    unsafe {
        with(qp, |qp, posting| {
            let wr_id = qp.get(field!(ibv_qp_ex, wr_id));
            let wr_flags = qp.get(field!(ibv_qp_ex, wr_flags));
            if posting.allowed & needs == 0 {
                posting.fail(Errno::EOPNOTSUPP);
            }
            // IBV_SEND_INLINE has no effect, because the setter decides whether data is inline.
            let flags = send_flags(wr_flags & !IBV_SEND_INLINE).unwrap_or_else(|errno| {
                posting.fail(errno);
                SendFlags::empty()
            });
            let at = posting.batch.sges.len();
            let bytes = Bytes::Gather(at..at);
            let remote_srq = SrqNumber::new(0);
            posting.batch.entries.push(Entry { wr_id, operation, bytes, flags, remote_srq });
        });
    }
}

fn remote(rkey: u32, address: u64) -> RemoteAddress {
    RemoteAddress { address: IoAddress(address), rkey: Rkey(rkey) }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: as `ibv_wr_post(3)` requires, the program passes a live QP. This thread holds the QP's lock
    // after `take`.
    unsafe {
        guarded((), || {
            if let Some(qp) = Handle::optional(qp) {
                qp.turn.take();
            }
        });
        with(qp, |_, posting| {
            posting.batch.clear();
            posting.error = None;
        });
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    let mut result = Err(Errno::EIO);
    // SAFETY: as `ibv_wr_post(3)` requires, the thread that called `wr_start` makes this call.
    unsafe {
        with(qp, |qp, posting| {
            result = match posting.error {
                Some(errno) => Err(errno),
                None => posting.batch.post_whole(&*qp.inner).map_err(Errno::from),
            };
        });
        end_turn(qp);
    }
    status(|| result)
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: as `ibv_wr_post(3)` requires, the thread that called `wr_start` makes this call. The
    // next `wr_start` discards the requests.
    unsafe { end_turn(qp) };
}

/// # Safety
/// `qp` is null or a QP that the program has not destroyed.
unsafe fn end_turn(qp: *mut ibv_qp_ex) {
    guarded((), || {
        // SAFETY: by this function's contract the QP is null or not destroyed.
        if let Some(qp) = unsafe { Handle::optional(qp) } {
            qp.turn.release();
        }
    });
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: as `ibv_wr_post(3)` requires for this function and the following ones, the program passes a
    // live QP, and the thread that called `wr_start` makes the call before `wr_complete`.
    unsafe { open(qp, IBV_QP_EX_WITH_SEND, SendOperation::Send) }
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm_data: u32) {
    let operation = SendOperation::SendWithImmediate(u32::from_be(imm_data));
    // SAFETY: as for `wr_send`.
    unsafe { open(qp, IBV_QP_EX_WITH_SEND_WITH_IMM, operation) }
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, address: u64) {
    // SAFETY: as for `wr_send`.
    unsafe { open(qp, IBV_QP_EX_WITH_RDMA_WRITE, SendOperation::RdmaWrite(remote(rkey, address))) }
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, address: u64, imm_data: u32) {
    let operation = SendOperation::RdmaWriteWithImmediate(remote(rkey, address), u32::from_be(imm_data));
    // SAFETY: as for `wr_send`.
    unsafe { open(qp, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, operation) }
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, address: u64) {
    // SAFETY: as for `wr_send`.
    unsafe { open(qp, IBV_QP_EX_WITH_RDMA_READ, SendOperation::RdmaRead(remote(rkey, address))) }
}

unsafe extern "C" fn wr_atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, address: u64, compare: u64, swap: u64) {
    let operation = SendOperation::CompareSwap { remote: remote(rkey, address), compare, swap };
    // SAFETY: as for `wr_send`.
    unsafe { open(qp, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, operation) }
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, address: u64, add: u64) {
    let operation = SendOperation::FetchAdd { remote: remote(rkey, address), add };
    // SAFETY: as for `wr_send`.
    unsafe { open(qp, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, operation) }
}

/// Records an operation that this device does not support. `wr_complete` then returns `EOPNOTSUPP`.
///
/// # Safety
/// Same as [`with`].
unsafe fn missing(qp: *mut ibv_qp_ex) {
    // SAFETY: by this function's contract the QP is null or not destroyed.
    unsafe { with(qp, |_, posting| posting.fail(Errno::EOPNOTSUPP)) }
}

unsafe extern "C" fn wr_bind_mw(qp: *mut ibv_qp_ex, _: *mut ibv_mw, _: u32, _: *const ibv_mw_bind_info) {
    // SAFETY: as for `wr_send`.
    unsafe { missing(qp) }
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, _: u32) {
    // SAFETY: as for `wr_send`.
    unsafe { missing(qp) }
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, _: u32) {
    // SAFETY: as for `wr_send`.
    unsafe { missing(qp) }
}

unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, _: *mut c_void, _: u16, _: u16) {
    // SAFETY: as for `wr_send`.
    unsafe { missing(qp) }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, _: *mut ibv_ah, _: u32, _: u32) {
    // SAFETY: as for `wr_send`.
    unsafe { missing(qp) }
}

unsafe extern "C" fn wr_atomic_write(qp: *mut ibv_qp_ex, _: u32, _: u64, _: *const c_void) {
    // SAFETY: as for `wr_send`.
    unsafe { missing(qp) }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: as for `wr_send`.
    unsafe {
        with(qp, |qp, posting| {
            if qp.inner.qp_type() != QpType::XrcIni {
                posting.fail(Errno::EINVAL);
            }
            if let Some(entry) = posting.last() {
                entry.remote_srq = SrqNumber::new(remote_srqn);
            }
        });
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let piece = ibv_sge { addr, length, lkey };
    // SAFETY: as for `wr_send`. The list is local.
    unsafe { wr_set_sge_list(qp, 1, &raw const piece) }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, list: *const ibv_sge) {
    // SAFETY: as for `wr_send`. The program also passes `num_sge` entries that do not change during the call.
    unsafe {
        with(qp, |_, posting| {
            let start = posting.batch.sges.len();
            let list = match sge_list(list, num_sge) {
                Ok(list) => list,
                Err(errno) => return posting.fail(errno),
            };
            posting.batch.sges.extend(list.map(|piece| sge(&piece)));
            let end = posting.batch.sges.len();
            if let Some(entry) = posting.last() {
                entry.bytes = Bytes::Gather(start..end);
            }
        });
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let piece = ibv_data_buf { addr, length };
    // SAFETY: as for `wr_send`. The list is local.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const piece) }
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: as for `wr_send`. The program also passes `count` entries of readable memory, and
    // neither the entries nor the memory change during the call.
    unsafe {
        with(qp, |qp, posting| {
            let start = posting.batch.inline.len();
            let list = match In::array(list, count) {
                Ok(list) => list,
                Err(errno) => return posting.fail(errno),
            };
            let max = qp.inner.capacities().max_inline_data as usize;
            for piece in list.iter() {
                let so_far = posting.batch.inline.len() - start;
                let copied = if piece.length > max.saturating_sub(so_far) {
                    Err(Errno::EINVAL)
                } else {
                    copy_in(&mut posting.batch.inline, piece.addr.expose_provenance() as u64, piece.length)
                };
                if let Err(errno) = copied {
                    posting.fail(errno);
                    return;
                }
            }
            let end = posting.batch.inline.len();
            if let Some(entry) = posting.last() {
                entry.bytes = Bytes::Inline(start..end);
            }
        });
    }
}
