//! Parts of a measurement that the bench of other systems and of the gRPC adapter share: processes, cores, load, times.
//!
//! The other benches include this folder by its path, so it uses nothing else of this crate.

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
