//! Calls over real trunks. Two nodes in one process exchange UDP packets. Each node has a loopback address that no other
//! test uses.
//!
//! Threads and sockets are real, because calls from threads outside the nodes and `block_on` require them. `cargo simulate`
//! tests calls in virtual time.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]
#![expect(clippy::disallowed_methods, reason = "in real time, see above")]

mod common;
mod fuzz_replay;
mod gate;
mod logged;
mod pages;

/// Calls and channels, as seen by callers.
mod client {
    mod balance;
    mod blocking;
    mod callers;
    mod channels;
    mod failures;
    mod last;
    mod local;
    mod made;
    mod memory;
    mod order;
    mod patient;
    mod threads;
    mod waiting;
}

/// Start and shutdown of nodes, and the processes and hosts on which they run.
mod node {
    mod drain;
    mod files;
    mod forked;
    mod identity;
    mod in_process;
    mod lifecycle;
    mod paths;
    mod ports;
    mod runtimes;
    mod sealed;
    mod signals;
    mod stopped;
    mod stuck;
}

/// Interceptors, metadata, traces, health and call counters.
mod observe {
    mod health;
    mod interceptors;
    mod metadata;
    mod numbers;
    mod record;
    mod traces;
}

/// Handlers: their authorization, their threads and their limits.
mod server {
    mod authorize;
    mod context;
    mod decoded;
    mod handlers;
    mod held;
    mod limits;
    mod panicking;
    mod pool;
    mod timers;
}

/// Streams of items.
mod streams {
    mod ends;
    pub(crate) mod items;
    mod unfinished;
}

/// Types, names and versions in services.
mod types {
    mod compatible;
    mod encoding;
    mod errors;
    mod evolution;
    mod generated;
    #[allow(non_snake_case, reason = "methods may have the names of constants and types")]
    mod names;
    mod shapes;
    mod values;
}
