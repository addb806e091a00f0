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

mod bench;
mod check;
mod connect;
mod item;
mod items;
mod lab;
mod report;
mod tests_macro;
mod traffic;

pub use bench::{Bench, Port};
pub use check::Deviation;
pub use item::{Item, Outcome, run};
pub use items::ITEMS;
pub use lab::{Lab, Side};
pub use report::{Report, run_all};
#[doc(hidden)]
pub use tests_macro::{assert_complete, assert_item};
