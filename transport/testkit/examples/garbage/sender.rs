//! Sends packets with forged source addresses.
//!
//! Loopback lets any socket bind any 127.x address, so the peer's address with another port is always
//! possible. The peer's own port needs a raw socket. Without the right to a raw socket, those packets are
//! left out, and `run` says so.

use crate::Outcome;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use trunkline_roce::wire::ROCE_PORT;
use trunkline_testkit::Random;

/// Number of sockets with the peer's address, and of sockets with other addresses.
const SOCKETS: usize = 4;
const UDP: u8 = 17;

/// The sockets of one forged peer.
#[derive(Debug)]
pub(super) struct Sender {
    of_peer: Vec<UdpSocket>,
    of_others: Vec<UdpSocket>,
    raw: Option<Socket>,
    peer: Ipv4Addr,
    frame: Vec<u8>,
    /// Number of datagrams that the system accepted.
    pub(super) sent: u64,
}

/// The source address of a packet, which the ICRC covers.
#[derive(Debug, Clone, Copy)]
pub(super) enum From {
    /// The peer's address and port.
    PeerItself(SocketAddr),
    /// The peer's address.
    Peer(usize),
    /// Another address.
    Other(usize),
}

impl Sender {
    pub(super) fn new(peer: IpAddr, random: &mut Random) -> Outcome<Self> {
        let IpAddr::V4(peer) = peer else { return Err("only over IPv4".into()) };
        let bind = |address: Ipv4Addr| UdpSocket::bind((address, 0));
        let of_peer = (0..SOCKETS).map(|_| bind(peer)).collect::<Result<_, _>>()?;
        let mut of_others = Vec::new();
        for _ in 0..SOCKETS {
            of_others.push(bind(Ipv4Addr::new(127, random.byte(), random.byte(), 1 + random.byte() % 250))?);
        }
        let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP))
            .and_then(|socket| socket.set_header_included_v4(true).map(|()| socket));
        Ok(Self { of_peer, of_others, raw: raw.ok(), peer, frame: Vec::new(), sent: 0 })
    }

    /// Returns true if the peer's own port can be forged.
    pub(super) const fn has_raw(&self) -> bool {
        self.raw.is_some()
    }

    /// Chooses a source: mostly the peer, with its port where possible.
    pub(super) fn choose(&self, random: &mut Random, port: u16) -> From {
        match random.below(8) {
            0 => From::Other(random.below(self.of_others.len())),
            1 => From::Peer(random.below(self.of_peer.len())),
            _ if self.has_raw() => From::PeerItself(SocketAddr::new(self.peer.into(), port)),
            _ => From::Peer(random.below(self.of_peer.len())),
        }
    }

    /// Returns the source that a packet will have.
    pub(super) fn source(&self, from: From) -> Outcome<SocketAddr> {
        Ok(match from {
            From::PeerItself(source) => source,
            From::Peer(at) => self.of_peer[at].local_addr()?,
            From::Other(at) => self.of_others[at].local_addr()?,
        })
    }

    /// Sends a packet, and retries while the system has no room for it.
    pub(super) fn send(&mut self, from: From, to: SocketAddr, bytes: &[u8]) -> Outcome<()> {
        loop {
            let outcome = match from {
                From::PeerItself(source) => self.send_raw(source, to, bytes),
                From::Peer(at) => self.of_peer[at].send_to(bytes, to),
                From::Other(at) => self.of_others[at].send_to(bytes, to),
            };
            match outcome {
                Ok(_) => {
                    self.sent += 1;
                    return Ok(());
                }
                // The error is about an earlier datagram.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends with a constructed IPv4 header: DF, identification left to the kernel, no UDP checksum.
    fn send_raw(&mut self, source: SocketAddr, to: SocketAddr, bytes: &[u8]) -> std::io::Result<usize> {
        let (Some(raw), IpAddr::V4(destination)) = (&self.raw, to.ip()) else {
            return Err(ErrorKind::Unsupported.into());
        };
        let length = |more: usize| u16::try_from(bytes.len() + more).unwrap_or(u16::MAX).to_be_bytes();
        let frame = &mut self.frame;
        frame.clear();
        frame.extend([0x45, 0]);
        frame.extend(length(28));
        frame.extend([0, 0, 0x40, 0, 64, UDP, 0, 0]);
        frame.extend(self.peer.octets());
        frame.extend(destination.octets());
        frame.extend(source.port().to_be_bytes());
        frame.extend(to.port().to_be_bytes());
        frame.extend(length(8));
        frame.extend([0, 0]);
        frame.extend(bytes);
        raw.send_to(frame, &SockAddr::from(SocketAddr::new(to.ip(), 0)))
    }
}

/// Returns the destination of garbage that is not derived from a captured packet.
pub(super) const fn port_of(address: IpAddr) -> SocketAddr {
    SocketAddr::new(address, ROCE_PORT)
}
