//! The software RDMA device: verbs objects, and the threads that drive the layers below.
//!
//! Owns everything a program can hold of a device. Called through the traits of
//! `trunkline_verbs`; [`SoftProvider`] and [`SoftDevice::open`] are the ways in. It must never
//! wait for the network inside a call.
//!
//! | part | files |
//! |---|---|
//! | ways in | `provider`, `soft_device`, `opening`, `options`, `slot`, `unknown_srq` |
//! | objects | `pd`, `mr`, `cq`, `channel`, `xrcd`, `srq`, `qp`, `cm_id`, `cm_channel`, `async_events` |
//! | the card, under one lock | `card`, of `control` and one `shard` |
//! | the data path | `shard`: QPs, SRQs, packets in and out, timers |
//! | everything slow | `control`: connections, addresses, changes of QPs, removal |
//! | TGTs that processes share | `sharing`, which only devices of several processes need |
//! | tables | `keys` (memory by key), `domain_table` (XRC domains by file), `gid_table`, `numbers`, `guid`, `limits` |
//! | who does the work | `core`, `card_lock`, `progress` (the words), `background` (the thread) |
//!
//! # Locks
//! The card's lock is taken first; CQs, channels and events have small locks of their own, which
//! are taken last and never around a call into anything else. A poller only tries the card's
//! lock, and reads its CQ in any case.

mod async_events;
mod background;
mod card;
mod card_lock;
mod channel;
mod cm_channel;
mod cm_id;
mod control;
mod core;
mod counters;
mod cq;
mod cq_ring;
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
mod receive_queue;
mod shard;

mod sharing;
mod signal;
mod slot;
mod soft_device;
mod srq;
mod unknown_srq;
mod use_count;
mod xrcd;

pub use crate::host::{HostError, put_back, take_away};
pub use fork::Held;
pub use options::{LinkChoice, LinkFactory, LinkWrapper, OpenError, SoftOptions};
pub use provider::SoftProvider;
pub use slot::Slot;
pub use soft_device::SoftDevice;
pub use unknown_srq::UnknownSrq;
