//! Queue pairs with the posting functions of `ibv_wr_*`.

use super::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_sge};
use std::ffi::{c_int, c_uint, c_void};

type Op<A> = Option<A>;

#[repr(C)]
pub struct ibv_qp_ex {
    pub qp_base: ibv_qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub wr_atomic_cmp_swp: Op<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64)>,
    pub wr_atomic_fetch_add: Op<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64)>,
    pub wr_bind_mw: Op<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_mw, u32, *const ibv_mw_bind_info)>,
    pub wr_local_inv: Op<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    pub wr_rdma_read: Op<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    pub wr_rdma_write: Op<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    pub wr_rdma_write_imm: Op<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    pub wr_send: Op<unsafe extern "C" fn(*mut ibv_qp_ex)>,
    pub wr_send_imm: Op<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    pub wr_send_inv: Op<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    pub wr_send_tso: Op<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, u16, u16)>,
    pub wr_set_ud_addr: Op<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32)>,
    pub wr_set_xrc_srqn: Op<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    pub wr_set_inline_data: Op<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize)>,
    pub wr_set_inline_data_list: Op<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf)>,
    pub wr_set_sge: Op<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    pub wr_set_sge_list: Op<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge)>,
    pub wr_start: Op<unsafe extern "C" fn(*mut ibv_qp_ex)>,
    pub wr_complete: Op<unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int>,
    pub wr_abort: Op<unsafe extern "C" fn(*mut ibv_qp_ex)>,
    pub wr_atomic_write: Op<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const c_void)>,
}
