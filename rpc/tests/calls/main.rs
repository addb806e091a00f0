//! Calls over real trunks: two nodes in one process, with UDP between them, each at a loopback address that
//! no other test uses.
//!
//! Threads and sockets are real, which callers on foreign threads and `block_on` need. `cargo simulate` tests
//! calls in virtual time.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]
#![expect(clippy::disallowed_methods, reason = "in real time, see above")]

mod authorize;
mod balance;
mod blocking;
mod callers;
mod channels;
mod common;
mod compatible;
mod context;
mod drain;
mod encoding;
mod errors;
mod evolution;
mod failures;
mod forked;
mod fuzz_replay;
mod gate;
mod generated;
mod handlers;
mod health;
mod held;
mod in_process;
mod interceptors;
mod last;
mod lifecycle;
mod limits;
mod local;
mod logged;
mod made;
mod memory;
mod metadata;
#[allow(non_snake_case, reason = "methods may have the names of constants and types")]
mod names;
mod numbers;
mod order;
mod pages;
mod panicking;
mod paths;
mod pool;
mod ports;
mod runtimes;
mod shapes;
mod signals;
mod stopped;
mod stream_ends;
mod streams;
mod stuck;
mod threads;
mod timers;
mod traces;
mod unfinished;
mod values;
