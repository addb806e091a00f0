//! Parts of a measurement that the benchmarks of other systems and of the gRPC adapter also use: processes, cores, load
//! and times.
//!
//! The other benchmarks include this folder by its path, so it uses nothing else from this crate.

pub(crate) mod child;
pub(crate) mod failure;
pub(crate) mod load;
pub(crate) mod machine;
pub(crate) mod others;
pub(crate) mod pin;
pub(crate) mod recorder;
pub(crate) mod spread;
pub(crate) mod stopwatch;
pub(crate) mod usage;
