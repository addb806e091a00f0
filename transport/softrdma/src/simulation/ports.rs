//! The UDP ports of a simulated host.
//!
//! Owns the bound ports, their owners, and the datagrams queued at them. A socket exists while its process
//! lives, so the ports of a killed process are free.
#![forbid(unsafe_code)]

use super::Network;
use crate::host::Life;
use crate::link::{
    Datagram, DatagramSocket, LinkError, MAX_DATAGRAM_BYTES, Origin, ReceiveBatch, Received, SendBatch,
    Sockets,
};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of datagrams queued at one socket.
const QUEUE_DATAGRAMS: usize = 1024;
/// MTU of a host's interfaces, in bytes, large enough for payloads of 4,096 bytes.
const MTU_BYTES: u32 = 9000;
/// First port assigned for port 0.
const FIRST_EPHEMERAL: u16 = 49_152;

#[derive(Debug)]
pub(super) struct Ports {
    network: Arc<dyn Network>,
    addresses: Vec<IpAddr>,
    bound: Mutex<BTreeMap<SocketAddr, Arc<Port>>>,
}

/// A bound port.
#[derive(Debug)]
struct Port {
    life: Arc<Life>,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: SendBatch,
    /// Marks of the queued datagrams.
    marks: VecDeque<bool>,
    dropped: u64,
}

/// Locks a mutex, even if a thread panicked while it held the lock, since the value is always consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ports {
    pub(super) fn new(network: Arc<dyn Network>, addresses: Vec<IpAddr>) -> Arc<Self> {
        Arc::new(Self { network, addresses, bound: Mutex::default() })
    }

    pub(super) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    pub(super) fn deliver(&self, datagram: Datagram<'_>, is_marked: bool) -> bool {
        let port = lock(&self.bound).get(&datagram.destination).cloned();
        let Some(port) = port.filter(|port| port.life.is_alive()) else { return false };
        let mut queue = lock(&port.queue);
        let has_room = queue.waiting.len() < QUEUE_DATAGRAMS && datagram.bytes.len() <= MAX_DATAGRAM_BYTES;
        if has_room {
            queue.waiting.push(datagram);
            queue.marks.push_back(is_marked);
        } else {
            queue.dropped += 1;
        }
        has_room
    }
}

/// Socket factory of a process.
#[derive(Debug)]
pub(crate) struct ProcessSockets {
    ports: Arc<Ports>,
    life: Arc<Life>,
}

impl ProcessSockets {
    pub(super) fn new(ports: Arc<Ports>, life: Arc<Life>) -> Self {
        Self { ports, life }
    }
}

impl Sockets for ProcessSockets {
    fn bind(&self, address: IpAddr, port: u16) -> Result<Box<dyn DatagramSocket>, LinkError> {
        self.mtu(address)?;
        let mut bound = lock(&self.ports.bound);
        let is_free = |port: &u16| {
            bound.get(&SocketAddr::new(address, *port)).is_none_or(|bound| !bound.life.is_alive())
        };
        let free = match port {
            0 => (FIRST_EPHEMERAL..=u16::MAX).find(is_free),
            _ => Some(port).filter(is_free),
        };
        let local = SocketAddr::new(address, free.ok_or(LinkError::AddressInUse { address, port })?);
        let port = Arc::new(Port { life: Arc::clone(&self.life), queue: Mutex::default() });
        if self.life.is_alive() {
            bound.insert(local, Arc::clone(&port));
        }
        drop(bound);
        let bound = BoundPort { ports: Arc::clone(&self.ports), local, port };
        Ok(Box::new(ProcessSocket(Arc::new(bound))))
    }

    // The addresses of simulated hosts are loopback addresses, so a loopback address may belong to another
    // host.
    fn is_between_hosts(&self, _from: IpAddr, to: IpAddr) -> bool {
        !self.ports.addresses.contains(&to)
    }

    fn mtu(&self, address: IpAddr) -> Result<u32, LinkError> {
        if self.ports.addresses.contains(&address) {
            Ok(MTU_BYTES)
        } else {
            Err(LinkError::NoSuchAddress { address })
        }
    }
}

/// A bound port. Dropping it frees the port.
#[derive(Debug)]
struct BoundPort {
    ports: Arc<Ports>,
    local: SocketAddr,
    port: Arc<Port>,
}

#[derive(Debug)]
struct ProcessSocket(Arc<BoundPort>);

impl DatagramSocket for ProcessSocket {
    fn local(&self) -> SocketAddr {
        self.0.local
    }

    fn share(&self) -> Option<Box<dyn DatagramSocket>> {
        Some(Box::new(Self(Arc::clone(&self.0))))
    }

    fn can_segment(&self) -> bool {
        true
    }

    fn send(&mut self, batch: &SendBatch, count: usize) -> io::Result<usize> {
        let count = count.min(batch.len());
        if self.0.port.life.is_alive() {
            let mut datagrams = batch.iter();
            for message in batch.messages(count) {
                let of_message = datagrams.by_ref().take(message.count);
                of_message.for_each(|datagram| self.0.ports.network.carry(datagram, message.segment_bytes));
            }
        }
        Ok(count)
    }

    fn receive(&mut self, batch: &mut ReceiveBatch) -> io::Result<Received> {
        if !self.is_readable() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut queue = lock(&self.0.port.queue);
        let mut taken = 0;
        for (datagram, is_marked) in queue.waiting.iter().zip(&queue.marks) {
            if !batch.push_from(datagram, Origin { is_marked: *is_marked, ..Origin::default() }) {
                break;
            }
            taken += 1;
        }
        queue.waiting.remove_first(taken);
        queue.marks.drain(..taken);
        Ok(Received { may_have_more: !queue.waiting.is_empty(), ..Received::default() })
    }

    fn is_readable(&self) -> bool {
        self.0.port.life.is_alive() && !lock(&self.0.port.queue).waiting.is_empty()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn dropped(&self) -> u64 {
        lock(&self.0.port.queue).dropped
    }
}

impl Drop for BoundPort {
    fn drop(&mut self) {
        let mut bound = lock(&self.ports.bound);
        // Another process may have bound the port after this one was killed.
        if bound.get(&self.local).is_some_and(|port| Arc::ptr_eq(port, &self.port)) {
            bound.remove(&self.local);
        }
    }
}
