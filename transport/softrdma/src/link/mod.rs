//! Links, which carry the UDP payloads of RoCEv2, including the ICRC, between addresses.
//!
//! Owns the sockets, queues and wake-ups below the protocol. The device drives a [`Link`] under a lock. A link
//! never blocks, and parses a datagram only to determine the process to which it is addressed. Like any
//! network, a link may lose, duplicate or reorder datagrams; the engine recovers from that.
//!
//! | file | what it is |
//! |---|---|
//! | `batch` | [`SendBatch`] and [`ReceiveBatch`]: many datagrams in one reused buffer |
//! | `udp` | `UdpLink`: ordinary unprivileged sockets, on port 4791 by default |
//! | `sockets` | the interface between `udp` and the operating system or a simulated host |
//! | `port_owner` | finds the process that holds a UDP port, and addresses at which the port is free |
//! | `stopped_holders` | detects stopped processes that prevent new clients from reaching this process |
//! | `relay` | distributes the datagrams for one address among several processes |
//! | `in_process` | [`Hub`]: connects devices of one process through bounded queues |
//! | `tap` | `Tap`: a link with faults, a capture and an observer |
//! | `capture` | `Recorder`: writes the datagrams into a capture file |
//! | `faults` | `Faults`: drops, duplicates, reorders, corrupts and delays sent datagrams |

mod batch;
mod capture;
mod error;
mod faults;
mod in_process;
mod interface;
mod port_owner;
mod relay;
mod sockets;
mod stopped_holders;
mod tap;
mod udp;
mod udp_ffi;

pub(crate) use batch::MAX_DATAGRAM_BYTES;
pub use batch::{Datagram, ReceiveBatch, SendBatch};
pub(crate) use batch::{Origin, Segmentation};
pub(crate) use capture::Recorder;
pub use capture::check_capture;
pub use error::{LinkError, ROCE_PORT_TAKEN};
pub(crate) use faults::Faults;
pub use faults::{FaultPlan, FaultPlanError};
pub use in_process::{Hub, InProcessLink};
pub(crate) use port_owner::UdpSockets;
pub use port_owner::{Owner, PortOwner, RuntimeDirectory, printable};
pub use sockets::IcmpError;
pub(crate) use sockets::{DatagramSocket, Received, Sockets};
pub(crate) use stopped_holders::StoppedHolders;
pub use tap::LinkObserver;
pub(crate) use tap::Tap;
pub(crate) use udp::{FirstSockets, UdpLink};
pub use udp::{RECEIVE_BUFFER_BYTES, SEND_BUFFER_BYTES};

pub use trunkline_roce::wire::ROCE_PORT;

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use trunkline_verbs::{Counter, Time};

/// ECN bits of the IP header (RFC 3168). The network may replace `ECT_0` with the mark `CE` instead of dropping
/// the datagram.
pub(crate) const ECT_0: u8 = 2;
pub(crate) const CE: u8 = 3;

/// Result of the ICRC check of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The datagram was not changed in transit.
    Taken {
        /// True if the sender is a software device of this crate.
        is_soft: bool,
    },
    /// The ICRC is inconclusive. The datagram is accepted only if its content proves its sender.
    Unsure,
}

/// Judges datagrams for a link.
pub trait Judge {
    /// Returns the current time.
    fn now(&self) -> Time;

    /// Checks the ICRC of a datagram. Returns `None` if it does not match the headers. The receiver, which may
    /// have detected an address translator, checks such a datagram again.
    fn judge(&mut self, datagram: Datagram<'_>) -> Option<Verdict>;

    /// Reports a datagram that the link drops without calling [`Judge::judge`].
    fn dropped(&mut self, datagram: Datagram<'_>) {
        let _ = datagram;
    }
}

/// A network interface for datagrams.
///
/// Datagrams are sent from and received at an address from `open` until `close`. Call [`Link::poll`] at the
/// time that [`Link::next_timeout`] returns, and [`Link::arm`] before sleeping on [`Link::fds`]. The
/// descriptors may be watched level- or edge-triggered, provided that `receive` is called until it returns 0
/// after each wake-up.
pub trait Link: Send + Debug {
    /// Returns the link's name for reports, such as `udp`.
    fn name(&self) -> &'static str;

    /// Returns the UDP port at which devices with this link receive.
    fn port(&self) -> u16 {
        ROCE_PORT
    }

