//! Packets that arrive at another shard than their QP's.
//!
//! Owns an inbox per shard, of one bounded ring per sender, and what wakes the shard's machine. A peer that does not
//! know yet where a QP sends from, or that is not a software device, sends to port 4791, which the first shard
//! has. It judges the packet, and the QP's own shard does the rest as if it had come by its link. A
//! packet that finds no room is dropped, and the peer sends it again.

use crate::device::directory::{QpDirectory, ShardIndex};
use crate::device::wake_up::WakeUp;
use crate::link::{Datagram, Origin};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use trunkline_mutants::mutant;
use trunkline_rings::crossing::{Crossing, MAX_SENDERS, Sent};

/// Packets that wait for a shard at most, by sender.
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
    /// The packet.
    pub(super) fn datagram(&self) -> Datagram<'_> {
        Datagram { source: self.source, destination: self.destination, bytes: &self.bytes }
    }
}

#[derive(Debug)]
struct Inbox {
    packets: Crossing<HandedOver>,
    waker: Arc<WakeUp>,
}

/// See the module.
#[derive(Debug)]
pub(in crate::device) struct Neighbours {
    directory: QpDirectory,
    inboxes: [OnceLock<Box<Inbox>>; MAX_SENDERS],
    count: AtomicUsize,
}

impl Neighbours {
    /// Creates the neighbours of a device that has no shards yet.
    pub(in crate::device) fn new(directory: QpDirectory) -> Arc<Self> {
        let inboxes = [const { OnceLock::new() }; MAX_SENDERS];
        Arc::new(Self { directory, inboxes, count: AtomicUsize::new(0) })
    }

    /// One more shard, whose machine `waker` wakes.
    pub(in crate::device) fn add(&self, index: ShardIndex, waker: Arc<WakeUp>) {
        let inbox = Inbox { packets: Crossing::new(MAX_WAITING), waker };
        if self.inboxes[index.place()].set(Box::new(inbox)).is_ok() {
            self.count.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns the directory of QPs by shard.
    pub(in crate::device) fn directory(&self) -> &QpDirectory {
        &self.directory
    }

    /// Returns true if there is more than one shard.
    #[inline]
    pub(super) fn are_many(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 1
    }

    /// Hands a packet to another shard, if that has its QP; `None` when there is no such QP elsewhere, else whether
    /// there was room.
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

    /// Takes what was handed to a shard.
    #[inline]
    pub(super) fn receive(&self, own: ShardIndex, into: &mut Vec<HandedOver>) {
        if let Some(inbox) = self.inboxes[own.place()].get() {
            inbox.packets.receive(MAX_WAITING, |_, packet| into.push(packet));
        }
    }

    /// Returns true if something was handed to a shard.
    pub(in crate::device) fn has_packets(&self, own: ShardIndex) -> bool {
        self.inboxes[own.place()].get().is_some_and(|inbox| inbox.packets.has_items())
    }

    /// The shard's machine need not be woken any more.
    pub(in crate::device) fn ignore(&self, own: ShardIndex) {
        if let Some(inbox) = self.inboxes[own.place()].get() {
            inbox.packets.ignore();
        }
    }

    /// The shard's machine has to be woken from now on. Returns whether something was handed over before.
    pub(in crate::device) fn listen(&self, own: ShardIndex) -> bool {
        self.inboxes[own.place()].get().is_some_and(|inbox| inbox.packets.listen())
    }
}
