//! The slot that a device sits in: how a device is taken away under its users, and put back.
//!
//! Owns whether there is a device now, and which opened ones there are. Tests take it away through
//! [`Slot`]; it must never keep a device open.
#![forbid(unsafe_code)]

use super::core::Core;
use super::signal::lock;
use std::sync::{Arc, Mutex, Weak};

/// What a device holds until all of it is gone, its descriptors and threads too.
#[derive(Debug)]
pub(super) struct Seat;

/// Where a device sits. Devices that are opened with clones of it go and come back together.
#[derive(Debug, Clone, Default)]
pub struct Slot(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_empty: bool,
    opened: Vec<(Weak<Core>, Weak<Seat>)>,
}

impl Slot {
    /// A slot with a device in it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the device away, without a word to its peers. Whoever has opened it is told: every
    /// connection endpoint by `DeviceRemoval`, the device by `DeviceFatal`; all that is asked of
    /// its objects is answered by `Gone`. It cannot be opened until [`Slot::restore`].
    pub fn remove(&self) {
        let opened = {
            let mut state = lock(&self.0);
            state.is_empty = true;
            std::mem::take(&mut state.opened)
        };
        for core in opened.iter().filter_map(|(core, _)| core.upgrade()) {
            core.remove();
        }
        // Their objects are still there, until the programs let go of them.
        lock(&self.0).opened.extend(opened);
    }

    /// Puts the device back, so that it can be opened again. What was opened before stays gone.
    pub fn restore(&self) {
        lock(&self.0).is_empty = false;
    }

    /// Opened devices of which any object is left, removed ones among them.
    #[must_use]
    pub fn devices(&self) -> usize {
        lock(&self.0).opened.iter().filter(|(_, seat)| seat.strong_count() > 0).count()
    }

    /// Whether there is nothing to open.
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty
    }

    /// A device was opened. Answers `false` when it was taken away meanwhile.
    pub(super) fn fill(&self, core: &Arc<Core>) -> bool {
        let mut state = lock(&self.0);
        state.opened.retain(|(_, seat)| seat.strong_count() > 0);
        let seat = core.seat.get_or_init(|| Arc::new(Seat));
        state.opened.push((Arc::downgrade(core), Arc::downgrade(seat)));
        !state.is_empty
    }
}
