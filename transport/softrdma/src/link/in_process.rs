//! Links between devices of one process.
//!
//! A [`Hub`] is a network whose links reach only each other. It owns a bounded queue for each link. Datagrams that do
//! not fit in a queue are dropped and counted, as with UDP. A sleeping receiver is woken through an eventfd, whereas a
//! polling receiver does not need a system call.
#![forbid(unsafe_code)]

use super::{Link, LinkError, MAX_DATAGRAM_BYTES, ROCE_PORT, ReceiveBatch, Segmentation, SendBatch};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use trunkline_verbs::descriptors::above_stdio;
use trunkline_verbs::{Counter, Time};

/// Capacity of a link's queue, in datagrams.
const QUEUE_DATAGRAMS: usize = 4096;
/// MTU of a hub, in bytes, large enough for payloads of 4,096 bytes.
const HUB_MTU_BYTES: u32 = 9000;

/// A network inside one process.
#[derive(Debug, Default)]
pub struct Hub {
    inboxes: RwLock<BTreeMap<IpAddr, Arc<AddressQueue>>>,
}

#[derive(Debug)]
struct AddressQueue {
    queue: Mutex<Queue>,
    wake: EventFd,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: SendBatch,
    /// True if the owner sleeps or is about to sleep.
    sleeping: bool,
    dropped: u64,
}

impl AddressQueue {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A panic leaves the queue in a valid state.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hub {
    /// Creates an empty network.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Creates a link for one device.
    ///
    /// # Errors
    /// Returns the operating system's error if it cannot create an eventfd.
    pub fn link(self: &Arc<Self>) -> io::Result<InProcessLink> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let wake = above_stdio(|| Ok(EventFd::from_flags(flags)?))?;
        let inbox = Arc::new(AddressQueue { queue: Mutex::default(), wake });
        Ok(InProcessLink { hub: Arc::clone(self), inbox, addresses: Vec::new(), counts: Counts::default() })
    }
}

#[derive(Debug, Default)]
struct Counts {
    not_open: u64,
    unreachable: u64,
    too_big: u64,
}

/// One device's attachment to a [`Hub`].
#[derive(Debug)]
pub struct InProcessLink {
    hub: Arc<Hub>,
    inbox: Arc<AddressQueue>,
    addresses: Vec<IpAddr>,
    counts: Counts,
}

impl InProcessLink {
    fn forget(&self, address: IpAddr) {
        let mut inboxes = self.hub.inboxes.write().unwrap_or_else(PoisonError::into_inner);
        inboxes.remove(&address);
    }
}

impl Link for InProcessLink {
    fn name(&self) -> &'static str {
        "in-process"
    }

    fn open(&mut self, address: IpAddr) -> Result<(), LinkError> {
        if self.addresses.contains(&address) {
            return Ok(());
        }
        let mut inboxes = self.hub.inboxes.write().unwrap_or_else(PoisonError::into_inner);
        if inboxes.contains_key(&address) {
            return Err(LinkError::AddressInUse { address, port: ROCE_PORT });
        }
        inboxes.insert(address, Arc::clone(&self.inbox));
        drop(inboxes);
        self.addresses.push(address);
        Ok(())
    }

    fn close(&mut self, address: IpAddr) {
        if let Some(position) = self.addresses.iter().position(|open| *open == address) {
            self.addresses.swap_remove(position);
            self.forget(address);
        }
    }

    fn mtu(&self, _address: IpAddr) -> Result<u32, LinkError> {
        Ok(HUB_MTU_BYTES)
    }

    fn send(&mut self, batch: &mut SendBatch, _now: Time) {
        let inboxes = self.hub.inboxes.read().unwrap_or_else(PoisonError::into_inner);
        for run in batch.runs() {
            let payloads = run.payloads();
            let Some(inbox) = inboxes.get(&run.destination.ip()) else {
                self.counts.unreachable += payloads.len() as u64;
                continue;
            };
            if !self.addresses.contains(&run.source.ip()) {
                self.counts.not_open += payloads.len() as u64;
                continue;
            }
            let mut payloads = payloads.filter(|bytes| {
                let fits = bytes.len() <= MAX_DATAGRAM_BYTES;
                self.counts.too_big += u64::from(!fits);
                fits
            });
            let mut queue = inbox.lock();
            let room = QUEUE_DATAGRAMS.saturating_sub(queue.waiting.len());
            queue.waiting.push_run(run.source, run.destination, Segmentation::No, room, |out| {
                payloads.next().map(|bytes| out.extend_from_slice(bytes)).is_some()
            });
            queue.dropped += payloads.count() as u64;
            if queue.sleeping && !queue.waiting.is_empty() {
                queue.sleeping = false;
                // The write fails only if the counter is full, and then the descriptor is readable already.
                let _ = inbox.wake.write(1);
            }
        }
        drop(inboxes);
        batch.clear();
    }

    fn receive(&mut self, batch: &mut ReceiveBatch) -> usize {
        batch.clear();
        let mut queue = self.inbox.lock();
        queue.sleeping = false;
        let taken = batch.fill(&queue.waiting);
        queue.waiting.remove_first(taken);
        taken
    }

    fn arm(&mut self) -> bool {
        // Clear the old wake-up first, so that each later wake-up belongs to a datagram in the queue.
        let _ = self.inbox.wake.read();
        let mut queue = self.inbox.lock();
        queue.sleeping = true;
        !queue.waiting.is_empty()
    }

    fn has_arrivals(&self) -> bool {
        !self.inbox.lock().waiting.is_empty()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.inbox.wake.as_fd()]
    }

    fn counters(&self, into: &mut Vec<Counter>) {
        into.extend([
            Counter { name: "drop_send_unreachable", value: self.counts.unreachable },
            Counter { name: "drop_send_address_not_open", value: self.counts.not_open },
            Counter { name: "drop_send_too_big", value: self.counts.too_big },
            Counter { name: "drop_receive_queue_full", value: self.inbox.lock().dropped },
        ]);
    }
}

