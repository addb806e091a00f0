//! A poller's part of a device, which is its queues and the sleeper that waits for them. A poller takes a new device,
//! deepens the SRQ, and releases a device that was removed.
//!
//! The driver and everything that waits to be sent outlive a device. The outcome of work in progress is reported when
//! the device is released. Only the pools' memory stays registered then.
//!
//! Each remote poller that may send into the SRQ holds a credit while idle, so the depth of the SRQ grows with the
//! number of remote pollers. The depth is doubled, within the limits of the node and its device, before idle credits
//! take half of it, and when busy peers leave no room for another pair. It never decreases. Receives are posted before
//! credit for them is granted. The settings frames that open a session use no credit. If many sessions come up at the
//! same time, the SRQ may be empty, and the sending devices then retry after the RNR timer, without a limit. Over RC
//! with several pollers, each SRQ is divided into fixed parts, so the depth does not change.
#![forbid(unsafe_code)]

use super::Transport;
use super::crossings::Crossings;
#[cfg(feature = "identity")]
use super::handshakes::Handshakes;
use crate::PeerDown;
use crate::buffer::ReceiveSlots;
use crate::command::{CmCommand, Command};
use crate::credit::Grants;
use crate::node::incarnation::PollerDevice;
use crate::trunk::{ReceiveRoom, SendRoom, destroy_ini};
use crate::wire::BATCH;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use trunkline_machine::{Sleeper, Waker, mutant};
use trunkline_verbs::{
    Completion, CompletionChannel, CompletionQueue, DeviceWait, IoAddress, Notify, Prepared,
    SharedReceiveQueue, Time, VerbsError,
};

/// Queues, which exist while a device is present, and the sleeper that waits for them.
#[derive(Debug)]
pub(super) struct Queues {
    sleeper: Sleeper,
    waker: Waker,
    /// False for some pollers in a simulation, which sleep on their completion channel instead.
    sleeps_on_device: bool,
    /// `None` while the device is away.
    attached: Option<Attached>,
    /// The device's own wait, if it has one.
    wait: Option<Arc<dyn DeviceWait>>,
    /// False if the last sleep ended without an event of the device's descriptors.
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
    /// Returns an error if the sleeper cannot wait for the completion channel.
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

    pub(super) fn detach(&mut self) {
        if let Some(wait) = self.wait.take() {
            self.sleeper.watch_set(0, Vec::new);
            if let Some(bell) = wait.bell() {
                self.sleeper.unwatch_raw(bell);
            }
        }
        if let Some(Attached { channel, cq, srq }) = self.attached.take() {
            if let Err(error) = self.sleeper.unwatch(|| channel.as_fd()) {
                tracing::debug!(%error, "completion channel not removed from epoll");
            }
            drop((srq, cq, channel));
        }
    }

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

    /// Posts `count` new receives, and the receives that are missing for lack of slots.
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

    /// Returns true if the poller sleeps on the device's own descriptors; see [`Queues::prepare`].
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

    /// Requests an event at the next completion.
    ///
    /// # Errors
    /// Returns the device's error.
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

    /// Returns true if a wake-up has arrived since the announcement.
    pub(super) fn is_woken(&self) -> bool {
        self.sleeper.is_woken()
            || self.attached.as_ref().is_some_and(|attached| attached.channel.has_event())
            || self.wait.as_ref().is_some_and(|wait| wait.has_arrivals())
    }

    /// Returns true if a simulated device has work. Such a device does not wake the poller.
    pub(super) fn is_due(&self) -> bool {
        self.wait.as_ref().is_some_and(|wait| wait.is_due())
    }

