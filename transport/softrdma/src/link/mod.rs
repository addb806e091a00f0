//! The network below the device: it carries the UDP payloads of RoCEv2, ICRC included, between addresses.
//!
//! Owns the sockets, queues and wake-ups below the protocol; the device drives one [`Link`] under its lock. A
//! link parses a datagram only to determine the process of the host to which it is addressed. A link never
//! waits. It may lose, duplicate or reorder datagrams like any network; the engine recovers from that.
//!
//! | file | what it is |
//! |---|---|
//! | `batch` | [`SendBatch`] and [`ReceiveBatch`]: many datagrams in one reused buffer |
//! | `udp` | `UdpLink`: ordinary unprivileged sockets on port 4791 |
//! | `sockets` | the interface between `udp` and the operating system or a simulated host |
//! | `port_owner` | the process that has port 4791, for error texts; addresses at which no process has it |
//! | `stopped_holders` | stopped processes that keep new clients from this process |
//! | `relay` | datagrams of one address for several processes |
//! | `in_process` | [`Hub`]: joins devices of one process through bounded queues |
//! | `tap` | `Tap`: a link with faults, a capture and an observer |
//! | `capture` | `Recorder`: writes the datagrams into a capture file |
//! | `faults` | `Faults`: loses, duplicates, reorders, corrupts and delays sent datagrams |

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

/// ECN bits of the IP header (RFC 3168): `ECT_0` in datagrams that the network may mark instead of dropping
/// them, and the bits of marked datagrams.
/// ones.
pub(crate) const ECT_0: u8 = 2;
pub(crate) const CE: u8 = 3;

/// Verdict on a datagram by its ICRC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The datagram is unchanged since it was sent.
    Taken {
        /// True if the sender is a software device of this crate.
        is_soft: bool,
    },
    /// The ICRC does not decide. The datagram is accepted only if its content proves its sender.
    Unsure,
}

/// Judges datagrams for a link.
pub trait Judge {
    /// Returns the current time.
    fn now(&self) -> Time;

    /// Judges a datagram; returns `None` if its ICRC does not match its headers. The receiver, which may have
    /// detected an address translator, checks such a datagram again.
    fn judge(&mut self, datagram: Datagram<'_>) -> Option<Verdict>;

    /// Reports a datagram that the link drops without calling [`Judge::judge`].
    fn dropped(&mut self, datagram: Datagram<'_>) {
        let _ = datagram;
    }
}

/// A network interface for datagrams.
///
/// Call order: `open` an address, then `send` from it and `receive` at it, until `close`. With a
/// link whose [`Link::next_timeout`] returns a time, call [`Link::poll`] then. Before sleeping on
/// [`Link::fds`], call [`Link::arm`]; the descriptors may be watched level- or edge-triggered,
/// provided that `receive` is called until it returns 0 after each wake-up.
pub trait Link: Send + Debug {
    /// Returns the name for reports: `udp`, `in-process`.
    fn name(&self) -> &'static str;

    /// Returns the UDP port at which devices with such a link receive.
    fn port(&self) -> u16 {
        ROCE_PORT
    }

    /// Opens the address. The link then receives the packets to its port at the address that are addressed to
    /// this process. Has no effect on an open address.
    ///
    /// # Errors
    /// [`LinkError::AddressInUse`] with the cause and a remedy, [`LinkError::NoSuchAddress`],
    /// [`LinkError::Os`].
    fn open(&mut self, address: IpAddr) -> Result<(), LinkError>;

    /// Releases the address, if it is open.
    fn close(&mut self, address: IpAddr);

    /// Returns the source of datagrams from an open address. It does not change while the address is open.
    fn source(&self, address: IpAddr) -> SocketAddr {
        SocketAddr::new(address, self.port())
    }

    /// Returns a source of datagrams from an open address whose port is not the link's port, if the link can
    /// have one.
    fn other_source(&mut self, address: IpAddr) -> SocketAddr {
        self.source(address)
    }

    /// Returns true if datagrams between these addresses pass a network, which other traffic can congest.
    fn is_between_hosts(&self, from: IpAddr, to: IpAddr) -> bool {
        let _ = (from, to);
        false
    }

    /// Returns the MTU of the interface that has the address, in bytes including IP headers.
    ///
    /// # Errors
    /// [`LinkError::NoSuchAddress`].
    fn mtu(&self, address: IpAddr) -> Result<u32, LinkError>;

    /// Joins new datagrams of the batch to messages of several segments, which changes their ICRCs. `send`
    /// does so, too; call this before recording the datagrams as they will be on the wire.
    fn segment(&mut self, batch: &mut SendBatch) {
        let _ = batch;
    }

    /// Sends datagrams from the front of the batch, in order, each from the open address in its `source`.
    /// Removes the datagrams that were sent, or that can never be sent. Datagrams for which the system has no
    /// room stay in the batch for a later call.
    fn send(&mut self, batch: &mut SendBatch, now: Time);

    /// Replaces the content of the batch by datagrams that have arrived, up to its capacity. Returns the
    /// number of datagrams taken, including datagrams that were refused or are for another process. 0 means
    /// that all open addresses are empty; the capacity of the batch means that more datagrams may be waiting.
    fn receive(&mut self, batch: &mut ReceiveBatch) -> usize;

    /// Receives a batch as [`Link::receive`] does. A link that forwards datagrams to other processes calls
    /// `judge` for each datagram before, in the order of arrival.
    fn receive_judged(&mut self, batch: &mut ReceiveBatch, judge: &mut dyn Judge) -> usize {
        let _ = judge;
        self.receive(batch)
    }

    /// Takes the next report on a datagram that was not delivered. A limited number is kept until the next
    /// `receive`.
    fn next_icmp_error(&mut self) -> Option<IcmpError> {
        None
    }

    /// Prepares the link for its owner to sleep on [`Link::fds`]: the next datagram that arrives makes one of
    /// them readable. Returns true if datagrams are already waiting; the owner must not sleep then. The next
    /// `receive` disarms the link.
    fn arm(&mut self) -> bool;

    /// Returns true if an edge-triggered watcher is notified of each datagram, however earlier datagrams were
    /// received. `receive` does not disarm such a link.
    fn stays_armed(&self) -> bool {
        false
    }

    /// Returns true if the link holds no datagram or report that it has already read from a descriptor.
    fn is_drained(&self) -> bool {
        true
    }

    /// Returns true if datagrams are waiting, whether the link is armed or not. A simulation calls this where
    /// a thread would sleep on [`Link::fds`].
    fn has_arrivals(&self) -> bool {
        udp_ffi::any_readable(self.fds().into_iter())
    }

    /// Returns the descriptors that become readable when datagrams arrive. They change with `open`, with
    /// `close`, and when [`Link::changes`] changes.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Returns a number that increases when the descriptors change other than by `open` or `close`.
    fn changes(&self) -> u64 {
        0
    }

    /// Returns the time of the next [`Link::poll`], if any.
    fn next_timeout(&self) -> Option<Time> {
        None
    }

    /// Does timed work, such as sending delayed datagrams.
    fn poll(&mut self, now: Time) {
        let _ = now;
    }

    /// Appends the link's counters.
    fn counters(&self, into: &mut Vec<Counter>);
}
