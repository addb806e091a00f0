//! Control and the shards of a device, and the threads that work on them.
//!
//! Owns control and the shards with their locks, which are taken in this order: control, the first shard, another
//! shard. A thread on the data path enters one shard at a time, and leaves it before it tries control's lock. A thread
//! that polls, posts or connects does the work itself; background machines do it when threads do not poll.
#![forbid(unsafe_code)]

use super::control::Control;
use super::shard::Shard;
use super::shards::Shards;
use super::shards::lock::ShardLock;
use super::shards::reach::Reach;
use super::threads::signal::lock;
use super::threads::wake_up::Watcher;
use crate::host::Members;
use crate::link::StoppedHolders;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use trunkline_machine::Runtime;
use trunkline_machine::rings::owned::Turn;
use trunkline_machine::rings::shared::Wanted;
use trunkline_verbs::{Time, VerbsError};

/// Control and its access to the shards, during one operation.
#[derive(Debug)]
pub(super) struct Access<'a> {
    pub(super) control: &'a mut Control,
    pub(super) shards: Reach<'a>,
}

/// Control and shards of a device.
#[derive(Debug)]
pub(super) struct DeviceParts {
    control: Mutex<Control>,
    shards: Shards,
    runtime: Runtime,
    /// Time of control's next timeout, in nanoseconds, which is read without control's lock.
    control_due_ns: AtomicU64,
    is_removed: Arc<AtomicBool>,
    /// Messages to the other members of the host; dropped once the device has left.
    members: Option<Weak<Members>>,
}

impl DeviceParts {
    pub(super) fn new(control: Control, shards: Shards, runtime: Runtime) -> Self {
        let control_due_ns = AtomicU64::new(0);
        let is_removed = Arc::clone(control.removed());
        let members = control.members().map(Arc::downgrade);
        Self { control: Mutex::new(control), shards, runtime, control_due_ns, is_removed, members }
    }

    /// Returns the check for stopped holders of the device's port if this is the first shard.
    pub(super) fn stopped_holders(&self, lock: &ShardLock) -> Option<StoppedHolders> {
        self.members.clone().filter(|_| self.is_first(lock)).map(StoppedHolders::new)
    }

    /// Returns the runtime of the device's machines.
    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the time of the device's clock.
    pub(super) fn now(&self) -> Time {
        self.runtime.clock().now()
    }

    pub(super) fn shards(&self) -> &Shards {
        &self.shards
    }

    /// Checks that the device was not removed.
    ///
    /// # Errors
    /// [`VerbsError::Gone`] if the device was removed.
    pub(super) fn present(&self) -> Result<(), VerbsError> {
        if self.is_removed.load(Ordering::Acquire) { Err(VerbsError::Gone) } else { Ok(()) }
    }

