//! A link over UDP that changes the frames of a hostile peer.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};
use trunkline_roce::wire::ROCE_PORT;
use trunkline_softrdma::link::{Datagram, Link, LinkError, ReceiveBatch, SendBatch};
use trunkline_testkit::{HostilePeer, Hostility, Random};
use trunkline_verbs::{Counter, Time};

/// MTU of the loopback interface, in bytes.
const MTU: u32 = 65_536;
/// Maximum length of a datagram, in bytes.
const LONGEST: usize = 8192;

/// A link with sockets on port 4791 of the peer's addresses.
#[derive(Debug)]
pub(crate) struct HostileLink {
    sockets: Vec<(IpAddr, UdpSocket)>,
    peer: HostilePeer,
}

impl HostileLink {
    pub(crate) fn new(hostility: Hostility) -> Self {
        Self { sockets: Vec::new(), peer: HostilePeer::new(hostility, Random::from_entropy()) }
    }

    fn socket(&self, address: IpAddr) -> Option<&UdpSocket> {
        self.sockets.iter().find(|(own, _)| *own == address).map(|(_, socket)| socket)
    }
}

impl Link for HostileLink {
    fn name(&self) -> &'static str {
        "hostile"
    }

    fn open(&mut self, address: IpAddr) -> Result<(), LinkError> {
        if self.socket(address).is_none() {
            let opened = UdpSocket::bind((address, ROCE_PORT));
            let ready = opened.and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
            self.sockets.push((address, ready.map_err(|_| LinkError::NoSuchAddress { address })?));
        }
        Ok(())
    }

    fn close(&mut self, address: IpAddr) {
        self.sockets.retain(|(own, _)| *own != address);
    }

    fn mtu(&self, _address: IpAddr) -> Result<u32, LinkError> {
        Ok(MTU)
    }

    fn send(&mut self, batch: &mut SendBatch, _now: Time) {
        let mut done = 0;
        for Datagram { source, destination, bytes } in batch.iter() {
            let Some((_, socket)) = self.sockets.iter().find(|(own, _)| *own == source.ip()) else { break };
            let changed = self.peer.outgoing(source, destination, bytes);
            match socket.send_to(changed.as_deref().unwrap_or(bytes), destination) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // After any other error, the datagram is dropped, as in a lossy network.
                Ok(_) | Err(_) => done += 1,
            }
        }
        batch.remove_first(done);
    }

    fn receive(&mut self, batch: &mut ReceiveBatch) -> usize {
        batch.clear();
        let mut bytes = [0; LONGEST];
        for (address, socket) in &self.sockets {
            let destination = SocketAddr::new(*address, ROCE_PORT);
            while batch.len() < batch.capacity() {
                let (length, source) = match socket.recv_from(&mut bytes) {
                    Ok(received) => received,
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                    Err(_) => break,
                };
                let received = &bytes[..length];
                let changed = self.peer.incoming(source, destination, received);
                let bytes = changed.as_deref().unwrap_or(received);
                if !batch.push(Datagram { source, destination, bytes }) {
                    break;
                }
            }
        }
        batch.len()
    }

    fn arm(&mut self) -> bool {
        self.has_arrivals()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.sockets.iter().map(|(_, socket)| socket.as_fd()).collect()
    }

    fn counters(&self, _into: &mut Vec<Counter>) {}
}
