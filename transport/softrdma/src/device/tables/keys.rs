//! Registered memory by key.
//!
//! Owns the table of lkeys and rkeys, and all checks of an access: key, protection domain, rights, bounds.
//! Shards call it for each SGE and each remote range, without a lock. Deregistration waits until all shards
//! have stopped using the key. Memory is accessed only in a range that passed all checks.
#![forbid(unsafe_code)]

use super::random::Random;
use crate::device::MAX_REGIONS;
use crate::device::threads::signal::lock;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use trunkline_machine::mutant;
use trunkline_machine::rings::keyed::Keyed;
use trunkline_machine::rings::readers::{Readers, Reading};
use trunkline_roce::Permutation;
use trunkline_verbs::{Access, IoAddress, Memory, Sge, VerbsError};

/// Number of a protection domain inside the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) struct PdNumber(pub(in crate::device) u32);

/// A refused access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) struct Refused;

/// Memory of a region for which the checks of an access passed, and the offset at which the access starts.
#[derive(Debug)]
pub(in crate::device) struct KeyRange<'a> {
    pub(in crate::device) memory: &'a Memory,
    pub(in crate::device) offset: usize,
}

#[derive(Debug)]
struct Region {
    memory: Arc<Memory>,
    /// Range of the memory that belongs to the region.
    range: Range<usize>,
    /// Address by which requests refer to the first byte of the range.
    start: IoAddress,
    pd: PdNumber,
    access: Access,
    slot: u32,
}

/// Number of bits for the slot in a key's index. The other bits contain the slot's generation.
const SLOT_BITS: u32 = MAX_REGIONS.ilog2();
/// Number of freed slots that are kept unused as long as fresh slots are left.
const REST: usize = 64;

/// The table of registered memory.
///
/// A key encodes a slot and its generation, permuted with a secret of the device. Each registration in a slot has a
/// different generation, so a key becomes invalid with its region, and peers cannot derive other keys from known keys.
/// The permutation is computed only at registration, since accesses look up regions by key.
#[derive(Debug)]
pub(in crate::device) struct Keys {
    table: Keyed<Region>,
    slots: Mutex<Slots>,
}

/// Slots for new keys.
#[derive(Debug)]
struct Slots {
    /// The generation of each slot.
    generations: Vec<u32>,
    /// Free slots, oldest first.
    free: VecDeque<u32>,
    permutation: Permutation,
    /// Maximum number of slots in use.
    most: u32,
    /// True if the device is removed.
    is_closed: bool,
}

/// View of the regions during a read.
#[derive(Debug, Clone, Copy)]
pub(in crate::device) struct KeyView<'a> {
    table: &'a Keyed<Region>,
    reading: &'a Reading<'a>,
}

impl Keys {
    /// Creates a table for at most `most` regions, but never more than [`MAX_REGIONS`].
    pub(in crate::device) fn new(readers: &Arc<Readers>, random: &mut Random, most: u32) -> Self {
        let slots = Slots {
            generations: Vec::new(),
            free: VecDeque::new(),
            permutation: Permutation::new(32, random.keys()),
            most: most.min(MAX_REGIONS),
            is_closed: false,
        };
        Self { table: Keyed::new(readers), slots: Mutex::new(slots) }
    }

    /// Registers a range inside a memory. Returns its key.
    pub(in crate::device) fn insert(
        &self,
        (memory, range): (Arc<Memory>, Range<usize>),
        start: IoAddress,
        pd: PdNumber,
        access: Access,
    ) -> Result<u32, VerbsError> {
        let mut slots = lock(&self.slots);
        if slots.is_closed {
            return Err(VerbsError::Gone);
        }
        let slot = slots.take()?;
        let key = slots.next_key(slot);
        self.table.insert(key, Region { memory, range, start, pd, access, slot });
        Ok(key)
    }

    /// Invalidates a key. Returns after all shards have stopped using the key and its memory.
    pub(in crate::device) fn remove(&self, key: u32) -> Result<(), VerbsError> {
        if mutant!(deregistered_key_stays_valid) {
            return Ok(());
        }
        let region = self.table.remove(key).ok_or(VerbsError::Gone)?;
        lock(&self.slots).free.push_back(region.slot);
        Ok(())
    }