    /// Locks control, for operations that neither use a shard nor set a timer.
    pub(super) fn control(&self) -> MutexGuard<'_, Control> {
        lock(&self.control)
    }

    /// Runs an operation of control.
    pub(super) fn act<R>(&self, action: impl FnOnce(&mut Access<'_>, Time) -> R) -> R {
        let mut control = self.control();
        self.operate(&mut control, self.shards.first().shard.enter(), action)
    }

    /// Runs an operation of control. Returns `None` if control or the first shard is in use.
    pub(super) fn try_act<R>(&self, action: impl FnOnce(&mut Access<'_>, Time) -> R) -> Option<R> {
        let mut control = self.try_control()?;
        let first = self.shards.first().shard.try_enter()?;
        Some(self.operate(&mut control, first, action))
    }

    fn try_control(&self) -> Option<MutexGuard<'_, Control>> {
        match self.control.try_lock() {
            Ok(control) => Some(control),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn operate<R>(
        &self,
        control: &mut Control,
        first: Turn<'_, Shard>,
        action: impl FnOnce(&mut Access<'_>, Time) -> R,
    ) -> R {
        let now = self.now();
        let mut access = Access { control, shards: Reach::new(&self.shards, first, now) };
        let result = action(&mut access, now);
        let Access { control, mut shards } = access;
        let due = if control.is_removed() { None } else { control.next_timeout() };
        self.control_due_ns.store(due.unwrap_or(Time::MAX).0, Ordering::Release);
        let (lock, first) = (self.shards.first(), shards.first());
        lock.progress.acted(first, |first| self.deadline(lock, first, now));
        result
    }

    /// Runs an operation on a shard. The operation may send packets or set timers.
    pub(super) fn act_on<R>(&self, lock: &ShardLock, action: impl FnOnce(&mut Shard, Time) -> R) -> R {
        let mut shard = lock.shard.enter();
        let now = self.now();
        let result = action(&mut shard, now);
        lock.note_control_events(&shard);
        lock.progress.acted(&mut shard, |shard| self.deadline(lock, shard, now));
        result
    }

    /// Does a shard's pending work, unless another thread does.
    pub(super) fn work(&self, lock: &ShardLock) {
        let Some(mut shard) = lock.shard.try_enter() else { return };
        let now = self.now();
        shard.poll(now);
        if self.wants_control(lock, &shard, now) {
            // Call `worked` before leaving the turn, since another thread may be in a turn after `serve_control`.
            self.worked(lock, &mut shard, now);
            drop(shard);
            self.serve_control();
            let Some(again) = lock.shard.try_enter() else { return };
            shard = again;
        }
        self.worked(lock, &mut shard, now);
    }

    /// Wakes the machine that sleeps for a shard if necessary. Called after another thread has done the shard's work,
    /// in the same turn.
    pub(super) fn worked(&self, lock: &ShardLock, shard: &mut Shard, now: Time) {
        lock.progress.worked(shard, now, |shard| self.deadline(lock, shard, now));
    }

    /// Enters the shard, calls `work`, and does control's pending work. Returns the turn, and true if more work is
    /// ready.
    pub(super) fn work_and_stay<'a>(
        &self,
        lock: &'a ShardLock,
        work: impl FnOnce(&mut Shard, Time) -> bool,
    ) -> (bool, Turn<'a, Shard>) {
        let mut shard = lock.shard.enter();
        let now = self.now();
        let mut more = work(&mut shard, now);
        if self.wants_control(lock, &shard, now) {
            drop(shard);
            // If another thread holds control's lock, events for control stay queued.
            more |= !self.serve_control();
            shard = lock.shard.enter();
            more |= shard.has_work();
        }
        (more, shard)
    }

    /// Returns the time of a shard's next deadline, which may be in the past.
    pub(super) fn deadline(&self, lock: &ShardLock, shard: &Shard, now: Time) -> Option<Time> {
        if self.present().is_err() {
            return None;
        }
        let control = || Time(self.control_due_ns.load(Ordering::Acquire));
        let control = self.is_first(lock).then(control).filter(|due| *due != Time::MAX);
        shard.deadline(now).into_iter().chain(control).min()
    }

    /// Prepares the calling machine to sleep for a shard, in a turn of the shard. Returns the time of the
    /// shard's next deadline, or `None` if the machine must not sleep.
    pub(super) fn fall_asleep(
        &self,
        lock: &ShardLock,
        shard: &mut Shard,
        watcher: Watcher,
        wanted: Wanted,
    ) -> Option<Option<Time>> {
        let now = self.now();
        if shard.arm(watcher, wanted, now) || self.shards.neighbours().listen(lock.index) {
            return None;
        }
        let deadline = self.deadline(lock, shard, now);
        if deadline.is_some_and(|when| when <= now) {
            return None;
        }
        lock.progress.falls_asleep(watcher, shard.link().descriptors_version(), deadline);
        // Another shard may have handed over packets before it saw that this machine listens.
        if self.shards.neighbours().has_packets(lock.index) { None } else { Some(deadline) }
    }

    /// Polls for the cause of a machine's wake-up. If no other machine sleeps for the shard, stops wake-ups for packets
    /// from other shards.
    pub(super) fn woken(&self, lock: &ShardLock, by_link: bool) {
        // Wait for the shard's lock, since an edge of a descriptor is reported only once and must be recorded here.
        let mut shard = lock.shard.enter();
        shard.woken(by_link, self.now());
        if lock.progress.is_unwatched() {
            self.shards.neighbours().ignore(lock.index);
        }
    }

    /// Returns true if a shard has work that does not wake a machine that sleeps until `until`. Used in simulations.
    pub(super) fn is_due(&self, lock: &ShardLock, until: Option<Time>) -> bool {
        lock.shard.try_enter().is_some_and(|shard| {
            let next = self.deadline(lock, &shard, self.now());
            self.shards.neighbours().has_packets(lock.index)
                || next.is_some_and(|next| until.is_none_or(|until| next < until))
        })
    }

    fn is_first(&self, lock: &ShardLock) -> bool {
        std::ptr::eq(lock, &raw const **self.shards.first())
    }

    /// Returns true if control has to work after a turn of this shard. Control's timers, and messages from other
    /// processes, are left to the first shard.
    fn wants_control(&self, lock: &ShardLock, shard: &Shard, now: Time) -> bool {
        if lock.note_control_events(shard) {
            return true;
        }
        self.is_first(lock) && (self.control_due_ns.load(Ordering::Acquire) <= now.0 || shard.has_messages())
    }

    /// Does control's pending work. Returns false if another thread holds control's lock.
    fn serve_control(&self) -> bool {
        let Some(mut control) = self.try_control() else { return false };
        if control.is_removed() {
            return true;
        }
        let first = self.shards.first().shard.enter();
        self.operate(&mut control, first, |access, now| access.control.work(&mut access.shards, now));
        true
    }
}
