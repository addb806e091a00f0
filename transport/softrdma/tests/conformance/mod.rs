//! The contracts on the software device: the conformance suite over each link and between processes, and the
//! items that only raw packets or a cluster can check.
//!
//! In real time, because the suite also runs on NICs and the kernel's devices.

#![expect(clippy::disallowed_methods, reason = "in real time, see above")]

mod cluster;
mod links;
mod processes;
mod raw_packets;
mod wire_peers;
