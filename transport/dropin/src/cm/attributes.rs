//! Converts [`QpModify`] to `ibv_qp_attr` and its attribute mask.
#![forbid(unsafe_code)]

use crate::abi::*;
use crate::verbs::convert::state_code;
use std::ffi::{c_int, c_uint};
use trunkline_verbs::{AddressVector, QpModify};

/// Converts a change to C.
pub(super) fn for_c(change: &QpModify) -> (ibv_qp_attr, c_int) {
    let mut mask = 0;
    let mut c = ibv_qp_attr::default();
    let mut given = |bit: c_uint, is_given: bool| mask |= if is_given { bit } else { 0 };
    given(IBV_QP_STATE, change.state.is_some());
    c.qp_state = change.state.map_or(0, state_code);
    given(IBV_QP_ACCESS_FLAGS, change.access.is_some());
    c.qp_access_flags = change.access.map_or(0, |access| access.bits());
    given(IBV_QP_PKEY_INDEX, change.pkey_index.is_some());
    c.pkey_index = change.pkey_index.unwrap_or(0);
    given(IBV_QP_PORT, change.port.is_some());
    c.port_num = change.port.unwrap_or(0);
    given(IBV_QP_AV, change.address_vector.is_some());
    c.ah_attr = change.address_vector.map(|vector| address(&vector)).unwrap_or_default();
    given(IBV_QP_PATH_MTU, change.path_mtu.is_some());
    c.path_mtu = change.path_mtu.map_or(0, |mtu| c_uint::from(mtu.code()));
    given(IBV_QP_TIMEOUT, change.timeout.is_some());
    c.timeout = change.timeout.unwrap_or(0);
    given(IBV_QP_RETRY_CNT, change.retry_count.is_some());
    c.retry_cnt = change.retry_count.unwrap_or(0);
    given(IBV_QP_RNR_RETRY, change.rnr_retry.is_some());
    c.rnr_retry = change.rnr_retry.unwrap_or(0);
    given(IBV_QP_RQ_PSN, change.rq_psn.is_some());
    c.rq_psn = change.rq_psn.map_or(0, |psn| psn.get());
    given(IBV_QP_SQ_PSN, change.sq_psn.is_some());
    c.sq_psn = change.sq_psn.map_or(0, |psn| psn.get());
    given(IBV_QP_MAX_QP_RD_ATOMIC, change.max_rd_atomic.is_some());
    c.max_rd_atomic = change.max_rd_atomic.unwrap_or(0);
    given(IBV_QP_MAX_DEST_RD_ATOMIC, change.max_dest_rd_atomic.is_some());
    c.max_dest_rd_atomic = change.max_dest_rd_atomic.unwrap_or(0);
    given(IBV_QP_MIN_RNR_TIMER, change.min_rnr_timer.is_some());
    c.min_rnr_timer = change.min_rnr_timer.unwrap_or(0);
    given(IBV_QP_DEST_QPN, change.destination_qp.is_some());
    c.dest_qp_num = change.destination_qp.map_or(0, |number| number.get());
    (c, c_int::try_from(mask).unwrap_or(0))
}

fn address(vector: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: vector.destination.0 },
            flow_label: vector.flow_label,
            sgid_index: u8::try_from(vector.source_gid_index).unwrap_or(0),
            hop_limit: vector.hop_limit,
            traffic_class: vector.traffic_class,
        },
        is_global: 1,
        port_num: vector.port,
        ..ibv_ah_attr::default()
    }
}
