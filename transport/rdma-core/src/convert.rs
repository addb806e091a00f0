//! Converts between C structures and the types of the verbs traits.
//!
//! This covers completions, GIDs, and attributes of QPs and ports. Every value is accepted, because a newer library or a
//! vendor may use numbers that the bindings do not define.

use crate::mr;
use rdma_sys::*;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use trunkline_verbs::{
    Access, AddressVector, Completion, CompletionFlags, CompletionOpcode, CompletionStatus, Gid, GidEntry,
    GidKind, Mtu, Psn, QpAttributes, QpModify, QpNumber, QpState, QpType, QueueCapacities,
};

/// `IBV_WC_WITH_IMM`.
const WC_WITH_IMM: u32 = 1 << 1;
/// `IBV_GID_TYPE_ROCE_V2`, as in an entry of `ibv_query_gid_table`.
const GID_ENTRY_ROCE_V2: u32 = 2;

/// Returns a zeroed C structure.
///
/// # Safety
/// `T` consists of numbers and pointers.
pub(crate) unsafe fn zeroed<T>() -> T {
    // SAFETY: zeros are valid for numbers and pointers.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Converts a completion.
pub(crate) fn completion(entry: &ibv_wc) -> Completion {
    let status = status(entry.status);
    let qp_number = QpNumber::new(entry.qp_num);
    if !status.is_success() {
        // If the status is an error, the other fields are undefined.
        return Completion { wr_id: entry.wr_id, status, qp_number, ..Completion::default() };
    }
    let with_immediate = entry.wc_flags & WC_WITH_IMM != 0;
    // SAFETY: both fields of the union are 32-bit numbers.
    let immediate = unsafe { entry.imm_data_invalidated_rkey_union.imm_data };
    Completion {
        wr_id: entry.wr_id,
        status,
        opcode: opcode(entry.opcode),
        byte_length: entry.byte_len,
        immediate: if with_immediate { u32::from_be(immediate) } else { 0 },
        qp_number,
        flags: if with_immediate { CompletionFlags::WITH_IMMEDIATE } else { CompletionFlags::empty() },
    }
}

/// Converts a value of `ibv_wc_status`. An unknown status becomes a general error.
fn status(code: ibv_wc_status::Type) -> CompletionStatus {
    use CompletionStatus as S;
    const ALL: [CompletionStatus; 24] = [
        S::Success,
        S::LocalLengthError,
        S::LocalQpOperationError,
        S::LocalEecOperationError,
        S::LocalProtectionError,
        S::WorkRequestFlushed,
        S::MemoryWindowBindError,
        S::BadResponse,
        S::LocalAccessError,
        S::RemoteInvalidRequest,
        S::RemoteAccessError,
        S::RemoteOperationError,
        S::RetryExceeded,
        S::RnrRetryExceeded,
        S::LocalRddViolation,
        S::RemoteInvalidRdRequest,
        S::RemoteAborted,
        S::InvalidEecNumber,
        S::InvalidEecState,
        S::FatalError,
        S::ResponseTimeout,
        S::GeneralError,
        S::TagMatchingError,
        S::TagMatchingRendezvousIncomplete,
    ];
    usize::try_from(code).ok().and_then(|index| ALL.get(index)).copied().unwrap_or(S::GeneralError)
}

/// Converts the number of an opcode. `IBV_WC_RECV` and larger numbers are receives. Other unknown numbers, including
/// vendors' opcodes, count as sends, because this crate does not post such work.
fn opcode(code: ibv_wc_opcode::Type) -> CompletionOpcode {
    match code {
        ibv_wc_opcode::IBV_WC_RDMA_WRITE => CompletionOpcode::RdmaWrite,
        ibv_wc_opcode::IBV_WC_RDMA_READ => CompletionOpcode::RdmaRead,
        ibv_wc_opcode::IBV_WC_COMP_SWAP => CompletionOpcode::CompareSwap,
        ibv_wc_opcode::IBV_WC_FETCH_ADD => CompletionOpcode::FetchAdd,
        ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM => CompletionOpcode::ReceiveRdmaWithImmediate,
        code if code & ibv_wc_opcode::IBV_WC_RECV != 0 => CompletionOpcode::Receive,
        _ => CompletionOpcode::Send,
    }
}

/// Returns the C code of a QP type.
pub(crate) fn qp_type(qp_type: QpType) -> ibv_qp_type::Type {
    match qp_type {
        QpType::Rc => ibv_qp_type::IBV_QPT_RC,
        QpType::XrcIni => ibv_qp_type::IBV_QPT_XRC_SEND,
        QpType::XrcTgt => ibv_qp_type::IBV_QPT_XRC_RECV,
    }
}

/// Converts capacities to C.
pub(crate) fn to_cap(capacities: QueueCapacities) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: capacities.max_send_wr,
        max_recv_wr: capacities.max_receive_wr,
        max_send_sge: capacities.max_send_sge,
        max_recv_sge: capacities.max_receive_sge,
        max_inline_data: capacities.max_inline_data,
    }
}

