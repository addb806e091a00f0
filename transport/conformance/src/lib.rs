//! The conformance suite for providers and links, which runs the items of the XRC contract as checks.
//!
//! It contains the items and their test bed: two devices that can reach each other, with protection domains, queues and
//! memory. It uses only the traits of `trunkline_verbs`, so the same suite tests hardware and the software device over any
//! link. A provider implements [`Bench`]. Its tests call [`conformance_tests`], which expands to one `#[test]` per item, or
//! its programs call [`run_all`], which returns a printable [`Report`].
//!
//! If an item cannot be checked on a bench, it is reported as skipped with the reason. The suite does not inspect packets,
//! so each provider tests its own wire format.
#![forbid(unsafe_code)]

mod allowed;
mod bench;
mod check;
mod connect;
mod contract;
mod coverage;
mod item;
mod items;
mod lab;
mod processes;
mod program;
mod report;
mod tests_macro;
mod traffic;
mod wire;

pub use bench::{Bench, Port};
pub use check::Deviation;
pub use contract::{Clause, clauses};
pub use coverage::{COVERAGE, OtherCoverage};
pub use item::{Item, Outcome, run};
pub use items::ITEMS;
pub use lab::{Lab, Side};
pub use processes::{PROCESS_ITEMS, ProcessBench, ProcessItem, run_process_item, serve_puppet};
#[doc(hidden)]
pub use processes::{Puppet, assert_process_item};
pub use program::{Wanted, run_program};
pub use report::{Report, Row, run_all};
#[doc(hidden)]
pub use tests_macro::{assert_complete, assert_item};
pub use wire::WireOrder;
