//! What every provider and link must do: the items of the XRC verbs contract as runnable checks.
//!
//! Owns the items, and the small laboratory they are done in: two devices that reach each other,
//! with protection domains, queues and memory. Written against the traits of `trunkline_verbs`
//! alone, so that one suite judges the software device over any link, and hardware. A provider
//! implements [`Bench`] and either calls [`conformance_tests`] in a test of its own, which makes
//! one `#[test]` of each item, or [`run_all`], which gives a [`Report`] to print.
//!
//! An item that a bench cannot be asked is skipped visibly; it is never passed over in silence.
//! The suite never looks behind the traits: bytes on the wire are the provider's own tests.
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
pub use coverage::{COVERAGE, Elsewhere};
pub use item::{Item, Outcome, run};
pub use items::ITEMS;
pub use lab::{Lab, Side};
#[doc(hidden)]
pub use processes::assert_process_item;
pub use processes::{PROCESS_ITEMS, ProcessBench, ProcessItem, run_process_item, serve_puppet};
pub use program::{Wanted, run_program};
pub use report::{Report, Row, run_all};
#[doc(hidden)]
pub use tests_macro::{assert_complete, assert_item};
pub use wire::WireOrder;
