//! A poller and its device: taking one, and releasing one that was removed.
//!
//! The upper half and everything that waits to be sent live on. The outcome of work in progress is reported
//! when the device is released, and only the pools' memory stays registered.
#![forbid(unsafe_code)]

use super::Core;
use super::queues::Attached;
use super::receives::Queue;
use crate::PeerDown;
use crate::command::{CmCommand, Command};
use crate::credit::Grants;
use crate::crossings::Crossings;
use crate::incarnation::PollerDevice;
use crate::sizes::BATCH;
use crate::trunk::{ReceiveRoom, SendRoom, destroy_ini};

/// The poller's parts made from its share of a device.
pub(super) struct Parted {
    pub(super) queues: Attached,
    pub(super) rooms: (SendRoom, ReceiveRoom, Grants),
    pub(super) crossings: Crossings,
}

/// Divides a device whose receives are posted into parts.
pub(super) fn part(device: PollerDevice) -> Parted {
    let PollerDevice { channel, cq, srq, sends, receives, crossings, depth, depth_limit } = device;
    let homes = crossings.homes();
    let grants = Grants::new(depth / u32::from(homes.max(1)), homes);
    let depths = (depth, depth_limit);
    let limit = usize::try_from(depth_limit).unwrap_or(usize::MAX);
    let depth = usize::try_from(depth).unwrap_or(usize::MAX);
    let capacity = usize::try_from(cq.capacity_cqe()).unwrap_or(usize::MAX);
    let sends = SendRoom::new(sends, capacity.saturating_sub(limit));
    let receives = ReceiveRoom::new(receives, depths, (depth / 4).max(BATCH));
    Parted { queues: Attached { channel, cq, srq }, rooms: (sends, receives, grants), crossings }
}

impl Core {
    /// Takes a new device.
    pub(super) fn take_device(&mut self, device: PollerDevice) {
        let Parted { queues, rooms, crossings } = part(device);
        (self.res.sends, self.res.receives, self.res.grants) = rooms;
        self.crossings = crossings;
        if let Err(error) = self.queues.attach(queues) {
            tracing::error!(%error, "cannot wait for the completions of the new device");
        }
    }

    /// Handles the removal of the device. Its completions still count, and received messages are handed on,
    /// because their senders believe that they arrived. All other work is lost, and it is unknown how far it
    /// came.
    pub(super) fn device_lost(&mut self) {
        while self.poll_completions(&mut Queue) {}
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

    /// Releases a device that is no longer needed: first the queues, then the memory that they refer to.
    pub(super) fn release_device(&mut self) {
        self.poll_completions(&mut Queue);
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
        self.res.receives.close();
        // The granted credit was for receives of the released SRQs.
        self.res.grants = Grants::new(0, self.crossings.homes());
        self.res.marked.clear();
        self.res.copies.clear();
        self.res.shared.cm.command(CmCommand::Released { poller: self.res.index });
    }
}
