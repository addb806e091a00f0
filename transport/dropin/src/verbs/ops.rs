//! The tables that the inline functions in `<infiniband/verbs.h>` use.
//!
//! Most of these functions return `EOPNOTSUPP` if their table entry is absent. The entries that they call without a check
//! (`close_xrcd`, `dealloc_mw`, `bind_mw`, `poll_cq`, `req_notify_cq`, `post_*`) are always present.

use super::{cq, cq_ex, missing, port, post, qp, query, srq, xrcd};
use crate::abi::*;
use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr::{null, null_mut, without_provenance_mut};

/// Returns the tables for a new context.
pub(crate) fn table(device: *mut ibv_device, async_fd: c_int) -> verbs_context {
    verbs_context {
        query_port: Some(port::query_port),
        advise_mr: Some(missing::advise_mr),
        alloc_null_mr: null(),
        read_counters: null(),
        attach_counters_point_flow: null(),
        create_counters: null(),
        destroy_counters: null(),
        reg_dm_mr: null(),
        alloc_dm: null(),
        free_dm: null(),
        modify_flow_action_esp: null(),
        destroy_flow_action: null(),
        create_flow_action_esp: null(),
        modify_qp_rate_limit: null(),
        alloc_parent_domain: null(),
        dealloc_td: null(),
        alloc_td: null(),
        modify_cq: null(),
        post_srq_ops: null(),
        destroy_rwq_ind_table: null(),
        create_rwq_ind_table: null(),
        destroy_wq: null(),
        modify_wq: null(),
        create_wq: null(),
        query_rt_values: None,
        create_cq_ex: Some(cq_ex::create_cq_ex),
        r#priv: null_mut(),
        query_device_ex: Some(query::query_device_ex),
        ibv_destroy_flow: null(),
        abi_placeholder2: null(),
        ibv_create_flow: null(),
        abi_placeholder1: null(),
        open_qp: Some(qp::open_qp),
        create_qp_ex: Some(qp::create_qp_ex),
        get_srq_num: Some(srq::get_srq_num),
        create_srq_ex: Some(srq::create_srq_ex),
        open_xrcd: Some(xrcd::open_xrcd),
        close_xrcd: Some(xrcd::close_xrcd),
        abi_placeholder3: 0,
        sz: size_of::<verbs_context>(),
        context: ibv_context {
            device,
            ops: work(),
            // The device has no kernel file.
            cmd_fd: -1,
            async_fd,
            num_comp_vectors: 1,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            // __VERBS_ABI_IS_EXTENDED: all ones.
            abi_compat: without_provenance_mut(usize::MAX),
        },
    }
}

fn work() -> ibv_context_ops {
    ibv_context_ops {
        _compat_query_device: null(),
        _compat_query_port: null(),
        _compat_alloc_pd: null(),
        _compat_dealloc_pd: null(),
        _compat_reg_mr: null(),
        _compat_rereg_mr: null(),
        _compat_dereg_mr: null(),
        alloc_mw: None,
        bind_mw: Some(missing::bind_mw),
        dealloc_mw: Some(missing::dealloc_mw),
        _compat_create_cq: null(),
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        _compat_cq_event: null(),
        _compat_resize_cq: null(),
        _compat_destroy_cq: null(),
        _compat_create_srq: null(),
        _compat_modify_srq: null(),
        _compat_query_srq: null(),
        _compat_destroy_srq: null(),
        post_srq_recv: Some(post::post_srq_recv),
        _compat_create_qp: null(),
        _compat_query_qp: null(),
        _compat_modify_qp: null(),
        _compat_destroy_qp: null(),
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        _compat_create_ah: null(),
        _compat_destroy_ah: null(),
        _compat_attach_mcast: null(),
        _compat_detach_mcast: null(),
        _compat_async_event: null(),
    }
}

// `verbs_get_ctx` subtracts this offset and expects this size (`infiniband/verbs.h` of rdma-core 44).
const _: () = assert!(offset_of!(verbs_context, context) == 320 && size_of::<verbs_context>() == 648);
