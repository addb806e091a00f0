//! A link over UDP whose frames are changed, with their ICRC made right again.

use super::Hostility;
use super::frame::Changer;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd};
use trunkline_roce::wire::{ICRC_LENGTH, IpUdp, Operation, Packet, ROCE_PORT, icrc, pad_for};
use trunkline_softrdma::link::{Datagram, Link, LinkError, ReceiveBatch, SendBatch};
use trunkline_verbs::{Counter, Time};

/// MTU of loopback in bytes.
const MTU: u32 = 65_536;
/// Length of the longest datagram in bytes.
const LONGEST: usize = 8192;

/// Sockets at port 4791 of the peer's addresses.
#[derive(Debug)]
pub(crate) struct HostileLink {
    sockets: Vec<(IpAddr, UdpSocket)>,
    changer: Changer,
}

impl HostileLink {
    pub(crate) fn new(hostility: Hostility) -> Self {
        Self { sockets: Vec::new(), changer: Changer::new(hostility) }
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
            let changer = &mut self.changer;
            let changed =
                change(bytes, source, destination, |qp, srq, payload| changer.outgoing(qp, srq, payload));
            match socket.send_to(changed.as_deref().unwrap_or(bytes), destination) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Any other error loses the datagram, as a network may.
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
                let changer = &self.changer;
                let changed =
                    change(received, source, destination, |_, _, payload| changer.incoming(payload));
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

/// The packet with its payload changed, if it begins a message.
fn change(
    bytes: &[u8],
    source: SocketAddr,
    destination: SocketAddr,
    with: impl FnOnce(u32, u32, &mut Vec<u8>),
) -> Option<Vec<u8>> {
    let packet = Packet::parse(bytes.get(..bytes.len().checked_sub(ICRC_LENGTH)?)?).ok()?;
    let begins = [Operation::SEND_FIRST, Operation::SEND_ONLY].contains(&packet.bth.opcode.operation());
    // QP 1 has the connection manager's messages, whose datagrams have another service.
    if !begins || packet.deth.is_some() {
        return None;
    }
    let srq = packet.xrceth.map_or(0, |(_, srq)| srq.get());
    let mut payload = packet.payload.to_vec();
    with(packet.bth.destination.get(), srq, &mut payload);
    if payload == packet.payload {
        return None;
    }
    let mut changed = Packet { payload: &payload, ..packet };
    changed.bth.pad = pad_for(payload.len());
    let mut out = Vec::new();
    changed.emit(&mut out);
    icrc::append(&IpUdp::new(source, destination), &mut out);
    Some(out)
}
