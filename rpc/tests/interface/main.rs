//! Interfaces on which other code depends: the wire format, the protocol versions, the public API, and the errors reported
//! by the macro.
//!
//! This is a separate program, because the tests of calls are also run with links and connections that these tests cannot
//! use.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]
#![expect(clippy::disallowed_methods, reason = "nodes in real time, and a listener on a thread of its own")]

mod compile_errors;
mod public_api;
mod troubleshooting;
mod versions;
mod wire;