/// Converts capacities from C.
pub(crate) fn from_cap(cap: &ibv_qp_cap) -> QueueCapacities {
    QueueCapacities {
        max_send_wr: cap.max_send_wr,
        max_receive_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_receive_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// Converts the number of a path MTU. An unknown number becomes the smallest MTU, which every link supports.
pub(crate) fn mtu(code: ibv_mtu::Type) -> Mtu {
    u8::try_from(code).ok().and_then(Mtu::from_code).unwrap_or(Mtu::Mtu256)
}

/// Converts a change to the attributes and the mask for `ibv_modify_qp`. Returns `None` if a value does not fit its C
/// field.
pub(crate) fn modify(change: &QpModify) -> Option<(ibv_qp_attr, c_int)> {
    use ibv_qp_attr_mask as M;
    // SAFETY: the structure consists of numbers.
    let mut attr: ibv_qp_attr = unsafe { zeroed() };
    let mut mask = 0;
    fn put<V, F>(mask: &mut u32, bit: M, value: Option<V>, field: &mut F, convert: impl FnOnce(V) -> F) {
        if let Some(value) = value {
            *field = convert(value);
            *mask |= bit.0;
        }
    }
    let same = |value: u8| value;
    put(&mut mask, M::IBV_QP_STATE, change.state, &mut attr.qp_state, |state| state.code().into());
    put(&mut mask, M::IBV_QP_CUR_STATE, change.current_state, &mut attr.cur_qp_state, |s| s.code().into());
    put(&mut mask, M::IBV_QP_PKEY_INDEX, change.pkey_index, &mut attr.pkey_index, |index| index);
    put(&mut mask, M::IBV_QP_PORT, change.port, &mut attr.port_num, same);
    put(&mut mask, M::IBV_QP_ACCESS_FLAGS, change.access, &mut attr.qp_access_flags, |access| {
        mr::flags(access).unsigned_abs()
    });
    if let Some(vector) = &change.address_vector {
        attr.ah_attr = address(vector)?;
        mask |= M::IBV_QP_AV.0;
    }
    put(&mut mask, M::IBV_QP_PATH_MTU, change.path_mtu, &mut attr.path_mtu, |mtu| mtu.code().into());
    put(&mut mask, M::IBV_QP_DEST_QPN, change.destination_qp, &mut attr.dest_qp_num, QpNumber::get);
    put(&mut mask, M::IBV_QP_RQ_PSN, change.rq_psn, &mut attr.rq_psn, Psn::get);
    put(&mut mask, M::IBV_QP_SQ_PSN, change.sq_psn, &mut attr.sq_psn, Psn::get);
    let at_once = &mut attr.max_dest_rd_atomic;
    put(&mut mask, M::IBV_QP_MAX_DEST_RD_ATOMIC, change.max_dest_rd_atomic, at_once, same);
    put(&mut mask, M::IBV_QP_MAX_QP_RD_ATOMIC, change.max_rd_atomic, &mut attr.max_rd_atomic, same);
    put(&mut mask, M::IBV_QP_MIN_RNR_TIMER, change.min_rnr_timer, &mut attr.min_rnr_timer, same);
    put(&mut mask, M::IBV_QP_TIMEOUT, change.timeout, &mut attr.timeout, same);
    put(&mut mask, M::IBV_QP_RETRY_CNT, change.retry_count, &mut attr.retry_cnt, same);
    put(&mut mask, M::IBV_QP_RNR_RETRY, change.rnr_retry, &mut attr.rnr_retry, same);
    Some((attr, c_int::try_from(mask).ok()?))
}

/// Mask for `ibv_query_qp` that selects all attributes of the supported QP types.
pub(crate) const QUERY_MASK: c_int = {
    use ibv_qp_attr_mask as M;
    let mask = M::IBV_QP_STATE.0
        | M::IBV_QP_ACCESS_FLAGS.0
        | M::IBV_QP_PKEY_INDEX.0
        | M::IBV_QP_PORT.0
        | M::IBV_QP_AV.0
        | M::IBV_QP_PATH_MTU.0
        | M::IBV_QP_TIMEOUT.0
        | M::IBV_QP_RETRY_CNT.0
        | M::IBV_QP_RNR_RETRY.0
        | M::IBV_QP_RQ_PSN.0
        | M::IBV_QP_MAX_QP_RD_ATOMIC.0
        | M::IBV_QP_MIN_RNR_TIMER.0
        | M::IBV_QP_SQ_PSN.0
        | M::IBV_QP_MAX_DEST_RD_ATOMIC.0
        | M::IBV_QP_DEST_QPN.0;
    mask.cast_signed()
};

fn address(vector: &AddressVector) -> Option<ibv_ah_attr> {
    Some(ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: vector.destination.0 },
            flow_label: vector.flow_label,
            sgid_index: u8::try_from(vector.source_gid_index).ok()?,
            hop_limit: vector.hop_limit,
            traffic_class: vector.traffic_class,
        },
        dlid: 0,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: vector.port,
    })
}

