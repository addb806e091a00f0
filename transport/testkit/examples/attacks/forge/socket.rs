//! Sockets of an attacker who is another user of the host. They can bind any loopback address and any port that is free at
//! that address.

use crate::Outcome;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use trunkline_roce::wire::{IpUdp, ROCE_PORT, icrc};

/// Total length of the IPv4 and UDP headers of a datagram, in bytes.
const HEADERS: u64 = 28;
/// Protocol number of UDP.
const UDP: u8 = 17;

/// Packets that a socket has received.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caught {
    pub(crate) packets: u64,
    /// Total length of the packets, in bytes, including IP and UDP headers.
    pub(crate) bytes: u64,
    /// Last packet.
    pub(crate) last: Vec<u8>,
}

/// Sends packets with valid ICRCs from one address and port.
#[derive(Debug)]
pub(crate) struct Forger {
    socket: UdpSocket,
    pub(crate) own: SocketAddr,
    packet: Vec<u8>,
    /// Number of packets that the kernel accepted, and their total length with IP and UDP headers.
    pub(crate) sent: u64,
    pub(crate) sent_bytes: u64,
}

impl Forger {
    /// Binds a free port at another node's address.
    pub(crate) fn at(ip: IpAddr) -> Outcome<Self> {
        Self::bind(SocketAddr::new(ip, 0))
    }

    /// Binds an address and port.
    pub(crate) fn bind(own: SocketAddr) -> Outcome<Self> {
        let socket = UdpSocket::bind(own)?;
        socket.set_nonblocking(true)?;
        let own = socket.local_addr()?;
        Ok(Self { socket, own, packet: Vec::new(), sent: 0, sent_bytes: 0 })
    }

    /// Sends a packet, to which it appends the ICRC.
    pub(crate) fn send(&mut self, body: &[u8], to: SocketAddr) -> Outcome<()> {
        let mut packet = std::mem::take(&mut self.packet);
        packet.clear();
        packet.extend(body);
        icrc::append(&IpUdp::new(self.own, to), &mut packet);
        let outcome = self.send_bytes(&packet, to);
        self.packet = packet;
        outcome
    }

    /// Sends a datagram.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8], to: SocketAddr) -> Outcome<()> {
        let length = accepted(|| self.socket.send_to(bytes, to))?;
        self.sent += 1;
        self.sent_bytes += length as u64 + HEADERS;
        Ok(())
    }

    /// Returns the packets received since the last call.
    pub(crate) fn caught(&self) -> Caught {
        drain(&self.socket)
    }

    /// Calls `each` with the packets received since the last call.
    pub(crate) fn receive(&self, each: impl FnMut(&[u8])) {
        receive(&self.socket, each);
    }
}

/// Sends datagrams from any IPv4 address and port. This requires permission to open a raw socket.
#[derive(Debug)]
pub(crate) struct RawForger {
    socket: Socket,
    frame: Vec<u8>,
    /// Number of datagrams that the kernel accepted.
    pub(crate) sent: u64,
}

impl RawForger {
    pub(crate) fn new() -> Outcome<Self> {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP))?;
        socket.set_header_included_v4(true)?;
        Ok(Self { socket, frame: Vec::new(), sent: 0 })
    }

    /// Sends a datagram with a constructed IPv4 header. Sets DF, omits the UDP checksum, and leaves the identification to
    /// the kernel.
    pub(crate) fn send(&mut self, source: SocketAddr, to: SocketAddr, bytes: &[u8]) -> Outcome<()> {
        let (IpAddr::V4(from), IpAddr::V4(destination)) = (source.ip(), to.ip()) else {
            return Err("only over IPv4".into());
        };
        let length = |more: usize| u16::try_from(bytes.len() + more).unwrap_or(u16::MAX).to_be_bytes();
        let frame = &mut self.frame;
        frame.clear();
        frame.extend([0x45, 0]);
        frame.extend(length(28));
        frame.extend([0, 0, 0x40, 0, 64, UDP, 0, 0]);
        frame.extend(from.octets());
        frame.extend(destination.octets());
        frame.extend(source.port().to_be_bytes());
        frame.extend(to.port().to_be_bytes());
        frame.extend(length(8));
        frame.extend([0, 0]);
        frame.extend(bytes);
        let address = SockAddr::from(SocketAddr::new(to.ip(), 0));
        accepted(|| self.socket.send_to(frame, &address))?;
        self.sent += 1;
        Ok(())
    }
}

/// Repeats a send until the kernel accepts it. Returns the number of bytes sent.
fn accepted(mut send: impl FnMut() -> std::io::Result<usize>) -> Outcome<usize> {
    loop {
        match send() {
            Ok(length) => return Ok(length),
            // The error belongs to an earlier datagram, which had no receiver.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Receives the packets to UDP port 4791 of an address.
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
    receive(socket, |bytes| {
        caught.packets += 1;
        caught.bytes += bytes.len() as u64 + HEADERS;
        caught.last = bytes.to_vec();
    });
    caught
}

fn receive(socket: &UdpSocket, mut each: impl FnMut(&[u8])) {
    let mut bytes = [0; 8192];
    loop {
        match socket.recv(&mut bytes) {
            Ok(length) => each(&bytes[..length]),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(_) => return,
        }
    }
}
