//! Calls over real trunks: two nodes in one process, with UDP between them, each at a loopback address that
//! no other test uses.
//!
//! Threads and sockets are real, which callers on foreign threads and `block_on` need. `cargo simulate` tests
//! calls in virtual time.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]
#![expect(clippy::disallowed_methods, reason = "in real time, see above")]

mod common;
mod fuzz_replay;
mod gate;
mod logged;
mod pages;

/// Calls and channels, as their callers see them.
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

/// Start and end of nodes, and the processes and hosts that they run in.
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

/// Interceptors, metadata, traces, health and the numbers of calls.
mod observe {
    mod health;
    mod interceptors;
    mod metadata;
    mod numbers;
    mod record;
    mod traces;
}

/// Handlers: who may call them, where they run, and their limits.
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

/// Types, names and versions of services.
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