/// Converts attributes from `rdma_init_qp_attr` or `ibv_query_qp` to a change.
pub(crate) fn to_modify(attr: &ibv_qp_attr, mask: u32) -> QpModify {
    use ibv_qp_attr_mask as M;
    fn when<V>(mask: u32, bit: M, value: V) -> Option<V> {
        (mask & bit.0 != 0).then_some(value)
    }
    QpModify {
        state: when(mask, M::IBV_QP_STATE, attr.qp_state).and_then(QpState::from_code),
        current_state: when(mask, M::IBV_QP_CUR_STATE, attr.cur_qp_state).and_then(QpState::from_code),
        pkey_index: when(mask, M::IBV_QP_PKEY_INDEX, attr.pkey_index),
        port: when(mask, M::IBV_QP_PORT, attr.port_num),
        access: when(mask, M::IBV_QP_ACCESS_FLAGS, Access::from_bits_truncate(attr.qp_access_flags)),
        address_vector: when(mask, M::IBV_QP_AV, ()).and_then(|()| address_vector(&attr.ah_attr)),
        path_mtu: when(mask, M::IBV_QP_PATH_MTU, mtu(attr.path_mtu)),
        destination_qp: when(mask, M::IBV_QP_DEST_QPN, QpNumber::new(attr.dest_qp_num)),
        rq_psn: when(mask, M::IBV_QP_RQ_PSN, Psn::new(attr.rq_psn)),
        sq_psn: when(mask, M::IBV_QP_SQ_PSN, Psn::new(attr.sq_psn)),
        max_dest_rd_atomic: when(mask, M::IBV_QP_MAX_DEST_RD_ATOMIC, attr.max_dest_rd_atomic),
        max_rd_atomic: when(mask, M::IBV_QP_MAX_QP_RD_ATOMIC, attr.max_rd_atomic),
        min_rnr_timer: when(mask, M::IBV_QP_MIN_RNR_TIMER, attr.min_rnr_timer),
        timeout: when(mask, M::IBV_QP_TIMEOUT, attr.timeout),
        retry_count: when(mask, M::IBV_QP_RETRY_CNT, attr.retry_cnt),
        rnr_retry: when(mask, M::IBV_QP_RNR_RETRY, attr.rnr_retry),
    }
}

fn address_vector(ah: &ibv_ah_attr) -> Option<AddressVector> {
    (ah.is_global != 0).then(|| AddressVector {
        source_gid_index: ah.grh.sgid_index.into(),
        destination: gid(&ah.grh.dgid),
        port: ah.port_num,
        flow_label: ah.grh.flow_label,
        hop_limit: ah.grh.hop_limit,
        traffic_class: ah.grh.traffic_class,
    })
}

/// Converts the attributes that `ibv_query_qp` returns.
pub(crate) fn attributes(qp_type: QpType, attr: &ibv_qp_attr) -> QpAttributes {
    let mut attributes = QpAttributes::new(qp_type);
    attributes.apply(&QpModify { current_state: None, ..to_modify(attr, u32::MAX) });
    attributes
}

fn gid(gid: &ibv_gid) -> Gid {
    // SAFETY: both fields of the union are the same 16 bytes.
    Gid(unsafe { gid.raw })
}

