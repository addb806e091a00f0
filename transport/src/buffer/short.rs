//! Memory for short frames, which are copied out of their receive slots into shared blocks.
//!
//! A frame keeps its block alive, so the block is reused when the last of its frames is dropped, on any thread. If a
//! program drops frames promptly, no allocations are needed. A frame that is kept keeps its whole block.
#![forbid(unsafe_code)]

use bytes::BytesMut;

/// Maximum size of a frame that is copied. Up to this size, a copy costs less than lending and returning a slot.
pub(super) const SHORT_BYTES: usize = 1024;
/// Size of a block, in bytes, and therefore the maximum memory that a kept frame occupies. Equals the size of a page
/// and of a slot.
pub(super) const BLOCK_BYTES: usize = 4096;
/// Number of blocks used in turn, which suffices for the frames that a busy poller holds at a time.
const BLOCKS: usize = 16;

/// The blocks of one poller.
#[derive(Debug, Default)]
pub(super) struct ShortFrames {
    blocks: [BytesMut; BLOCKS],
    current: usize,
}

impl ShortFrames {
    /// Copies a frame of at most [`BLOCK_BYTES`], and returns the exclusively owned copy.
    #[inline]
    pub(super) fn copy(&mut self, frame: &[u8]) -> BytesMut {
        if self.blocks[self.current].capacity() < frame.len() {
            self.turn();
        }
        let block = &mut self.blocks[self.current];
        block.extend_from_slice(frame);
        block.split()
    }

    /// Advances to the next block. Replaces it if frames are still in it.
    #[inline(never)]
    fn turn(&mut self) {
        self.current = (self.current + 1) % BLOCKS;
        let block = &mut self.blocks[self.current];
        if !block.try_reclaim(BLOCK_BYTES) {
            *block = BytesMut::with_capacity(BLOCK_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeSet, VecDeque};

    /// Some frames are dropped in time, and one is kept forever.
    #[test]
    fn blocks_are_reused_and_kept_bytes_do_not_change() {
        let (mut frames, mut alive, mut places) = (ShortFrames::default(), VecDeque::new(), BTreeSet::new());
        let content = |number: usize| vec![number.to_le_bytes()[0]; 1 + number * 37 % SHORT_BYTES];
        let kept = frames.copy(&content(0));
        for number in 1..5000 {
            let frame = frames.copy(&content(number));
            places.insert(frame.as_ptr() as usize / BLOCK_BYTES);
            alive.push_back((number, frame));
            if alive.len() > 20 {
                let (number, frame) = alive.pop_front().expect("there are 21");
                assert_eq!(frame, content(number));
            }
        }
        assert_eq!(kept, content(0));
        // A block need not begin at a multiple of its size.
        assert!(places.len() <= 2 * (BLOCKS + 1), "{} pages", places.len());
    }
}
