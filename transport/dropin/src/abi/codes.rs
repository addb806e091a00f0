//! Constants from the headers that this library uses.

use std::ffi::c_uint;

macro_rules! codes {
    ($list:ident; $($name:ident: $kind:ty = $value:expr;)*) => {
        $(pub const $name: $kind = $value;)*

        /// Returns all constants, to be compared with the headers.
        #[cfg(test)]
        pub(super) fn $list() -> Vec<(&'static str, u64)> {
            vec![$((stringify!($name), u64::from($value as u32))),*]
        }
    };
}

pub(super) use codes as declare;

/// Result of an `ibv_rereg_mr` that left the region unchanged.
pub const IBV_REREG_MR_ERR_INPUT: std::ffi::c_int = -1;

codes! { codes;
    IBV_GID_TYPE_ROCE_V1: c_uint = 1;
    IBV_GID_TYPE_ROCE_V2: c_uint = 2;
    IBV_NODE_CA: c_uint = 1;
    IBV_TRANSPORT_IB: c_uint = 0;
    IBV_DEVICE_RC_RNR_NAK_GEN: c_uint = 1 << 12;
    IBV_DEVICE_SYS_IMAGE_GUID: c_uint = 1 << 11;
    IBV_DEVICE_SRQ_RESIZE: c_uint = 1 << 13;
    IBV_DEVICE_XRC: c_uint = 1 << 20;
    IBV_ATOMIC_NONE: c_uint = 0;
    IBV_ATOMIC_HCA: c_uint = 1;
    IBV_PORT_DOWN: c_uint = 1;
    IBV_PORT_ACTIVE: c_uint = 4;
    IBV_LINK_LAYER_ETHERNET: u8 = 2;
    IBV_PORT_CM_SUP: c_uint = 1 << 16;
    IBV_PORT_IP_BASED_GIDS: c_uint = 1 << 26;
    IBV_EVENT_CQ_ERR: c_uint = 0;
    IBV_EVENT_QP_FATAL: c_uint = 1;
    IBV_EVENT_QP_REQ_ERR: c_uint = 2;
    IBV_EVENT_QP_ACCESS_ERR: c_uint = 3;
    IBV_EVENT_COMM_EST: c_uint = 4;
    IBV_EVENT_SQ_DRAINED: c_uint = 5;
    IBV_EVENT_PATH_MIG: c_uint = 6;
    IBV_EVENT_PATH_MIG_ERR: c_uint = 7;
    IBV_EVENT_DEVICE_FATAL: c_uint = 8;
    IBV_EVENT_PORT_ACTIVE: c_uint = 9;
    IBV_EVENT_PORT_ERR: c_uint = 10;
    IBV_EVENT_LID_CHANGE: c_uint = 11;
    IBV_EVENT_PKEY_CHANGE: c_uint = 12;
    IBV_EVENT_SM_CHANGE: c_uint = 13;
    IBV_EVENT_SRQ_ERR: c_uint = 14;
    IBV_EVENT_SRQ_LIMIT_REACHED: c_uint = 15;
    IBV_EVENT_QP_LAST_WQE_REACHED: c_uint = 16;
    IBV_EVENT_CLIENT_REREGISTER: c_uint = 17;
    IBV_EVENT_GID_CHANGE: c_uint = 18;
    IBV_WC_SUCCESS: c_uint = 0;
    IBV_WC_TM_RNDV_INCOMPLETE: c_uint = 23;
    IBV_WC_SEND: c_uint = 0;
    IBV_WC_RDMA_WRITE: c_uint = 1;
    IBV_WC_RDMA_READ: c_uint = 2;
    IBV_WC_COMP_SWAP: c_uint = 3;
    IBV_WC_FETCH_ADD: c_uint = 4;
    IBV_WC_RECV: c_uint = 1 << 7;
    IBV_WC_RECV_RDMA_WITH_IMM: c_uint = 129;
    IBV_WC_GRH: c_uint = 1;
    IBV_WC_WITH_IMM: c_uint = 2;
    IBV_WC_EX_WITH_BYTE_LEN: u64 = 1;
    IBV_WC_EX_WITH_IMM: u64 = 2;
    IBV_WC_EX_WITH_QP_NUM: u64 = 4;
    IBV_WC_EX_WITH_SRC_QP: u64 = 8;
    IBV_WC_EX_WITH_SLID: u64 = 16;
    IBV_WC_EX_WITH_SL: u64 = 1 << 5;
    IBV_WC_EX_WITH_DLID_PATH_BITS: u64 = 1 << 6;
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP: u64 = 1 << 7;
    IBV_CQ_INIT_ATTR_MASK_FLAGS: c_uint = 1;
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED: c_uint = 1;
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN: c_uint = 2;
    IBV_ACCESS_LOCAL_WRITE: c_uint = 1;
    IBV_ACCESS_REMOTE_WRITE: c_uint = 2;
    IBV_ACCESS_REMOTE_READ: c_uint = 4;
    IBV_ACCESS_REMOTE_ATOMIC: c_uint = 8;
    IBV_ACCESS_MW_BIND: c_uint = 16;
    IBV_ACCESS_ZERO_BASED: c_uint = 1 << 5;
    IBV_ACCESS_ON_DEMAND: c_uint = 1 << 6;
    IBV_ACCESS_HUGETLB: c_uint = 1 << 7;
    IBV_ACCESS_RELAXED_ORDERING: c_uint = 1 << 20;
    IBV_ACCESS_OPTIONAL_RANGE: c_uint = 0x3ff00000;
    IBV_XRCD_INIT_ATTR_FD: c_uint = 1;
    IBV_XRCD_INIT_ATTR_OFLAGS: c_uint = 2;
    IBV_XRCD_INIT_ATTR_RESERVED: c_uint = 4;
    IBV_SRQ_MAX_WR: c_uint = 1;
    IBV_SRQ_LIMIT: c_uint = 2;
    IBV_SRQT_BASIC: c_uint = 0;
    IBV_SRQT_XRC: c_uint = 1;
    IBV_SRQT_TM: c_uint = 2;
    IBV_SRQ_INIT_ATTR_TYPE: c_uint = 1;
    IBV_SRQ_INIT_ATTR_PD: c_uint = 2;
    IBV_SRQ_INIT_ATTR_XRCD: c_uint = 4;
    IBV_SRQ_INIT_ATTR_CQ: c_uint = 8;
    IBV_SRQ_INIT_ATTR_RESERVED: c_uint = 1 << 5;
    IBV_QPT_RC: c_uint = 2;
    IBV_QPT_UC: c_uint = 3;
    IBV_QPT_UD: c_uint = 4;
    IBV_QPT_RAW_PACKET: c_uint = 8;
    IBV_QPT_XRC_SEND: c_uint = 9;
    IBV_QPT_XRC_RECV: c_uint = 10;
    IBV_QPT_DRIVER: c_uint = 255;
    IBV_QP_INIT_ATTR_PD: c_uint = 1;
    IBV_QP_INIT_ATTR_XRCD: c_uint = 2;
    IBV_QP_INIT_ATTR_CREATE_FLAGS: c_uint = 4;
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: c_uint = 1 << 6;
    IBV_QP_EX_WITH_RDMA_WRITE: u64 = 1;
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: u64 = 2;
    IBV_QP_EX_WITH_SEND: u64 = 4;
    IBV_QP_EX_WITH_SEND_WITH_IMM: u64 = 8;
    IBV_QP_EX_WITH_RDMA_READ: u64 = 16;
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
    IBV_QP_EX_WITH_LOCAL_INV: u64 = 1 << 7;
    IBV_QP_OPEN_ATTR_NUM: c_uint = 1;
    IBV_QP_OPEN_ATTR_XRCD: c_uint = 2;
    IBV_QP_OPEN_ATTR_CONTEXT: c_uint = 4;
    IBV_QP_OPEN_ATTR_TYPE: c_uint = 8;
    IBV_QP_OPEN_ATTR_RESERVED: c_uint = 16;
    IBV_QP_STATE: c_uint = 1;
    IBV_QP_CUR_STATE: c_uint = 2;
    IBV_QP_EN_SQD_ASYNC_NOTIFY: c_uint = 4;
    IBV_QP_ACCESS_FLAGS: c_uint = 8;
    IBV_QP_PKEY_INDEX: c_uint = 16;
    IBV_QP_PORT: c_uint = 1 << 5;
    IBV_QP_QKEY: c_uint = 1 << 6;
    IBV_QP_AV: c_uint = 1 << 7;
    IBV_QP_PATH_MTU: c_uint = 1 << 8;
    IBV_QP_TIMEOUT: c_uint = 1 << 9;
    IBV_QP_RETRY_CNT: c_uint = 1 << 10;
    IBV_QP_RNR_RETRY: c_uint = 1 << 11;
    IBV_QP_RQ_PSN: c_uint = 1 << 12;
    IBV_QP_MAX_QP_RD_ATOMIC: c_uint = 1 << 13;
    IBV_QP_ALT_PATH: c_uint = 1 << 14;
    IBV_QP_MIN_RNR_TIMER: c_uint = 1 << 15;
    IBV_QP_SQ_PSN: c_uint = 1 << 16;
    IBV_QP_MAX_DEST_RD_ATOMIC: c_uint = 1 << 17;
    IBV_QP_PATH_MIG_STATE: c_uint = 1 << 18;
    IBV_QP_CAP: c_uint = 1 << 19;
    IBV_QP_DEST_QPN: c_uint = 1 << 20;
    IBV_QPS_RESET: c_uint = 0;
    IBV_QPS_INIT: c_uint = 1;
    IBV_QPS_RTR: c_uint = 2;
    IBV_QPS_RTS: c_uint = 3;
    IBV_QPS_SQD: c_uint = 4;
    IBV_QPS_SQE: c_uint = 5;
    IBV_QPS_ERR: c_uint = 6;
    IBV_QPS_UNKNOWN: c_uint = 7;
    IBV_MIG_MIGRATED: c_uint = 0;
    IBV_WR_RDMA_WRITE: c_uint = 0;
    IBV_WR_RDMA_WRITE_WITH_IMM: c_uint = 1;
    IBV_WR_SEND: c_uint = 2;
    IBV_WR_SEND_WITH_IMM: c_uint = 3;
    IBV_WR_RDMA_READ: c_uint = 4;
    IBV_WR_ATOMIC_CMP_AND_SWP: c_uint = 5;
    IBV_WR_ATOMIC_FETCH_AND_ADD: c_uint = 6;
    IBV_WR_LOCAL_INV: c_uint = 7;
    IBV_WR_BIND_MW: c_uint = 8;
    IBV_WR_SEND_WITH_INV: c_uint = 9;
    IBV_WR_TSO: c_uint = 10;
    IBV_WR_ATOMIC_WRITE: c_uint = 15;
    IBV_SEND_FENCE: c_uint = 1;
    IBV_SEND_SIGNALED: c_uint = 2;
    IBV_SEND_SOLICITED: c_uint = 4;
    IBV_SEND_INLINE: c_uint = 8;
}
