//! Completion queues and their channels.
//!
//! Owns the program's side of a CQ. Polling a CQ does the pending work of its group's shard in the calling
//! thread. An armed CQ pushes its context into its channel with the next completion; a sleeping thread waits
//! on the channel's descriptor.
#![forbid(unsafe_code)]

use super::cq_ring::CqRing;
use crate::device::MAX_CQE;
use crate::device::core::Core;
use crate::device::tables::directory::ShardIndex;
use crate::device::tables::use_count::{Counted, UseCount};
use crate::device::threads::signal::Signal;
use crate::device::threads::wait::ShardWait;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use trunkline_machine::Runtime;
use trunkline_verbs::{Completion, CompletionChannel, CompletionQueue, DeviceWait, Notify, VerbsError};

/// A completion queue.
#[derive(Debug)]
pub(in crate::device) struct SoftCq {
    core: Arc<Core>,
    /// The shard of the CQ's group.
    home: ShardIndex,
    ring: Arc<CqRing>,
    /// Number of polls since the CQ was last armed, up to `POLLS_BEFORE_DUTY`.
    polls: AtomicU32,
    use_count: UseCount,
}

/// Number of polls after which a program counts as polling continually. A program that sleeps between messages polls a
/// few times and arms the CQ again; if these polls counted, the background thread would be woken twice per message.
const POLLS_BEFORE_DUTY: u32 = 32;

impl SoftCq {
    pub(in crate::device) fn new(
        core: Arc<Core>,
        home: ShardIndex,
        capacity_cqe: u32,
        channel: Option<&SoftCompletionChannel>,
        context: u64,
    ) -> Self {
        let fired = channel.map(|channel| Arc::clone(&channel.fired));
        let ring = Arc::new(CqRing::new(home, capacity_cqe as usize, fired, context));
        Self { core, home, ring, polls: AtomicU32::new(0), use_count: UseCount::default() }
    }

    /// Returns the ring of completions.
    pub(in crate::device) fn ring(&self) -> &Arc<CqRing> {
        &self.ring
    }

    /// Returns the shard of the CQ's group.
    pub(in crate::device) fn home(&self) -> ShardIndex {
        self.home
    }

    /// Returns the CQ's device.
    pub(in crate::device) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Counts a poll, unless the CQ is armed. A program arms the CQ when it is about to sleep, so its last poll must
    /// not make the background thread leave the work to the program.
    fn note_poll(&self) {
        if self.ring.is_armed() {
            return;
        }
        // Pollers that race here may count two polls as one, which is harmless.
        let polls = self.polls.load(Ordering::Relaxed);
        if polls < POLLS_BEFORE_DUTY {
            self.polls.store(polls + 1, Ordering::Relaxed);
        } else {
            self.core.note_poll(self.home);
        }
    }
}

impl Counted for SoftCq {
    fn use_count(&self) -> &UseCount {
        &self.use_count
    }
}

impl CompletionQueue for SoftCq {
    fn poll(&self, completions: &mut [Completion]) -> usize {
        self.note_poll();
        // Serve the shard even if completions from other shards arrive as fast as they are polled.
        let has_crossed = self.ring.has_crossed();
        let count = self.ring.take(completions);
        if (count > 0 && !has_crossed) || completions.is_empty() {
            return count;
        }
        self.core.work(self.home);
        count + self.ring.take(&mut completions[count..])
    }

    fn request_notify(&self, notify: Notify) -> Result<(), VerbsError> {
        self.ring.arm(notify)?;
        self.polls.store(0, Ordering::Relaxed);
        self.core.hand_over(self.home);
        Ok(())
    }

    fn device_wait(&self, wake: Arc<dyn Fn() + Send + Sync>) -> Option<Arc<dyn DeviceWait>> {
        let (core, ring) = (Arc::clone(&self.core), Arc::clone(&self.ring));
        ShardWait::new(core, self.home, ring, wake).map(|wait| Arc::new(wait) as Arc<dyn DeviceWait>)
    }

    fn capacity_cqe(&self) -> u32 {
        u32::try_from(self.ring.capacity()).unwrap_or(u32::MAX)
    }

    fn resize(&self, capacity_cqe: u32) -> Result<(), VerbsError> {
        if capacity_cqe == 0 || capacity_cqe > MAX_CQE {
            return Err(VerbsError::Invalid("the CQ's capacity is 0 or above the device's limit"));
        }
        self.ring.resize(capacity_cqe as usize)
    }

    fn destroy(&self) -> Result<(), VerbsError> {
        self.use_count.retire("an SRQ or a QP completes into this CQ")
    }
}

/// Maximum number of queued events. A program that reads its channel leaves far fewer queued.
const MAX_WAITING: usize = 1 << 16;

/// A completion channel of the software device.
#[derive(Debug)]
pub(in crate::device) struct SoftCompletionChannel {
    /// Contexts of the CQs that have fired.
    fired: Arc<Signal<u64>>,
}

impl SoftCompletionChannel {
    pub(in crate::device) fn new(runtime: &Runtime) -> Result<Self, VerbsError> {
        Ok(Self { fired: Arc::new(Signal::new(runtime, MAX_WAITING)?) })
    }
}

impl AsFd for SoftCompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fired.as_fd()
    }
}

impl CompletionChannel for SoftCompletionChannel {
    fn next_event(&self) -> Option<u64> {
        self.fired.pop()
    }

    fn has_event(&self) -> bool {
        self.fired.has_event()
    }

    fn forget(&self, context: u64) {
        let _dropped = self.fired.extract(|fired| *fired == context);
    }
}
