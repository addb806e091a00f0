//! The software RDMA device behind the C ABI of libibverbs and librdmacm.
//!
//! Unmodified verbs programs run on it: `cargo dropin` makes `libibverbs.so.1` and
//! `librdmacm.so.1` of this crate, and `LD_LIBRARY_PATH=target/dropin PROGRAM` does the rest.
//!
//! | module | what it is |
//! |---|---|
//! | [`abi`] | the C structures, checked against the headers |
//! | [`verbs`] | what libibverbs exports, and the tables that its inline functions call |
//! | [`legacy`] | the XRC calls of OFED 1.x, which libibverbs never had |
//! | [`cm`] | what librdmacm exports |
//! | `border` | errno and panics at the edge between C and Rust |
//!
//! Nothing in Rust depends on this crate.

pub mod abi;
mod border;
pub mod cm;
pub mod legacy;
pub mod verbs;
