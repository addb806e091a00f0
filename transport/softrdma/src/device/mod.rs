//! The software RDMA device: verbs objects, and the threads that drive the layers below.
//!
//! Owns all objects that a program can hold of a device. Called through the traits of `trunkline_verbs`;
//! [`SoftProvider`] and [`SoftDevice::open`] are the entry points. It must never wait for the network inside
//! a call.
//!
//! | part | files |
//! |---|---|
//! | entry points | `provider`, `soft_device`, `opening`, `options`, `slot`, `unknown_srq` |
//! | objects | `pd`, `mr`, `cq`, `channel`, `xrcd`, `srq`, `qp`, `cm_id`, `cm_channel`, `async_events` |
//! | control and shards | `device_parts`, `shards`, `shard_lock` (a shard under its lock), `shard_maker`, `reach` (control's access to them) |
//! | the data path | `shard`: QPs, packets in and out, timers |
//! | slow operations | `control`: connections, addresses, changes of QPs, removal |
//! | TGTs that processes share | `sharing`, which only devices of several processes need |
//! | tables read by all shards | `tables`: `keys` (memory by key), `srqs` |
//! | other tables | `directory` (QPs by shard), `domain_table` (XRC domains by file), `gid_table`, `numbers`, `guid`, `limits` |
//! | threads and their duties | `core`, `progress` (the words), `wake_up`, `background` (a shard's thread) |
//!
//! # Locks
//! Control's lock is taken first, then the lock of the first shard, then the lock of any other. CQs, SRQs,
//! channels, events, the directory and the writers of the tables have small separate locks, which are taken
//! last and never held during a call into another object. A poller only tries its shard's lock, and reads its
//! CQ in any case. It tries control's lock while it holds no shard.

mod async_events;
mod background;
mod channel;
mod cm_channel;
mod cm_id;
mod control;
mod core;
mod counters;
mod cq;
mod cq_ring;
mod device_parts;
mod directory;
mod domain_table;
mod fork;
mod gid_table;
mod guid;
mod keys;
mod limits;
mod mr;
mod numbers;
mod opening;
mod options;
mod pd;
mod progress;
mod provider;
mod qp;
mod random;
mod reach;
mod receive_queue;
mod shard;
mod shard_lock;
mod shard_maker;
mod shards;
mod sharing;
mod signal;
mod slot;
mod soft_device;
mod srq;
mod srqs;
mod tables;
mod unknown_srq;
mod use_count;
mod wait;
mod wake_up;
mod xrcd;

pub use crate::host::{
    DeviceList, FoundNode, HostError, MAX_NODE_BYTES, MAX_NODES, NodeSocket, ask_nodes, list_devices,
    put_back, take_away,
};
pub use fork::Held;
pub use options::{LinkChoice, LinkFactory, LinkWrapper, OpenError, SoftOptions};
pub use provider::SoftProvider;
pub use slot::Slot;
pub use soft_device::SoftDevice;
pub use trunkline_verbs::PathChoice;
pub use unknown_srq::UnknownSrq;
