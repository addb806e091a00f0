//! Random initial values.
//!
//! Owns the seed of a device. Numbers of QPs, SRQs and comm ids, PSNs and keys start at random in each process. Packets
//! for an earlier incarnation therefore do not match a later one, and peers cannot derive further values from received
//! values.
#![forbid(unsafe_code)]

use siphasher::sip::SipHasher24;
use trunkline_machine::Runtime;

/// A generator whose numbers cannot be predicted without its seed. It hashes a counter with a key.
#[derive(Debug, Clone)]
pub(in crate::device) struct Random {
    keys: [u64; 2],
    count: u64,
}

impl Random {
    /// Creates a generator; equal seeds give equal numbers.
    pub(in crate::device) const fn new(seed: u64) -> Self {
        Self::with([seed, 0])
    }

    /// Creates a generator from the runtime's randomness.
    pub(in crate::device) fn of(runtime: &Runtime) -> Self {
        Self::with([runtime.random(), runtime.random()])
    }

    /// Creates another, independent generator.
    pub(in crate::device) fn branch(&mut self) -> Self {
        Self::with(self.keys())
    }

    /// Returns a random key for a permutation.
    pub(in crate::device) fn keys(&mut self) -> [u64; 2] {
        [self.next(), self.next()]
    }

    const fn with(keys: [u64; 2]) -> Self {
        Self { keys, count: 0 }
    }

    /// Returns the next 64 bits.
    pub(in crate::device) fn next(&mut self) -> u64 {
        self.count = self.count.wrapping_add(1);
        SipHasher24::new_with_keys(self.keys[0], self.keys[1]).hash(&self.count.to_le_bytes())
    }

    /// Returns the next 32 bits.
    #[allow(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
    pub(in crate::device) fn next_u32(&mut self) -> u32 {
        self.next() as u32
    }
}
