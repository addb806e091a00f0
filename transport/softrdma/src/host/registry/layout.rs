//! Layout of the registry, with the offset and size of each table, and the words that identify members.
//!
//! Owns the format. A change to the format requires a new [`MAGIC`]. Tables have fixed sizes.
#![forbid(unsafe_code)]

use crate::host::memory::segment::HEADER;

/// Identifies the format of the registry.
pub(in crate::host) const MAGIC: u64 = u64::from_le_bytes(*b"TRUNKL\x00\x05");

/// Maximum number of members. Comm ids of the connection manager contain 10 bits for the slot.
pub(in crate::host) const SLOTS: usize = 1024;
/// Number of QP or SRQ numbers in a block.
pub(in crate::host) const BLOCK: u32 = 64;
/// Maximum number of shards of a member that can have blocks. Shards are numbered from 0.
pub(in crate::host) const SHARDS: u8 = 32;
/// Number of blocks of 24-bit indices.
pub(in crate::host) const BLOCKS: usize = (1 << 24) / BLOCK as usize;

/// Offset of the counters, which are 64-bit words.
const COUNTERS: usize = HEADER;
/// Block at which the search for a free one continues; 0 until the first member has chosen a start.
pub(in crate::host) const NEXT_BLOCK: usize = COUNTERS;
/// Generation of the member that joined last.
pub(in crate::host) const LAST_GENERATION: usize = COUNTERS + 8;
/// Number of the domain that was created last; 0 until the first member has chosen a start.
pub(in crate::host) const LAST_DOMAIN: usize = COUNTERS + 16;

/// Number of changes to records of UDP ports.
pub(in crate::host) const PORT_CHANGES: usize = COUNTERS + 48;
/// Key of the members' numbering permutations, in two words; 0 until the first member has chosen it.
pub(in crate::host) const NUMBER_KEY: usize = COUNTERS + 64;

/// Offset of a 64-bit word per slot, which contains the generation of the member in the slot; 0 if the slot is empty.
const SLOT_TABLE: usize = COUNTERS + 128;
/// Offset of a 64-bit word per block, which contains the packed owner of the block, with the owner's shard in the bits
/// above; 0 if the block is free.
const BLOCK_TABLE: usize = SLOT_TABLE + 8 * SLOTS;
/// Offset of the tables of records.
const RECORDS: usize = BLOCK_TABLE + 8 * BLOCKS;

/// Identifies a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct MemberId {
    /// Slot of the member in the registry.
    pub(crate) slot: u16,
    /// Number of the member among all that have joined, counted from 1.
    pub(crate) generation: u32,
}

impl MemberId {
    /// Packs the identifier into one word; never 0.
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.generation) << 16 | u64::from(self.slot)
    }

    /// Unpacks a word of [`MemberId::pack`]; `None` for any other word.
    #[allow(clippy::cast_possible_truncation, reason = "the low 16 bits are the slot")]
    pub(crate) fn unpack(word: u64) -> Option<Self> {
        let slot = word as u16;
        let generation = u32::try_from(word >> 16).ok().filter(|generation| *generation != 0)?;
        (usize::from(slot) < SLOTS).then_some(Self { slot, generation })
    }
}

/// A table of records, each with a tag and three words.
#[derive(Debug)]
pub(in crate::host) struct Table {
    /// Contents of the records, for errors.
    pub(in crate::host) holds: &'static str,
    /// Offset of the word with an upper bound on the indices of used records.
    pub(in crate::host) used: usize,
    /// Maximum number of records.
    pub(in crate::host) capacity: usize,
    start: usize,
}

/// Length of a record, in bytes.
const RECORD: usize = 32;

/// Records of CM services, with the service id, and the address in two words.
pub(in crate::host) static SERVICES: Table =
    Table { holds: "listening endpoints", used: COUNTERS + 24, capacity: 4096, start: RECORDS };
/// Records of UDP ports from which members send, with the address in two words, and the port.
pub(in crate::host) static PORTS: Table =
    Table { holds: "UDP ports", used: COUNTERS + 32, capacity: 4096, start: RECORDS + RECORD * 4096 };
/// Records of references to XRC domains, with the device, inode and number.
pub(in crate::host) static DOMAINS: Table =
    Table { holds: "open XRC domains", used: COUNTERS + 40, capacity: 16384, start: RECORDS + RECORD * 8192 };

/// Length of the registry, in bytes.
pub(in crate::host) const LENGTH: usize = RECORDS + RECORD * (8192 + 16384);

impl Table {
    /// Returns the offset of a record's tag; its other words follow.
    pub(in crate::host) fn record(&self, index: usize) -> usize {
        self.start + RECORD * (index % self.capacity)
    }
}

/// Returns the offset of a slot's word.
pub(in crate::host) fn slot(slot: u16) -> usize {
    SLOT_TABLE + 8 * (slot as usize % SLOTS)
}

/// Returns the offset of a block's word.
pub(in crate::host) fn block(block: usize) -> usize {
    BLOCK_TABLE + 8 * (block % BLOCKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_follow_each_other() {
        assert_eq!(SERVICES.record(SERVICES.capacity - 1) + RECORD, PORTS.start);
        assert_eq!(PORTS.record(PORTS.capacity - 1) + RECORD, DOMAINS.start);
        assert_eq!(DOMAINS.record(DOMAINS.capacity - 1) + RECORD, LENGTH);
    }

    #[test]
    fn unpack_accepts_exactly_words_of_pack() {
        let member = MemberId { slot: 1023, generation: u32::MAX };
        assert_eq!(MemberId::unpack(member.pack()), Some(member));
        assert_eq!(MemberId::unpack(0), None);
        assert_eq!(MemberId::unpack(5), None, "no generation");
        assert_eq!(MemberId::unpack(1 << 16 | 1024), None, "no such slot");
        assert_eq!(MemberId::unpack(u64::MAX), None);
    }
}
