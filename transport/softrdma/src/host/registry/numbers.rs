//! Owners of QP and SRQ numbers.
//!
//! Owns the blocks into which the 24-bit indices are divided. Members take whole blocks, upwards from a random start.
//! An index is therefore reused only after all others, which takes far longer than TIMEWAIT (contract rocev2 12.5). A
//! number is its index permuted with the host's key (`numbering`), so that the numbers of one member do not reveal the
//! numbers of others. A word of the registry names the owner of a block, and the owner's shard to which the block
//! belongs.
#![forbid(unsafe_code)]

use super::layout::{self, BLOCK, BLOCKS, NEXT_BLOCK, SHARDS};
use crate::host::{Host, HostError, MemberId};
use std::ops::Range;
use std::sync::atomic::Ordering;
use trunkline_roce::cm::CommIds;

/// Position of the shard in the word of a block.
const SHARD_SHIFT: u32 = 48;

/// Packs a shard of a member into the word of a block.
fn pack(owner: MemberId, shard: u8) -> u64 {
    owner.pack() | u64::from(shard) << SHARD_SHIFT
}

/// Unpacks a word of [`pack`]; `None` for any other word.
fn unpack(word: u64) -> Option<(MemberId, u8)> {
    let shard = u8::try_from(word >> SHARD_SHIFT).ok().filter(|shard| *shard < SHARDS)?;
    Some((MemberId::unpack(word & ((1 << SHARD_SHIFT) - 1))?, shard))
}

impl Host {
    /// Takes a block of indices for one of this member's shards, without the lock.
    pub(crate) fn take_block(&self, shard: u8) -> Result<Range<u32>, HostError> {
        let next = self.registry.word64(NEXT_BLOCK);
        let mut candidate = match usize::try_from(next.load(Ordering::Relaxed)) {
            Ok(0) | Err(_) => usize::try_from(self.random() >> 32).unwrap_or(0),
            Ok(candidate) => candidate,
        } % BLOCKS;
        for _ in 0..BLOCKS {
            let word = self.registry.word64(layout::block(candidate));
            let following = (candidate + 1) % BLOCKS;
            let before = word.load(Ordering::Relaxed);
            let is_free = unpack(before).is_none_or(|(owner, _)| !self.is_member(owner));
            let own = pack(self.me(), shard);
            if is_free && word.compare_exchange(before, own, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                // Do not store 0, which means that a start was not chosen.
                next.store(following.max(1) as u64, Ordering::Relaxed);
                let first = u32::try_from(candidate).unwrap_or(0) * BLOCK;
                return Ok(first..first + BLOCK);
            }
            candidate = following;
        }
        Err(HostError::Full("QP and SRQ numbers"))
    }

    /// Returns the member that owns a QP or SRQ number, without a system call.
    pub(crate) fn owner_of(&self, number: u32) -> Option<MemberId> {
        self.home_of(number).map(|(owner, _)| owner)
    }

    /// Returns the owner of a number, and the owner's shard to which its block belongs.
    pub(crate) fn home_of(&self, number: u32) -> Option<(MemberId, u8)> {
        let block = (self.index_of(number) / BLOCK) as usize;
        let word = self.registry.word64(layout::block(block)).load(Ordering::Acquire);
        unpack(word).filter(|(owner, _)| self.is_member(*owner))
    }

    pub(crate) fn number_of(&self, index: u32) -> u32 {
        self.numbering.number_of(index)
    }

    pub(crate) fn index_of(&self, number: u32) -> u32 {
        self.numbering.index_of(number)
    }

    /// Returns the comm ids of this member.
    pub(crate) fn comm_ids(&self) -> CommIds {
        self.numbering.comm_ids().of_slot(self.me().slot)
    }

    /// Returns the member that owns a comm id, without a system call.
    pub(crate) fn owner_of_comm_id(&self, comm_id: u32) -> Option<MemberId> {
        self.current(self.numbering.comm_ids().slot_of(comm_id))
    }

    /// Releases a block of a shard. None of the block's numbers may be in use.
    pub(crate) fn give_block_back(&self, block: &Range<u32>, shard: u8) {
        let word = self.registry.word64(layout::block((block.start / BLOCK) as usize));
        let own = pack(self.me(), shard);
        let _other = word.compare_exchange(own, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::hosts;
    use std::collections::{BTreeSet, HashSet};
    use trunkline_testkit::Folder;

    #[test]
    fn every_number_has_one_owner() {
        let folder = Folder::new().unwrap();
        let root = folder.join("run");
        let members: Vec<_> = (0..3).map(|_| Host::join(Some(&root)).unwrap()).collect();
        let mut seen = HashSet::new();
        for round in 0..30 {
            let member = &members[round % 3];
            let shard = u8::try_from(round).unwrap();
            for index in member.take_block(shard).unwrap() {
                let number = member.number_of(index);
                assert!(members.iter().all(|other| other.index_of(number) == index));
                assert!(seen.insert(number), "{number} was assigned twice");
                assert!(members.iter().all(|other| other.home_of(number) == Some((member.me(), shard))));
            }
        }
    }

    #[test]
    fn numbers_of_departed_members_are_unowned_and_reused_last() {
        let (_folder, [stays, leaves]) = hosts();
        let block = leaves.take_block(0).unwrap();
        drop(leaves);
        let first = stays.number_of(block.start);
        assert_eq!(stays.owner_of(first), None);
        assert_ne!(stays.take_block(0).unwrap(), block);
        stays.registry.word64(NEXT_BLOCK).store(u64::from(block.start / BLOCK).max(1), Ordering::Relaxed);
        assert_eq!(stays.take_block(0).unwrap(), block, "after a whole round");
        assert_eq!(stays.owner_of(first), Some(stays.me()));
        stays.give_block_back(&block, 0);
        assert_eq!(stays.owner_of(first), None);
    }

    #[test]
    fn number_does_not_reveal_numbers_of_other_members() {
        let (_folder, [one, two]) = hosts();
        let numbers = |member: &Host| -> BTreeSet<u32> {
            member.take_block(0).unwrap().map(|index| member.number_of(index)).collect()
        };
        let (first, second, later) = (numbers(&one), numbers(&two), numbers(&one));
        assert!(first.is_disjoint(&later) && first.is_disjoint(&second) && second.is_disjoint(&later));
        // With few numbers among 2^24, the next higher number is rarely in use.
        let all: BTreeSet<u32> = first.into_iter().chain(second).chain(later).collect();
        assert!(all.iter().filter(|number| all.contains(&(*number + 1))).count() < 3);
    }

    #[test]
    fn number_in_garbage_block_table_is_unowned() {
        let (_folder, [host]) = hosts();
        for word in [1, u64::MAX, 5 << 16 | 9, host.me().pack() + (1 << 16), pack(host.me(), SHARDS)] {
            host.registry.word64(layout::block(3)).store(word, Ordering::Relaxed);
            assert_eq!(host.owner_of(host.number_of(3 * BLOCK)), None, "{word:#x}");
        }
    }
}
