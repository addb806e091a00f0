//! RDMA devices of the kernel: the verbs traits over libibverbs and librdmacm.
//!
//! With the feature `rdma-core` this crate is a provider of [`trunkline_verbs`]: whatever libibverbs
//! and librdmacm serve, from a NIC to the kernel's soft RoCE. Building it takes Debian's
//! libibverbs-dev, librdmacm-dev and libclang-dev. Without the feature it is empty, so that a machine
//! with Rust alone builds the whole workspace.
//!
//! Objects hold the objects they are made of, so whatever order a program drops them in, the C
//! objects are destroyed in the order that C needs. All of them are made on the one `ibv_context`
//! that librdmacm keeps for a device.
#![cfg(feature = "rdma-core")]

mod async_events;
mod channel;
mod cm;
mod context;
mod convert;
mod counters;
mod cq;
mod device;
mod diagnosis;
mod error;
mod handle;
mod inlines;
mod mr;
mod pd;
mod post;
mod provider;
mod qp;
mod srq;
mod xrcd;

pub use cm::device_for;
pub use provider::RdmaCore;
