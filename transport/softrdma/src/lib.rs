//! A software RDMA device: RoCEv2 with XRC in user space, unprivileged.
//!
//! The crate `trunkline_roce` implements the protocol. This crate connects it to the operating system:
//!
//! | module | what it is |
//! |---|---|
//! | `host` | state that the members of one host share: the runtime directory and its registry |
//! | [`link`] | transport of packets: in process, UDP; faults and captures wrap any link |
//! | [`device`] | the verbs objects, and the threads that drive the layers below |
//! | [`simulation`] | simulated hosts, with several processes at the addresses of one host |

pub mod device;
mod host;
pub mod link;
pub mod simulation;
