//! The network below the device: it carries the UDP payloads of RoCEv2, ICRC included, between addresses.
//!
//! Owns the sockets, queues and wake-ups below the protocol; the device drives one [`Link`] under its lock. A
//! link examines a datagram only to determine which process of the host it is for. It never waits, and may
//! lose, duplicate or reorder datagrams like any network; the engine above recovers from that.
//!
//! | file | what it is |
//! |---|---|
//! | `batch` | [`SendBatch`] and [`ReceiveBatch`]: many datagrams in one reused buffer |
//! | `udp` | `UdpLink`: ordinary unprivileged sockets on port 4791 |
//! | `sockets` | the interface between `udp` and the operating system or a simulated host |
//! | `port_owner` | the process that has port 4791, for error texts; addresses where none has it |
//! | `stopped_holders` | stopped processes that keep new clients from this one |
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

/// ECN bits of the IP header (RFC 3168): of datagrams that the network may mark instead of dropping them, and of marked
/// ones.
pub(crate) const ECT_0: u8 = 2;
pub(crate) const CE: u8 = 3;

/// Verdict on a datagram by its ICRC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The datagram is unchanged since it was sent.
    Taken {
        /// True if the sender is a software device like ours.
        is_soft: bool,
    },
    /// The ICRC does not decide: the datagram is accepted only if its content proves it.
    Unsure,
}

/// Judges datagrams for a link.
pub trait Judge {
    /// Returns the current time.
    fn now(&self) -> Time;

    /// Judges a datagram; `None` if its ICRC does not match its headers. The receiver, which may have
    /// detected an address translator, checks it again.
    fn judge(&mut self, datagram: Datagram<'_>) -> Option<Verdict>;

    /// Reports a datagram that the link drops without having it judged.
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

    /// Opens the address: this link then receives the packets to its port that are for this process. Has no
    /// effect on an open address.
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

    /// Returns a source of datagrams from an open address other than the link's port, if the link can have one.
    fn other_source(&mut self, address: IpAddr) -> SocketAddr {
        self.source(address)
    }

    /// Returns true if datagrams between these addresses pass a network, whose queues other traffic fills.
    fn is_between_hosts(&self, from: IpAddr, to: IpAddr) -> bool {
        let _ = (from, to);
        false
    }

    /// Returns the MTU of the interface that has the address, in bytes including IP headers.
    ///
    /// # Errors
    /// [`LinkError::NoSuchAddress`].
    fn mtu(&self, address: IpAddr) -> Result<u32, LinkError>;

    /// Joins new datagrams of the batch to messages of several segments, which changes their ICRCs. `send` does this too;
    /// call it before the packets are shown as they will be on the wire.
    fn segment(&mut self, batch: &mut SendBatch) {
        let _ = batch;
    }

    /// Sends from the front of the batch, in order, each datagram from the open address in its `source`.
    /// Datagrams that were sent, or can never be sent, are removed from the batch; those that the system has
    /// no room for now stay for a later call.
    fn send(&mut self, batch: &mut SendBatch, now: Time);

    /// Replaces the content of the batch by datagrams that have arrived, up to its capacity. Returns how many
    /// were taken, including datagrams that were refused or are for another process. 0 means that all open
    /// addresses are empty; the batch's capacity means that more datagrams may wait.
    fn receive(&mut self, batch: &mut ReceiveBatch) -> usize;

    /// Like [`Link::receive`]. A link that forwards datagrams to other processes first has each judged, in
    /// the order of their arrival.
    fn receive_judged(&mut self, batch: &mut ReceiveBatch, judge: &mut dyn Judge) -> usize {
        let _ = judge;
        self.receive(batch)
    }

    /// Takes the next report on a datagram that was not delivered. At most a few wait, until the next `receive`.
    fn next_icmp_error(&mut self) -> Option<IcmpError> {
        None
    }

    /// Prepares the link for its owner to sleep on [`Link::fds`]: a datagram that arrives from now on makes
    /// one of them readable. Returns true if datagrams are already waiting; the owner must not sleep then.
    /// The next `receive` disarms the link.
    fn arm(&mut self) -> bool;

    /// Returns true if an edge-triggered watcher is notified of every datagram, regardless of how earlier
    /// ones were received. In that case `receive` does not disarm the link.
    fn stays_armed(&self) -> bool {
        false
    }

    /// Returns true if the link itself holds no datagram or report that was taken off a descriptor.
    fn is_drained(&self) -> bool {
        true
    }

    /// Returns true if datagrams wait, armed or not. A simulation calls this where a thread would sleep on
    /// [`Link::fds`].
    fn has_arrivals(&self) -> bool {
        udp_ffi::any_readable(self.fds().into_iter())
    }

    /// Returns the descriptors that become readable when datagrams arrive. They change with `open` and
    /// `close`, and when [`Link::changes`] does.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Returns a number that grows when the descriptors change without `open` or `close`.
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
