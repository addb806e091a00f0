//! Several processes with devices of one host. The tests start this binary again as the other processes.
//!
//! They are real processes that are stopped and killed, so time is real; the same in virtual time:
//! `simulated_members.rs`.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]
#![expect(clippy::disallowed_methods, reason = "in real time, see above")]

#[path = "../common/mod.rs"]
mod common;

mod host_processes;
mod limits;
mod memory;
mod memory_deaths;
mod one_address;
mod shared_targets;
mod two_processes;
