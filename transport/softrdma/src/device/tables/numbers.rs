//! Numbers of 24 bits, for QPs and SRQs.
//!
//! Owns the order in which numbers are assigned: by index, upwards from a random start. A number is therefore reused
//! only after all others, which takes far longer than TIMEWAIT (contract rocev2 12.5). A number is its index permuted
//! with a key, so that peers cannot derive other numbers from known numbers. A member of a host takes indices in blocks
//! from the registry, separately for each shard. Indices are thus unique, and each member can determine the shard of a
//! number.
#![forbid(unsafe_code)]

use super::random::Random;
use crate::host::Host;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::Arc;
use trunkline_roce::Permutation;
use trunkline_verbs::VerbsError;

const MASK: u32 = 0x00ff_ffff;

/// Source of numbers.
#[derive(Debug)]
pub(in crate::device) enum Numbers {
    /// This device uses all numbers.
    Own {
        /// Index at which the search continues.
        next: u32,
        permutation: Permutation,
    },
    /// Numbers are shared with the other members of the host.
    Shared {
        host: Arc<Host>,
        /// Blocks by shard.
        blocks: BTreeMap<u8, Blocks>,
    },
}

/// Blocks that belong to a shard of a member.
#[derive(Debug, Default)]
pub(in crate::device) struct Blocks {
    /// Unused indices of the current block.
    left: Range<u32>,
    /// Start of the current block.
    start: u32,
    /// Use of the numbers in each block, by the start of the block.
    used: BTreeMap<u32, Block>,
}

#[derive(Debug)]
struct Block {
    range: Range<u32>,
    used: usize,
}

impl Numbers {
    pub(in crate::device) fn new(random: &mut Random, host: Option<&Arc<Host>>) -> Self {
        match host {
            None => {
                Self::Own { next: random.next_u32() & MASK, permutation: Permutation::new(24, random.keys()) }
            }
            Some(host) => Self::Shared { host: Arc::clone(host), blocks: BTreeMap::new() },
        }
    }

    /// Takes the next number for a shard. Skips 0 and 1, the special QPs, and all ones, the multicast QP. A device that
    /// uses all numbers also skips numbers for which `taken` returns true.
    pub(in crate::device) fn take(
        &mut self,
        shard: u8,
        taken: impl Fn(u32) -> bool,
    ) -> Result<u32, VerbsError> {
        match self {
            Self::Own { next, permutation } => {
                for _ in 0..=MASK {
                    let number = permutation.number_of(*next);
                    *next = (*next + 1) & MASK;
                    if is_plain(number) && !taken(number) {
                        return Ok(number);
                    }
                }
                Err(VerbsError::OutOfResources("all numbers are in use"))
            }
            Self::Shared { host, blocks } => blocks.entry(shard).or_default().take(host, shard),
        }
    }

    pub(in crate::device) fn free(&mut self, number: u32) {
        if let Self::Shared { host, blocks } = self {
            let index = host.index_of(number);
            blocks.iter_mut().for_each(|(shard, blocks)| blocks.free(host, *shard, index));
        }
    }
}

fn is_plain(number: u32) -> bool {
    number > 1 && number < MASK
}

impl Blocks {
    fn take(&mut self, host: &Host, shard: u8) -> Result<u32, VerbsError> {
        loop {
            for index in self.left.by_ref() {
                let number = host.number_of(index);
                if is_plain(number) {
                    if let Some(block) = self.used.get_mut(&self.start) {
                        block.used += 1;
                    }
                    return Ok(number);
                }
            }
            let range = host.take_block(shard)?;
            let past = std::mem::replace(&mut self.start, range.start);
            self.left = range.clone();
            self.used.insert(range.start, Block { range, used: 0 });
            self.give_back(host, shard, past);
        }
    }

    /// Frees the number of an index, if the index belongs to one of these blocks.
    fn free(&mut self, host: &Host, shard: u8, index: u32) {
        let of = self.used.range_mut(..=index).next_back();
        let Some((&start, block)) = of.filter(|(_, block)| block.range.contains(&index)) else { return };
        block.used = block.used.saturating_sub(1);
        self.give_back(host, shard, start);
    }

    /// Returns a block to the registry if all its numbers were used once and freed.
    fn give_back(&mut self, host: &Host, shard: u8, start: u32) {
        let is_over = start != self.start && self.used.get(&start).is_some_and(|block| block.used == 0);
        if is_over && let Some(block) = self.used.remove(&start) {
            host.give_block_back(&block.range, shard);
        }
    }
}

/// A map whose keys are numbers that this device assigned. Peers choose only which keys are looked up, so a
/// cheap hash is safe.
///
/// Code must not depend on the order of entries, and visits them through [`NumberMap::numbers`].
#[derive(Debug)]
pub(in crate::device) struct NumberMap<V>(HashMap<u32, V, BuildHasherDefault<NumberHasher>>);