/// Converts an entry of the GID table.
pub(crate) fn gid_entry(entry: &ibv_gid_entry) -> Option<GidEntry> {
    Some(GidEntry {
        index: u16::try_from(entry.gid_index).ok()?,
        gid: gid(&entry.gid),
        kind: if entry.gid_type == GID_ENTRY_ROCE_V2 { GidKind::RoceV2 } else { GidKind::RoceV1 },
    })
}

/// Converts a limit, which is a signed number in C. A negative number becomes 0.
pub(crate) fn limit(value: c_int) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// Converts a limit to a byte, and clamps it to the range 0 to 255.
pub(crate) fn small_limit(value: c_int) -> u8 {
    u8::try_from(value.clamp(0, 255)).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_verbs::AttributeMask;

    fn entry(status: u32, opcode: u32, flags: u32) -> ibv_wc {
        // SAFETY: the structure consists of numbers.
        let mut entry: ibv_wc = unsafe { zeroed() };
        (entry.wr_id, entry.status, entry.opcode, entry.wc_flags) = (5, status, opcode, flags);
        (entry.byte_len, entry.qp_num) = (9, 0x11);
        entry.imm_data_invalidated_rkey_union.imm_data = 0x0102_0304_u32.to_be();
        entry
    }

    #[test]
    fn completions_with_unknown_numbers_are_converted() {
        let received = completion(&entry(0, ibv_wc_opcode::IBV_WC_RECV, WC_WITH_IMM));
        assert_eq!((received.opcode, received.immediate), (CompletionOpcode::Receive, 0x0102_0304));
        assert_eq!((received.byte_length, received.flags), (9, CompletionFlags::WITH_IMMEDIATE));
        let with_immediate = completion(&entry(0, ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM, 0));
        assert_eq!(with_immediate.opcode, CompletionOpcode::ReceiveRdmaWithImmediate);
        assert_eq!(with_immediate.flags, CompletionFlags::empty());
        assert_eq!(completion(&entry(0, 0x7000, 0)).opcode, CompletionOpcode::Send);
        assert_eq!(completion(&entry(0, 0x70f0, 0)).opcode, CompletionOpcode::Receive);
        // The opcode is undefined if the status is an error.
        let failed = completion(&entry(ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR, 0x7777, u32::MAX));
        assert_eq!((failed.status, failed.wr_id), (CompletionStatus::RnrRetryExceeded, 5));
        assert_eq!((failed.flags, failed.byte_length), (CompletionFlags::empty(), 0));
        for unknown in [24, 1000, u32::MAX] {
            assert_eq!(completion(&entry(unknown, 0, 0)).status, CompletionStatus::GeneralError);
        }
        assert_eq!(completion(&entry(23, 0, 0)).status, CompletionStatus::TagMatchingRendezvousIncomplete);
    }

    #[test]
    fn qp_modify_round_trips_through_c_attributes() {
        let change = QpModify {
            state: Some(QpState::ReadyToReceive),
            current_state: Some(QpState::Init),
            pkey_index: Some(1),
            port: Some(2),
            access: Some(Access::LOCAL_WRITE | Access::REMOTE_ATOMIC),
            address_vector: Some(AddressVector {
                source_gid_index: 3,
                destination: Gid([4; 16]),
                port: 2,
                flow_label: 5,
                hop_limit: 6,
                traffic_class: 7,
            }),
            path_mtu: Some(Mtu::Mtu2048),
            destination_qp: Some(QpNumber::new(8)),
            rq_psn: Some(Psn::new(9)),
            sq_psn: Some(Psn::new(10)),
            max_dest_rd_atomic: Some(11),
            max_rd_atomic: Some(12),
            min_rnr_timer: Some(13),
            timeout: Some(14),
            retry_count: Some(5),
            rnr_retry: Some(6),
        };
        let (attr, mask) = modify(&change).unwrap();
        assert_eq!(to_modify(&attr, mask.cast_unsigned()), change);
        // The mask contains one bit per attribute and one bit for the state.
        assert_eq!(mask.count_ones(), AttributeMask::all().bits().count_ones() + 1);
        assert_eq!(modify(&QpModify::default()).unwrap().1, 0);
        let far = AddressVector { source_gid_index: 256, ..change.address_vector.unwrap() };
        assert!(modify(&QpModify { address_vector: Some(far), ..change }).is_none(), "C has 8 bits for it");
    }
}
