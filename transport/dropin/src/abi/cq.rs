//! Completion queues, completion channels, work completions and asynchronous events.

use super::{ibv_context, ibv_pd, ibv_qp, ibv_srq};
use libc::{pthread_cond_t, pthread_mutex_t};
use std::ffi::{c_int, c_uint, c_void};

#[repr(C)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
    pub refcnt: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Immediate data in network byte order, as in the packet.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_poll_cq_attr {
    pub comp_mask: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_wc_tm_info {
    pub tag: u64,
    pub r#priv: u32,
}

type Reader<T> = Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> T>;

/// Begins with the fields of `ibv_cq`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_cq_ex {
    pub base: ibv_cq,
    pub comp_mask: u32,
    pub status: c_uint,
    pub wr_id: u64,
    pub start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int>,
    pub next_poll: Reader<c_int>,
    pub end_poll: Reader<()>,
    pub read_opcode: Reader<c_uint>,
    pub read_vendor_err: Reader<u32>,
    pub read_byte_len: Reader<u32>,
    pub read_imm_data: Reader<u32>,
    pub read_qp_num: Reader<u32>,
    pub read_src_qp: Reader<u32>,
    pub read_wc_flags: Reader<c_uint>,
    pub read_slid: Reader<u32>,
    pub read_sl: Reader<u8>,
    pub read_dlid_path_bits: Reader<u8>,
    pub read_completion_ts: Reader<u64>,
    pub read_cvlan: Reader<u16>,
    pub read_flow_tag: Reader<u32>,
    pub read_tm_info: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_wc_tm_info)>,
    pub read_completion_wallclock_ns: Reader<u64>,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_cq_init_attr_ex {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut ibv_pd,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_modify_cq_attr {
    pub attr_mask: u32,
    pub cq_count: u16,
    pub cq_period: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_async_element {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub srq: *mut ibv_srq,
    pub wq: *mut c_void,
    pub port_num: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_async_event {
    pub element: ibv_async_element,
    pub event_type: c_uint,
}
