//! The slot of a device, for removing it while programs use it, and restoring it.
//!
//! Owns the state of the slot, full or empty, and the list of opened devices. Tests remove and restore
//! devices through [`Slot`]. A slot does not keep a device open.
#![forbid(unsafe_code)]

use super::core::{Core, SlotGuard};
use super::threads::signal::lock;
use std::sync::{Arc, Mutex, Weak};

/// A place for a device. Devices opened with clones of one slot are removed and restored together.
#[derive(Debug, Clone, Default)]
pub struct Slot(Arc<Mutex<SlotContents>>);

#[derive(Debug, Default)]
struct SlotContents {
    is_empty: bool,
    opened: Vec<(Weak<Core>, Weak<SlotGuard>)>,
}

impl Slot {
    /// Creates a slot with a device in it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes the device silently: its peers get no message. Programs that opened it get
    /// `DeviceRemoval` for every connection endpoint and `DeviceFatal` for the device; every later
    /// call on its objects returns `Gone`. It cannot be opened until [`Slot::restore`].
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

    /// Puts the device back, so that it can be opened again. Devices opened before remain removed.
    pub fn restore(&self) {
        lock(&self.0).is_empty = false;
    }

    /// Returns the number of opened devices of which any object exists, removed devices included.
    #[must_use]
    pub fn devices(&self) -> usize {
        lock(&self.0).opened.iter().filter(|(_, guard)| guard.strong_count() > 0).count()
    }

    /// Returns the number of receives posted in the SRQs of the opened devices that were not removed,
    /// including receives lent to shards. A simulation compares it with the number that programs have posted.
    #[must_use]
    pub fn posted_receives(&self) -> usize {
        let opened = lock(&self.0).opened.clone();
        opened.iter().filter_map(|(core, _)| core.upgrade()).map(|core| core.tables().posted_receives()).sum()
    }

    /// Returns true if the device was removed from the slot.
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty
    }

    /// Adds an opened device. Returns false if the slot is empty: the device was removed while it was being
    /// opened.
    pub(super) fn fill(&self, core: &Arc<Core>) -> bool {
        let mut state = lock(&self.0);
        state.opened.retain(|(_, guard)| guard.strong_count() > 0);
        let guard = core.slot_guard();
        state.opened.push((Arc::downgrade(core), Arc::downgrade(guard)));
        !state.is_empty
    }
}