    /// Invalidates all keys permanently, and refuses further registrations.
    pub(in crate::device) fn close(&self) {
        lock(&self.slots).is_closed = true;
        for key in self.table.keys() {
            drop(self.table.remove(key));
        }
    }

    #[cfg(test)]
    pub(in crate::device) fn with_writers_locked(&self, action: impl FnOnce()) {
        let _slots = lock(&self.slots);
        action();
    }

    /// Returns a view of the table for a reader.
    #[inline]
    pub(in crate::device) fn view<'a>(&'a self, reading: &'a Reading<'_>) -> KeyView<'a> {
        KeyView { table: &self.table, reading }
    }
}

impl Slots {
    /// Takes a slot for a new key. A freed slot is reused only after other slots were freed, and with a new generation,
    /// so that a key is not reused soon.
    fn take(&mut self) -> Result<u32, VerbsError> {
        let fresh = u32::try_from(self.generations.len()).ok().filter(|slot| *slot < self.most);
        if let Some(slot) = fresh.filter(|_| self.free.len() <= REST) {
            self.generations.push(0);
            return Ok(slot);
        }
        self.free.pop_front().ok_or(VerbsError::OutOfResources("the device holds no more memory regions"))
    }

    /// Returns the key of a slot's next generation. The key is never 0 or `u32::MAX`, which programs and devices treat
    /// as invalid.
    fn next_key(&mut self, slot: u32) -> u32 {
        let generation = &mut self.generations[slot as usize];
        loop {
            *generation = generation.wrapping_add(1);
            let key = self.permutation.number_of(*generation << SLOT_BITS | slot);
            if !matches!(key, 0 | u32::MAX) {
                return key;
            }
        }
    }
}

