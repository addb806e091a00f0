//! Tests of devices in this process through the public interface.
//!
//! Each device has its own thread here, so the tests run in real time, which only bounds waits for events.
//! `virtual_time.rs` and `simulated_members.rs` test devices in virtual time.

#![expect(clippy::disallowed_methods, reason = "in real time, see above")]

mod choices;
mod cm_nonsense;
mod connection_steps;
mod connections;
mod final_acknowledgement;
mod foreign_peer;
mod forged;
mod forged_on_host;
mod hostile;
mod interfaces;
mod legacy;
mod local_users;
mod removal;
mod service_questions;
mod shards;
mod two_devices;