impl Drop for InProcessLink {
    fn drop(&mut self) {
        for address in std::mem::take(&mut self.addresses) {
            self.forget(address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Datagram;
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::net::SocketAddr;

    fn address(last: u8) -> SocketAddr {
        SocketAddr::new(IpAddr::from([10, 0, 0, last]), 4791)
    }

    fn open(hub: &Arc<Hub>, last: u8) -> InProcessLink {
        let mut link = hub.link().unwrap();
        link.open(address(last).ip()).unwrap();
        link
    }

    fn send(link: &mut InProcessLink, from: u8, to: u8, bytes: &[u8]) {
        let mut batch = SendBatch::new();
        batch.push(Datagram { source: address(from), destination: address(to), bytes });
        link.send(&mut batch, Time(0));
        assert!(batch.is_empty());
    }

    fn counter(link: &InProcessLink, name: &str) -> u64 {
        let mut counters = Vec::new();
        link.counters(&mut counters);
        counters.into_iter().find(|counter| counter.name == name).unwrap().value
    }

    fn readable(link: &InProcessLink, limit: PollTimeout) -> bool {
        let fds = link.fds();
        poll(&mut [PollFd::new(fds[0], PollFlags::POLLIN)], limit).unwrap() == 1
    }

    #[test]
    fn datagrams_reach_their_destination_address() {
        let hub = Hub::new();
        let (mut a, mut b, mut c) = (open(&hub, 1), open(&hub, 2), open(&hub, 3));
        b.open(address(4).ip()).unwrap();
        let mut batch = SendBatch::new();
        for to in [2, 3, 2, 4, 9] {
            batch.push(Datagram { source: address(1), destination: address(to), bytes: &[to] });
        }
        a.send(&mut batch, Time(0));
        let mut got = ReceiveBatch::new(8);
        assert_eq!(b.receive(&mut got), 3);
        assert_eq!(got.iter().map(|datagram| datagram.bytes[0]).collect::<Vec<_>>(), [2, 2, 4]);
        assert_eq!(
            (got.iter().nth(2).unwrap().source, got.iter().nth(2).unwrap().destination),
            (address(1), address(4))
        );
        assert_eq!(c.receive(&mut got), 1);
        assert_eq!(a.receive(&mut got), 0);
        assert_eq!(counter(&a, "drop_send_unreachable"), 1);
    }

    #[test]
    fn full_queue_drops_and_counts() {
        let hub = Hub::new();
        let (mut a, mut b) = (open(&hub, 1), open(&hub, 2));
        let mut batch = SendBatch::new();
        for number in 0..QUEUE_DATAGRAMS + 10 {
            let bytes = u32::try_from(number).unwrap().to_be_bytes();
            batch.push(Datagram { source: address(1), destination: address(2), bytes: &bytes });
        }
        a.send(&mut batch, Time(0));
        assert_eq!(counter(&b, "drop_receive_queue_full"), 10);
        let mut got = ReceiveBatch::new(64);
        let mut next = 0u32;
        while b.receive(&mut got) > 0 {
            for datagram in got.iter() {
                assert_eq!(datagram.bytes, next.to_be_bytes());
                next += 1;
            }
        }
        assert_eq!(next as usize, QUEUE_DATAGRAMS);
        send(&mut a, 1, 2, b"again");
        assert_eq!(b.receive(&mut got), 1);
    }

    #[test]
    fn only_armed_receiver_is_woken() {
        let hub = Hub::new();
        let (mut a, mut b) = (open(&hub, 1), open(&hub, 2));
        let mut got = ReceiveBatch::new(8);
        send(&mut a, 1, 2, b"polled");
        assert!(!readable(&b, PollTimeout::ZERO));
        assert!(b.arm(), "one is waiting already");
        assert_eq!(b.receive(&mut got), 1);
        assert!(!b.arm());
        assert!(!readable(&b, PollTimeout::ZERO));
        #[expect(clippy::disallowed_methods, reason = "wakes a thread that really sleeps")]
        std::thread::scope(|scope| {
            scope.spawn(|| send(&mut a, 1, 2, b"wake"));
            assert!(readable(&b, PollTimeout::from(10_000u16)));
        });
        assert_eq!(b.receive(&mut got), 1);
        assert!(!b.arm());
        assert!(!readable(&b, PollTimeout::ZERO), "arming cleared the old wake-up");
    }

    #[test]
    fn address_belongs_to_one_link_until_closed() {
        let hub = Hub::new();
        let mut a = open(&hub, 1);
        let mut b = hub.link().unwrap();
        assert!(matches!(b.open(address(1).ip()), Err(LinkError::AddressInUse { .. })));
        drop(a);
        b.open(address(1).ip()).unwrap();
        b.close(address(1).ip());
        a = open(&hub, 1);
        // Datagrams sent to a closed link do not reach the next link at the address.
        let mut got = ReceiveBatch::new(8);
        assert_eq!(a.receive(&mut got), 0);
    }
}
