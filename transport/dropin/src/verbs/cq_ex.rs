//! Extended completion queues, from which programs read one completion at a time, field by field.
//!
//! From a `start_poll` that finds a completion until `end_poll`, the CQ belongs to the calling thread. This device does not
//! support time stamps, VLANs, flow tags and tag matching. A request for a CQ with one of these returns `EOPNOTSUPP`. All
//! other fields of a completion can be read.

use super::convert::completion;
use super::cq::create;
use super::spin::polled;
use crate::abi::*;
use crate::border::{Errno, Handle, In, field, guarded, object};
use std::ffi::{c_int, c_uint};
use trunkline_verbs::Completion;

/// Fields of completions that the program reads, as bits of `IBV_WC_EX_WITH_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Readers(u64);

const KNOWN: u64 = IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS;

impl Readers {
    pub(super) const fn empty() -> Self {
        Self(0)
    }

    fn when<T>(self, bit: u64, reader: T) -> Option<T> {
        (self.0 & bit != 0).then_some(reader)
    }
}

/// `ibv_create_cq_ex(3)`.
pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    object(|| {
        // SAFETY: as `ibv_create_cq_ex(3)` requires, the program passes an open context, and
        // attributes that do not change during the call.
        let (context, init) = unsafe { (Handle::new(context)?, In::new(init)?) };
        // This device does not support parent domains, so programs cannot pass one.
        if init.comp_mask & !IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 || init.wc_flags & !KNOWN != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let flags = if init.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS == 0 { 0 } else { init.flags };
        if flags & !(IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let wanted = Readers(init.wc_flags);
        // SAFETY: as `ibv_create_cq_ex(3)` requires, the channel is live or null.
        let channel = unsafe { Handle::optional(init.channel) };
        Ok(create(context, init.cqe, init.cq_context, channel, init.comp_vector, wanted)?.as_ptr())
    })
}

/// Returns the C structure of a CQ with functions for the fields in `wanted`.
pub(super) fn readers(base: ibv_cq, wanted: Readers) -> ibv_cq_ex {
    ibv_cq_ex {
        base,
        comp_mask: 0,
        status: 0,
        wr_id: 0,
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_vendor_err),
        read_byte_len: wanted.when(IBV_WC_EX_WITH_BYTE_LEN, read_byte_len),
        read_imm_data: wanted.when(IBV_WC_EX_WITH_IMM, read_imm_data),
        read_qp_num: wanted.when(IBV_WC_EX_WITH_QP_NUM, read_qp_num),
        read_src_qp: wanted.when(IBV_WC_EX_WITH_SRC_QP, read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: wanted.when(IBV_WC_EX_WITH_SLID, read_slid),
        read_sl: wanted.when(IBV_WC_EX_WITH_SL, read_sl),
        read_dlid_path_bits: wanted.when(IBV_WC_EX_WITH_DLID_PATH_BITS, read_dlid_path_bits),
        read_completion_ts: None,
        read_cvlan: None,
        read_flow_tag: None,
        read_tm_info: None,
        read_completion_wallclock_ns: None,
    }
}

/// Takes the next completion. Returns 0, or `ENOENT` if the CQ is empty.
///
/// # Safety
/// The calling thread holds the lock of the CQ's [`Turn`](super::turn::Turn).
unsafe fn advance(cq: Handle<'_, ibv_cq_ex>) -> c_int {
    let mut next = [Completion::default()];
    let found = cq.inner.poll(&mut next) > 0;
    polled(found);
    if !found {
        return libc::ENOENT;
    }
    let wc = completion(&next[0]);
    // SAFETY: the calling thread holds the lock, by this function's contract.
    unsafe { cq.turn.with(|current| *current = next[0]) };
    cq.set(field!(ibv_cq_ex, status), wc.status);
    cq.set(field!(ibv_cq_ex, wr_id), wc.wr_id);
    0
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: as `ibv_create_cq_ex(3)` requires, the program passes a live CQ, and attributes or null.
        let (cq, attr) = unsafe { (Handle::new(cq), In::optional(attr)) };
        let Ok(cq) = cq else { return libc::EINVAL };
        if attr.is_some_and(|attr| attr.comp_mask != 0) {
            return libc::EINVAL;
        }
        cq.turn.take();
        // SAFETY: this thread took the lock above.
        let status = unsafe { advance(cq) };
        if status != 0 {
            // The program does not call `end_poll` after a failure (`ibv_create_cq_ex(3)`).
            cq.turn.release();
        }
        status
    })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: as `ibv_create_cq_ex(3)` requires, the thread that called `start_poll` makes this call, before
    // `end_poll`.
    guarded(libc::EIO, || unsafe { Handle::new(cq).map_or(libc::EINVAL, |cq| advance(cq)) })
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    guarded((), || {
        // SAFETY: as `ibv_create_cq_ex(3)` requires, the program passes a live CQ.
        if let Some(cq) = unsafe { Handle::optional(cq) } {
            cq.turn.release();
        }
    });
}

/// Returns the completion that is being read.
///
/// # Safety
/// `cq` is a live CQ, and the calling thread holds its lock.
unsafe fn current(cq: *mut ibv_cq_ex) -> ibv_wc {
    guarded(ibv_wc::default(), || {
        // SAFETY: this function's contract.
        let wc = unsafe { Handle::new(cq).map(|cq| cq.turn.with(|current| completion(current))) };
        wc.unwrap_or_default()
    })
}

macro_rules! reader {
    ($name:ident, $field:ident, $type:ty) => {
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: as `ibv_create_cq_ex(3)` requires, the thread that called `start_poll` makes this call,
            // before `end_poll`.
            unsafe { current(cq) }.$field.into()
        }
    };
}

reader!(read_opcode, opcode, c_uint);
reader!(read_vendor_err, vendor_err, u32);
reader!(read_byte_len, byte_len, u32);
reader!(read_imm_data, imm_data, u32);
reader!(read_qp_num, qp_num, u32);
reader!(read_src_qp, src_qp, u32);
reader!(read_wc_flags, wc_flags, c_uint);
reader!(read_slid, slid, u32);
reader!(read_sl, sl, u8);
reader!(read_dlid_path_bits, dlid_path_bits, u8);
