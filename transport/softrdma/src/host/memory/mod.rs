//! Memory that processes of a host share.
//!
//! `segment` maps files whose words are atomics, `area` is memory that one member writes and another reads,
//! and `simulated` replaces both in a simulation.

pub(super) mod area;
pub(super) mod area_ffi;
pub(super) mod segment;
pub(crate) mod simulated;
