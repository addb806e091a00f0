//! Lock-free rings, completion cells and wake-up words, which carry work between Trunkline's threads.
//!
//! This module contains all atomics that order memory between threads. The software device and the transport's pollers use
//! it. It must never do I/O, sleep, or depend on the type of its items. It uses neither tokio, mio nor file descriptors, so
//! that loom can run all interleavings of each part in plain `cargo test`.
//!
//! The unit tests are the loom models. A test build of the crate uses loom's atomics, so tests of machines, property tests
//! and stress tests are in `tests/`, which link the crate with the atomics of `core`.

pub mod cell;
pub mod crossing;
pub mod doorbell;
pub mod handover;
pub mod keyed;
pub mod lending;
pub mod owned;
pub mod panics;
pub mod published;
pub mod readers;
pub mod shared;
pub mod spsc;
mod sync;

#[cfg(test)]
mod models;
#[cfg(test)]
mod shard_models;
