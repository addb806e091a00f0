//! Work requests.

use crate::{IoAddress, Lkey, RemoteAddress, SrqNumber};

/// A piece of registered local memory. Laid out as `ibv_sge`, so that lists go to C as they are.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sge {
    /// Where.
    pub address: IoAddress,
    /// How many bytes.
    pub length: u32,
    /// Under which region's key.
    pub lkey: Lkey,
}

/// What a send request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOperation {
    /// A message into a posted receive.
    Send,
    /// The same with 4 bytes of immediate data.
    SendWithImmediate(u32),
    /// Into the peer's memory; the peer's program learns nothing.
    RdmaWrite(RemoteAddress),
    /// Into the peer's memory, and a receive completes with the immediate.
    RdmaWriteWithImmediate(RemoteAddress, u32),
    /// Out of the peer's memory into the gather list.
    RdmaRead(RemoteAddress),
    /// 8 bytes at the peer become `swap` if they were `compare`; the old value comes back.
    CompareSwap {
        /// Where; a multiple of 8.
        remote: RemoteAddress,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// `add` is added to 8 bytes at the peer; the old value comes back.
    FetchAdd {
        /// Where; a multiple of 8.
        remote: RemoteAddress,
        /// What to add.
        add: u64,
    },
}

/// Where the bytes of a send request are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendData<'a> {
    /// In registered memory, untouched until the completion.
    Gather(&'a [Sge]),
    /// Here; copied before the call returns. At most `max_inline_data` bytes, not for READ and
    /// atomics.
    Inline(&'a [u8]),
}

bitflags::bitflags! {
    /// Modifiers of a send request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct SendFlags: u32 {
        /// Report its success, even when the QP does not report each.
        const SIGNALED = 1;
        /// Wait for all earlier READs and atomics.
        const FENCE = 1 << 1;
        /// Wake a peer that waits for solicited events.
        const SOLICITED = 1 << 2;
    }
}

/// A request for a send queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendRequest<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub operation: SendOperation,
    /// With which bytes.
    pub data: SendData<'a>,
    /// How.
    pub flags: SendFlags,
    /// On an INI: the SRQ at the peer, for every operation (contract F1). Ignored on RC.
    pub remote_srq: SrqNumber,
}

/// A request for a receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveRequest<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where a message goes.
    pub scatter: &'a [Sge],
}
