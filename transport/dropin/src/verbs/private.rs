//! Symbols that providers' libraries (libmlx5, libefa) import from libibverbs.
//!
//! If a program uses such a library directly, the loader loads it together with this library and must find these symbols.
//! The provider's library registers itself with `verbs_register_driver_34`, which is a no-op here. It is therefore never
//! given a device, and does not call the other functions, which return `EOPNOTSUPP`. The functions have no parameters,
//! which is compatible with any call from C.

use crate::border::Errno;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

macro_rules! refused {
    ($($name:ident)*) => {
        $(
            /// Symbol for providers' libraries. Returns `EOPNOTSUPP`.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> c_int {
                Errno::EOPNOTSUPP.set();
                libc::EOPNOTSUPP
            }
        )*
    };
}

refused! {
    __ioctl_final_num_attrs
    execute_ioctl
    ibv_cmd_advise_mr
    ibv_cmd_alloc_dm
    ibv_cmd_alloc_mw
    ibv_cmd_alloc_pd
    ibv_cmd_attach_mcast
    ibv_cmd_close_xrcd
    ibv_cmd_create_ah
    ibv_cmd_create_counters
    ibv_cmd_create_cq
    ibv_cmd_create_cq_ex
    ibv_cmd_create_flow
    ibv_cmd_create_flow_action_esp
    ibv_cmd_create_qp
    ibv_cmd_create_qp_ex
    ibv_cmd_create_qp_ex2
    ibv_cmd_create_rwq_ind_table
    ibv_cmd_create_srq
    ibv_cmd_create_srq_ex
    ibv_cmd_create_wq
    ibv_cmd_dealloc_mw
    ibv_cmd_dealloc_pd
    ibv_cmd_dereg_mr
    ibv_cmd_destroy_ah
    ibv_cmd_destroy_counters
    ibv_cmd_destroy_cq
    ibv_cmd_destroy_flow
    ibv_cmd_destroy_flow_action
    ibv_cmd_destroy_qp
    ibv_cmd_destroy_rwq_ind_table
    ibv_cmd_destroy_srq
    ibv_cmd_destroy_wq
    ibv_cmd_detach_mcast
    ibv_cmd_free_dm
    ibv_cmd_get_context
    ibv_cmd_modify_cq
    ibv_cmd_modify_flow_action_esp
    ibv_cmd_modify_qp
    ibv_cmd_modify_qp_ex
    ibv_cmd_modify_srq
    ibv_cmd_modify_wq
    ibv_cmd_open_qp
    ibv_cmd_open_xrcd
    ibv_cmd_poll_cq
    ibv_cmd_post_recv
    ibv_cmd_post_send
    ibv_cmd_post_srq_recv
    ibv_cmd_query_context
    ibv_cmd_query_device_any
    ibv_cmd_query_mr
    ibv_cmd_query_port
    ibv_cmd_query_qp
    ibv_cmd_query_srq
    ibv_cmd_read_counters
    ibv_cmd_reg_dm_mr
    ibv_cmd_reg_dmabuf_mr
    ibv_cmd_reg_mr
    ibv_cmd_req_notify_cq
    ibv_cmd_rereg_mr
    ibv_cmd_resize_cq
}

/// Registers a provider. This is a no-op, because there is no kernel device for the provider.
#[unsafe(no_mangle)]
pub extern "C" fn verbs_register_driver_34(_ops: *const c_void) {}

/// Older name of [`verbs_register_driver_34`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_register_driver(_name: *const c_void, _init: *const c_void) {}

/// Logs for a provider. This is a no-op.
#[unsafe(no_mangle)]
pub extern "C" fn __verbs_log() {}

/// Returns NULL and sets `errno` to `EOPNOTSUPP`.
#[unsafe(no_mangle)]
pub extern "C" fn _verbs_init_and_alloc_context() -> *mut c_void {
    Errno::EOPNOTSUPP.set();
    null_mut()
}

/// Returns NULL and sets `errno` to `EOPNOTSUPP`.
#[unsafe(no_mangle)]
pub extern "C" fn verbs_open_device() -> *mut c_void {
    Errno::EOPNOTSUPP.set();
    null_mut()
}

/// No-op.
#[unsafe(no_mangle)]
pub extern "C" fn verbs_init_cq() {}

/// No-op.
#[unsafe(no_mangle)]
pub extern "C" fn verbs_set_ops() {}

/// No-op.
#[unsafe(no_mangle)]
pub extern "C" fn verbs_uninit_context() {}

/// A flag of rdma-core, with the value that rdma-core gives it.
#[unsafe(no_mangle)]
pub static verbs_allow_disassociate_destroy: u8 = 0;
