//! Machines, the rings between their threads, and deliberate faults.
//!
//! The body of each of Trunkline's threads is a [`Machine`]: a value that does one bounded turn at a time and
//! returns its next action. A [`Runtime`] starts machines. The default runtime gives each machine a thread
//! and the system's clock. A simulation runs all machines of all nodes on one thread, in an order that a seed
//! decides, and moves a virtual clock.
//!
//! | file | what it is |
//! |---|---|
//! | `machine` | [`Machine`] and [`Turn`] |
//! | `simulator` | [`Simulator`]: the interface to a simulation; [`Bell`]: wakes a simulated machine |
//! | `runtime` | [`Runtime`]: clock, randomness, and the start of machines |
//! | `sleeper` | [`Sleeper`], [`Waker`] and [`WatchSet`]: going to sleep without losing a wake-up |
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
