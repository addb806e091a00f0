//! State common to all objects of a device.
//!
//! Owns the device's parts and its background threads. Each verbs object holds an `Arc` of the core, so that
//! objects may be dropped in any order. When the last object is dropped, the threads end and the parts are
//! dropped.
#![forbid(unsafe_code)]

use super::control::Control;
use super::device_parts::{Access, DeviceParts};
use super::objects::async_events::AsyncEvents;
use super::shard::Shard;
use super::shards::lock::ShardLock;
use super::shards::maker::ShardMaker;
use super::tables::Tables;
use super::tables::directory::ShardIndex;
use super::tables::domain_table::DomainTable;
use super::tables::keys::PdNumber;
use super::threads::background::Background;
use super::threads::signal::lock;
use crate::host::Host;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;
use trunkline_machine::{Runtime, Sleeper};
use trunkline_verbs::{Time, VerbsError};

/// Maximum time to wait for threads to leave the device when the process exits.
const PARTING: Duration = Duration::from_secs(2);

/// Guard that exists until all resources of a device are released, including descriptors and threads.
#[derive(Debug)]
pub(super) struct SlotGuard;

/// State common to all objects of a device.
#[derive(Debug)]
pub(super) struct Core {
    parts: Arc<DeviceParts>,
    maker: ShardMaker,
    /// Asynchronous events.
    pub(super) events: Arc<AsyncEvents>,
    /// XRC domains by file.
    pub(super) domains: DomainTable,
    next_pd: AtomicU32,
    /// Background threads. Dropped first; see `Drop`.
    backgrounds: Mutex<Vec<Background>>,
    /// Guard of the device's slot, if the device is in one. Dropped last, since it is the last field.
    slot_guard: OnceLock<Arc<SlotGuard>>,
}

impl Core {
    /// Starts the background thread of the first shard.
    pub(super) fn start(
        parts: DeviceParts,
        maker: ShardMaker,
        sleeper: Option<Sleeper>,
        events: Arc<AsyncEvents>,
        host: Option<Arc<Host>>,
    ) -> std::io::Result<Arc<Self>> {
        let parts = Arc::new(parts);
        let background = Background::start(&parts, parts.shards().first(), sleeper)?;
        Ok(Arc::new(Self {
            parts,
            maker,
            events,
            domains: DomainTable::new(host),
            // 0 is the PD of TGTs, which does not contain regions.
            next_pd: AtomicU32::new(1),
            backgrounds: Mutex::new(vec![background]),
            slot_guard: OnceLock::new(),
        }))
    }

    /// Returns control and the shards.
    pub(super) fn parts(&self) -> &DeviceParts {
        &self.parts
    }

    /// Returns the runtime of the device's machines.
    pub(super) fn runtime(&self) -> &Runtime {
        self.parts.runtime()
    }

    /// Returns the tables that all shards read without a lock.
    pub(super) fn tables(&self) -> &Tables {
        self.parts.shards().tables()
    }

    /// Returns the shard with this index, or the first shard if the index is invalid.
    pub(super) fn shard(&self, index: ShardIndex) -> &Arc<ShardLock> {
        let shards = self.parts.shards();
        shards.get(index).unwrap_or_else(|| shards.first())
    }

    #[cfg(test)]
    pub(super) fn with_shards(&self, action: impl FnOnce(&super::shards::Shards)) {
        action(self.parts.shards());
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = &Arc<ShardLock>> {
        self.parts.shards().all()
    }

    /// Returns the shard of a group of CQs, which is created for the first CQ of the group.
    pub(super) fn shard_of_group(&self, group: u32) -> Result<ShardIndex, VerbsError> {
        self.parts.shards().of_group(group, |index| {
            let Some((shard, sleeper)) = self.maker.make(index)? else { return Ok(None) };
            let shard = Arc::new(shard);
            let started = Background::start(&self.parts, &shard, sleeper)?;
            lock(&self.backgrounds).push(started);
            Ok(Some(shard))
        })
    }

    /// Returns the shard of a group, or the first shard if the group does not have one.
    pub(super) fn known_group(&self, group: u32) -> ShardIndex {
        self.parts.shards().known_group(group)
    }

    /// Records in the child of a fork that the background threads do not exist there. Returns the eventfds
    /// that woke them.
    pub(super) fn forked(&self) -> Vec<BorrowedFd<'_>> {
        self.shards().map(|lock| lock.progress.forked()).collect()
    }

