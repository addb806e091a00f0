//! Reproducible random numbers generated from a seed, and reproducible bytes generated from a key.

/// A SplitMix64 generator. Equal seeds produce equal numbers.
#[derive(Debug, Clone)]
pub struct Random(
    /// The state. Initially, it is the seed.
    pub u64,
);

impl Random {
    /// Creates a generator whose seed differs in each run.
    #[must_use]
    pub fn from_entropy() -> Self {
        use std::hash::{BuildHasher, RandomState};
        Self(RandomState::new().hash_one(std::process::id()))
    }

    /// Returns the next 64-bit number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % (bound.max(1) as u64)).unwrap_or(0)
    }

    /// Returns true with probability 1 / `count`.
    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// Returns a random byte.
    pub const fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// Returns a random element of `from`.
    ///
    /// # Panics
    /// Panics if `from` is empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// Returns `length` bytes, which depend only on the key.
#[must_use]
pub fn bytes_of(key: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Random(key).fill(&mut bytes);
    bytes
}

/// Combines several numbers into one key.
#[must_use]
pub fn key(parts: &[u64]) -> u64 {
    parts.iter().fold(0x7275_6e6b, |key, part| Random(key ^ part.rotate_left(17)).next())
}

/// Returns `length` bytes, which depend on their offsets and on the seed.
#[must_use]
pub fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31) >> 3).to_le_bytes()[0] ^ seed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_numbers_and_different_seeds_differ() {
        let numbers = |seed| {
            let mut random = Random(seed);
            [random.next(), random.next(), random.next()]
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        assert_eq!(
            bytes_of(7, 20)[..16],
            [numbers(7)[0].to_le_bytes(), numbers(7)[1].to_le_bytes()].concat()
        );
        assert_ne!(key(&[1, 2]), key(&[2, 1]));
    }
}
