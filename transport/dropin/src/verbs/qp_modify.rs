//! Changes and queries of queue pairs (contract E).

use super::convert::{access, qp_state, state_code};
use super::qp::capacities;
use crate::abi::*;
use crate::border::{Errno, Handle, In, Out, field, status};
use std::ffi::{c_int, c_uint};
use trunkline_verbs::{AddressVector, Gid, Mtu, Psn, QpAttributes, QpModify, QpNumber, QpState};

/// `ibv_modify_qp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int {
    status(|| {
        // SAFETY: as `ibv_modify_qp(3)` requires, the program passes a live QP, and attributes that
        // do not change during the call. Only fields in the mask are read.
        let (qp, attr) = unsafe { (Handle::new(qp)?, In::new(attr)?) };
        let change = change(&attr, attr_mask.cast_unsigned())?;
        check_ignored(qp.inner.query()?.state, &change, attr_mask.cast_unsigned())?;
        qp.inner.modify(&change)?;
        if let Some(state) = change.state {
            qp.set(field!(ibv_qp, state), state_code(state));
        }
        Ok(())
    })
}

/// The attributes of RC and XRC QPs on any device.
const KNOWN: c_uint = IBV_QP_STATE
    | IBV_QP_CUR_STATE
    | IBV_QP_EN_SQD_ASYNC_NOTIFY
    | IBV_QP_ACCESS_FLAGS
    | IBV_QP_PKEY_INDEX
    | IBV_QP_PORT
    | IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_TIMEOUT
    | IBV_QP_RETRY_CNT
    | IBV_QP_RNR_RETRY
    | IBV_QP_RQ_PSN
    | IBV_QP_MAX_QP_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER
    | IBV_QP_SQ_PSN
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_PATH_MIG_STATE
    | IBV_QP_DEST_QPN;

/// Returns the change that a mask selects. Attributes outside the mask may be uninitialised.
pub(crate) fn change(attr: &ibv_qp_attr, mask: c_uint) -> Result<QpModify, Errno> {
    // Q_Keys, capacities and rates apply to other QP types, and alternate paths to other devices.
    if mask & !KNOWN != 0 {
        return Err(if mask & IBV_QP_ALT_PATH != 0 { Errno::EOPNOTSUPP } else { Errno::EINVAL });
    }
    if mask & IBV_QP_PATH_MIG_STATE != 0 && attr.path_mig_state != IBV_MIG_MIGRATED {
        return Err(Errno::EOPNOTSUPP);
    }
    let has = |bit| mask & bit != 0;
    let vector = if has(IBV_QP_AV) { Some(address_vector(&attr.ah_attr)?) } else { None };
    let state = if has(IBV_QP_STATE) { Some(qp_state(attr.qp_state)?) } else { None };
    let current_state = if has(IBV_QP_CUR_STATE) { Some(qp_state(attr.cur_qp_state)?) } else { None };
    let rights = if has(IBV_QP_ACCESS_FLAGS) { Some(access(attr.qp_access_flags)?) } else { None };
    let path_mtu = if has(IBV_QP_PATH_MTU) { Some(mtu(attr.path_mtu)?) } else { None };
    Ok(QpModify {
        state,
        current_state,
        pkey_index: has(IBV_QP_PKEY_INDEX).then_some(attr.pkey_index),
        port: has(IBV_QP_PORT).then_some(attr.port_num),
        access: rights,
        address_vector: vector,
        path_mtu,
        destination_qp: has(IBV_QP_DEST_QPN).then_some(QpNumber::new(attr.dest_qp_num)),
        rq_psn: has(IBV_QP_RQ_PSN).then_some(Psn::new(attr.rq_psn)),
        sq_psn: has(IBV_QP_SQ_PSN).then_some(Psn::new(attr.sq_psn)),
        max_dest_rd_atomic: has(IBV_QP_MAX_DEST_RD_ATOMIC).then_some(attr.max_dest_rd_atomic),
        max_rd_atomic: has(IBV_QP_MAX_QP_RD_ATOMIC).then_some(attr.max_rd_atomic),
        min_rnr_timer: has(IBV_QP_MIN_RNR_TIMER).then_some(attr.min_rnr_timer),
        timeout: has(IBV_QP_TIMEOUT).then_some(attr.timeout),
        retry_count: has(IBV_QP_RETRY_CNT).then_some(attr.retry_cnt),
        rnr_retry: has(IBV_QP_RNR_RETRY).then_some(attr.rnr_retry),
    })
}