    /// Opens an address. The link then receives packets to its port at this address, if they are addressed to
    /// this process. Has no effect if the address is already open.
    ///
    /// # Errors
    /// Returns [`LinkError::AddressInUse`] with the cause and a remedy, [`LinkError::NoSuchAddress`], or
    /// [`LinkError::Os`].
    fn open(&mut self, address: IpAddr) -> Result<(), LinkError>;

    /// Releases the address, if it is open.
    fn close(&mut self, address: IpAddr);

    /// Returns the source address and port of datagrams sent from an open address. The port does not change
    /// while the address is open.
    fn source(&self, address: IpAddr) -> SocketAddr {
        SocketAddr::new(address, self.port())
    }

    /// Returns the open address with a source port other than the link's port if the link supports this, or else with
    /// the address's usual source port.
    fn other_source(&mut self, address: IpAddr) -> SocketAddr {
        self.source(address)
    }

    /// Returns true if datagrams between these addresses cross a network that other traffic can congest.
    fn is_between_hosts(&self, from: IpAddr, to: IpAddr) -> bool {
        let _ = (from, to);
        false
    }

    /// Returns the MTU of the interface that has the address, in bytes including IP headers.
    ///
    /// # Errors
    /// Returns [`LinkError::NoSuchAddress`] if the host does not have the address, and [`LinkError::Os`] if the MTU
    /// cannot be read.
    fn mtu(&self, address: IpAddr) -> Result<u32, LinkError>;

    /// Combines new datagrams of the batch into messages of several segments, which changes their ICRCs. `send`
    /// also does this. Call it before recording the datagrams, so that the record matches the wire.
    fn segment(&mut self, batch: &mut SendBatch) {
        let _ = batch;
    }

    /// Sends datagrams from the front of the batch, in order, each from the open address in its `source`. Removes the
    /// datagrams that were sent or can never be sent. Datagrams for which the system lacks room stay in the batch for a
    /// later call.
    fn send(&mut self, batch: &mut SendBatch, now: Time);

    /// Replaces the content of the batch with datagrams that have arrived, up to its capacity. Returns the number of
    /// datagrams taken, including datagrams that were refused or are for another process. If the number is 0, datagrams
    /// are not waiting. If it equals the capacity of the batch, more datagrams may be waiting.
    fn receive(&mut self, batch: &mut ReceiveBatch) -> usize;

    /// Receives a batch as [`Link::receive`] does. A link that forwards datagrams to other processes first
    /// calls `judge` for each datagram, in order of arrival.
    fn receive_judged(&mut self, batch: &mut ReceiveBatch, judge: &mut dyn Judge) -> usize {
        let _ = judge;
        self.receive(batch)
    }

    /// Removes and returns the next report on an undelivered datagram, if any. A limited number of reports is
    /// kept until the next `receive`.
    fn next_icmp_error(&mut self) -> Option<IcmpError> {
        None
    }

    /// Arms the link, so that the next datagram to arrive makes one of [`Link::fds`] readable. Returns true if
    /// datagrams are already waiting, in which case the owner must not sleep. The next `receive` disarms the
    /// link.
    fn arm(&mut self) -> bool;

    /// Returns true if `receive` does not disarm the link. An edge-triggered watcher is then notified of each
    /// datagram after a single call of [`Link::arm`].
    fn stays_armed(&self) -> bool {
        false
    }

    /// Returns true if all datagrams and reports that were read from the descriptors have been taken.
    fn is_drained(&self) -> bool {
        true
    }

    /// Returns true if datagrams are waiting, whether or not the link is armed. A simulation calls this where
    /// a thread would sleep on [`Link::fds`].
    fn has_arrivals(&self) -> bool {
        udp_ffi::any_readable(self.fds().into_iter())
    }

    /// Returns the descriptors that become readable when datagrams arrive. They change on `open` and `close`,
    /// and whenever the result of [`Link::changes`] changes.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Returns a number that increases when the descriptors change for a reason other than `open` or `close`.
    fn changes(&self) -> u64 {
        0
    }

    /// Returns the time of the next [`Link::poll`], if any.
    fn next_timeout(&self) -> Option<Time> {
        None
    }

    /// Performs timed work, such as sending delayed datagrams.
    fn poll(&mut self, now: Time) {
        let _ = now;
    }

    /// Appends the link's counters.
    fn counters(&self, into: &mut Vec<Counter>);
}
