//! Runs the conformance suite on the software device, over each link and between processes.
//!
//! The tests run in real time, because the suite also runs on NICs and the kernel's devices.

#![expect(clippy::disallowed_methods, reason = "in real time, see above")]

mod links;
mod processes;
mod wire_peers;
