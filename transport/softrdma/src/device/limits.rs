//! The name of the device, and what it holds at most.
//!
//! Owns the values that programs see in the device's attributes and that every layer enforces.
#![forbid(unsafe_code)]

/// The name of the one device.
pub(super) const DEVICE_NAME: &str = "trunkline0";
/// QPs that exist at once.
pub(super) const MAX_QPS: usize = 1 << 16;
/// SRQs that exist at once.
pub(super) const MAX_SRQS: usize = 1 << 16;
/// Memory regions that exist at once.
pub(super) const MAX_REGIONS: u32 = 1 << 20;
/// Work requests in any queue.
pub(super) const MAX_WR: u32 = 32_768;
/// SGEs of a work request.
pub(super) const MAX_SGE: u32 = 32;
/// Bytes of inline data of a work request.
pub(super) const MAX_INLINE: u32 = 1024;
/// Entries of a CQ.
pub(super) const MAX_CQE: u32 = 1 << 22;
/// Bytes of a message.
pub(super) const MAX_MESSAGE: u32 = 1 << 30;
/// READs and atomics that a QP serves, or has outstanding.
pub(super) const MAX_RD_ATOMIC: u8 = 128;
