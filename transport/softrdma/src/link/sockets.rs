//! The interface between the UDP link and datagram sockets.
//!
//! Implemented by the sockets of the operating system (`udp::system`) and of a simulated host. Each call
//! handles a batch of datagrams.
#![forbid(unsafe_code)]

use super::{LinkError, ReceiveBatch, SendBatch};
use std::fmt::Debug;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use trunkline_roce::wire::QuotedPacket;
use trunkline_verbs::UnreachableCause;

/// Result of one [`DatagramSocket::receive`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Received {
    /// Number of datagrams that were too long for a slot and were dropped.
    pub(crate) too_long: usize,
    /// True if more datagrams may be waiting.
    pub(crate) may_have_more: bool,
    /// Largest number of datagrams that arrived in one message.
    pub(crate) most_joined: usize,
    /// Number of datagrams that arrived in messages of several datagrams.
    pub(crate) joined: usize,
}

/// A report by the network that a datagram was not delivered. Such reports can be forged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcmpError {
    /// Source of the datagram.
    pub source: SocketAddr,
    /// Destination of the datagram.
    pub destination: SocketAddr,
    /// The part of the packet that the report quotes.
    pub packet: QuotedPacket,
    /// Cause that the report names.
    pub cause: UnreachableCause,
}

/// Creates sockets.
pub(crate) trait Sockets: Send + Debug {
    /// Binds a socket. If `port` is 0, the system chooses the port.
    ///
    /// # Errors
    /// Returns [`LinkError::AddressInUse`], [`LinkError::NoSuchAddress`] or [`LinkError::Os`].
    fn bind(&self, address: IpAddr, port: u16) -> Result<Box<dyn DatagramSocket>, LinkError>;

    /// Returns true if datagrams between these addresses cross a network.
    fn is_between_hosts(&self, from: IpAddr, to: IpAddr) -> bool {
        from != to && !to.to_canonical().is_loopback()
    }

    /// Returns true if a program that is not a member of this process's host holds the port. Returns false if this is unknown,
    /// for example while the socket of an ending process is being closed.
    fn is_held_by_stranger(&self, at: SocketAddr) -> bool {
        let _ = at;
        false
    }

    /// Returns the MTU of the interface that has the address, in bytes including IP headers.
    ///
    /// # Errors
    /// Returns [`LinkError::NoSuchAddress`] if the host does not have the address, and [`LinkError::Os`] if the MTU
    /// cannot be read.
    fn mtu(&self, address: IpAddr) -> Result<u32, LinkError>;
}

/// A bound socket that never blocks. Dropping it frees its port.
pub(crate) trait DatagramSocket: Send + Debug {
    /// Returns the socket's address, with the actual port.
    fn local(&self) -> SocketAddr;

    /// Returns another handle to the socket, for sending. The port becomes free when all handles are dropped.
    fn share(&self) -> Option<Box<dyn DatagramSocket>> {
        None
    }

    /// Returns true if one call can send a message of several datagrams.
    fn can_segment(&self) -> bool {
        false
    }

    /// Disables messages of several datagrams, since the system has refused one.
    fn stop_segmenting(&mut self) {}

    /// Sends at most `count` datagrams from the front of the batch, without changing the batch. Returns the
    /// number sent, which is at least 1 if `count` is positive.
    ///
    /// # Errors
    /// Returns the reason why the first message could not be sent.
    fn send(&mut self, batch: &SendBatch, count: usize) -> io::Result<usize>;

    /// Receives into the free slots of the batch.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::WouldBlock`] if the socket is empty, and other errors of the system.
    fn receive(&mut self, batch: &mut ReceiveBatch) -> io::Result<Received>;

    /// Reads a limited number of reports on undelivered datagrams, and appends the reports that name a cause.
    /// Returns the number of reports read. Call it after an error from `send` or `receive`, which such a report
    /// may have caused, and before sleeping if [`DatagramSocket::is_readable`] returns true.
    fn read_icmp_errors(&mut self, into: &mut Vec<IcmpError>) -> usize {
        let _ = into;
        0
    }

    /// Returns true if [`DatagramSocket::receive`] would not return [`io::ErrorKind::WouldBlock`], or if there
    /// are reports on undelivered datagrams.
    fn is_readable(&self) -> bool;

    /// Returns the descriptor that becomes readable when a datagram arrives; `None` for simulated sockets.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Returns the number of datagrams that were dropped because the receive buffer was full.
    fn dropped(&self) -> u64;
}
