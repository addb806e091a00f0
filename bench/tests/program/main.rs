//! The benchmark as a program: what its subcommands print and write, and its exit codes. Never a time.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

mod across;
mod commands;
mod compare;
mod report;
