//! Tests of librdmacm's functions through the C interface, including the conformance items in C.
//!
//! The tests use real time, because a C program sees the system's clock, descriptors and threads.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../conformance_c.rs"]
mod conformance_c;
mod lab;

mod datagram;
mod endpoints;
mod events;
mod exits;
mod routes;
mod rules;
mod threads;
