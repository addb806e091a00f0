//! Work requests.

use crate::{IoAddress, Lkey, RemoteAddress, SrqNumber};

/// A range of registered local memory. It has the layout of `ibv_sge`, so that lists can be passed to C
/// directly.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sge {
    /// Start of the range.
    pub address: IoAddress,
    /// Length in bytes.
    pub length: u32,
    /// The key of the region that contains the range.
    pub lkey: Lkey,
}

/// The operation of a send request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOperation {
    /// Sends a message into a posted receive.
    Send,
    /// Sends a message with 4 bytes of immediate data.
    SendWithImmediate(u32),
    /// Writes to the peer's memory; the peer's program gets no completion.
    RdmaWrite(RemoteAddress),
    /// Writes to the peer's memory and completes a receive there with the immediate data.
    RdmaWriteWithImmediate(RemoteAddress, u32),
    /// Reads the peer's memory into the local ranges of the request.
    RdmaRead(RemoteAddress),
    /// Sets 8 bytes at the peer to `swap` if they equal `compare`, and returns the old value.
    CompareSwap {
        /// The word at the peer; its address is a multiple of 8.
        remote: RemoteAddress,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Adds `add` to 8 bytes at the peer, and returns the old value.
    FetchAdd {
        /// The word at the peer; its address is a multiple of 8.
        remote: RemoteAddress,
        /// The addend; the sum wraps at 2^64.
        add: u64,
    },
}

/// The local bytes of a send request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendData<'a> {
    /// Ranges of registered memory, which must not be changed until the completion.
    Gather(&'a [Sge]),
    /// At most `max_inline_data` bytes, which are copied before the call returns. Not allowed for READs and atomics.
    Inline(&'a [u8]),
}

bitflags::bitflags! {
    /// Modifiers of a send request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct SendFlags: u32 {
        /// Generates a completion, even if the QP does not do so for every send.
        const SIGNALED = 1;
        /// Delays the request until all earlier READs and atomics have completed.
        const FENCE = 1 << 1;
        /// Raises an event at a peer whose CQ is armed for solicited completions.
        const SOLICITED = 1 << 2;
    }
}

/// A request for a send queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendRequest<'a> {
    /// Value, chosen by the caller, that the completion repeats.
    pub wr_id: u64,
    /// The operation.
    pub operation: SendOperation,
    /// Local bytes.
    pub data: SendData<'a>,
    /// Modifiers.
    pub flags: SendFlags,
    /// Number of the SRQ at the peer, for every operation on an INI (contract F1). Ignored on RC.
    pub remote_srq: SrqNumber,
}

/// A request for a receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveRequest<'a> {
    /// Value, chosen by the caller, that the completion repeats.
    pub wr_id: u64,
    /// The ranges that the message is written to, in order.
    pub scatter: &'a [Sge],
}
