//! The verbs traits for the kernel's RDMA devices, over libibverbs and librdmacm.
//!
//! With the feature `rdma-core`, this crate is a provider of [`trunkline_verbs`] for all devices that libibverbs and
//! librdmacm support, from physical NICs to the kernel's soft RoCE. Building it requires Debian's libibverbs-dev,
//! librdmacm-dev and libclang-dev. Without the feature, the crate is empty, so that the whole workspace builds on a machine
//! with only Rust.
//!
//! An object holds references to the objects that it uses. A program may drop objects in any order, and the C objects are
//! destroyed in the order that C requires. All objects are created on the `ibv_context` that librdmacm keeps for the
//! device.
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
mod limits;
mod listing;
mod mr;
mod pd;
mod post;
mod provider;
mod qp;
mod registration;
mod srq;
mod xrcd;

pub use cm::device_for;
pub use provider::RdmaCore;
