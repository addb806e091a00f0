//! What others depend on: the wire format, the versions of the protocol, and the public API.
//!
//! Its nodes have the device options that each test names, whatever link and connections the environment chooses
//! for the tests of calls.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]
#![expect(clippy::disallowed_methods, reason = "nodes in real time, and a listener on a thread of its own")]

mod public_api;
mod versions;
mod wire;
