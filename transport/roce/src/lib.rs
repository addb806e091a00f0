//! RoCEv2 with RC and XRC, without I/O. The crate contains packet formats and the ICRC, the reliable protocol, the
//! communication manager, and capture files.
//!
//! The types here never block; the caller collects their output with the `poll_*` methods. Equal calls give
//! equal results. The types never panic or grow without bound on any input.
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod cm;
pub mod engine;
pub mod fuzz;
#[cfg(test)]
mod fuzz_replay;
pub mod pcap;
mod permutation;
#[cfg(test)]
mod vectors;
pub mod wire;

pub use permutation::Permutation;
