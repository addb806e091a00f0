//! What librdmacm exports, over the connection traits of `trunkline_verbs`.
//!
//! | part | files |
//! |---|---|
//! | what a process has one of | `host` |
//! | ids, channels, events | `id`, `channel`, `event` |
//! | where ids are, and who they talk to | `resolve`, `connect`, `sockaddr`, `addrinfo` |
//! | QPs and SRQs made for ids | `qp`, `attributes`, `srq` |
//! | ids that wait for what they ask | `endpoint` |
//! | answers without an id | `devices`, `names` |
//! | what this library has not | `multicast`, `rsocket` |
//!
//! QPs are never attached to endpoints: as in librdmacm, they belong to the program, and are
//! brought up and down by `ibv_modify_qp`. Each exported function is as its manual page says;
//! where that leaves a choice, as rdma-core 44 does. The symbols carry the prefix `trunkline_`:
//! `librdmacm.so.1` jumps to them, so that both libraries share one device.

mod addrinfo;
mod attributes;
mod channel;
mod connect;
mod devices;
mod endpoint;
mod event;
mod host;
mod id;
mod multicast;
mod names;
mod qp;
mod resolve;
mod rsocket;
mod sockaddr;
mod srq;

pub use addrinfo::*;
pub use channel::{rdma_create_event_channel, rdma_destroy_event_channel};
pub use connect::*;
pub use devices::*;
pub use endpoint::*;
pub use event::{rdma_ack_cm_event, rdma_get_cm_event};
pub use id::{rdma_create_id, rdma_destroy_id, rdma_get_dst_port, rdma_get_src_port, rdma_migrate_id};
pub use multicast::*;
pub use names::*;
pub use qp::{rdma_create_qp, rdma_create_qp_ex, rdma_destroy_qp, rdma_init_qp_attr};
pub use resolve::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route, rdma_set_option};
pub use rsocket::*;
pub use srq::{rdma_create_srq, rdma_create_srq_ex, rdma_destroy_srq};
