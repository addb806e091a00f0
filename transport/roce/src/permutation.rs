//! Unpredictable numbers on the wire.
//!
//! A keyed permutation maps places in tables to QP numbers, SRQ numbers, communication ids and memory keys. With the key,
//! the place can be computed from the number. Without it, numbers reveal only that they are unique. The permutation must
//! never be used to hide data.

use siphasher::sip::SipHasher24;
use std::fmt;

/// Number of rounds of the Feistel network. Six would suffice to resist any test for a random permutation of a set this
/// small, if the round function cannot be distinguished from a random function.
const ROUNDS: u64 = 8;

/// A permutation of the numbers with a given number of bits, determined by a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Permutation {
    keys: [u64; 2],
    half_bits: u32,
}

impl Permutation {
    /// Creates the permutation of all `bits`-bit numbers. `bits` is an even number up to 32. Equal keys give equal
    /// permutations, and permutations of different widths are unrelated.
    ///
    /// # Panics
    /// If `bits` is odd or more than 32.
    #[must_use]
    pub const fn new(bits: u32, keys: [u64; 2]) -> Self {
        assert!(bits <= 32 && bits.is_multiple_of(2), "two halves of a 32-bit number");
        Self { keys, half_bits: bits / 2 }
    }

    /// Returns the number of an index. Bits of the index beyond the width are ignored.
    #[must_use]
    pub fn number_of(&self, index: u32) -> u32 {
        let [mut high, mut low] = self.halves(index);
        for round in 0..ROUNDS {
            [high, low] = [low, high ^ self.mixed(round, low)];
        }
        high << self.half_bits | low
    }

    /// Returns the index of a number, as the inverse of [`Permutation::number_of`].
    #[must_use]
    pub fn index_of(&self, number: u32) -> u32 {
        let [mut high, mut low] = self.halves(number);
        for round in (0..ROUNDS).rev() {
            [high, low] = [low ^ self.mixed(round, high), high];
        }
        high << self.half_bits | low
    }

    const fn halves(&self, word: u32) -> [u32; 2] {
        [word >> self.half_bits & self.mask(), word & self.mask()]
    }

    const fn mask(&self) -> u32 {
        (1 << self.half_bits) - 1
    }

    /// Computes the round function, whose result has as many bits as a half.
    fn mixed(&self, round: u64, half: u32) -> u32 {
        let message = u64::from(half) | round << 32 | u64::from(self.half_bits) << 48;
        let [low, high, ..] =
            SipHasher24::new_with_keys(self.keys[0], self.keys[1]).hash(&message.to_le_bytes()).to_le_bytes();
        u32::from(u16::from_le_bytes([low, high])) & self.mask()
    }
}

impl fmt::Debug for Permutation {
    /// Omits the key.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Permutation").field("bits", &(2 * self.half_bits)).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn permutation_index_round_trips(keys: [u64; 2], half_bits in 1_u32..=16, word: u32) {
            let permutation = Permutation::new(2 * half_bits, keys);
            let word = word & u32::MAX >> (32 - 2 * half_bits);
            let number = permutation.number_of(word);
            prop_assert!(u64::from(number) < 1 << (2 * half_bits));
            prop_assert_eq!(permutation.index_of(number), word);
            prop_assert_eq!(permutation.number_of(permutation.index_of(word)), word);
        }
    }

    #[test]
    fn every_number_of_width_occurs_once() {
        let permutation = Permutation::new(16, [1, 2]);
        let numbers: BTreeSet<u32> = (0..1 << 16).map(|index| permutation.number_of(index)).collect();
        assert_eq!((numbers.len(), numbers.last()), (1 << 16, Some(&0xffff)));
    }

    #[test]
    fn known_numbers_do_not_predict_next() {
        const COUNT: u32 = 1 << 14;
        let permutation = Permutation::new(32, [3, 4]);
        let numbers: Vec<u32> = (0..=COUNT).map(|index| permutation.number_of(index)).collect();
        let mut differences = std::collections::BTreeMap::<u32, usize>::new();
        for [before, after] in numbers.array_windows() {
            *differences.entry(after.wrapping_sub(*before)).or_default() += 1;
        }
        assert!(differences.values().all(|count| *count <= 3), "some differences come again and again");
        // Each bit of the number changes with each bit of the index in about half of all cases.
        for of_index in 0..14_u32 {
            let mut changed = [0_u32; 32];
            for index in 0..1_usize << 14 {
                let difference = numbers[index] ^ numbers[index ^ 1 << of_index];
                changed.iter_mut().enumerate().for_each(|(bit, count)| *count += difference >> bit & 1);
            }
            for (bit, count) in changed.into_iter().enumerate() {
                let share = f64::from(count) / f64::from(COUNT);
                assert!((share - 0.5).abs() < 0.03, "bit {bit}, of the index {of_index}: {share}");
            }
        }
    }

    #[test]
    fn permutations_differ_by_key_and_width() {
        let of = |bits, keys| Permutation::new(bits, keys).number_of(5);
        let all = [of(32, [1, 2]), of(32, [2, 1]), of(32, [1, 3]), of(24, [1, 2]), of(30, [1, 2])];
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{all:?}");
        assert!(!format!("{:?}", Permutation::new(24, [77, 78])).contains("77"));
    }
}
