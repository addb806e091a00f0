//! librdmacm's functions, called as C programs call them.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

mod lab;

mod datagram;
mod endpoints;
mod events;
mod exits;
mod routes;
mod rules;
mod threads;
