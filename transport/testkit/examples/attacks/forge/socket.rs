//! Sockets of an attacker who is another user of the host: any loopback address, and any port that no other
//! socket has.

use crate::Outcome;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use trunkline_roce::wire::{IpUdp, ROCE_PORT, icrc};

/// Bytes of the IPv4 and UDP headers of a datagram.
const HEADERS: u64 = 28;

/// Packets that a socket has received.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caught {
    pub(crate) packets: u64,
    /// Bytes of the packets, including IP and UDP headers.
    pub(crate) bytes: u64,
    /// Last packet.
    pub(crate) last: Vec<u8>,
}

/// Sends packets with correct ICRCs from one address and port.
#[derive(Debug)]
pub(crate) struct Forger {
    socket: UdpSocket,
    own: SocketAddr,
    packet: Vec<u8>,
    /// Number of packets that the system accepted, and their bytes with all headers.
    pub(crate) sent: u64,
    pub(crate) sent_bytes: u64,
}

impl Forger {
    /// Binds a free port of another's address.
    pub(crate) fn at(ip: IpAddr) -> Outcome<Self> {
        let socket = UdpSocket::bind((ip, 0))?;
        socket.set_nonblocking(true)?;
        let own = socket.local_addr()?;
        Ok(Self { socket, own, packet: Vec::new(), sent: 0, sent_bytes: 0 })
    }

    /// Sends a packet, given without its ICRC.
    pub(crate) fn send(&mut self, body: &[u8], to: SocketAddr) -> Outcome<()> {
        self.packet.clear();
        self.packet.extend(body);
        icrc::append(&IpUdp::new(self.own, to), &mut self.packet);
        loop {
            match self.socket.send_to(&self.packet, to) {
                Ok(length) => {
                    self.sent += 1;
                    self.sent_bytes += length as u64 + HEADERS;
                    return Ok(());
                }
                // The error is about an earlier datagram, which found no receiver.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns the packets received since the last call.
    pub(crate) fn caught(&self) -> Caught {
        drain(&self.socket)
    }
}

/// Receives packets to UDP port 4791 of an address.
#[derive(Debug)]
pub(crate) struct Sink(UdpSocket);

impl Sink {
    pub(crate) fn at(ip: IpAddr) -> Outcome<Self> {
        let socket = UdpSocket::bind((ip, ROCE_PORT))?;
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Returns the packets received since the last call.
    pub(crate) fn caught(&self) -> Caught {
        drain(&self.0)
    }
}

fn drain(socket: &UdpSocket) -> Caught {
    let mut caught = Caught::default();
    let mut bytes = [0; 8192];
    loop {
        match socket.recv(&mut bytes) {
            Ok(length) => {
                caught.packets += 1;
                caught.bytes += length as u64 + HEADERS;
                caught.last = bytes[..length].to_vec();
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(_) => return caught,
        }
    }
}
