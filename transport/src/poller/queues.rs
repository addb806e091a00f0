//! The poller's own queues on the device, and the sleeper that waits for them.
#![forbid(unsafe_code)]

use crate::buffer::ReceiveSlots;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use trunkline_machine::mutant;
use trunkline_machine::{Sleeper, Waker};
use trunkline_verbs::{
    Completion, CompletionChannel, CompletionQueue, DeviceWait, Notify, Prepared, SharedReceiveQueue, Time,
    VerbsError,
};

/// The queues, which exist while there is a device, and the sleeper, which outlives them.
#[derive(Debug)]
pub(super) struct Queues {
    sleeper: Sleeper,
    /// Wakes the poller.
    waker: Waker,
    /// False for some pollers of a simulation, which then sleep on their channel.
    sleeps_on_device: bool,
    /// `None` while the device is away. Nothing is posted then, because there is no trunk.
    attached: Option<Attached>,
    /// The device's own wait, if it has one.
    wait: Option<Arc<dyn DeviceWait>>,
    /// True unless none of the device's descriptors has ended the last sleep.
    is_woken_by_device: bool,
    /// True if the poller does not wait for its sockets.
    naps: bool,
}

/// The poller's own objects on the device.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) channel: Arc<dyn CompletionChannel>,
    pub(super) cq: Arc<dyn CompletionQueue>,
    pub(super) srq: Arc<dyn SharedReceiveQueue>,
}

impl Queues {
    pub(super) fn new(sleeper: Sleeper, waker: Waker, sleeps_on_device: bool) -> Self {
        Self {
            sleeper,
            waker,
            sleeps_on_device,
            attached: None,
            wait: None,
            is_woken_by_device: true,
            naps: false,
        }
    }

    /// Takes queues, and watches their completion channel.
    ///
    /// # Errors
    /// When the completion channel cannot be waited for.
    pub(super) fn attach(&mut self, queues: Attached) -> io::Result<()> {
        let watched = self.sleeper.watch(|| queues.channel.as_fd());
        if self.sleeps_on_device {
            let waker = self.waker.clone();
            self.wait = queues.cq.device_wait(Arc::new(move || waker.wake()));
        }
        let bell = self.wait.as_ref().and_then(|wait| wait.bell());
        let watched = watched.and(bell.map_or(Ok(()), |bell| self.sleeper.watch_raw(bell)));
        self.attached = Some(queues);
        watched
    }

    /// Releases the queues.
    pub(super) fn detach(&mut self) {
        if let Some(wait) = self.wait.take() {
            self.sleeper.watch_set(0, Vec::new);
            if let Some(bell) = wait.bell() {
                self.sleeper.unwatch_raw(bell);
            }
        }
        if let Some(Attached { channel, cq, srq }) = self.attached.take() {
            if let Err(error) = self.sleeper.unwatch(|| channel.as_fd()) {
                tracing::debug!(%error, "ceasing to wait for a completion channel");
            }
            drop((srq, cq, channel));
        }
    }

    /// Returns true if there is a device.
    pub(super) fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    /// Returns the capacity of the CQ, in completions; 0 without a device.
    pub(super) fn capacity_cqe(&self) -> usize {
        let capacity = self.attached.as_ref().map_or(0, |attached| attached.cq.capacity_cqe());
        usize::try_from(capacity).unwrap_or(usize::MAX)
    }

    /// Polls completions into the slice. Returns their number.
    pub(super) fn poll(&self, completions: &mut [Completion]) -> usize {
        let most = completions.len();
        self.attached.as_ref().map_or(0, |attached| attached.cq.poll(completions).min(most))
    }

    /// Posts `count` fresh receives, and those missing because slots were short.
    pub(super) fn repost(&self, receives: &mut ReceiveSlots, count: usize) {
        let count = if mutant!(receive_is_not_reposted) { count.saturating_sub(1) } else { count };
        if let Some(attached) = &self.attached {
            receives.repost(attached.srq.as_ref(), count);
        }
    }

    /// Posts receives that deepen the SRQ. Returns their number.
    pub(super) fn post_more(&self, receives: &mut ReceiveSlots, count: u32) -> u32 {
        let Some(attached) = &self.attached else { return 0 };
        let posted = receives.post(attached.srq.as_ref(), usize::try_from(count).unwrap_or(0));
        u32::try_from(posted).unwrap_or(count)
    }

    /// Returns true if the poller sleeps on the device's own descriptors, see [`Queues::prepare`].
    pub(super) fn has_wait(&self) -> bool {
        self.wait.is_some()
    }

    /// Prepares to sleep on the device's own descriptors. Returns `None` if work is ready, otherwise the time of the
    /// device's next timer. If `naps` is true, packets from sockets do not end the sleep.
    pub(super) fn prepare(&mut self, awaits_acknowledgement: bool, naps: bool) -> Option<Option<Time>> {
        let Some(wait) = &self.wait else { return Some(None) };
        self.is_woken_by_device = true;
        self.naps = naps;
        match wait.prepare(awaits_acknowledgement) {
            Prepared::Ready => None,
            Prepared::Sleep { until, .. } if naps => {
                self.sleeper.watch_set(0, Vec::new);
                Some(until)
            }
            Prepared::Sleep { until, version } => {
                self.sleeper.watch_set(version, || wait.descriptors());
                Some(until)
            }
        }
    }

    /// Asks for an event at the next completion.
    ///
    /// # Errors
    /// The device's error.
    pub(super) fn arm(&self) -> Result<(), VerbsError> {
        let attached = self.attached.as_ref().filter(|_| !mutant!(cq_is_not_armed));
        attached.map_or(Ok(()), |attached| attached.cq.request_notify(Notify::Any))
    }

    /// Announces that the poller is about to sleep.
    pub(super) fn announce(&self) {
        self.sleeper.announce();
    }

    /// Sleeps until woken, or until the given time.
    pub(super) fn sleep(&mut self, until: Option<Time>) -> io::Result<()> {
        self.is_woken_by_device = self.sleeper.sleep(until)? || self.naps;
        Ok(())
    }

    /// Returns true if something has come since the announcement.
    pub(super) fn is_woken(&self) -> bool {
        self.sleeper.is_woken()
            || self.attached.as_ref().is_some_and(|attached| attached.channel.has_event())
            || self.wait.as_ref().is_some_and(|wait| wait.has_arrivals())
    }

    /// Returns true if the device has work that nothing wakes the poller for, in a simulation.
    pub(super) fn is_due(&self) -> bool {
        self.wait.as_ref().is_some_and(|wait| wait.is_due())
    }

    /// Consumes the channel's events after waking.
    pub(super) fn awake(&self) {
        self.sleeper.awake();
        if let Some(wait) = &self.wait {
            wait.awake(self.is_woken_by_device);
        }
        if let Some(attached) = &self.attached {
            while attached.channel.next_event().is_some() {}
        }
    }
}
