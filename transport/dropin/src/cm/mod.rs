//! Exported functions of librdmacm, implemented with the connection traits of `trunkline_verbs`.
//!
//! | part | files |
//! |---|---|
//! | the process's device, and its table of ids | `host` |
//! | ids, channels, events | `id`, `fields`, `migrate`, `channel`, `event` |
//! | addresses, routes and connections | `resolve`, `address`, `connect`, `sockaddr`, `addrinfo` |
//! | QPs and SRQs created for ids | `qp`, `attributes`, `srq` |
//! | ids whose calls wait for their outcome | `synchronous`, `endpoint` |
//! | functions without an id | `devices`, `names` |
//! | missing features | `multicast`, `rsocket` |
//!
//! As in librdmacm, QPs are not attached to endpoints. They belong to the program, and `ibv_modify_qp` changes their state.
//! Each exported function behaves as its manual page specifies, and otherwise as in rdma-core 44. The symbols have the
//! prefix `trunkline_`, and `librdmacm.so.1` jumps to them, so that both libraries share one device.

mod address;
mod addrinfo;
mod attributes;
mod channel;
mod connect;
mod devices;
mod endpoint;
mod event;
mod fields;
mod host;
mod id;
mod migrate;
mod multicast;
mod names;
mod qp;
mod resolve;
mod rsocket;
mod sockaddr;
mod srq;
mod synchronous;

pub use address::{rdma_get_dst_port, rdma_get_src_port};
pub use addrinfo::*;
pub use channel::{rdma_create_event_channel, rdma_destroy_event_channel};
pub use connect::*;
pub use devices::*;
pub use endpoint::*;
pub use event::{rdma_ack_cm_event, rdma_get_cm_event};
pub use id::{rdma_create_id, rdma_destroy_id};
pub use migrate::rdma_migrate_id;
pub use multicast::*;
pub use names::*;
pub use qp::{rdma_create_qp, rdma_create_qp_ex, rdma_destroy_qp, rdma_init_qp_attr};
pub use resolve::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route, rdma_set_option};
pub use rsocket::*;
pub use srq::{rdma_create_srq, rdma_create_srq_ex, rdma_destroy_srq};
