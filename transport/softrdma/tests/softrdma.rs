//! Tests of the software device, in one binary to save link time. A test that inspects its whole process runs in
//! a separate process (`runs_alone`).

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

mod common;
mod conformance;
mod device;
mod idle;
mod no_allocation;
mod processes;
mod simulated_members;
mod virtual_time;
