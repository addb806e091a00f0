//! Datagram sockets, as the UDP link needs them.
//!
//! The seam between the UDP link and whoever owns ports: the operating system (`udp::system`), or a
//! simulated host. Calls through it are made per batch of datagrams, never per datagram.
#![forbid(unsafe_code)]

use super::{LinkError, ReceiveBatch, SendBatch};
use std::fmt::Debug;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

/// What one [`DatagramSocket::receive`] brought.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Received {
    /// Datagrams that were too long for a slot and are left out.
    pub(crate) too_long: usize,
    /// Whether the socket may hold more.
    pub(crate) may_have_more: bool,
}

/// Makes sockets.
pub(crate) trait Sockets: Send + Debug {
    /// Binds a socket; port 0 is one of the system's choice.
    ///
    /// # Errors
    /// [`LinkError::AddressInUse`], [`LinkError::NoSuchAddress`], [`LinkError::Os`].
    fn bind(&self, address: IpAddr, port: u16) -> Result<Box<dyn DatagramSocket>, LinkError>;

    /// The MTU of the interface that has the address, in bytes with IP headers.
    ///
    /// # Errors
    /// [`LinkError::NoSuchAddress`].
    fn mtu(&self, address: IpAddr) -> Result<u32, LinkError>;
}

/// A bound socket that never blocks. Dropping it frees its port.
pub(crate) trait DatagramSocket: Send + Debug {
    /// Its address, with the port that it got.
    fn local(&self) -> SocketAddr;

    /// Sends datagrams from the front of the batch, `count` at most, and leaves the batch as it is.
    /// Returns how many were sent, at least one when `count` is positive.
    ///
    /// # Errors
    /// Why the first could not be sent.
    fn send(&mut self, batch: &SendBatch, count: usize) -> io::Result<usize>;

    /// Receives into the free slots of the batch.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when it holds no datagram, and what the system reports else.
    fn receive(&mut self, batch: &mut ReceiveBatch) -> io::Result<Received>;

    /// Whether [`DatagramSocket::receive`] would return something other than
    /// [`io::ErrorKind::WouldBlock`].
    fn is_readable(&self) -> bool;

    /// The descriptor that becomes readable when a datagram arrives; simulated sockets have none.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Datagrams that were dropped because its receive buffer was full.
    fn dropped(&self) -> u64;
}
