//! Conversions between C codes and types of `trunkline_verbs`.
#![forbid(unsafe_code)]

use crate::abi::*;
use crate::border::Errno;
use std::ffi::c_uint;
use trunkline_verbs::{Access, Completion, CompletionFlags, CompletionOpcode, QpState, QpType};

/// Returns the access rights of a region. Optional bits are hints, which this device ignores. On-demand paging is
/// `EOPNOTSUPP`.
pub(super) fn access(flags: c_uint) -> Result<Access, Errno> {
    let known = IBV_ACCESS_LOCAL_WRITE
        | IBV_ACCESS_REMOTE_WRITE
        | IBV_ACCESS_REMOTE_READ
        | IBV_ACCESS_REMOTE_ATOMIC
        | IBV_ACCESS_HUGETLB
        | IBV_ACCESS_MW_BIND
        | IBV_ACCESS_OPTIONAL_RANGE;
    if flags & IBV_ACCESS_ON_DEMAND != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    if flags & !known != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(Access::from_bits_truncate(flags))
}

/// `vendor_err` of a work request whose retries are exhausted because large packets are lost
/// (docs/book/src/reference/software-device.md).
const VENDOR_ERR_LARGE_PACKETS_LOST: u32 = 1;

/// Converts a completion to C. Immediate data is in network byte order. Receives have the GRH flag, because all RoCE
/// packets have a GRH; the kernel's software device sets it too (drivers/infiniband/sw/rxe/rxe_resp.c, `do_complete`). Only
/// UD QPs store the GRH in the buffer.
pub(super) fn completion(from: &Completion) -> ibv_wc {
    let is_receive =
        matches!(from.opcode, CompletionOpcode::Receive | CompletionOpcode::ReceiveRdmaWithImmediate);
    let mut flags = if is_receive && from.status.is_success() { IBV_WC_GRH } else { 0 };
    if from.flags.contains(CompletionFlags::WITH_IMMEDIATE) {
        flags |= IBV_WC_WITH_IMM;
    }
    ibv_wc {
        wr_id: from.wr_id,
        status: from.status as c_uint,
        opcode: match from.opcode {
            CompletionOpcode::Send => IBV_WC_SEND,
            CompletionOpcode::RdmaWrite => IBV_WC_RDMA_WRITE,
            CompletionOpcode::RdmaRead => IBV_WC_RDMA_READ,
            CompletionOpcode::CompareSwap => IBV_WC_COMP_SWAP,
            CompletionOpcode::FetchAdd => IBV_WC_FETCH_ADD,
            CompletionOpcode::Receive => IBV_WC_RECV,
            CompletionOpcode::ReceiveRdmaWithImmediate => IBV_WC_RECV_RDMA_WITH_IMM,
        },
        byte_len: from.byte_length,
        imm_data: from.immediate.to_be(),
        qp_num: from.qp_number.get(),
        vendor_err: if from.flags.contains(CompletionFlags::LARGE_PACKETS_LOST) {
            VENDOR_ERR_LARGE_PACKETS_LOST
        } else {
            0
        },
        wc_flags: flags,
        ..ibv_wc::default()
    }
}

/// Returns the QP type for a code. Returns `EOPNOTSUPP` if the device does not support the type, and `EINVAL` if the code
/// is invalid.
pub(super) fn qp_type(code: c_uint) -> Result<QpType, Errno> {
    match code {
        IBV_QPT_RC => Ok(QpType::Rc),
        IBV_QPT_XRC_SEND => Ok(QpType::XrcIni),
        IBV_QPT_XRC_RECV => Ok(QpType::XrcTgt),
        IBV_QPT_UC | IBV_QPT_UD | IBV_QPT_RAW_PACKET | IBV_QPT_DRIVER => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::EINVAL),
    }
}

/// Returns the QP state for a code.
pub(crate) fn qp_state(code: c_uint) -> Result<QpState, Errno> {
    QpState::from_code(code).ok_or(Errno::EINVAL)
}

/// Returns the code for a QP state.
pub(crate) fn state_code(state: QpState) -> c_uint {
    state.code().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_verbs::CompletionStatus;

    #[test]
    fn states_have_codes_of_header() {
        let codes =
            [IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, IBV_QPS_ERR];
        for (code, state) in codes.into_iter().zip(QpState::ALL) {
            assert_eq!(state_code(state), code);
            assert_eq!(qp_state(code), Ok(state));
        }
        assert_eq!(qp_state(IBV_QPS_UNKNOWN), Err(Errno::EINVAL));
    }

    #[test]
    fn optional_access_bits_are_hints() {
        let hint = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
        assert_eq!(access(hint), Ok(Access::LOCAL_WRITE));
        assert_eq!(access(IBV_ACCESS_ON_DEMAND), Err(Errno::EOPNOTSUPP));
        assert_eq!(access(1 << 19), Err(Errno::EINVAL));
    }

    #[test]
    fn immediate_data_is_in_network_order() {
        let from = Completion {
            immediate: 0x0102_0304,
            flags: CompletionFlags::WITH_IMMEDIATE,
            ..Completion::default()
        };
        let wc = completion(&from);
        assert_eq!(wc.imm_data.to_ne_bytes(), [1, 2, 3, 4]);
        assert_ne!(wc.wc_flags & IBV_WC_WITH_IMM, 0);
    }

    #[test]
    fn large_packet_loss_is_reported_only_in_vendor_err() {
        let status = CompletionStatus::RetryExceeded;
        let [named, plain] = [CompletionFlags::LARGE_PACKETS_LOST, CompletionFlags::empty()]
            .map(|flags| completion(&Completion { status, flags, ..Completion::default() }));
        assert_eq!((named.vendor_err, plain.vendor_err), (VENDOR_ERR_LARGE_PACKETS_LOST, 0));
        assert_eq!((named.status, named.wc_flags), (plain.status, plain.wc_flags));
    }

    #[test]
    fn successful_receives_have_grh_flag() {
        let flags = |opcode, status| {
            completion(&Completion { opcode, status, ..Completion::default() }).wc_flags & IBV_WC_GRH
        };
        let success = CompletionStatus::Success;
        assert_eq!(flags(CompletionOpcode::Receive, success), IBV_WC_GRH);
        assert_eq!(flags(CompletionOpcode::ReceiveRdmaWithImmediate, success), IBV_WC_GRH);
        assert_eq!(flags(CompletionOpcode::Send, success), 0);
        assert_eq!(flags(CompletionOpcode::Receive, CompletionStatus::WorkRequestFlushed), 0);
    }
}
