//! Packets that arrive at a shard other than their QP's.
//!
//! Owns an inbox for each shard, with one bounded ring per sending shard, and the handle that wakes the shard's
//! machine. A peer sends to the device's port, which belongs to the first shard, until it receives a packet from the
//! QP's port; a foreign peer always sends to port 4791. The first shard checks such a packet, and the QP's shard
//! handles it like a packet from its own link. If the ring is full, the packet is dropped, and the peer retransmits it.

use crate::device::tables::directory::{QpDirectory, ShardIndex};
use crate::device::threads::wake_up::WakeUp;
use crate::link::{Datagram, Origin};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use trunkline_machine::mutant;
use trunkline_machine::rings::crossing::{Crossing, MAX_SENDERS, Sent};

/// Maximum number of packets queued for a shard by one sending shard.
const MAX_WAITING: usize = 256;

/// A packet for another shard.
#[derive(Debug)]
pub(super) struct HandedOver {
    source: SocketAddr,
    destination: SocketAddr,
    bytes: Vec<u8>,
    pub(super) origin: Origin,
}

impl HandedOver {
    /// Returns the packet as a datagram.
    pub(super) fn datagram(&self) -> Datagram<'_> {
        Datagram { source: self.source, destination: self.destination, bytes: &self.bytes }
    }
}

#[derive(Debug)]
struct ShardInbox {
    packets: Crossing<HandedOver>,
    waker: Arc<WakeUp>,
}

/// The inboxes of a device's shards.
#[derive(Debug)]
pub(in crate::device) struct Neighbours {
    directory: QpDirectory,
    inboxes: [OnceLock<Box<ShardInbox>>; MAX_SENDERS],
    count: AtomicUsize,
}

impl Neighbours {
    /// Creates the inboxes of a device, without any shard.
    pub(in crate::device) fn new(directory: QpDirectory) -> Arc<Self> {
        let inboxes = [const { OnceLock::new() }; MAX_SENDERS];
        Arc::new(Self { directory, inboxes, count: AtomicUsize::new(0) })
    }

    /// Adds a shard. `waker` wakes the shard's machine.
    pub(in crate::device) fn add(&self, index: ShardIndex, waker: Arc<WakeUp>) {
        let inbox = ShardInbox { packets: Crossing::new(MAX_WAITING), waker };
        if self.inboxes[index.place()].set(Box::new(inbox)).is_ok() {
            self.count.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns the directory of QPs by shard.
    pub(in crate::device) fn directory(&self) -> &QpDirectory {
        &self.directory
    }

    /// Returns true if the device has more than one shard.
    #[inline]
    pub(super) fn are_many(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 1
    }

    /// Passes a packet to another shard, which owns the packet's QP. Returns `None` if no other shard owns the QP, and
    /// false if the owner's inbox is full.
    pub(super) fn hand_over(
        &self,
        from: ShardIndex,
        number: u32,
        datagram: &Datagram<'_>,
        origin: Origin,
    ) -> Option<bool> {
        let home = self.directory.home(number).filter(|home| *home != from)?;
        let inbox = self.inboxes[home.place()].get()?;
        let Datagram { source, destination, bytes } = *datagram;
        let packet = HandedOver { source, destination, bytes: bytes.to_vec(), origin };
        match inbox.packets.send(from.place(), packet) {
            Sent::Quietly => Some(true),
            Sent::Notify => {
                if !mutant!(packet_for_another_shard_wakes_nobody) {
                    inbox.waker.wake();
                }
                Some(true)
            }
            Sent::Full(_) => Some(false),
        }
    }

    /// Appends to `into` the packets handed to a shard.
    #[inline]
    pub(super) fn receive(&self, own: ShardIndex, into: &mut Vec<HandedOver>) {
        if let Some(inbox) = self.inboxes[own.place()].get() {
            inbox.packets.receive(MAX_WAITING, |_, packet| into.push(packet));
        }
    }

    /// Returns true if packets for a shard are waiting.
    pub(in crate::device) fn has_packets(&self, own: ShardIndex) -> bool {
        self.inboxes[own.place()].get().is_some_and(|inbox| inbox.packets.has_items())
    }

    /// Stops waking the shard's machine when packets are handed over.
    pub(in crate::device) fn ignore(&self, own: ShardIndex) {
        if let Some(inbox) = self.inboxes[own.place()].get() {
            inbox.packets.ignore();
        }
    }

    /// Starts waking the shard's machine when packets are handed over. Returns true if packets are already
    /// waiting.
    pub(in crate::device) fn listen(&self, own: ShardIndex) -> bool {
        self.inboxes[own.place()].get().is_some_and(|inbox| inbox.packets.listen())
    }
}
