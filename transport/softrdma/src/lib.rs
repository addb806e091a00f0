//! A software RDMA device that implements RoCEv2 with XRC in user space, without privileges.
//!
//! The crate `trunkline_roce` implements the protocol. This crate connects it to the operating system:
//!
//! | module | what it is |
//! |---|---|
//! | `host` | the runtime directory and the registry, which the members of one host share |
//! | [`link`] | transports of packets, in process and over UDP; fault injection and captures for any link |
//! | [`device`] | the verbs objects, and the threads that drive the layers below |
//! | [`simulation`] | simulated hosts whose processes share the addresses of the host |

pub mod device;
mod host;
pub mod link;
pub mod simulation;
