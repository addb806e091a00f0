//! `<rdma/rdma_cma.h>`: ids, events, addresses and parameters.

use super::{
    ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp, ibv_sa_path_rec, ibv_srq,
};
use libc::{sockaddr, sockaddr_storage, socklen_t};
use std::ffi::{c_char, c_int, c_uint, c_void};

super::codes::declare! { cma_codes;
    RDMA_CM_EVENT_ADDR_RESOLVED: c_uint = 0;
    RDMA_CM_EVENT_ADDR_ERROR: c_uint = 1;
    RDMA_CM_EVENT_ROUTE_RESOLVED: c_uint = 2;
    RDMA_CM_EVENT_ROUTE_ERROR: c_uint = 3;
    RDMA_CM_EVENT_CONNECT_REQUEST: c_uint = 4;
    RDMA_CM_EVENT_CONNECT_RESPONSE: c_uint = 5;
    RDMA_CM_EVENT_CONNECT_ERROR: c_uint = 6;
    RDMA_CM_EVENT_UNREACHABLE: c_uint = 7;
    RDMA_CM_EVENT_REJECTED: c_uint = 8;
    RDMA_CM_EVENT_ESTABLISHED: c_uint = 9;
    RDMA_CM_EVENT_DISCONNECTED: c_uint = 10;
    RDMA_CM_EVENT_DEVICE_REMOVAL: c_uint = 11;
    RDMA_CM_EVENT_MULTICAST_JOIN: c_uint = 12;
    RDMA_CM_EVENT_MULTICAST_ERROR: c_uint = 13;
    RDMA_CM_EVENT_ADDR_CHANGE: c_uint = 14;
    RDMA_CM_EVENT_TIMEWAIT_EXIT: c_uint = 15;
    RDMA_PS_IPOIB: c_uint = 0x0002;
    RDMA_PS_TCP: c_uint = 0x0106;
    RDMA_PS_UDP: c_uint = 0x0111;
    RDMA_PS_IB: c_uint = 0x013f;
    RDMA_MAX_RESP_RES: u8 = 0xff;
    RDMA_MAX_INIT_DEPTH: u8 = 0xff;
    RAI_PASSIVE: c_int = 1;
    RAI_NUMERICHOST: c_int = 2;
    RAI_NOROUTE: c_int = 4;
    RAI_FAMILY: c_int = 8;
    RDMA_OPTION_ID: c_int = 0;
    RDMA_OPTION_IB: c_int = 1;
    RDMA_OPTION_IB_PATH: c_int = 1;
    RDMA_OPTION_ID_TOS: c_int = 0;
    RDMA_OPTION_ID_REUSEADDR: c_int = 1;
    RDMA_OPTION_ID_AFONLY: c_int = 2;
    RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct rdma_ib_addr {
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
    pub pkey: u16,
}

/// Each union of the header is as large as its largest member.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_addr {
    pub src: sockaddr_storage,
    pub dst: sockaddr_storage,
    pub ibaddr: rdma_ib_addr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_route {
    pub addr: rdma_addr,
    pub path_rec: *mut ibv_sa_path_rec,
    pub num_paths: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_event_channel {
    pub fd: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_cm_id {
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    pub context: *mut c_void,
    pub qp: *mut ibv_qp,
    pub route: rdma_route,
    pub ps: c_uint,
    pub port_num: u8,
    pub event: *mut rdma_cm_event,
    pub send_cq_channel: *mut ibv_comp_channel,
    pub send_cq: *mut ibv_cq,
    pub recv_cq_channel: *mut ibv_comp_channel,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub pd: *mut ibv_pd,
    pub qp_type: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_conn_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_ud_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: ibv_ah_attr,
    pub qp_num: u32,
    pub qkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_cm_event_param {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: c_uint,
    pub status: c_int,
    pub param: rdma_cm_event_param,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_addrinfo {
    pub ai_flags: c_int,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: socklen_t,
    pub ai_dst_len: socklen_t,
    pub ai_src_addr: *mut sockaddr,
    pub ai_dst_addr: *mut sockaddr,
    pub ai_src_canonname: *mut c_char,
    pub ai_dst_canonname: *mut c_char,
    pub ai_route_len: usize,
    pub ai_route: *mut c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *mut c_void,
    pub ai_next: *mut Self,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_cm_join_mc_attr_ex {
    pub comp_mask: u32,
    pub join_flags: u32,
    pub addr: *mut sockaddr,
}
