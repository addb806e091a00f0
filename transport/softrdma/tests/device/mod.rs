//! The software device through its public interface: devices of this process, their packets and connections.
//!
//! The device's own thread does its work here, so time is real; it only bounds waits for events. In
//! virtual time: `virtual_time.rs` and `simulated_members.rs`.

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
