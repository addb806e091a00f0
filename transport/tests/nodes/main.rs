//! Tests of whole nodes in this process, with sessions, messages, removed devices and misbehaving peers.
//!
//! They use real threads and sockets, to test how a node's threads and the system's clock affect each other.
//! Clocks here only bound waits for events. `cargo simulate` tests sessions and messages in virtual time.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]
#![expect(clippy::disallowed_methods, reason = "in real time, see above")]

#[path = "../common/mod.rs"]
mod common;

mod crowding;
mod hostile;
mod identity;
mod listing;
mod memory;
mod messages;
mod pollers;
mod prying;
mod rc;
mod removal;
mod sessions;