    /// Starts the background thread of a shard again, in a child of a fork that uses the device.
    #[cold]
    fn revive(&self, of: &Arc<ShardLock>) {
        let mut backgrounds = lock(&self.backgrounds);
        if !of.progress.is_orphan() {
            return;
        }
        if let Some(place) = backgrounds.iter().position(|background| background.is_of(of)) {
            // The join handle refers to a thread of the parent process.
            backgrounds.swap_remove(place).forget();
        }
        of.progress.adopt();
        // A fork loses only real threads, so a simulation's sleeper is not needed.
        match Background::start(&self.parts, of, None) {
            Ok(started) => backgrounds.push(started),
            Err(error) => tracing::error!(%error, "shard thread not restarted"),
        }
    }

    fn ensure_background(&self, of: &Arc<ShardLock>) {
        if of.progress.is_orphan() {
            self.revive(of);
        }
    }

    /// Returns true if a simulation runs the device. Callers must not block then.
    pub(super) fn is_simulated(&self) -> bool {
        self.runtime().is_simulated()
    }

    /// Checks that the device was not removed.
    ///
    /// # Errors
    /// [`VerbsError::Gone`] if the device was removed.
    pub(super) fn present(&self) -> Result<(), VerbsError> {
        self.parts.present()
    }

    /// Locks control, for operations that neither use a shard nor set a timer.
    pub(super) fn control(&self) -> MutexGuard<'_, Control> {
        self.parts.control()
    }

    /// Runs an operation of control. Afterwards wakes the background threads whose shards now have an earlier deadline.
    pub(super) fn act<R>(&self, action: impl FnOnce(&mut Access<'_>, Time) -> R) -> R {
        self.ensure_background(self.parts.shards().first());
        self.parts.act(action)
    }

    /// Runs an operation on a shard, and then wakes the shard's background thread if necessary.
    pub(super) fn act_on<R>(&self, index: ShardIndex, action: impl FnOnce(&mut Shard, Time) -> R) -> R {
        let of = self.shard(index);
        self.ensure_background(of);
        self.parts.act_on(of, action)
    }

    /// Disconnects all peers because the process exits, perhaps in the middle of an operation. Does nothing in a forked
    /// child that does not use the device, or if control and the first shard stay in use for [`PARTING`], since the
    /// thread that uses them may never run again.
    pub(super) fn disconnect_all(&self) {
        let began = self.parts.now();
        while !self.parts.shards().first().progress.is_orphan() {
            let done =
                self.parts.try_act(|access, now| access.control.disconnect_all(&mut access.shards, now));
            if done.is_some() || self.parts.now() - began >= PARTING {
                return;
            }
            #[expect(clippy::disallowed_methods, reason = "waits for another real thread")]
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the guard of the device's slot. The guard exists as long as the device.
    pub(super) fn slot_guard(&self) -> &Arc<SlotGuard> {
        self.slot_guard.get_or_init(|| Arc::new(SlotGuard))
    }

    /// Removes the device from its slot.
    pub(super) fn remove(&self) {
        self.act(|access, now| access.control.remove(&mut access.shards, now));
    }

    /// Does a shard's pending work, unless another thread does.
    pub(super) fn work(&self, index: ShardIndex) {
        self.parts.work(self.shard(index));
    }

    /// Records that the program polls, so that the shard's background thread leaves the work to the program.
    pub(super) fn note_poll(&self, index: ShardIndex) {
        let of = self.shard(index);
        self.ensure_background(of);
        of.progress.note_poll();
    }

    /// Hands a shard's work to its background thread. Called when the program is about to sleep.
    pub(super) fn hand_over(&self, index: ShardIndex) {
        let of = self.shard(index);
        self.ensure_background(of);
        of.progress.hand_over();
    }

    /// Returns the number of a new protection domain.
    pub(super) fn new_pd(&self) -> Result<PdNumber, VerbsError> {
        self.present()?;
        let number = self.next_pd.fetch_add(1, Ordering::Relaxed);
        // The limit is far below the largest value, so that racing callers do not make the number wrap.
        if number > u32::MAX / 2 {
            return Err(VerbsError::OutOfResources("all protection domain numbers were used"));
        }
        Ok(PdNumber(number))
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        for background in lock(&self.backgrounds).drain(..) {
            background.stop();
        }
    }
}
