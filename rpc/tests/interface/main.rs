//! Interfaces on which other code depends: the wire format, the protocol versions, the public API, and the errors that the
//! macro reports.
//!
//! These tests are a separate program, because the tests of calls also run with links and kinds of connections that these
//! tests cannot use.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]
#![expect(clippy::disallowed_methods, reason = "nodes in real time, and a listener on a thread of its own")]

mod compile_errors;
mod public_api;
mod troubleshooting;
mod versions;
mod wire;
