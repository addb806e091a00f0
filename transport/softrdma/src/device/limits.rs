//! The name of the device, and its limits.
//!
//! Owns the values that programs see in the device's attributes and that every layer enforces.
#![forbid(unsafe_code)]

/// Name of the device.
pub(super) const DEVICE_NAME: &str = "trunkline0";
/// Maximum number of QPs.
pub(super) const MAX_QPS: usize = 1 << 16;
/// Maximum number of SRQs.
pub(super) const MAX_SRQS: usize = 1 << 16;
/// Maximum number of memory regions.
pub(super) const MAX_REGIONS: u32 = 1 << 20;
/// Maximum number of work requests in any queue.
pub(super) const MAX_WR: u32 = 32_768;
/// Maximum number of SGEs of a work request.
pub(super) const MAX_SGE: u32 = 32;
/// Maximum inline data of a work request, in bytes.
pub(super) const MAX_INLINE: u32 = 1024;
/// Maximum number of entries of a CQ.
pub(super) const MAX_CQE: u32 = 1 << 22;
/// Maximum length of a message, in bytes.
pub(super) const MAX_MESSAGE: u32 = 1 << 30;
/// Maximum number of READs and atomics that a QP serves, or has outstanding.
pub(super) const MAX_RD_ATOMIC: u8 = 128;
