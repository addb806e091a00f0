//! Numbers of 24 bits: QPs, SRQs.
//!
//! Owns the order in which numbers are given out: upwards from a random start, so that a number
//! comes again only after all others were used, far longer than TIMEWAIT (contract rocev2 12.5).
#![forbid(unsafe_code)]

use super::random::Random;
use std::hash::{BuildHasherDefault, Hasher};

const MASK: u32 = 0x00ff_ffff;

/// Gives out numbers.
#[derive(Debug)]
pub(super) struct Numbers {
    next: u32,
}

impl Numbers {
    pub(super) fn new(random: &mut Random) -> Self {
        Self { next: random.next_u32() & MASK }
    }

    /// The next number that is not `taken`; `None` when all are. 0 and 1 are the special QPs,
    /// all ones is multicast.
    pub(super) fn take(&mut self, taken: impl Fn(u32) -> bool) -> Option<u32> {
        for _ in 0..=MASK {
            let number = self.next;
            self.next = (self.next + 1) & MASK;
            if number > 1 && number != MASK && !taken(number) {
                return Some(number);
            }
        }
        None
    }
}

/// A map from numbers that this device gave out. Peers choose what is looked up, never what is
/// put in, so a cheap hash is safe.
pub(super) type NumberMap<V> = std::collections::HashMap<u32, V, BuildHasherDefault<NumberHasher>>;

/// Fibonacci hashing.
#[derive(Debug, Default)]
pub(super) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(20);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_past_the_special_ones() {
        let mut numbers = Numbers { next: MASK - 1 };
        assert_eq!(numbers.take(|_| false), Some(MASK - 1));
        assert_eq!(numbers.take(|number| number == 2), Some(3));
        assert_eq!(numbers.take(|_| false), Some(4));
    }
}
