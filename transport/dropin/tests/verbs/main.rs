//! Tests of libibverbs' functions through the C interface, on one device in one process.
//!
//! The tests use real time, because a C program sees the system's clock, descriptors and threads.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

#[path = "../common/mod.rs"]
mod common;
mod completion;
mod lab;
mod objects;
mod posting;
mod threads;
