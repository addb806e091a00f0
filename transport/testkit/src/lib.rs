//! Support code shared by the tests of the workspace.
//!
//! It provides processes that are controlled line by line, unused loopback addresses, temporary directories, a counting
//! allocator, network namespaces, reproducible random numbers, hostile peers, and the examples in documents. It is used by
//! tests, the conformance suite, the simulation of whole nodes, and the fault rigs in `examples/`.
//!
//! The crate must not depend on a provider, so that the conformance suite stays independent of providers. Released
//! crates must not depend on it.

mod address;
#[cfg(feature = "certificates")]
mod certificates;
mod claims;
mod counting;
mod folder;
mod hand_made;
mod hostile;
mod namespace;
pub mod output;
mod process;
mod process_ffi;
mod random;
mod scrape;
mod stepped;
mod wait;
mod wire_examples;

pub use address::{fresh_address, fresh_ip};
#[cfg(feature = "certificates")]
pub use certificates::{certificate, ed25519};
pub use claims::{Claims, exit_code};
pub use counting::CountingAllocator;
pub use folder::Folder;
pub use hand_made::HandMadeConnection;
pub use hostile::{
    Announcement, Crowd, Decision, Guess, GuessedReads, HandMadePeer, Hello, HostilePeer, Hostility,
    ReadSource, first_srq, frame, post_frame,
};
pub use namespace::{in_network_namespace, is_in_network_namespace, on_small_file_system};
pub use process::{
    Input, NextLine, Numbers, Process, ProcessError, print_line, run, runs_alone, same_program, same_test,
};
pub use process_ffi::{ForkedChild, at_exit, fork_here, in_forked_child};
pub use random::{Random, bytes_of, key, pattern};
pub use scrape::{Labels, Sample, parse_scrape};
pub use stepped::{Stepped, Task};
pub use wait::{wait_readable, wait_until};
pub use wire_examples::{key_examples, message_in, wire_examples};
