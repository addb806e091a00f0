//! The verbs objects through which programs use a device.
//!
//! | part | files |
//! |---|---|
//! | memory, domains | `pd`, `xrcd` |
//! | queues | `cq` with its `cq_ring`, `srq`, `qp`; `receive_queue` holds posted receives |
//! | connections | `cm_id` |
//! | events of the device | `async_events` |
#![forbid(unsafe_code)]

pub(super) mod async_events;
pub(super) mod cm_id;
pub(super) mod cq;
pub(super) mod cq_ring;
pub(super) mod pd;
pub(super) mod qp;
pub(super) mod receive_queue;
pub(super) mod srq;
pub(super) mod xrcd;
