//! Slots of equal size in one registered region, and their use for sending.
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError};
use trunkline_verbs::{Access, IoAddress, Lkey, Memory, MemoryRegion, ProtectionDomain, Sge, VerbsError};

/// One registered region, divided into slots.
#[derive(Debug)]
pub(super) struct SlotRegion {
    pub(super) memory: Arc<Memory>,
    /// Registration; `None` once the device is removed. Lent slots may outlive it.
    region: Mutex<Option<Arc<dyn MemoryRegion>>>,
    /// Start of the memory in the device's address space.
    start: IoAddress,
    lkey: Lkey,
    slot_bytes: usize,
    slots: u32,
}

impl SlotRegion {
    pub(super) fn new(
        pd: &dyn ProtectionDomain,
        slots: u32,
        slot_bytes: usize,
        start: IoAddress,
        access: Access,
    ) -> Result<Self, VerbsError> {
        let count = usize::try_from(slots).map_err(|_| VerbsError::Invalid("too many slots"))?;
        let length = count.checked_mul(slot_bytes).ok_or(VerbsError::Invalid("too many slots"))?;
        let memory = Memory::zeroed(length).map_err(|_| VerbsError::OutOfResources("memory for buffers"))?;
        let region = pd.register_at(Arc::clone(&memory), start, access)?;
        let lkey = region.lkey();
        Ok(Self { memory, region: Mutex::new(Some(region)), start, lkey, slot_bytes, slots })
    }

    /// Ends the device's access to the region, and releases the device.
    pub(super) fn close(&self) {
        let region = self.region.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(region);
    }

    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    #[inline]
    pub(super) fn offset(&self, slot: u32) -> usize {
        usize::try_from(slot).unwrap_or(usize::MAX).wrapping_mul(self.slot_bytes)
    }

    pub(super) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Returns a part of a slot, for a work request.
    pub(super) fn sge(&self, slot: u32, at: usize, length: usize) -> Sge {
        let at = at.min(self.slot_bytes);
        Sge {
            address: IoAddress(self.start.0.wrapping_add((self.offset(slot) + at) as u64)),
            length: u32::try_from(length.min(self.slot_bytes - at)).unwrap_or(u32::MAX),
            lkey: self.lkey,
        }
    }
}

/// Slots for building frames. A slot belongs to its taker until it is put back.
#[derive(Debug)]
pub(crate) struct SendSlots {
    region: SlotRegion,
    free: Vec<u32>,
    /// Empty buffer, reused by [`SendSlots::change`].
    changed: Vec<u8>,
}

impl SendSlots {
    pub(crate) fn new(
        pd: &dyn ProtectionDomain,
        slots: u32,
        slot_bytes: usize,
        start: IoAddress,
    ) -> Result<Self, VerbsError> {
        let region = SlotRegion::new(pd, slots, slot_bytes, start, Access::empty())?;
        let free = (0..region.slots()).rev().collect();
        Ok(Self { region, free, changed: Vec::new() })
    }

    /// Releases the device and all free slots.
    pub(crate) fn close(&mut self) {
        self.free.clear();
        self.region.close();
    }

    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Puts back a slot after its work request has completed.
    pub(crate) fn put_back(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Returns the number of free slots and of all slots.
    pub(crate) fn count(&self) -> (u32, u32) {
        (u32::try_from(self.free.len()).unwrap_or(u32::MAX), self.region.slots())
    }

    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Copies `bytes` to `at` in the slot, and returns their end. Bytes that do not fit are a bug in the caller, and
    /// are not written.
    pub(crate) fn write(&self, slot: u32, at: usize, bytes: &[u8]) -> usize {
        let end = at.saturating_add(bytes.len());
        debug_assert!(end <= self.region.slot_bytes());
        if end <= self.region.slot_bytes() {
            let written = self.region.memory.write(self.region.offset(slot) + at, bytes);
            debug_assert!(written.is_ok());
        }
        end
    }

    /// Copies consecutive parts to `at` in the slot, like [`Self::write`].
    #[inline]
    pub(crate) fn write_all<const N: usize>(&self, slot: u32, at: usize, parts: [&[u8]; N]) {
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
        debug_assert!(at + bytes <= self.region.slot_bytes());
        if at + bytes <= self.region.slot_bytes() {
            let written = self.region.memory.write_all(self.region.offset(slot) + at, parts);
            debug_assert!(written.is_ok());
        }
    }

    /// Changes a part of a slot.
    pub(crate) fn change(&mut self, slot: u32, at: usize, length: usize, change: impl FnOnce(&mut [u8])) {
        let Self { region, changed, .. } = self;
        let start = region.offset(slot) + at;
        let read = region.memory.append_to(start, length, changed);
        change(changed);
        let written = read.and_then(|()| region.memory.write(start, changed));
        debug_assert!(written.is_ok() && at + length <= region.slot_bytes());
        changed.clear();
    }

    /// Returns the filled part, for a work request.
    pub(crate) fn sge(&self, slot: u32, at: usize, length: usize) -> Sge {
        self.region.sge(slot, at, length)
    }
}
