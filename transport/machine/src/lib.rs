//! Machines, the rings between their threads, and deliberate faults.
//!
//! Each of Trunkline's threads runs a [`Machine`], a value that does one bounded turn at a time and returns its next action.
//! A [`Runtime`] starts machines. The default runtime gives each machine a thread and the system's clock. A simulation runs
//! all machines of all nodes on one thread, in an order determined by a seed, and advances a virtual clock.
//!
//! | module | contents |
//! |---|---|
//! | `machine` | [`Machine`] and [`Turn`] |
//! | `simulator` | [`Simulator`], the interface to a simulation, and [`Bell`], which wakes a simulated machine |
//! | `runtime` | [`Runtime`], which starts machines and provides their clock and randomness |
//! | `sleeper` | [`Sleeper`], [`Waker`] and [`WatchSet`], for sleeping without losing a wake-up |
//! | `thread` | a thread that drives a machine, and [`Running`], its handle |
//! | [`rings`] | lock-free queues, cells and words that pass work between threads, without I/O |
//! | [`mutants`] | deliberate faults, for the simulation; only compiled with the feature `mutants` |
//!
//! This crate does not depend on what the machines do.

#![deny(unsafe_code)]

mod machine;
pub mod mutants;
#[allow(unsafe_code, reason = "shared memory and lock-free queues")]
pub mod rings;
mod runtime;
mod simulator;
mod sleeper;
mod thread;

pub use machine::{Machine, MakeMachine, Turn};
pub use runtime::Runtime;
pub use simulator::{Bell, Simulator};
pub use sleeper::{Sleeper, Waker, WatchSet};
pub use thread::{NotJoined, Panicked, Running};