impl<'a> KeyView<'a> {
    /// Checks an access to `length` bytes. Returns their memory.
    #[inline]
    pub(in crate::device) fn range(
        &self,
        key: u32,
        pd: PdNumber,
        address: IoAddress,
        length: usize,
        needs: Access,
    ) -> Result<KeyRange<'a>, Refused> {
        let region = self.table.get(self.reading, key).ok_or(Refused)?;
        if region.pd != pd || !region.access.contains(needs) {
            return Err(Refused);
        }
        let offset = address.0.checked_sub(region.start.0).ok_or(Refused)?;
        let offset = usize::try_from(offset).map_err(|_| Refused)?;
        if offset.checked_add(length).is_none_or(|end| end > region.range.len()) {
            return Err(Refused);
        }
        Ok(KeyRange { memory: &region.memory, offset: region.range.start + offset })
    }

    /// Writes bytes to the start of an SGE. The caller has checked that they fit.
    #[inline]
    pub(in crate::device) fn scatter(&self, pd: PdNumber, piece: Sge, bytes: &[u8]) -> Result<(), Refused> {
        if bytes.is_empty() {
            return Ok(());
        }
        let range = self.range(piece.lkey.0, pd, piece.address, bytes.len(), Access::LOCAL_WRITE)?;
        range.memory.write(range.offset, bytes).map_err(|_| Refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_machine::rings::readers::Reader;
    use trunkline_verbs::Lkey;

    const PD: PdNumber = PdNumber(1);

    fn all(memory: &Arc<Memory>) -> (Arc<Memory>, Range<usize>) {
        (Arc::clone(memory), 0..memory.len())
    }

    /// A table with a reader.
    struct Table {
        keys: Keys,
        reader: Mutex<Reader>,
    }

    impl Table {
        fn of(most: u32) -> Self {
            let readers = Readers::new();
            let keys = Keys::new(&readers, &mut Random::new(5), most);
            Self { keys, reader: Mutex::new(Reader::new(&readers)) }
        }

        fn read<R>(&self, action: impl FnOnce(KeyView<'_>) -> R) -> R {
            let mut reader = lock(&self.reader);
            action(self.keys.view(&reader.enter()))
        }

        /// Returns the start of an access in the memory.
        fn range(
            &self,
            key: u32,
            pd: PdNumber,
            address: IoAddress,
            length: usize,
            needs: Access,
        ) -> Result<usize, Refused> {
            self.read(|view| view.range(key, pd, address, length, needs).map(|found| found.offset))
        }
    }

    fn table() -> Table {
        Table::of(MAX_REGIONS)
    }

    #[test]
    fn access_outside_range_rights_domain_or_generation_is_refused() {
        let keys = table();
        let memory = Memory::zeroed(64).unwrap();
        let key = keys.keys.insert(all(&memory), memory.address(0), PD, Access::REMOTE_READ).unwrap();
        let at = |offset| memory.address(offset);
        assert!(keys.range(key, PD, at(0), 64, Access::REMOTE_READ).is_ok());
        assert!(keys.range(key, PD, at(1), 64, Access::REMOTE_READ).is_err(), "range");
        assert!(keys.range(key, PD, at(0), 64, Access::REMOTE_WRITE).is_err(), "right");
        assert!(keys.range(key, PdNumber(2), at(0), 64, Access::REMOTE_READ).is_err(), "domain");
        assert!(keys.range(key ^ 1, PD, at(0), 64, Access::REMOTE_READ).is_err(), "generation");
        assert!(keys.range(key ^ 0x100, PD, at(0), 64, Access::REMOTE_READ).is_err(), "index");
        let piece = Sge { address: at(0), length: 4, lkey: Lkey(key) };
        assert!(keys.read(|view| view.scatter(PD, piece, &[1; 4])).is_err(), "local write was not granted");
    }

    #[test]
    fn region_of_range_excludes_adjacent_bytes() {
        let keys = table();
        let memory = Memory::zeroed(64).unwrap();
        let key =
            keys.keys.insert((Arc::clone(&memory), 16..48), IoAddress(4096), PD, Access::empty()).unwrap();
        let offset = |address, length| keys.range(key, PD, IoAddress(address), length, Access::empty());
        assert_eq!(offset(4096, 32), Ok(16));
        assert_eq!(offset(4127, 1), Ok(47));
        assert_eq!(offset(4128, 0), Ok(48));
        for (address, length) in [(4095, 1), (4096, 33), (4127, 2), (4128, 1), (4096, usize::MAX)] {
            assert_eq!(offset(address, length), Err(Refused), "{address}, {length} bytes");
        }
    }

    #[test]
    fn key_does_not_outlive_its_region() {
        let keys = table();
        let memory = Memory::zeroed(64).unwrap();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..1000 {
            let key = keys.keys.insert(all(&memory), memory.address(0), PD, Access::empty()).unwrap();
            assert!(seen.insert(key), "a key came back");
            keys.keys.remove(key).unwrap();
            assert!(keys.range(key, PD, memory.address(0), 1, Access::empty()).is_err());
            assert!(keys.keys.remove(key).is_err());
        }
        assert!(lock(&keys.keys.slots).generations.len() < 100, "slots are used again");
    }

    #[test]
    fn full_table_refuses_keys_until_key_is_removed() {
        let keys = Table::of(3);
        let memory = Memory::zeroed(64).unwrap();
        let insert = |keys: &Table| keys.keys.insert(all(&memory), IoAddress(0), PD, Access::empty());
        let held = [(); 3].map(|()| insert(&keys).unwrap());
        assert!(matches!(insert(&keys), Err(VerbsError::OutOfResources(_))));
        keys.keys.remove(held[1]).unwrap();
        assert!(insert(&keys).is_ok_and(|key| !held.contains(&key)));
        assert!(insert(&keys).is_err());
    }

    #[test]
    fn known_keys_do_not_predict_next_key() {
        const COUNT: usize = 4096;
        for reuses in [false, true] {
            let keys = table();
            let memory = Memory::zeroed(64).unwrap();
            let mut seen = Vec::new();
            for _ in 0..COUNT {
                let key = keys.keys.insert(all(&memory), memory.address(0), PD, Access::empty()).unwrap();
                if reuses {
                    keys.keys.remove(key).unwrap();
                }
                seen.push(key);
            }
            let mut differences = std::collections::BTreeMap::<u32, usize>::new();
            for [before, after] in seen.array_windows() {
                *differences.entry(after.wrapping_sub(*before)).or_default() += 1;
            }
            // Among 2^32 differences, some of 4096 are equal by chance.
            assert!(differences.values().all(|count| *count <= 2), "a difference comes again and again");
            let mut set = seen.clone();
            set.sort_unstable();
            let near = set.array_windows().filter(|[low, high]| high - low < 256).count();
            assert!(near < 16, "{near} keys differ in their low byte only");
        }
    }
}
