//! Which member owns which QP and SRQ numbers.
//!
//! Owns the blocks that the space of 24 bits is cut into. Members take whole blocks, upwards from
//! a random start, so that a number is used again only after all others, far longer than TIMEWAIT
//! (contract rocev2 12.5). The owner of a number is found by reading one word.
#![forbid(unsafe_code)]

use super::layout::{self, BLOCK, BLOCKS, NEXT_BLOCK};
use super::{Host, HostError, MemberId};
use std::ops::Range;
use std::sync::atomic::Ordering;

impl Host {
    /// Takes a block of numbers.
    pub(crate) fn take_block(&self) -> Result<Range<u32>, HostError> {
        let _locked = self.lock()?;
        let next = self.registry.word64(NEXT_BLOCK);
        let mut candidate = match usize::try_from(next.load(Ordering::Relaxed)) {
            Ok(0) | Err(_) => usize::try_from(self.random() >> 32).unwrap_or(0),
            Ok(candidate) => candidate,
        } % BLOCKS;
        for _ in 0..BLOCKS {
            let word = self.registry.word64(layout::block(candidate));
            let following = (candidate + 1) % BLOCKS;
            let taken = MemberId::unpack(word.load(Ordering::Relaxed));
            if taken.is_none_or(|owner| !self.is_member(owner)) {
                // Never 0, which means that no start was chosen.
                next.store(following.max(1) as u64, Ordering::Relaxed);
                word.store(self.me().pack(), Ordering::Release);
                let first = u32::try_from(candidate).unwrap_or(0) * BLOCK;
                return Ok(first..first + BLOCK);
            }
            candidate = following;
        }
        Err(HostError::Full("QP and SRQ numbers"))
    }

    /// The member that a QP or SRQ number belongs to, without a system call.
    pub(crate) fn owner_of(&self, number: u32) -> Option<MemberId> {
        let word = self.registry.word64(layout::block((number / BLOCK) as usize)).load(Ordering::Acquire);
        MemberId::unpack(word).filter(|owner| self.is_member(*owner))
    }

    /// Releases a block of which no number is in use.
    pub(crate) fn give_block_back(&self, block: &Range<u32>) {
        let word = self.registry.word64(layout::block((block.start / BLOCK) as usize));
        let _other = word.compare_exchange(self.me().pack(), 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Folder;
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_number_has_one_owner() {
        let folder = Folder::new("numbers");
        let root = folder.path().join("run");
        let members: Vec<_> = (0..3).map(|_| Host::join(Some(&root)).unwrap()).collect();
        let mut seen = HashSet::new();
        for round in 0..30 {
            let member = &members[round % 3];
            for number in member.take_block().unwrap() {
                assert!(seen.insert(number), "{number} was assigned twice");
                assert!(members.iter().all(|other| other.owner_of(number) == Some(member.me())));
            }
        }
    }

    #[test]
    fn numbers_of_members_that_left_have_no_owner_and_are_reused_last() {
        let folder = Folder::new("gone");
        let root = folder.path().join("run");
        let stays = Host::join(Some(&root)).unwrap();
        let leaves = Host::join(Some(&root)).unwrap();
        let block = leaves.take_block().unwrap();
        drop(leaves);
        assert_eq!(stays.owner_of(block.start), None);
        assert_ne!(stays.take_block().unwrap(), block);
        stays.registry.word64(NEXT_BLOCK).store(u64::from(block.start / BLOCK).max(1), Ordering::Relaxed);
        assert_eq!(stays.take_block().unwrap(), block, "after a whole round");
        stays.give_block_back(&block);
        assert_eq!(stays.owner_of(block.start), None);
    }

    #[test]
    fn garbage_in_the_block_table_names_no_owner() {
        let folder = Folder::new("garbage");
        let host = Host::join(Some(&folder.path().join("run"))).unwrap();
        for word in [1, u64::MAX, 5 << 16 | 9, host.me().pack() + (1 << 16)] {
            host.registry.word64(layout::block(3)).store(word, Ordering::Relaxed);
            assert_eq!(host.owner_of(3 * BLOCK), None, "{word:#x}");
        }
    }
}
