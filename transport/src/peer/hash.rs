//! The hash function for peer keys. Peers choose their keys, so the hash depends on a random secret of each table.
#![forbid(unsafe_code)]

use std::hash::{BuildHasher, Hasher};
use trunkline_machine::Runtime;

/// Creates hashers with one secret. Each word is multiplied by a secret factor, after the product of the
/// previous words was folded into it. Without the secret or any hash, an attacker cannot choose keys that
/// collide in one bucket.
#[derive(Clone, Copy)]
pub(crate) struct PeerHash(u64, u64);

impl PeerHash {
    pub(crate) fn new(runtime: &Runtime) -> Self {
        Self::of(runtime.random(), runtime.random())
    }

    fn of(start: u64, factor: u64) -> Self {
        // An even factor would lose bits.
        Self(start, factor | 1)
    }
}

impl BuildHasher for PeerHash {
    type Hasher = PeerHasher;

    #[inline]
    fn build_hasher(&self) -> PeerHasher {
        PeerHasher { state: self.0, factor: self.1 }
    }
}

impl std::fmt::Debug for PeerHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PeerHash")
    }
}

/// Hasher of one key.
pub(crate) struct PeerHasher {
    state: u64,
    factor: u64,
}

impl Hasher for PeerHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "the two halves of the product")]
    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(self.factor);
        self.state = (product as u64) ^ (product >> 64) as u64;
    }

    #[inline]
    fn write_u16(&mut self, word: u16) {
        self.write_u64(word.into());
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PeerKey;
    use std::collections::BTreeSet;

    /// A table takes the bucket from the low bits of a hash, and a tag from the high bits.
    #[test]
    fn hashes_of_adjacent_keys_differ_in_low_and_high_bits() {
        let hash = PeerHash::of(0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344);
        let key = |host: u8, port| PeerKey::new(([10, 0, 0, host], port).into());
        let keys = (0..=255).flat_map(|host| (0..16).map(move |port| key(host, port)));
        let hashes = keys.map(|key| hash.hash_one(key)).collect::<Vec<_>>();
        let distinct =
            |of: fn(u64) -> u64| hashes.iter().map(|hash| of(*hash)).collect::<BTreeSet<_>>().len();
        assert_eq!(distinct(|hash| hash), 4096);
        // With 4096 balls in 4096 bins, 63 % of the bins get at least one.
        assert!(distinct(|hash| hash & 4095) > 2400, "{}", distinct(|hash| hash & 4095));
        assert!(distinct(|hash| hash >> 52) > 2400, "{}", distinct(|hash| hash >> 52));
    }

    #[test]
    fn hash_depends_on_secret() {
        let key = PeerKey::numbered(1);
        let [a, b, c] = [(1, 3), (2, 3), (1, 5)].map(|(a, b)| PeerHash::of(a, b << 40).hash_one(key));
        assert!(a != b && a != c && b != c);
    }
}
