//! The software RDMA device, with its verbs objects and the threads that drive the layers below.
//!
//! Owns all objects through which programs use a device. Called through the traits of `trunkline_verbs`;
//! [`SoftProvider`] and [`SoftDevice::open`] are the entry points. A call must never wait for the network.
//!
//! | part | files |
//! |---|---|
//! | entry points | `provider`, `soft_device`, `opening`, `options`, `slot` |
//! | verbs objects | `objects` |
//! | control and shards | `core`, `device_parts`, `shards` |
//! | the data path | `shard`: QPs, packets in and out, timers |
//! | slow operations | `control`: connections, addresses, changes to QPs, removal |
//! | TGTs that processes share | `sharing`, used only by devices that share TGTs between processes |
//! | tables, numbers, keys | `tables`; `keys` and `srqs` are read by all shards |
//! | sleeping, waking, background threads | `threads` |
//!
//! # Locks
//! The lock of control is taken first, then the lock of the first shard, then the lock of another shard. CQs, SRQs,
//! channels, events, the directory and the writers of the tables have small separate locks, which are taken last and
//! never held during a call into another object. A poller only tries its shard's lock, and reads its CQ even if that
//! fails. It tries control's lock only while it does not hold a shard's lock.

mod control;
mod core;
mod counters;
mod device_parts;
mod objects;
mod opening;
mod options;
mod provider;
mod shard;
mod shards;
mod sharing;
mod slot;
mod soft_device;
mod tables;
mod threads;

pub use crate::host::ask_nodes;
pub use crate::host::existing_folder;
pub use crate::host::list_devices;
pub use crate::host::put_back;
pub use crate::host::runtime_directory;
pub use crate::host::take_away;
pub use crate::host::{DeviceList, FoundNode, HostError, MAX_NODE_BYTES, MAX_NODES, NodeRequest, NodeSocket};
pub use options::{LinkChoice, LinkFactory, OpenError, SoftOptions};
pub use provider::SoftProvider;
pub use shard::MAX_SHARED_BYTES;
pub use slot::Slot;
pub use soft_device::{Held, SoftDevice};
pub use tables::srqs::UnknownSrq;
pub use trunkline_verbs::PathChoice;

/// Name of the device.
const DEVICE_NAME: &str = "trunkline0";
/// Maximum number of QPs.
const MAX_QPS: usize = 1 << 16;
/// Maximum number of SRQs.
const MAX_SRQS: usize = 1 << 16;
/// Maximum number of memory regions.
const MAX_REGIONS: u32 = 1 << 20;
/// Maximum number of work requests in any queue.
const MAX_WR: u32 = 32_768;
/// Maximum number of SGEs of a work request.
const MAX_SGE: u32 = 32;
/// Maximum inline data of a work request, in bytes.
const MAX_INLINE: u32 = 1024;
/// Maximum number of entries of a CQ.
const MAX_CQE: u32 = 1 << 22;
/// Maximum length of a message, in bytes.
const MAX_MESSAGE: u32 = 1 << 30;
/// Maximum number of READs and atomics that a QP serves, or has outstanding.
const MAX_RD_ATOMIC: u8 = 128;
