//! The rings and what wakes their owners, from plain threads. The loom models are in `src/models.rs`.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]
#![expect(clippy::disallowed_methods, reason = "rings connect real threads here")]

mod cell;
mod shared;
mod spsc;
mod wakeups;
