//! Machines, rings and wake-ups, tested with plain threads. The loom models are in `src/rings`.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

mod cell;
mod shared;
mod spsc;
mod thread;
mod wakeups;
