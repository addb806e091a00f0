//! RDMA devices of the kernel: the verbs traits over libibverbs and librdmacm.
//!
//! With the feature `rdma-core` this crate is a provider of [`trunkline_verbs`]: whatever libibverbs
//! and librdmacm serve, from a NIC to the kernel's soft RoCE. Building it takes Debian's
//! libibverbs-dev, librdmacm-dev and libclang-dev. Without the feature it is empty, so that a machine
//! with Rust alone builds the whole workspace.
#![cfg(feature = "rdma-core")]
