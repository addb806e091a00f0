//! Slots, from which a device can be removed while programs use it.
//!
//! Owns the state of the slot, full or empty, and the list of opened devices. Tests remove and restore devices through
//! [`Slot`]. A slot does not keep a device open.
#![forbid(unsafe_code)]

use super::core::{Core, SlotGuard};
use super::threads::signal::lock;
use std::sync::{Arc, Mutex, Weak};

/// A slot from which a device can be removed. Clones refer to the same slot, so devices opened with them are removed
/// together.
#[derive(Debug, Clone, Default)]
pub struct Slot(Arc<Mutex<SlotContents>>);

#[derive(Debug, Default)]
struct SlotContents {
    is_empty: bool,
    opened: Vec<(Weak<Core>, Weak<SlotGuard>)>,
}

impl Slot {
    /// Creates a slot that contains a device.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes the device without notifying its peers. Programs that opened the device get `DeviceRemoval` for each
    /// connection endpoint and `DeviceFatal` for the device. Later calls on its objects return `Gone`. The device
    /// cannot be opened again until [`Slot::restore`] is called.
    pub fn remove(&self) {
        let opened = {
            let mut state = lock(&self.0);
            state.is_empty = true;
            std::mem::take(&mut state.opened)
        };
        for core in opened.iter().filter_map(|(core, _)| core.upgrade()) {
            core.remove();
        }
        // Keep the removed devices in the list, since their objects exist until programs drop them.
        lock(&self.0).opened.extend(opened);
    }

    /// Puts the device back, so that it can be opened again. Devices opened before the removal remain removed.
    pub fn restore(&self) {
        lock(&self.0).is_empty = false;
    }

    /// Returns the number of opened devices, including removed devices, of which at least one object exists.
    #[must_use]
    pub fn devices(&self) -> usize {
        lock(&self.0).opened.iter().filter(|(_, guard)| guard.strong_count() > 0).count()
    }

    /// Returns the number of receives posted to SRQs of opened devices, including receives lent to shards. Removed
    /// devices are not counted. A simulation compares the result with the number of receives that programs have posted.
    #[must_use]
    pub fn posted_receives(&self) -> usize {
        let opened = lock(&self.0).opened.clone();
        opened.iter().filter_map(|(core, _)| core.upgrade()).map(|core| core.tables().posted_receives()).sum()
    }

    /// Returns true if the device was removed from the slot.
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty
    }

    /// Adds an opened device. Returns false if the slot is empty, because the device was removed while it was being
    /// opened.
    pub(super) fn fill(&self, core: &Arc<Core>) -> bool {
        let mut state = lock(&self.0);
        state.opened.retain(|(_, guard)| guard.strong_count() > 0);
        let guard = core.slot_guard();
        state.opened.push((Arc::downgrade(core), Arc::downgrade(guard)));
        !state.is_empty
    }
}
