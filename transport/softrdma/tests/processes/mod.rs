//! Several processes with devices of one host. The tests start this binary again as the other processes.
//!
//! The processes are real and are stopped and killed, so the tests run in real time. `simulated_members.rs` tests
//! simulated processes in virtual time.

#![expect(clippy::disallowed_methods, reason = "in real time, see above")]

mod closed_streams;
mod host_processes;
mod killed;
mod limits;
mod local_users;
mod memory;
mod one_address;
mod privileges;
mod shared_targets;
mod stopped_holder;
