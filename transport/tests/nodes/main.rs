//! Whole nodes of this process, and of others: sessions, messages, outcomes, and peers that die or misbehave.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

#[path = "../common/mod.rs"]
mod common;

mod crowding;
mod deaths;
mod hostile;
mod messages;
mod outcomes;
mod pollers;
mod rc;
mod sessions;
