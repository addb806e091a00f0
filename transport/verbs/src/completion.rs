//! Work completions.

use crate::QpNumber;

/// The status of a completed work request (`ibv_wc_status`, same order and numbers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
#[allow(missing_docs, reason = "the variants are the names of ibv_wc_status")]
pub enum CompletionStatus {
    #[default]
    Success = 0,
    LocalLengthError,
    LocalQpOperationError,
    LocalEecOperationError,
    LocalProtectionError,
    WorkRequestFlushed,
    MemoryWindowBindError,
    BadResponse,
    LocalAccessError,
    RemoteInvalidRequest,
    RemoteAccessError,
    RemoteOperationError,
    RetryExceeded,
    RnrRetryExceeded,
    LocalRddViolation,
    RemoteInvalidRdRequest,
    RemoteAborted,
    InvalidEecNumber,
    InvalidEecState,
    FatalError,
    ResponseTimeout,
    GeneralError,
    TagMatchingError,
    TagMatchingRendezvousIncomplete,
}

impl CompletionStatus {
    /// Returns true if the work request succeeded.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::Success
    }

    /// Returns a human-readable explanation of the status, with its usual cause.
    #[must_use]
    pub fn explain(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::LocalLengthError => "local length error: the message did not fit the buffers",
            Self::LocalQpOperationError => "local QP operation error",
            Self::LocalEecOperationError => "local EE context operation error",
            Self::LocalProtectionError => {
                "local protection error: an lkey, a range or an access right of an SGE is wrong"
            }
            Self::WorkRequestFlushed => "flushed: the QP was in the error state",
            Self::MemoryWindowBindError => "memory window bind error",
            Self::BadResponse => "bad response: the peer violated the protocol",
            Self::LocalAccessError => "local access error",
            Self::RemoteInvalidRequest => "the peer refused the request as invalid",
            Self::RemoteAccessError => {
                "the peer refused access: the rkey, the range or the access right is wrong"
            }
            Self::RemoteOperationError => "the peer could not complete the operation",
            Self::RetryExceeded => "no response after all retries: the peer is down or unreachable",
            Self::RnrRetryExceeded => "the peer had no receive posted in all retries",
            Self::LocalRddViolation => "local RDD violation",
            Self::RemoteInvalidRdRequest => {
                "the peer's XRC domain has no SRQ of this number (invalid RD request)"
            }
            Self::RemoteAborted => "the peer aborted",
            Self::InvalidEecNumber => "invalid EE context number",
            Self::InvalidEecState => "invalid EE context state",
            Self::FatalError => "fatal error",
            Self::ResponseTimeout => "response timeout",
            Self::GeneralError => "general error",
            Self::TagMatchingError => "tag matching error",
            Self::TagMatchingRendezvousIncomplete => "tag matching rendezvous incomplete",
        }
    }
}

/// The kind of work that completed (`ibv_wc_opcode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[allow(missing_docs, reason = "the variants are the names of ibv_wc_opcode")]
pub enum CompletionOpcode {
    #[default]
    Send,
    RdmaWrite,
    RdmaRead,
    CompareSwap,
    FetchAdd,
    Receive,
    ReceiveRdmaWithImmediate,
}

bitflags::bitflags! {
    /// Flags of a completion.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct CompletionFlags: u32 {
        /// `immediate` is valid.
        const WITH_IMMEDIATE = 1;
        /// The sender requested a solicited event.
        const SOLICITED = 1 << 1;
        /// The peer responds, but has not received any packet with as much payload as the lost packet. Only software devices
        /// set this flag, and only with [`CompletionStatus::RetryExceeded`].
        const LARGE_PACKETS_LOST = 1 << 2;
    }
}

/// One work completion. If it failed, only `wr_id`, `status`, `qp_number` and `flags` are valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Completion {
    /// The `wr_id` of the work request.
    pub wr_id: u64,
    /// Success, or the reason for the failure.
    pub status: CompletionStatus,
    /// The kind of work.
    pub opcode: CompletionOpcode,
    /// Number of bytes received or read.
    pub byte_length: u32,
    /// Immediate data from the sender; valid with `WITH_IMMEDIATE`.
    pub immediate: u32,
    /// The local QP. For a send, the QP that it was posted to; for a receive, the TGT or RC QP that received the message
    /// (contract G2).
    pub qp_number: QpNumber,
    /// Flags of the completion.
    pub flags: CompletionFlags,
}
