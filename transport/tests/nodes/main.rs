//! Whole nodes of this process, and of others: sessions, messages, outcomes, and peers that die or misbehave.
//!
//! Real threads, sockets and, for deaths, processes: what a node's threads and the system's clock do to each other.
//! Clocks here only bound waits for events; sessions and messages in virtual time are `cargo simulate`'s.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]
#![expect(clippy::disallowed_methods, reason = "in real time, see above")]

#[path = "../common/mod.rs"]
mod common;

mod crowding;
mod deaths;
mod hostile;
mod memory;
mod messages;
mod outcomes;
mod pollers;
mod rc;
mod removal;
mod sessions;
