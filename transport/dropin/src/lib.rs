//! The software RDMA device with the C ABI of libibverbs and librdmacm.
//!
//! Unmodified verbs programs can use it. `cargo dropin` builds `libibverbs.so.1` and `librdmacm.so.1` from this crate, and
//! `LD_LIBRARY_PATH=target/dropin PROGRAM` runs a program with them.
//!
//! | module | contents |
//! |---|---|
//! | [`abi`] | the C structures, checked against the headers |
//! | [`verbs`] | the exported functions of libibverbs, and the tables that its inline functions use |
//! | [`legacy`] | the XRC functions of OFED 1.x, which are not part of libibverbs |
//! | [`cm`] | the exported functions of librdmacm |
//! | `border` | conversion of pointers, errno and panics between C and Rust |
//!
//! No other crate depends on this one.

pub mod abi;
mod border;
pub mod cm;
pub mod legacy;
pub mod verbs;