/// Checks attributes that this device ignores. Like all attributes, they are allowed only in some transitions (contract
/// E1).
fn check_ignored(from: QpState, change: &QpModify, mask: c_uint) -> Result<(), Errno> {
    use QpState::{ReadyToSend, SendQueueDrained};
    let to = change.state.unwrap_or(from);
    let drains = (from, to) == (ReadyToSend, SendQueueDrained);
    let migrates = to == ReadyToSend || (from, to) == (SendQueueDrained, SendQueueDrained);
    let fits =
        (drains || mask & IBV_QP_EN_SQD_ASYNC_NOTIFY == 0) && (migrates || mask & IBV_QP_PATH_MIG_STATE == 0);
    if fits { Ok(()) } else { Err(Errno::EINVAL) }
}

fn mtu(code: c_uint) -> Result<Mtu, Errno> {
    u8::try_from(code).ok().and_then(Mtu::from_code).ok_or(Errno::EINVAL)
}

/// Returns the path to a peer. RoCE addresses peers by GID, so attributes without a GRH return `EINVAL`.
fn address_vector(attr: &ibv_ah_attr) -> Result<AddressVector, Errno> {
    if attr.is_global == 0 {
        return Err(Errno::EINVAL);
    }
    Ok(AddressVector {
        source_gid_index: u16::from(attr.grh.sgid_index),
        destination: Gid(attr.grh.dgid.raw),
        port: attr.port_num,
        flow_label: attr.grh.flow_label & 0x000f_ffff,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
    })
}

/// `ibv_query_qp(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _attr_mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    status(|| {
        // SAFETY: as `ibv_query_qp(3)` requires, the program passes a live QP, and memory for both results.
        let (qp, attr, init_attr) = unsafe { (Handle::new(qp)?, Out::new(attr)?, Out::new(init_attr)?) };
        let now = qp.inner.query()?;
        let cap = capacities(qp.inner.capacities());
        attr.write(attributes(&now, cap));
        init_attr.write(ibv_qp_init_attr {
            qp_context: qp.get(field!(ibv_qp, qp_context)),
            send_cq: qp.get(field!(ibv_qp, send_cq)),
            recv_cq: qp.get(field!(ibv_qp, recv_cq)),
            srq: qp.get(field!(ibv_qp, srq)),
            cap,
            qp_type: qp.get(field!(ibv_qp, qp_type)),
            sq_sig_all: c_int::from(qp.signal_all),
        });
        // rdma-core also updates this field, except for handles from `ibv_open_qp`.
        if qp.get(field!(ibv_qp, state)) != IBV_QPS_UNKNOWN {
            qp.set(field!(ibv_qp, state), state_code(now.state));
        }
        Ok(())
    })
}

/// Converts the attributes of a QP to C.
pub(crate) fn attributes(now: &QpAttributes, cap: ibv_qp_cap) -> ibv_qp_attr {
    let ah_attr = now.address_vector.map_or_else(ibv_ah_attr::default, |vector| ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: vector.destination.0 },
            flow_label: vector.flow_label,
            sgid_index: u8::try_from(vector.source_gid_index).unwrap_or(u8::MAX),
            hop_limit: vector.hop_limit,
            traffic_class: vector.traffic_class,
        },
        is_global: 1,
        port_num: vector.port,
        ..ibv_ah_attr::default()
    });
    ibv_qp_attr {
        qp_state: state_code(now.state),
        cur_qp_state: state_code(now.state),
        path_mtu: c_uint::from(now.path_mtu.code()),
        path_mig_state: IBV_MIG_MIGRATED,
        rq_psn: now.rq_psn.get(),
        sq_psn: now.sq_psn.get(),
        dest_qp_num: now.destination_qp.get(),
        qp_access_flags: now.access.bits(),
        cap,
        ah_attr,
        pkey_index: now.pkey_index,
        max_rd_atomic: now.max_rd_atomic,
        max_dest_rd_atomic: now.max_dest_rd_atomic,
        min_rnr_timer: now.min_rnr_timer,
        port_num: now.port,
        timeout: now.timeout,
        retry_cnt: now.retry_count,
        rnr_retry: now.rnr_retry,
        ..ibv_qp_attr::default()
    }
}
