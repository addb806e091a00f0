//! The software RDMA device with the C ABI of libibverbs and librdmacm.
//!
//! Unmodified verbs programs run on it: `cargo dropin` builds `libibverbs.so.1` and `librdmacm.so.1`
//! from this crate, and `LD_LIBRARY_PATH=target/dropin PROGRAM` makes a program use them.
//!
//! | module | contents |
//! |---|---|
//! | [`abi`] | the C structures, checked against the headers |
//! | [`verbs`] | the exports of libibverbs, and the tables that its inline functions call |
//! | [`legacy`] | the XRC calls of OFED 1.x, which are not part of libibverbs |
//! | [`cm`] | the exports of librdmacm |
//! | `border` | pointers, errno and panics between C and Rust |
//!
//! No other crate depends on this one.

pub mod abi;
mod border;
pub mod cm;
pub mod legacy;
pub mod verbs;
