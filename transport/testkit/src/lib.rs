//! Support code that the tests of the workspace share.
//!
//! Owns the surroundings of a test: processes that are driven line by line, loopback
//! addresses that no other test uses, temporary directories, a counting allocator, network namespaces,
//! reproducible random numbers. Used by tests, by the conformance suite, and by the fault rigs in
//! `examples/`. It must never depend on a provider, so that the suite can use it and stay independent of
//! providers; and nothing that ships may depend on it.

mod address;
mod claims;
mod counting;
mod folder;
mod hand_made;
mod namespace;
mod process;
mod random;
mod wait;

pub use address::{fresh_address, fresh_ip};
pub use claims::{Claims, exit_code};
pub use counting::CountingAllocator;
pub use folder::Folder;
pub use hand_made::HandMadeConnection;
pub use namespace::{in_network_namespace, on_small_file_system};
pub use process::{
    Input, NextLine, Numbers, Process, ProcessError, print_line, run, same_program, same_test,
};
pub use random::{Random, bytes_of, key, pattern};
pub use wait::wait_until;
