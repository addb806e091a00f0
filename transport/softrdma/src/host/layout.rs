//! Where the registry's tables lie.
//!
//! Owns the format: changing anything here means another [`MAGIC`]. Tables have fixed sizes; the
//! file is sparse, so that what is not used takes no memory.
#![forbid(unsafe_code)]

use super::segment::HEADER;

/// Names the format.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"TRUNKL\x00\x01");

/// Members at most. Comm ids of the connection manager carry 10 bits of slot.
pub(super) const SLOTS: usize = 1024;
/// Numbers in a block.
pub(super) const BLOCK: u32 = 64;
/// Blocks in the space of 24 bits.
pub(super) const BLOCKS: usize = (1 << 24) / BLOCK as usize;

/// Counters, a word of 64 bits each.
const COUNTERS: usize = HEADER;
/// Where the search for a free block goes on; 0 until the first member chose a start.
pub(super) const NEXT_BLOCK: usize = COUNTERS;
/// Generation of the member that joined last.
pub(super) const LAST_GENERATION: usize = COUNTERS + 8;
/// Number of the domain that was made last.
pub(super) const LAST_DOMAIN: usize = COUNTERS + 16;

/// One word of 64 bits per slot: the generation of the member there, 0 for none.
const SLOT_TABLE: usize = COUNTERS + 64;
/// One word of 64 bits per block: its owner, packed, 0 for none.
const BLOCK_TABLE: usize = SLOT_TABLE + 8 * SLOTS;
/// Bytes in the registry.
pub(super) const LENGTH: usize = BLOCK_TABLE + 8 * BLOCKS;

/// The word of a slot.
pub(super) fn slot(slot: u16) -> usize {
    SLOT_TABLE + 8 * (slot as usize % SLOTS)
}

/// The word of a block.
pub(super) fn block(block: usize) -> usize {
    BLOCK_TABLE + 8 * (block % BLOCKS)
}
