//! Memory of short frames, copied out of their receive slots: blocks that neighbours share.
//!
//! A frame's bytes keep their block, so the block is used again when the last of its frames is dropped, on any thread. While
//! a program drops what it receives, nothing is allocated. A frame that it keeps, keeps a block.
#![forbid(unsafe_code)]

use bytes::{Bytes, BytesMut};

/// Frames up to this size are copied: that costs less than to lend a slot and to return it.
pub(super) const SHORT_BYTES: usize = 1024;
/// Bytes of a block, and so the most that a kept frame keeps: a page, as its slot would be.
pub(super) const BLOCK_BYTES: usize = 4096;
/// Blocks that are used in turn, for as many frames as a busy poller has at a time.
const BLOCKS: usize = 16;

/// The blocks of one poller.
#[derive(Debug, Default)]
pub(super) struct ShortFrames {
    blocks: [BytesMut; BLOCKS],
    current: usize,
}

impl ShortFrames {
    /// The bytes of a frame of at most [`BLOCK_BYTES`].
    #[inline]
    pub(super) fn copy(&mut self, frame: &[u8]) -> Bytes {
        if self.blocks[self.current].capacity() < frame.len() {
            self.turn();
        }
        let block = &mut self.blocks[self.current];
        block.extend_from_slice(frame);
        block.split().freeze()
    }

    /// Goes on to the next block, or to a new one in its place while frames are in it.
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

    /// Frames that are dropped in time, and one that is kept for ever.
    #[test]
    fn blocks_are_used_again_and_nothing_that_is_kept_changes() {
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
