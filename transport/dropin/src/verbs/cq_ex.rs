//! Extended completion queues: one completion at a time, read field by field.
//!
//! Between a `start_poll` that found something and `end_poll` the CQ belongs to the calling
//! thread. All fields of a completion can be read, but for those that a RoCE device without
//! time stamps, VLANs, flow tags and tag matching has not; asking for these is `EOPNOTSUPP`.

use super::convert::completion;
use super::cq::create;
use super::objects::cq_ex_of;
use super::spin::polled;
use crate::abi::*;
use crate::border::{Errno, guarded, object};
use std::ffi::{c_int, c_uint};
use trunkline_verbs::Completion;

/// The fields that a CQ was asked for: `IBV_WC_EX_WITH_*`.
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
        // SAFETY: the caller's request, read once.
        let init = unsafe { init.read() };
        // A parent domain cannot be had on this device, so nobody can pass one.
        if init.comp_mask & !IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 || init.wc_flags & !KNOWN != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let flags = if init.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS == 0 { 0 } else { init.flags };
        if flags & !(IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let wanted = Readers(init.wc_flags);
        // SAFETY: passed on from the caller.
        unsafe { create(context, init.cqe, init.cq_context, init.channel, init.comp_vector, wanted) }
    })
    .cast()
}

/// The C structure of a CQ.
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

/// Takes one completion; 0, or `ENOENT` when there is none.
unsafe fn advance(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: a CQ of the caller's, whose turn it is.
    let object = unsafe { cq_ex_of(cq) };
    let mut next = [Completion::default()];
    let found = object.inner.poll(&mut next) > 0;
    polled(found);
    if !found {
        return libc::ENOENT;
    }
    let wc = completion(&next[0]);
    // SAFETY: whose turn it is writes these; the program reads them in the same turn.
    unsafe {
        *object.current.get() = next[0];
        (*cq).status = wc.status;
        (*cq).wr_id = wc.wr_id;
    }
    0
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the caller's attributes, perhaps none.
        if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
            return libc::EINVAL;
        }
        // SAFETY: a CQ of the caller's.
        let turn = unsafe { &cq_ex_of(cq).turn };
        turn.take();
        // SAFETY: as above.
        let answer = unsafe { advance(cq) };
        if answer != 0 {
            // The manual: end_poll is not called then.
            turn.give_back();
        }
        answer
    })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: a CQ of the caller's, between start_poll and end_poll.
    guarded(libc::EIO, || unsafe { advance(cq) })
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: as for next_poll.
    guarded((), || unsafe { cq_ex_of(cq) }.turn.give_back());
}

/// The completion that is being read.
unsafe fn current(cq: *mut ibv_cq_ex) -> ibv_wc {
    // SAFETY: a CQ of the caller's, whose turn it is.
    guarded(ibv_wc::default(), || completion(unsafe { &*cq_ex_of(cq).current.get() }))
}

macro_rules! reader {
    ($name:ident, $field:ident, $answer:ty) => {
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $answer {
            // SAFETY: called between start_poll and end_poll.
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
