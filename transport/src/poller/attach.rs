//! A poller and the device: taking one, and releasing one that was removed.
//!
//! The upper half and everything that waits to be sent live on. What was in progress has its outcome
//! when the device is released, and no memory of it is left registered but what the pools hold.
#![forbid(unsafe_code)]

use super::peers::destroy_ini;
use super::{Attached, Core, Resources};
use crate::PeerDown;
use crate::command::CmCommand;
use crate::credit::Grants;
use crate::incarnation::PollerDevice;
use crate::sizes::BATCH;
use crate::trunk::{Health, Trunk};
use std::io;
use std::os::fd::AsFd;

impl Resources {
    /// Takes a device, whose receives are posted.
    ///
    /// # Errors
    /// When its completion channel cannot be waited for.
    pub(super) fn attach(&mut self, device: PollerDevice) -> io::Result<()> {
        let PollerDevice { channel, cq, srq, sends, receives, crossings, depth } = device;
        self.crossings = crossings;
        self.sends = sends;
        self.receives = receives;
        self.watch(Attached { channel, cq, srq }, depth)
    }

    /// Takes queues whose SRQ has this depth, and waits for what they complete.
    ///
    /// # Errors
    /// As [`Resources::attach`].
    pub(super) fn watch(&mut self, queues: Attached, depth: u32) -> io::Result<()> {
        let homes = self.crossings.homes();
        self.grants = Grants::new(depth / u32::from(homes.max(1)), homes);
        let depth = usize::try_from(depth).unwrap_or(usize::MAX);
        let capacity = usize::try_from(queues.cq.capacity_cqe()).unwrap_or(usize::MAX);
        self.max_outstanding = capacity.saturating_sub(depth);
        self.low_water = (depth / 4).max(BATCH);
        self.outstanding = 0;
        let watched = self.sleeper.watch(queues.channel.as_fd());
        self.attached = Some(queues);
        watched
    }

    /// Lets go of the device: first the queues, then the memory that they name.
    fn detach(&mut self) {
        if let Some(Attached { channel, cq, srq }) = self.attached.take() {
            if let Err(error) = self.sleeper.unwatch(channel.as_fd()) {
                tracing::debug!(%error, "ceasing to wait for a completion channel");
            }
            drop((srq, cq, channel));
        }
        self.sends.close();
        self.receives.close();
        self.marked.clear();
        self.untold.clear();
        self.outstanding = 0;
    }
}

impl Core {
    /// There is a device again.
    pub(super) fn take_device(&mut self, device: PollerDevice) {
        if let Err(error) = self.res.attach(device) {
            tracing::error!(%error, "cannot wait for the completions of the new device");
        }
    }

    /// The device was removed. What it has completed still counts, and what it has received is handed
    /// on, because its senders believe that it arrived. All else is lost, and nobody knows how far it
    /// came.
    pub(super) fn device_lost(&mut self) {
        while self.poll_completions() {}
        for slot in self.slots() {
            self.begin_dying(slot, PeerDown::DeviceRemoved);
        }
        self.wake_crossed();
        self.res.shared.cm.command(CmCommand::Emptied { poller: self.res.index });
    }

    /// Nothing of the device is needed any more.
    pub(super) fn release_device(&mut self) {
        self.poll_completions();
        for peer in self.peers.values_mut() {
            if let Some(session) = peer.pending.take() {
                destroy_ini(&self.res, session.qp.as_ref());
            }
        }
        for slot in self.slots() {
            self.begin_dying(slot, PeerDown::DeviceRemoved);
            let told = match self.trunks.get(slot) {
                Some(Trunk { health: Health::Dying { verdict: Some(cause), .. }, .. }) => *cause,
                _ => PeerDown::DeviceRemoved,
            };
            self.bury(slot, told);
        }
        self.targets.clear();
        self.closings.clear();
        self.res.detach();
        self.res.shared.cm.command(CmCommand::Released { poller: self.res.index });
    }

    fn slots(&self) -> Vec<usize> {
        self.trunks.iter().map(|(slot, _)| slot).collect()
    }
}
