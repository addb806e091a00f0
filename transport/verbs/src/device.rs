//! Opened devices: where every other object comes from.

use crate::channel::is_readable;
use crate::{
    AsyncEvent, Clock, CompletionChannel, CompletionQueue, ConnectionManager, Counter, CqInit, GidEntry, Mtu,
    ProtectionDomain, QpInit, QpNumber, QueuePair, SharedReceiveQueue, SrqInit, VerbsError, XrcDomain,
    XrcdFlags,
};
use std::any::Any;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

bitflags::bitflags! {
    /// What a device can do.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct DeviceCapabilities: u32 {
        /// XRC domains, XRC SRQs, INI and TGT QPs (`IBV_DEVICE_XRC`).
        const XRC = 1;
        /// SRQs can be resized (`IBV_DEVICE_SRQ_RESIZE`).
        const SRQ_RESIZE = 1 << 1;
        /// Atomics are supported.
        const ATOMICS = 1 << 2;
    }
}

/// Limits of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Its name.
    pub name: String,
    /// Which link its packets travel on, for reports (`udp`, `in-process`, `infiniband`, ...).
    pub link: String,
    /// Node GUID; also the CA GUID that the CM shows.
    pub guid: u64,
    /// What it can do.
    pub capabilities: DeviceCapabilities,
    /// Most QPs.
    pub max_qp: u32,
    /// Most work requests in a send or receive queue.
    pub max_qp_wr: u32,
    /// Most SGEs in one of them.
    pub max_sge: u32,
    /// Most CQs.
    pub max_cq: u32,
    /// Most entries of a CQ.
    pub max_cqe: u32,
    /// Most memory regions.
    pub max_mr: u32,
    /// Largest region in bytes.
    pub max_mr_size: u64,
    /// Most SRQs.
    pub max_srq: u32,
    /// Most work requests in an SRQ.
    pub max_srq_wr: u32,
    /// Most SGEs in one of them.
    pub max_srq_sge: u32,
    /// READs and atomics a QP can serve at once.
    pub max_dest_rd_atomic: u8,
    /// READs and atomics a QP can have outstanding.
    pub max_rd_atomic: u8,
    /// Most inline bytes in a send.
    pub max_inline_data: u32,
    /// Ports, numbered from 1.
    pub ports: u8,
}

/// State of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    /// No link.
    Down,
    /// Ready for traffic.
    Active,
}

/// A port now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortAttributes {
    /// Up or down.
    pub state: PortState,
    /// Largest MTU it supports.
    pub max_mtu: Mtu,
    /// MTU that fits its link now.
    pub active_mtu: Mtu,
    /// Largest message in bytes.
    pub max_message_bytes: u32,
    /// Size of the GID table.
    pub gid_table_length: u16,
}

/// An opened device.
pub trait Device: Any + Send + Sync + Debug {
    /// Its limits.
    fn attributes(&self) -> &DeviceAttributes;

    /// State of a port, numbered from 1.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for a port it does not have.
    fn port(&self, port: u8) -> Result<PortAttributes, VerbsError>;

    /// Used entries of port 1's GID table, by index.
    fn gid_table(&self) -> Vec<GidEntry>;

    /// Makes a protection domain.
    ///
    /// # Errors
    /// [`VerbsError::OutOfResources`].
    fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError>;

    /// Makes a completion channel.
    ///
    /// # Errors
    /// What the operating system answered when it was asked for a descriptor.
    fn create_completion_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError>;

    /// Makes a completion queue.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for a capacity of 0 or above the device's.
    fn create_cq(&self, init: CqInit) -> Result<Arc<dyn CompletionQueue>, VerbsError>;

    /// Opens an XRC domain: that of the file's inode, or with `None` a new private one
    /// (contract A1 to A7).
    ///
    /// # Errors
    /// By the table of contract A5.
    fn open_xrcd(
        &self,
        file: Option<BorrowedFd<'_>>,
        flags: XrcdFlags,
    ) -> Result<Arc<dyn XrcDomain>, VerbsError>;

    /// Makes a shared receive queue (contract D1 to D5).
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for capacities out of range or objects of another device.
    fn create_srq(&self, init: SrqInit) -> Result<Arc<dyn SharedReceiveQueue>, VerbsError>;

    /// Makes a queue pair in state RESET.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] when the parts do not fit the type (contract C1, C11, C12).
    fn create_qp(&self, init: QpInit) -> Result<Arc<dyn QueuePair>, VerbsError>;

    /// Opens a further handle on a TGT of the domain (contract C4 to C8).
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] when no TGT of that number is in the domain.
    fn open_qp(&self, xrcd: &Arc<dyn XrcDomain>, number: QpNumber) -> Result<Arc<dyn QueuePair>, VerbsError>;

    /// The connection manager of the device.
    fn connection_manager(&self) -> &dyn ConnectionManager;

    /// Takes one asynchronous event, if there is one now.
    fn next_async_event(&self) -> Option<AsyncEvent>;

    /// Becomes readable when there are asynchronous events.
    fn async_event_fd(&self) -> BorrowedFd<'_>;

    /// Whether [`Device::async_event_fd`] is readable now. A simulation asks, where a thread would sleep on it.
    fn has_async_event(&self) -> bool {
        is_readable(self.async_event_fd())
    }

    /// The clock that the device's own timers run by. Whoever uses the device reads the same one.
    fn clock(&self) -> Clock {
        Clock::monotonic()
    }

    /// The device's counters. Providers name at least `rnr_nak_sent`, `rnr_nak_received`,
    /// `retransmits`, `packets_sent`, `packets_received`; one that cannot know a value leaves
    /// it out.
    fn counters(&self) -> Vec<Counter>;
}
