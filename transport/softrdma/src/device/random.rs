//! Where numbers start.
//!
//! Owns the seed of a device. QP, SRQ and comm-id numbers, PSNs and keys start at random in each
//! process, so that what is left of an earlier incarnation does not fit this one.
#![forbid(unsafe_code)]

/// A small generator (SplitMix64): spread, not secrecy, is what is wanted from it.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    /// Equal seeds give equal numbers.
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The next 32 bits.
    #[allow(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
    pub(super) fn next_u32(&mut self) -> u32 {
        self.next() as u32
    }
}