impl<V> Default for NumberMap<V> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<V> NumberMap<V> {
    pub(in crate::device) fn get(&self, number: u32) -> Option<&V> {
        self.0.get(&number)
    }

    pub(in crate::device) fn get_mut(&mut self, number: u32) -> Option<&mut V> {
        self.0.get_mut(&number)
    }

    pub(in crate::device) fn contains(&self, number: u32) -> bool {
        self.0.contains_key(&number)
    }

    pub(in crate::device) fn len(&self) -> usize {
        self.0.len()
    }

    pub(in crate::device) fn insert(&mut self, number: u32, value: V) {
        self.0.insert(number, value);
    }

    pub(in crate::device) fn remove(&mut self, number: u32) -> Option<V> {
        self.0.remove(&number)
    }

    /// Returns the value of a number, created with `make` if missing.
    pub(in crate::device) fn get_or_insert_with(&mut self, number: u32, make: impl FnOnce() -> V) -> &mut V {
        self.0.entry(number).or_insert_with(make)
    }

    /// Keeps the entries for which `keeps` returns true.
    #[allow(clippy::disallowed_methods, clippy::allow_attributes, reason = "each entry is judged by itself")]
    pub(in crate::device) fn retain(&mut self, mut keeps: impl FnMut(u32, &V) -> bool) {
        self.0.retain(|number, value| keeps(*number, value));
    }

    /// Returns all numbers, in ascending order.
    #[allow(clippy::disallowed_methods, clippy::allow_attributes, reason = "they are sorted")]
    pub(in crate::device) fn numbers(&self) -> Vec<u32> {
        let mut numbers: Vec<u32> = self.0.keys().copied().collect();
        numbers.sort_unstable();
        numbers
    }
}

/// Fibonacci hashing.
#[derive(Debug, Default)]
pub(in crate::device) struct NumberHasher(u64);

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
    use crate::host::testing::hosts;

    #[test]
    fn numbers_wrap_and_skip_special_numbers() {
        for special in [0, 1, MASK] {
            let permutation = Permutation::new(24, [u64::from(special), 7]);
            let next = permutation.index_of(special);
            let mut numbers = Numbers::Own { next, permutation };
            let expected = |step| permutation.number_of((next + step) & MASK);
            assert_eq!(numbers.take(0, |_| false), Ok(expected(1)));
            assert_eq!(numbers.take(0, |number| number == expected(2)), Ok(expected(3)));
        }
        let permutation = Permutation::new(24, [1, 1]);
        let mut numbers = Numbers::Own { next: MASK, permutation };
        assert_eq!(numbers.take(0, |_| false), Ok(permutation.number_of(MASK)));
        assert_eq!(numbers.take(0, |_| false), Ok(permutation.number_of(0)));
    }

    #[test]
    fn freed_number_is_not_reused_within_100000_allocations() {
        let mut numbers = Numbers::new(&mut Random::new(1), None);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100_000 {
            let number = numbers.take(0, |_| false).unwrap();
            numbers.free(number);
            assert!(seen.insert(number), "{number}");
        }
    }

    #[test]
    fn member_keeps_blocks_with_used_numbers() {
        let (_folder, [host]) = hosts();
        let mut numbers = Numbers::new(&mut Random::new(1), Some(&host));
        let mut take = || numbers.take(0, |_| false).unwrap();
        let first: Vec<u32> = (0..64).map(|_| take()).collect();
        let second: Vec<u32> = (0..64).map(|_| take()).collect();
        let distinct: std::collections::HashSet<_> = first.iter().chain(&second).collect();
        assert_eq!(distinct.len(), 128);
        let owned = |number: u32| host.owner_of(number) == Some(host.me());
        assert!(first.iter().chain(&second).all(|number| owned(*number)));
        for number in &first[1..] {
            numbers.free(*number);
        }
        assert!(owned(first[0]), "one is in use");
        numbers.free(first[0]);
        assert!(!first.iter().any(|number| owned(*number)));
        for number in second {
            numbers.free(number);
            assert!(owned(number), "more may come from this one");
        }
        // 10,000 QPs, created and destroyed one after the other, do not use up the numbers of the host.
        for _ in 0..10_000 {
            let number = numbers.take(0, |_| false).unwrap();
            numbers.free(number);
        }
        let Numbers::Shared { blocks, .. } = &numbers else { panic!("{numbers:?}") };
        let of_first = &blocks[&0];
        assert!(of_first.used.len() <= 2, "{blocks:?}");
        let third = numbers.take(3, |_| false).unwrap();
        assert_eq!(host.home_of(third), Some((host.me(), 3)), "members find the shard of a number");
    }
}