    /// Consumes the events of the sleep after waking.
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

/// The poller's parts, created from its share of a device.
pub(super) struct Parted {
    pub(super) queues: Attached,
    pub(super) rooms: (SendRoom, ReceiveRoom, Grants),
    pub(super) crossings: Crossings,
    #[cfg(feature = "identity")]
    pub(super) handshakes: Handshakes,
}

/// Divides a device, whose receives are already posted, into parts.
pub(super) fn part(device: PollerDevice) -> Parted {
    let PollerDevice { channel, cq, srq, sends, receives, crossings, depth, depth_limit, .. } = device;
    let homes = crossings.homes();
    let grants = Grants::new(depth / u32::from(homes.max(1)), homes);
    let limit = usize::try_from(depth_limit).unwrap_or(usize::MAX);
    let low_water = usize::try_from(depth / 4).unwrap_or(usize::MAX).max(BATCH);
    let capacity = usize::try_from(cq.capacity_cqe()).unwrap_or(usize::MAX);
    #[cfg(feature = "identity")]
    let handshakes = Handshakes::new(device.handshakes);
    #[cfg(feature = "identity")]
    let capacity = capacity.saturating_sub(usize::try_from(handshakes.count().1).unwrap_or(usize::MAX));
    let sends = SendRoom::new(sends, capacity.saturating_sub(limit));
    let receives = ReceiveRoom::new(receives, depth, depth_limit, low_water);
    Parted {
        queues: Attached { channel, cq, srq },
        rooms: (sends, receives, grants),
        crossings,
        #[cfg(feature = "identity")]
        handshakes,
    }
}

impl Transport {
    pub(super) fn take_device(&mut self, device: PollerDevice) {
        let Parted {
            queues,
            rooms,
            crossings,
            #[cfg(feature = "identity")]
            handshakes,
        } = part(device);
        (self.res.sends, self.res.receives, self.res.grants) = rooms;
        self.crossings = crossings;
        #[cfg(feature = "identity")]
        {
            self.handshakes = handshakes;
        }
        if let Err(error) = self.queues.attach(queues) {
            tracing::error!(%error, "completion channel of the new device not added to epoll");
        }
    }

    /// Handles the removal of the device. Completions are still handled, and received messages are forwarded, because
    /// their senders assume that they arrived. All other work fails, although it may have reached the peer.
    pub(super) fn device_lost(&mut self) {
        while self.take_all() {}
        for slot in self.trunks.slots() {
            self.begin_dying(slot, PeerDown::DeviceRemoved);
        }
        self.wake_crossed();
        for (poller, crossings) in self.crossings.take_waiting() {
            if let Some(handle) = self.res.shared.pollers.get(poller) {
                handle.command(Command::HandedOn(crossings));
            }
        }
        self.res.shared.cm.command(CmCommand::Emptied { poller: self.res.index });
    }

    /// Releases a device that is no longer needed. The queues are released first, then the memory that they refer to.
    pub(super) fn release_device(&mut self) {
        self.take_all();
        for session in self.peers.take_all_pending() {
            destroy_ini(&self.res, session.qp.as_ref());
        }
        for slot in self.trunks.slots() {
            self.begin_dying(slot, PeerDown::DeviceRemoved);
            let verdict = self.trunks.get(slot).and_then(|trunk| trunk.verdict());
            self.free_trunk(slot, verdict.unwrap_or(PeerDown::DeviceRemoved));
        }
        self.targets.clear();
        self.closings.clear();
        self.queues.detach();
        self.res.sends.close();
        #[cfg(feature = "identity")]
        self.handshakes.close();
        self.res.receives.close();
        // Reset the grants, since the granted credit belonged to receives of the released SRQs.
        self.res.grants = Grants::new(0, self.crossings.homes());
        self.res.marked.clear();
        self.res.copies.clear();
        self.res.shared.cm.command(CmCommand::Released { poller: self.res.index });
    }
}

impl Transport {
    /// Deepens the SRQ if another pair of pollers needs it.
    pub(super) fn make_room(&mut self) {
        if !self.res.grants.is_crowded() {
            return;
        }
        let more = self.res.receives.doubling();
        if more == 0 {
            return;
        }
        let posted = match self.add_slots(more) {
            Ok(()) => self.queues.post_more(self.res.receives.slots(), more),
            Err(error) => {
                if let Some(suppressed) = self.log.line(self.res.time.now()) {
                    tracing::warn!(%error, missing = more, suppressed, "receive buffers for more peers not added");
                }
                return;
            }
        };
        self.res.receives.deepen(posted);
        self.res.grants.deepen(posted);
    }

    fn add_slots(&mut self, more: u32) -> Result<(), VerbsError> {
        let device = self.res.shared.device.get().ok_or(VerbsError::Gone)?;
        let start = IoAddress::from_random(self.res.shared.runtime.random());
        self.res.receives.slots().extend(device.pd.as_ref(), more, start)
    }
}
