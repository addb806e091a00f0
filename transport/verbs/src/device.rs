//! Opened devices, which create all other objects.

use crate::channel::is_readable;
use crate::{
    AsyncEvent, Clock, CompletionChannel, CompletionQueue, ConnectionManager, Counter, CqInit, GidEntry, Mtu,
    ProtectionDomain, QpInit, QpNumber, QueuePair, SharedReceiveQueue, SrqInit, VerbsError, XrcDomain,
    XrcdFlags,
};
use std::any::Any;
use std::fmt::Debug;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

bitflags::bitflags! {
    /// Optional features of a device.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct DeviceCapabilities: u32 {
        /// XRC domains, XRC SRQs, INI and TGT QPs (`IBV_DEVICE_XRC`).
        const XRC = 1;
        /// SRQs can be resized (`IBV_DEVICE_SRQ_RESIZE`).
        const SRQ_RESIZE = 1 << 1;
        /// Compare-and-swap and fetch-and-add on remote memory.
        const ATOMICS = 1 << 2;
    }
}

/// Properties and limits of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// The device's name.
    pub name: String,
    /// The kind of link, for reports, such as `udp`, `in-process` or `infiniband`; `shm` for a device that is limited to
    /// shared memory.
    pub link: String,
    /// Node GUID; also the CA GUID in CM messages.
    pub guid: u64,
    /// Optional features.
    pub capabilities: DeviceCapabilities,
    /// Maximum number of QPs.
    pub max_qp: u32,
    /// Maximum number of work requests in a send or receive queue.
    pub max_qp_wr: u32,
    /// Maximum number of SGEs of a work request in a send or receive queue.
    pub max_sge: u32,
    /// Maximum number of CQs.
    pub max_cq: u32,
    /// Maximum number of entries of a CQ.
    pub max_cqe: u32,
    /// Maximum number of memory regions.
    pub max_mr: u32,
    /// Maximum length of a memory region in bytes.
    pub max_mr_size: u64,
    /// Maximum number of SRQs.
    pub max_srq: u32,
    /// Maximum number of work requests in an SRQ.
    pub max_srq_wr: u32,
    /// Maximum number of SGEs of an SRQ's work request.
    pub max_srq_sge: u32,
    /// Maximum number of READs and atomics that a QP accepts from its peer at a time.
    pub max_dest_rd_atomic: u8,
    /// Maximum number of READs and atomics that a QP can have outstanding.
    pub max_rd_atomic: u8,
    /// Maximum number of inline bytes of a send.
    pub max_inline_data: u32,
    /// Number of ports, which are numbered from 1.
    pub ports: u8,
}

/// The link state of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    /// The port has no link.
    Down,
    /// The port is ready for traffic.
    Active,
}

/// Current properties of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortAttributes {
    /// Link state.
    pub state: PortState,
    /// The largest MTU that the port supports.
    pub max_mtu: Mtu,
    /// The largest MTU that fits the current MTU of the port's link.
    pub active_mtu: Mtu,
    /// Maximum length of a message in bytes.
    pub max_message_bytes: u32,
    /// Number of entries of the GID table, used or not.
    pub gid_table_length: u16,
}

/// The owner of an IP address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressOwner {
    /// A process of this user on this host.
    ThisUser,
    /// This host. Any of its users may send from the address.
    ThisHost,
    /// Another host.
    OtherHost,
}

/// An opened device.
pub trait Device: Any + Send + Sync + Debug {
    /// Returns the properties and limits of the device.
    fn attributes(&self) -> &DeviceAttributes;

    /// Returns the current properties of a port, numbered from 1.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for a port that does not exist.
    fn port(&self, port: u8) -> Result<PortAttributes, VerbsError>;

    /// Returns the used entries of port 1's GID table, in the order of their index.
    fn gid_table(&self) -> Vec<GidEntry>;

    /// Returns the owner of an address, as far as the device can determine it. May make system calls.
    fn address_owner(&self, address: IpAddr) -> AddressOwner {
        let is_own = self.gid_table().iter().any(|entry| entry.gid.ip() == address);
        if is_own { AddressOwner::ThisHost } else { AddressOwner::OtherHost }
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`VerbsError::OutOfResources`].
    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError>;

    /// Creates a completion channel.
    ///
    /// # Errors
    /// The operating system's error if no file descriptor is available.
    fn create_completion_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError>;

    /// Creates a completion queue.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for a capacity of 0 or above the device's limit.
    fn create_cq(&self, init: CqInit) -> Result<Arc<dyn CompletionQueue>, VerbsError>;

    /// Opens the XRC domain of a file's inode, or with `None` a new private domain (contract A1 to A7).
    ///
    /// # Errors
    /// The errors in the table of contract A5.
    fn open_xrcd(
        &self,
        file: Option<BorrowedFd<'_>>,
        flags: XrcdFlags,
    ) -> Result<Arc<dyn XrcDomain>, VerbsError>;

    /// Creates a shared receive queue (contract D1 to D5).
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for capacities out of range or objects of another device.
    fn create_srq(&self, init: SrqInit) -> Result<Arc<dyn SharedReceiveQueue>, VerbsError>;

    /// Creates a queue pair in the state RESET.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] if the parameters do not match the QP type (contract C1, C11, C12).
    fn create_qp(&self, init: QpInit) -> Result<Arc<dyn QueuePair>, VerbsError>;

    /// Opens another handle to a TGT in the domain (contract C4 to C8).
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] if the domain has no TGT with that number.
    fn open_qp(&self, xrcd: &Arc<dyn XrcDomain>, number: QpNumber) -> Result<Arc<dyn QueuePair>, VerbsError>;

    /// Returns the connection manager of the device.
    fn connection_manager(&self) -> &dyn ConnectionManager;

    /// Takes one asynchronous event, if one is waiting.
    fn next_async_event(&self) -> Option<AsyncEvent>;

    /// Returns a descriptor that is readable while asynchronous events are waiting.
    fn async_event_fd(&self) -> BorrowedFd<'_>;

    /// Returns true if [`Device::async_event_fd`] is readable now. Simulations call this instead of sleeping on the
    /// descriptor.
    fn has_async_event(&self) -> bool {
        is_readable(self.async_event_fd())
    }

    /// Returns the clock of the device's timers. Users of the device read the same clock.
    fn clock(&self) -> Clock {
        Clock::monotonic()
    }

    /// Returns the device's counters. Providers report `rnr_nak_sent`, `rnr_nak_received`, `retransmits`, `packets_sent` and
    /// `packets_received`, but omit counters without a known value.
    fn counters(&self) -> Vec<Counter>;
}
