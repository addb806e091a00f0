//! A whole packet as a plain value.

use super::{Aeth, AtomicEth, Bth, Deth, Reth};
use trunkline_verbs::{Rkey, SrqNumber};

/// A parsed packet: the headers that its opcode calls for, and the payload without pad. What the
/// opcode has no place for is `None`. Reserved bytes that a sender may have set are kept in the
/// headers' `reserved` fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Always there.
    pub bth: Bth,
    /// XRC requests: the target SRQ, and the reserved first byte.
    pub xrceth: Option<(u8, SrqNumber)>,
    /// UD.
    pub deth: Option<Deth>,
    /// READ requests, first and only WRITEs.
    pub reth: Option<Reth>,
    /// Atomics.
    pub atomic: Option<AtomicEth>,
    /// Answers.
    pub aeth: Option<Aeth>,
    /// Original value, in atomic acknowledgements.
    pub atomic_ack: Option<u64>,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// Key to invalidate.
    pub invalidate: Option<Rkey>,
    /// The bytes.
    pub payload: &'a [u8],
}
